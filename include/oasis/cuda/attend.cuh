// SPDX-License-Identifier: Apache-2.0
//
// The attention kernel. A CTA takes chunks of 256 tokens of a row's set from an atomic counter: one warp plans them and streams
// K and V through shared memory, four warps reduce each chunk on its own. The CTA that finishes the last chunk of a
// (sequence, KV head) merges them in order.
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
        *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(params.out) + at) = {pack<Element>(value.x, value.y), pack<Element>(value.z, value.w)};
    }
}

/// Merges the chunks of a (sequence, KV head) in position order and writes its rows. Empty chunks change nothing.
template <class Traits> __device__ void merge_chunks(const AttendJob& job, const AttendWork& work)
{
    constexpr int kQuads = Traits::kHeadDim / 4;
    const int sequence = work.group / job.kv_heads;
    const int first_row = job.params.row_starts[sequence];
    const int rows = min(job.params.row_starts[sequence + 1] - first_row, job.max_rows);
    const int stride = job.max_rows * job.heads;
    const std::int64_t base = (std::int64_t{work.place} - work.chunk) * stride;
    for (int i = static_cast<int>(threadIdx.x); i < rows * job.heads * kQuads; i += kAttendComputeThreads) {
        const int query = i / kQuads;
        const float2* states = job.states + base + query;
        const float4* sums = reinterpret_cast<const float4*>(job.sums) + (base + query) * kQuads + i % kQuads;
        float top = -INFINITY;
#pragma unroll 8
        for (int c = 0; c < work.chunks; ++c) { top = fmaxf(top, __ldcg(&states[c * std::int64_t{stride}].x)); }
        const float reference = top == -INFINITY ? 0.0F : top;
        float mass = 0.0F;
        float4 sum{};
#pragma unroll 8
        for (int c = 0; c < work.chunks; ++c) {
            const float2 state = __ldcg(&states[c * std::int64_t{stride}]);
            const float4 part = __ldcg(&sums[c * std::int64_t{stride} * kQuads]);
            const float weight = exp2_approx(state.x - reference);
            if (state.y == 0.0F) { continue; } // empty; a NaN is not
            mass = __fmaf_rn(state.y, weight, mass);
            sum.x = __fmaf_rn(part.x, weight, sum.x);
            sum.y = __fmaf_rn(part.y, weight, sum.y);
            sum.z = __fmaf_rn(part.z, weight, sum.z);
            sum.w = __fmaf_rn(part.w, weight, sum.w);
        }
        const float share = mass == 0.0F ? 0.0F : 1.0F / mass;
        const std::int64_t head = std::int64_t{first_row + query / job.heads} * (job.heads * job.kv_heads) + (work.group % job.kv_heads) * job.heads + query % job.heads;
        write_output<typename Traits::Element>(job.params, head * Traits::kHeadDim + 4 * (i % kQuads), {sum.x * share, sum.y * share, sum.z * share, sum.w * share});
        if (job.params.lse && i % kQuads == 0) {
            constexpr float kLn2 = 0.693147180559945309F;
            job.params.lse[head] = mass == 0.0F ? -INFINITY : (reference + log2f(mass)) * kLn2;
        }
    }
}

template <class Traits> __global__ void __launch_bounds__(kAttendThreads, Traits::kCtasPerSm) attend(const __grid_constant__ AttendJob job)
{
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<AttendShared<Traits>*>(memory);
    const std::uint32_t ring = shared_address(memory + sizeof(shared));
    if (threadIdx.x == 0) { shared.init(); }
    __syncthreads();
    if (threadIdx.x >= kAttendComputeThreads) {
        ChunkLoader<Traits>(job, shared, ring).run();
    } else {
        ChunkReducer<Traits> reducer(job, shared, ring);
        while (reducer.next([&](const AttendWork& work) { merge_chunks<Traits>(job, work); })) {}
    }
}

template <class Traits> AttendKernel attend_kernel_of()
{
    return {reinterpret_cast<const void*>(&attend<Traits>), Traits::kQueries, int{sizeof(AttendShared<Traits>)}, Traits::kStageBytes};
}

template <class Element, int kHeadDim> AttendKernel attend_kernel(BlockCode code, std::int32_t queries)
{
    const bool few = queries <= 8;
    if (code == BlockCode::kInt8) {
        return few ? attend_kernel_of<AttendTraits<Element, kHeadDim, true, 1>>() : attend_kernel_of<AttendTraits<Element, kHeadDim, true, 4>>();
    }
    return few ? attend_kernel_of<AttendTraits<Element, kHeadDim, false, 1>>() : attend_kernel_of<AttendTraits<Element, kHeadDim, false, 4>>();
}

} // namespace oasis::cuda::detail
