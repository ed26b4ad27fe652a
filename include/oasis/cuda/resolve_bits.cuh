// SPDX-License-Identifier: Apache-2.0
//
// What resolve is written in: bitmaps of block positions in shared memory, loops over elements, sums over the threads of a CTA.
#pragma once

#include <oasis/cuda/warp.cuh>

#include <cstddef>
#include <cstdint>

namespace oasis::cuda::kernels::resolve {

inline constexpr int kResolveThreads = 256;

/// The bits of word `w` that stand for blocks below `end`.
__device__ inline std::uint32_t below(std::int32_t end, std::uint32_t w)
{
    const std::int32_t n = end - static_cast<std::int32_t>(w * 32);
    return n <= 0 ? 0U : n >= 32 ? ~0U : (1U << n) - 1;
}
__device__ inline bool test(const std::uint32_t* bits, std::int32_t block) { return (bits[block / 32] >> (block % 32)) & 1; }
__device__ inline void set_bit(std::uint32_t* bits, std::int32_t block) { atomicOr(bits + block / 32, 1U << (block % 32)); }
__device__ inline void clear_bit(std::uint32_t* bits, std::int32_t block) { atomicAnd(bits + block / 32, ~(1U << (block % 32))); }

/// Threads take elements in turn.
template <class Do> __device__ inline void strided(std::int32_t n, Do&& act)
{
#pragma unroll 1
    for (std::int32_t i = int(threadIdx.x); i < n; i += kResolveThreads) { act(i); }
}
/// Threads take consecutive elements, so that a sum over threads is one over positions.
template <class Do> __device__ inline void each(std::int32_t n, Do&& act)
{
    const std::int32_t share = (n + kResolveThreads - 1) / kResolveThreads;
    const std::int32_t end = min((int(threadIdx.x) + 1) * share, n);
#pragma unroll 1
    for (std::int32_t i = int(threadIdx.x) * share; i < end; ++i) { act(i); }
}
template <class Do> __device__ inline void each_bit(std::uint32_t bits, std::uint32_t w, Do&& act)
{
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) { act(static_cast<std::int32_t>(w * 32) + __ffs(int(bits)) - 1); }
}

struct Sum {
    std::uint64_t before; ///< of the threads before this one
    std::uint64_t total;
};

/// Exclusive sum over the threads of a CTA. Called by all, and ends with a barrier.
static __device__ __noinline__ Sum sum(std::uint64_t x)
{
    __shared__ std::uint64_t warps[kResolveThreads / 32];
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint64_t upto = detail::warp_scan(x);
    if (lane == 31) { warps[threadIdx.x / 32] = upto; }
    __syncthreads();
    Sum result{upto - x, 0};
#pragma unroll 1
    for (std::uint32_t w = 0; w < kResolveThreads / 32; ++w) {
        if (w < threadIdx.x / 32) { result.before += warps[w]; }
        result.total += warps[w];
    }
    __syncthreads();
    return result;
}

__device__ inline void prefetch_line(const std::byte* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

} // namespace oasis::cuda::kernels::resolve
