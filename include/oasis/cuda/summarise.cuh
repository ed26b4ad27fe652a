// SPDX-License-Identifier: Apache-2.0
//
// The summary of one sub-block by half a warp, in the CPU backend's order of operations: lane i has channels i, i + 16, ...;
// no product is contracted with a sum.
#pragma once

#include <oasis/core/half.hpp>
#include <oasis/score/summary_layout.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace oasis::cuda::kernels {

inline constexpr std::uint32_t kAll = 0xFFFFFFFFU;
inline constexpr int kMostChannels = 16; ///< of a lane: head_dim 256

struct SubBlockSummary {
    float plane[2][kMostChannels]; ///< rounded as the native form rounds
    float root;                    ///< of the spread
    bool poisoned;
    bool unbounded;
};

/// Whether `flag` holds in any lane of this half of the warp. All 32 lanes call it.
__device__ inline bool any_of_half(bool flag)
{
    const std::uint32_t half = threadIdx.x % 32 < 16 ? 0x0000FFFFU : 0xFFFF0000U;
    return (__ballot_sync(kAll, flag) & half) != 0;
}

/// ((0 + x of lane 0) + x of lane 1) + ..., of this half.
__device__ inline float sum_in_order(float x)
{
    float total = 0.0F;
    for (int i = 0; i < 16; ++i) { total = __fadd_rn(total, __shfl_sync(kAll, x, i, 16)); }
    return total;
}

__device__ inline float round_up(float x) { return fminf(oasis::to_float(to_f16_up(x)), kMaxF16); }
__device__ inline float round_down(float x) { return fmaxf(oasis::to_float(to_f16_down(x)), -kMaxF16); }

/// `key(t, c)` gives channel c of token t as float. All 32 lanes call it; what idle halves get is not used.
template <class Key> __device__ void summarise(const SummaryLayout& layout, int tokens, Key&& key, SubBlockSummary& out)
{
    const int lane = threadIdx.x % 16;
    const int channels = layout.head_dim / 16;
    const auto kind = layout.options.kind;
    bool finite = true;
    for (int t = 0; t < tokens; ++t) {
        for (int k = 0; k < channels; ++k) { finite = finite && isfinite(key(t, lane + 16 * k)); }
    }
    out.poisoned = any_of_half(!finite);
    const float share = __fdiv_rn(1.0F, static_cast<float>(tokens));
    float sum = 0.0F;
    bool beyond = false;
#pragma unroll
    for (int k = 0; k < kMostChannels; ++k) {
        out.plane[0][k] = out.plane[1][k] = 0.0F;
        if (k >= channels || out.poisoned) { continue; }
        float mean = 0.0F;
        float top = key(0, lane + 16 * k);
        float bottom = top;
        for (int t = 0; t < tokens; ++t) {
            const float x = key(t, lane + 16 * k);
            mean = __fadd_rn(mean, __fmul_rn(x, share));
            top = x > top ? x : top;
            bottom = x < bottom ? x : bottom;
        }
        if (kind == SummaryKind::kMinMax) {
            out.plane[0][k] = top;
            out.plane[1][k] = bottom;
            beyond = beyond || top > kMaxF16 || bottom < -kMaxF16;
        } else if (kind == SummaryKind::kCuboid) {
            out.plane[0][k] = __fadd_rn(__fmul_rn(0.5F, top), __fmul_rn(0.5F, mean));
            out.plane[1][k] = __fadd_rn(__fmul_rn(0.5F, bottom), __fmul_rn(0.5F, mean));
        } else {
            out.plane[0][k] = mean;
        }
    }
    if (layout.spread) {
        for (int t = 0; t < tokens; ++t) {
#pragma unroll
            for (int k = 0; k < kMostChannels; ++k) {
                if (k >= channels || out.poisoned) { continue; }
                const float deviation = __fsub_rn(key(t, lane + 16 * k), out.plane[0][k]);
                sum = __fadd_rn(sum, __fmul_rn(deviation, deviation));
            }
        }
    }
    const bool keep_f32 = layout.options.code == SummaryCode::kF32;
    const float spread = __fdiv_rn(sum_in_order(sum), static_cast<float>(tokens));
    const float exact = __fsqrt_rn(fminf(fmaxf(spread, 0.0F), 3.402823466e38F));
    out.root = keep_f32 ? exact : layout.upper_bound ? round_up(exact) : oasis::to_float(to_f16_saturated(exact));
    out.unbounded = any_of_half(beyond || exact > kMaxF16) && layout.upper_bound && !keep_f32 && !out.poisoned;
    if (out.poisoned) { out.root = 0.0F; }
    if (keep_f32) { return; }
#pragma unroll
    for (int k = 0; k < kMostChannels; ++k) {
        if (layout.upper_bound) {
            out.plane[0][k] = round_up(out.plane[0][k]);
            out.plane[1][k] = round_down(out.plane[1][k]);
        } else {
            out.plane[0][k] = oasis::to_float(to_f16_saturated(out.plane[0][k]));
            out.plane[1][k] = oasis::to_float(to_f16_saturated(out.plane[1][k]));
        }
    }
}

