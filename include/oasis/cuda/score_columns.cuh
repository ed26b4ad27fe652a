// SPDX-License-Identifier: Apache-2.0
//
// The query side of the scoring kernel. A column is a (row, query head) of one sequence and KV head.
#pragma once

#include <oasis/cuda/score_tiles.cuh>
#include <oasis/cuda/warp.cuh>
#include <oasis/score/summaries.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace oasis::cuda::detail {

/// Queries are kept as f16 over a power of two, the factor, that brings the largest into [2, 4): times a group's scale, which
/// is at most 65504 * 2 / 15, they stay in range.
struct alignas(16) ScoreColumn {
    float coded_factor; ///< 2^24 * factor: what a product with codes as subnormals is a part of
    float coded_spread; ///< weight of the spread, in log2, over that
    std::int32_t position;
    std::int32_t coded; ///< groups that the row reads in coded form
    float* log_mass;    ///< null: padding
    std::int64_t row;
};

/// Queries lie by 16 columns. Of column 8 j + g, channels 2t, 2t + 1 and 2t + 8, 2t + 9 of step s are two words at
/// g * kQueryStride + 64 s + 16 t + 4 j and 8 further: 16 bytes of a lane are the fragments of two eights, and as they stand
/// the fragment of a product with queries as rows. The stride lets no two of eight lanes meet in a bank.
template <int kChannels> inline constexpr int kQueryStride = 4 * kChannels + 64;
template <int kChannels> inline constexpr int kQueryBytes = 8 * kQueryStride<kChannels>; ///< of 16 columns

/// Offset of channel c, even, of a column.
template <int kChannels> __device__ int query_offset(int column, int c)
{
    return column / 16 * kQueryBytes<kChannels> + column % 8 * kQueryStride<kChannels> + c / 16 * 64 + c % 8 / 2 * 16 + c % 16 / 8 * 8 +
           column / 8 % 2 * 4;
}

__device__ inline float query_element(const ScoreParams& p, std::int64_t at)
{
    switch (p.dtype) {
    case DType::kBF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(p.q)[at]);
    case DType::kF16: return __half2float(static_cast<const __half*>(p.q)[at]);
    default: return static_cast<const float*>(p.q)[at];
    }
}

__device__ inline float2 query_pair(const ScoreParams& p, std::int64_t at)
{
    switch (p.dtype) {
    case DType::kBF16: return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(p.q) + at));
    case DType::kF16: return __half22float2(*reinterpret_cast<const __half2*>(static_cast<const __half*>(p.q) + at));
    default: return *reinterpret_cast<const float2*>(static_cast<const float*>(p.q) + at);
    }
}

/// 2^e of a largest magnitude in [2^(e+1), 2^(e+2)), kept where its powers stay normal; 1 for what is 0 or not finite.
__device__ inline float column_factor(float largest)
{
    const int exponent = int(__float_as_uint(largest) >> 23 & 255U);
    if (largest == 0.0F || exponent == 255) { return 1.0F; }
    return __uint_as_float(std::uint32_t(min(max(exponent - 1, 27), 227)) << 23);
}

/// One warp makes one column. With two planes those of plane 0 are the positive parts of the
/// weights, those of plane 1 the negative ones.
template <int kChannels>
__device__ void make_column(const ScoreParams& p, const ScoreTile& tile, int planes, std::int32_t group_tokens, std::int32_t index,
                            std::byte* queries, ScoreColumn& column)
{
    const auto lane = int(threadIdx.x % 32);
    const std::int64_t row = std::int64_t(tile.sequence) * p.rows + index / p.group;
    const std::int64_t head = std::int64_t(tile.head) * p.group + index % p.group;
    const bool used = index < p.rows * p.group;
    const std::int32_t position = used ? std::int32_t(p.position[row]) : -1;
    const int head_dim = kChannels / planes;
    constexpr int kPairs = (kChannels + 63) / 64;
    float2 weight[kPairs];
    float largest = 0.0F;
    float square = 0.0F;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        const int c = 64 * i + 2 * lane;
        weight[i] = {0.0F, 0.0F};
        if (used && c < head_dim) {
            const float2 x = query_pair(p, row * p.q_row_stride + head * head_dim + c);
            weight[i] = {x.x * p.scale, x.y * p.scale};
        }
        largest = fmaxf(largest, fmaxf(fabsf(weight[i].x), fabsf(weight[i].y)));
        square += weight[i].x * weight[i].x + weight[i].y * weight[i].y;
    }
    const float factor = column_factor(warp_max(largest) * kLog2E);
    square = warp_sum(square);
    const float share = __fdividef(kLog2E, factor); // a power of two
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        const int c = 64 * i + 2 * lane;
        if (c >= head_dim) { continue; }
        const float x = weight[i].x * share;
        const float y = weight[i].y * share;
        auto& first = *reinterpret_cast<__half2*>(queries + query_offset<kChannels>(index, c));
        if (planes == 1) {
            first = __floats2half2_rn(x, y);
        } else {
            first = __floats2half2_rn(x > 0.0F ? x : x - x, y > 0.0F ? y : y - y); // NaN stays NaN
            *reinterpret_cast<__half2*>(queries + query_offset<kChannels>(index, c + head_dim)) =
                __floats2half2_rn(x > 0.0F ? 0.0F : x, y > 0.0F ? 0.0F : y);
        }
    }
    if (lane == 0) {
        column = {.coded_factor = factor * 0x1p24F,
                  .coded_spread = StockSummary::kSpreadFactor * square * (share * 0x1p-24F / float(head_dim)),
                  .position = position,
                  .coded = position < 0 ? 0 : coded_groups(position, p.recent, group_tokens),
                  .log_mass = position < 0 ? nullptr : p.log_mass + (row * p.kv_heads * p.group + head) * p.mass_stride,
                  .row = row};
    }
}

} // namespace oasis::cuda::detail
