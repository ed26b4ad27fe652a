// SPDX-License-Identifier: Apache-2.0
//
// The attention kernel. A CTA takes chunks of 256 tokens of a row's set from an atomic counter: one warp plans them, one streams
// K and V through shared memory, four reduce a chunk together. The CTA that finishes the last chunk of a (sequence, KV head)
// merges them in order.
#pragma once

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/attend_loader.cuh>
#include <oasis/cuda/attend_reducer.cuh>

#include <cstdint>

namespace oasis::cuda::detail {

/// Four channels to the output's type.
template <class Element> __device__ __forceinline__ void write_output(const AttendParams& params, std::int64_t at, float4 value)
{
    if (params.out_dtype == DType::kF32) {
        *reinterpret_cast<float4*>(static_cast<float*>(params.out) + at) = value;
    } else {
        *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(params.out) + at) = {pack<Element>(value.x, value.y),
                                                                                   pack<Element>(value.z, value.w)};
    }
}

/// Merges the chunks of a (sequence, KV head) in position order and writes its rows. Empty chunks change nothing.
template <class Traits> __device__ void merge_chunks(const AttendJob& job, const AttendWork& work)
{
    constexpr int kQuads = Traits::kHeadDim / 4;
    constexpr int kAtOnce = Traits::kCoded ? 2 : 8; // chunks loaded together: as many as registers allow
    const std::int64_t stride = job.max_rows * job.heads;
    const std::int64_t base = (std::int64_t{work.place} - work.chunk) * stride;
    for (int i = static_cast<int>(threadIdx.x); i < work.rows * job.heads * kQuads; i += kAttendComputeThreads) {
        const int query = i / kQuads;
        const float2* states = job.states + base + query;
        const float4* sums = reinterpret_cast<const float4*>(job.sums) + (base + query) * kQuads + i % kQuads;
        float top = -INFINITY;
        float mass = 0.0F;
        float4 sum{};
        for (int first = 0; first < work.chunks; first += kAtOnce) {
            float2 state[kAtOnce];
            float4 part[kAtOnce];
            const float before = top;
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) {
                state[c] = {-INFINITY, 0.0F};
                if (first + c < work.chunks) {
                    state[c] = __ldcg(states + (first + c) * stride);
                    part[c] = __ldcg(sums + (first + c) * stride * kQuads);
                }
            }
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) { top = fmaxf(top, state[c].x); }
            const float reference = top == -INFINITY ? 0.0F : top;
            const float shrink = before == top ? 1.0F : exp2_approx(before - top);
            mass *= shrink;
            sum = {sum.x * shrink, sum.y * shrink, sum.z * shrink, sum.w * shrink};
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) {
                if (state[c].y == 0.0F) { continue; } // empty; a NaN is not
                const float weight = exp2_approx(state[c].x - reference);
                mass = __fmaf_rn(state[c].y, weight, mass);
                sum.x = __fmaf_rn(part[c].x, weight, sum.x);
                sum.y = __fmaf_rn(part[c].y, weight, sum.y);
                sum.z = __fmaf_rn(part[c].z, weight, sum.z);
                sum.w = __fmaf_rn(part[c].w, weight, sum.w);
            }
        }
        const float share = mass == 0.0F ? 0.0F : 1.0F / mass;
        const int row = row_of_query(job, query);
        const std::int64_t head = std::int64_t{work.first_row + row} * (job.heads * job.kv_heads) + work.group % job.kv_heads * job.heads +
                                  query - row * job.heads;
        write_output<typename Traits::Element>(job.params, head * Traits::kHeadDim + 4 * (i % kQuads),
                                               {sum.x * share, sum.y * share, sum.z * share, sum.w * share});
        if (job.params.lse && i % kQuads == 0) {
            job.params.lse[head] = mass == 0.0F ? -INFINITY : (top + log2f(mass)) * kLn2;
        }
    }
}

template <class Traits> __global__ void __launch_bounds__(kAttendThreads, Traits::kCtasPerSm) attend(const __grid_constant__ AttendJob job)
{
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<AttendShared<Traits>*>(memory);
    const std::uint32_t ring = shared_address(memory + sizeof(shared));
    shared.init();
    if (warp_id() == kAttendComputeThreads / 32) {
        ChunkLoader<Traits>(job, shared, ring).run();
    } else if (warp_id() > kAttendComputeThreads / 32) {
        ChunkPlanner<Traits>(job, shared).run();
    } else {
        ChunkReducer<Traits> reducer(job, shared, ring);
        while (reducer.next([&](const AttendWork& work) { merge_chunks<Traits>(job, work); })) {}
    }
}

template <class Traits> AttendKernel attend_kernel_of()
{
    return {reinterpret_cast<const void*>(&attend<Traits>), Traits::kQueries, int{sizeof(AttendShared<Traits>)}, Traits::kStageBytes,
            Traits::kCtasPerSm};
}

template <class Element, int kHeadDim> AttendKernel attend_kernel(BlockCode code, std::int32_t queries)
{
    const bool few = queries <= 8;
    if (code == BlockCode::kInt8) {
        return few ? attend_kernel_of<AttendTraits<Element, kHeadDim, true, 1>>()
                   : attend_kernel_of<AttendTraits<Element, kHeadDim, true, 4>>();
    }
    return few ? attend_kernel_of<AttendTraits<Element, kHeadDim, false, 1>>()
               : attend_kernel_of<AttendTraits<Element, kHeadDim, false, 4>>();
}

} // namespace oasis::cuda::detail