__device__ inline void store_element(std::byte* data, std::size_t index, float x, bool keep_f32)
{
    if (keep_f32) {
        reinterpret_cast<float*>(data)[index] = x;
    } else {
        reinterpret_cast<std::uint16_t*>(data)[index] = to_f16(x).bits; // exact: already rounded
    }
}

__device__ inline void set_bit(std::uint64_t* mask, int bit, bool value)
{
    auto* word = reinterpret_cast<unsigned long long*>(mask);
    if (value) {
        atomicOr(word, 1ULL << bit);
    } else {
        atomicAnd(word, ~(1ULL << bit));
    }
}

/// Sub-block `s` of the native form of a group. Others of the group may be written at the same time.
__device__ inline void store_sub_block(const SummaryLayout& layout, std::byte* group, int s, const SubBlockSummary& summary)
{
    const int lane = threadIdx.x % 16;
    const bool keep_f32 = layout.options.code == SummaryCode::kF32;
    const auto slot = static_cast<std::size_t>(layout.slot(s));
    std::byte* planes = group + sizeof(SummaryHeader);
#pragma unroll
    for (int k = 0; k < kMostChannels; ++k) {
        if (lane + 16 * k >= layout.head_dim) { break; }
        for (int p = 0; p < layout.planes; ++p) {
            const std::size_t channel = std::size_t(p) * layout.head_dim + lane + 16 * k;
            store_element(planes + channel * layout.native_channel_bytes(), slot, p == 0 ? summary.plane[0][k] : summary.plane[1][k],
                          keep_f32);
        }
    }
    if (lane != 0) { return; }
    if (layout.spread) { store_element(group + layout.native_spread_offset(), slot, summary.root, keep_f32); }
    auto* header = reinterpret_cast<SummaryHeader*>(group);
    set_bit(&header->poisoned, s, summary.poisoned);
    set_bit(&header->unbounded, s, summary.unbounded);
}

/// The summary of a row's last, incomplete sub-block.
__device__ inline void store_tail(const SummaryLayout& layout, std::byte* tail, float log_tokens, const SubBlockSummary& summary)
{
    const int lane = threadIdx.x % 16;
    auto* planes = reinterpret_cast<float*>(tail + sizeof(SummaryTail));
#pragma unroll
    for (int k = 0; k < kMostChannels; ++k) {
        if (lane + 16 * k >= layout.head_dim) { break; }
        planes[lane + 16 * k] = summary.plane[0][k];
        if (layout.planes == 2) { planes[layout.head_dim + lane + 16 * k] = summary.plane[1][k]; }
    }
    auto* words = reinterpret_cast<std::uint32_t*>(tail);
    words[lane] = lane == 0   ? __float_as_uint(log_tokens)
                  : lane == 1 ? __float_as_uint(__fmul_rn(summary.root, summary.root))
                  : lane == 2 ? summary.poisoned
                  : lane == 3 ? summary.unbounded
                              : 0U;
}

} // namespace oasis::cuda::kernels
