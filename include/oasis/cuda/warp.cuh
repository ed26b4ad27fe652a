// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima over the lanes of a warp, and what turns exponentials and logarithms into those of base 2.
#pragma once

#include <cuda_runtime.h>

#include <numbers>

namespace oasis::cuda::detail {

inline constexpr float kLog2E = std::numbers::log2e_v<float>;
inline constexpr float kLn2 = std::numbers::ln2_v<float>;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

/// The largest of the lanes, in all of them; passes over NaN.
__device__ __forceinline__ float warp_max(float x)
{
    for (int step = 16; step > 0; step /= 2) { x = fmaxf(x, __shfl_xor_sync(~0U, x, step)); }
    return x;
}

/// The same bits in all lanes.
__device__ __forceinline__ float warp_sum(float x)
{
    for (int step = 16; step > 0; step /= 2) { x += __shfl_xor_sync(~0U, x, step); }
    return x;
}

/// The sum over this and the lower lanes, of integers.
template <class T> __device__ __forceinline__ T warp_scan(T x)
{
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const T lower = __shfl_up_sync(~0U, x, step);
        if (lane_id() >= step) { x += lower; }
    }
    return x;
}

} // namespace oasis::cuda::detail
