// SPDX-License-Identifier: Apache-2.0
//
// From log masses to scores: logZ of each query head, then the maximum over the heads of log mass - logZ.
#pragma once

#include <oasis/cuda/select.hpp>
#include <oasis/cuda/warp.cuh>

#include <cooperative_groups.h>

#include <limits>

namespace oasis::cuda::detail {

/// CTAs that share a row, and what each thread holds of it.
template <int kThreads_, int kItems_, int kCluster_> struct SelectConfig {
    static constexpr int kThreads = kThreads_;
    static constexpr int kItems = kItems_;
    static constexpr int kCluster = kCluster_;
    static constexpr int kWarps = kThreads / 32;
    static constexpr std::int32_t kCapacity = kThreads * kItems * kCluster;

    __device__ static int rank()
    {
        if constexpr (kCluster == 1) { return 0; }
        return int(cooperative_groups::this_cluster().block_rank());
    }
    __device__ static void sync()
    {
        if constexpr (kCluster == 1) {
            __syncthreads();
        } else {
            cooperative_groups::this_cluster().sync();
        }
    }
    /// The same object in the shared memory of another CTA of the cluster.
    template <class T> __device__ static T* remote(T* object, int rank)
    {
        if constexpr (kCluster == 1) { return object; }
        return cooperative_groups::this_cluster().map_shared_rank(object, rank);
    }
};

/// A row's blocks.
struct SelectRange {
    std::int32_t first;
    std::int32_t end;
    std::int32_t sink_end;
    std::int32_t recent_begin;

    __device__ SelectRange(const SelectParams& p, std::int32_t position, std::int32_t capacity)
    {
        end = position < 0 ? 0 : min(position / p.block_tokens + 1, capacity);
        first = position < 0 || p.window <= 0 ? 0 : max(position + 1 - p.window, 0) / p.block_tokens;
        recent_begin = min(max(first, max(0, position + 1 - p.recent) / p.block_tokens), end);
        sink_end = min(max((p.sink + p.block_tokens - 1) / p.block_tokens, first), recent_begin);
    }
    __device__ std::int32_t forced() const { return sink_end - first + end - recent_begin; }
};

template <int kWarps> struct LogSumShared {
    float2 part[kMaxSelectGroup][kWarps]; ///< largest and sum of 256 blocks
    float log_z[kMaxSelectGroup];
};

/// Also beyond the row's end: what is loaded does not wait for its position.
template <int kItems> __device__ void load_masses(const float* mass, std::int64_t stride, std::int32_t begin, float (&x)[kItems])
{
#pragma unroll
    for (int i = 0; i < kItems; i += 4) {
        float4 four = {};
        if (begin + i < stride) { four = *reinterpret_cast<const float4*>(mass + begin + i); }
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

/// Sums 2^(x - largest) of the finite blocks over a warp's 256: threads, then a tree, so that the order depends on positions alone.
template <class C> __device__ float2 warp_log_sum(const float (&x)[C::kItems], std::int32_t begin, const SelectRange& range)
{
    constexpr float kInf = std::numeric_limits<float>::infinity();
    float value[C::kItems];
    float high = -kInf;
#pragma unroll
    for (int i = 0; i < C::kItems; ++i) {
        const bool counts = begin + i >= range.first && begin + i < range.end && isfinite(x[i]);
        value[i] = counts ? x[i] * kLog2E : -kInf;
        high = fmaxf(high, value[i]);
    }
    high = warp_max(high);
    const float shift = high == -kInf ? 0.0F : high;
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < C::kItems; ++i) { sum += exp2f(value[i] - shift); }
    return {high, warp_sum(sum)};
}

/// logZ of every head, in shared memory.
template <class C>
__device__ void find_log_z(const SelectParams& p, LogSumShared<C::kWarps>& shared, const SelectRange& range, const float* mass,
                           std::int32_t begin)
{
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const int lane = int(threadIdx.x % 32);
    const int warp = int(threadIdx.x / 32);
    float next[C::kItems];
    load_masses(mass, p.mass_stride, begin, next);
    for (int h = 0; h < p.group; ++h) {
        float x[C::kItems];
#pragma unroll
        for (int i = 0; i < C::kItems; ++i) { x[i] = next[i]; }
        if (h + 1 < p.group) { load_masses(mass + (h + 1) * p.mass_stride, p.mass_stride, begin, next); }
        const float2 part = warp_log_sum<C>(x, begin, range);
        if (lane == 0) { shared.part[h][warp] = part; }
    }
    C::sync();
    for (int h = warp; h < p.group; h += C::kWarps) {
        constexpr int kParts = C::kWarps * C::kCluster;
        float high = -kInf;
        for (int i = lane; i < kParts; i += 32) { high = fmaxf(high, C::remote(shared.part[h], i / C::kWarps)[i % C::kWarps].x); }
        high = warp_max(high);
        float sum = 0.0F;
        for (int i = lane; i < kParts; i += 32) {
            const float2 part = C::remote(shared.part[h], i / C::kWarps)[i % C::kWarps];
            sum += part.x == -kInf ? 0.0F : part.y * exp2f(part.x - high);
        }
        sum = warp_sum(sum);
        if (lane == 0) { shared.log_z[h] = high == -kInf ? 0.0F : (high + log2f(sum)) * kLn2; }
    }
    __syncthreads();
}

/// Scores of the thread's blocks. Heads whose log mass is NaN are skipped; NaN where all are.
template <class C>
__device__ void load_scores(const SelectParams& p, LogSumShared<C::kWarps>& shared, const SelectRange& range, std::int64_t row,
                            std::int32_t head, std::int32_t begin, float (&scores)[C::kItems])
{
    const float* const mass = p.log_mass + (row * p.kv_heads + head) * p.group * p.mass_stride;
    const bool normalise = p.reduction == GroupReduction::kSoftmaxMax;
    if (normalise) { find_log_z<C>(p, shared, range, mass, begin); }
#pragma unroll
    for (int i = 0; i < C::kItems; ++i) { scores[i] = std::numeric_limits<float>::quiet_NaN(); }
#pragma unroll 2
    for (int h = 0; h < p.group; ++h) {
        float x[C::kItems];
        load_masses(mass + h * p.mass_stride, p.mass_stride, begin, x);
        const float log_z = normalise ? shared.log_z[h] : 0.0F;
#pragma unroll
        for (int i = 0; i < C::kItems; ++i) { scores[i] = fmaxf(scores[i], x[i] - log_z); }
    }
}

} // namespace oasis::cuda::detail
