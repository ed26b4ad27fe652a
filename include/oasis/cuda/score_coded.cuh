// SPDX-License-Identifier: Apache-2.0
//
// What one warp does with one coded group in shared memory: codes become f16 fragments as they are (subnormals: code * 2^-24,
// no arithmetic) and are multiplied with queries * scales, sub-blocks as rows of the tile and queries as columns.
// zeros . q is added at the end. docs/design/cuda-score.md says why.
#pragma once

#include <oasis/cuda/score_config.cuh>
#include <oasis/cuda/ptx.cuh>
#include <oasis/cuda/score_reduce.cuh>

namespace oasis::cuda::detail {

/// Fragments of 16 channels: tile m holds slots slot_of(m) + 2 (lane / 4) and the next one.
template <class K> __device__ void load_codes(std::uint32_t codes, int step, std::uint32_t (&a)[4][4])
{
    const std::uint32_t lane = threadIdx.x % 32;
    std::uint32_t r[4];
    if constexpr (K::kCode == SummaryCode::kInt4) {
        load_transposed(r, codes + (16 * step + lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t next = r[i] >> 8;
            a[i % 2 * 2][i / 2 * 2] = r[i] & 0x000F000FU;
            a[i % 2 * 2][i / 2 * 2 + 1] = next & 0x000F000FU;
            a[i % 2 * 2 + 1][i / 2 * 2] = r[i] & 0x00F000F0U; // 16 times as much
            a[i % 2 * 2 + 1][i / 2 * 2 + 1] = next & 0x00F000F0U;
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            load_transposed(r, codes + (16 * step + 8 * half + lane % 8) * 64 + lane / 8 * 16);
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                a[m][2 * half] = r[m] & 0x00FF00FFU;
                a[m][2 * half + 1] = (r[m] >> 8) & 0x00FF00FFU;
            }
        }
    }
}

/// First slot of tile m; in int4 the odd tiles are the high nibbles.
template <class K> __device__ constexpr int slot_of(int m) { return K::kCode == SummaryCode::kInt4 ? m % 2 * 32 + m / 2 * 16 : 16 * m; }
template <class K> __device__ constexpr bool is_high(int m) { return K::kCode == SummaryCode::kInt4 && m % 2 == 1; }

/// The spread of this lane's slots; NaN where a key was none, which makes the block's log mass NaN.
template <class K> __device__ void coded_spread(std::uint32_t group, std::uint64_t poisoned, float (&spread)[4][2])
{
    const std::uint32_t lane = threadIdx.x % 32;
    const uint4 header = load_shared_16(group + 16);
    const float2 affine = __half22float2(*reinterpret_cast<const __half2*>(&header.x)); // scale, zero
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const std::uint32_t codes = load_shared_2(group + std::uint32_t(K::kLayout.coded_spread_offset()) + slot_of<K>(m) + lane / 4 * 2);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float code = __uint_as_float(0x4B000000U | ((codes >> (8 * e)) & 255U)) - 8388608.0F;
            const float root = affine.y + affine.x * code;
            spread[m][e] = root * root;
        }
    }
    if (poisoned == 0) { return; }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int slot = slot_of<K>(m) + int(lane / 4) * 2 + e;
            if ((poisoned >> sub_block_of<K>(slot) & 1U) != 0) { spread[m][e] = __uint_as_float(0x7FC00000U); }
        }
    }
}

/// acc = 2^-24 / factor * code . (scale q), in log2; 2^-20 in high tiles. zero = zeros . q / factor of column lane / 4, and of
/// the one 8 further in [2].
template <class K>
__device__ void multiply_group(std::uint32_t group, std::uint32_t queries, float (&acc)[4][K::kTiles][4],
                               float (&zero)[(K::kTiles + 1) / 2][4])
{
    const std::uint32_t matrix = threadIdx.x % 32 / 8 * 16;
    const std::uint32_t query = queries + threadIdx.x % 32 / 4 * kQueryStride<K::kChannels> + threadIdx.x % 4 * 16;
#pragma unroll
    for (int n = 0; n < K::kTiles; ++n) {
        zero[n / 2][0] = zero[n / 2][1] = zero[n / 2][2] = zero[n / 2][3] = 0.0F;
#pragma unroll
        for (int m = 0; m < 4; ++m) { acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0.0F; }
    }
#pragma unroll K::kUnroll
    for (int pair = 0; pair < K::kSteps; pair += 2) {
        std::uint32_t scales[4];
        std::uint32_t zeros[4];
        load_matrices(scales, group + std::uint32_t(K::kLayout.scales_offset()) + 32 * pair + matrix);
        load_matrices(zeros, group + std::uint32_t(K::kLayout.zeros_offset()) + 32 * pair + matrix);
#pragma unroll
        for (int half = 0; half < 2 && pair + half < K::kSteps; ++half) {
            std::uint32_t a[4][4];
            load_codes<K>(group + std::uint32_t(K::kLayout.codes_offset()), pair + half, a);
#pragma unroll
            for (int n = 0; n < K::kTiles; n += 2) {
                const uint4 q = load_shared_16(query + n / 2 * kQueryBytes<K::kChannels> + (pair + half) * 64);
                multiply_add<f16>(zero[n / 2], {q.x, q.y, q.z, q.w}, {zeros[2 * half], zeros[2 * half + 1]});
                const std::uint32_t b[]{multiply_halves(q.x, scales[2 * half]), multiply_halves(q.z, scales[2 * half + 1])};
#pragma unroll
                for (int m = 0; m < 4; ++m) { multiply_add<f16>(acc[m][n], a[m], b); }
                if (n + 1 < K::kTiles) {
                    const std::uint32_t next[]{multiply_halves(q.y, scales[2 * half]), multiply_halves(q.w, scales[2 * half + 1])};
#pragma unroll
                    for (int m = 0; m < 4; ++m) { multiply_add<f16>(acc[m][n + 1], a[m], next); }
                }
            }
        }
    }
}

/// Log masses of 8 columns from their accumulators. zeros . q is the same for all sub-blocks of a group, so it comes last.
template <class K>
__device__ void finish_coded(const float (&acc)[4][4], float zero, const float (&spread)[4][2], const ScoreColumn* columns, int group,
                             float log2_tokens, std::uint64_t poisoned, std::uint64_t unbounded)
{
    const auto lane = int(threadIdx.x % 32);
    const ScoreColumn* const own = columns + lane % 4 * 2;
    BlockMass<K, false> mass(group);
    float offset[2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
        const float weight = own[q].coded_spread;
        float values[4][2];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                values[m][e] = is_high<K>(m) ? acc[m][2 * e + q] * 0.0625F : acc[m][2 * e + q];
                if constexpr (K::kSpread) { values[m][e] += weight * spread[m][e]; }
            }
        }
        mass.reduce(q, values, own[q].coded_factor);
        offset[q] = __shfl_sync(0xFFFFFFFFU, zero, (lane % 4 * 2 + q) * 4) * (own[q].coded_factor * 0x1p-24F) + log2_tokens;
    }
    mass.finish(offset);
    if (!K::kSpread && (poisoned | unbounded) != 0) {
        for (int q = 0; q < 2; ++q) { mass.mark(q, poisoned, unbounded); }
    }
    mass.store(own, [&](const ScoreColumn& column) { return group < column.coded; });
}

/// A coded group in shared memory; `release` is called once its bytes are read for the last time.
template <class K, class Release>
__device__ void score_coded(const ScoreArgs& args, std::uint32_t bytes, int group, std::uint32_t queries, const ScoreColumn* columns,
                            const Release& release)
{
    for (int first = 0; first < args.columns; first += 8 * K::kTiles) {
        float acc[4][K::kTiles][4];
        float zero[(K::kTiles + 1) / 2][4];
        multiply_group<K>(bytes, queries + first / 16 * kQueryBytes<K::kChannels>, acc, zero);
        const uint4 flags = load_shared_16(bytes);
        const std::uint64_t poisoned = std::uint64_t(flags.y) << 32 | flags.x;
        const std::uint64_t unbounded = std::uint64_t(flags.w) << 32 | flags.z;
        float spread[4][2];
        if constexpr (K::kSpread) { coded_spread<K>(bytes, poisoned, spread); }
        if (first + 8 * K::kTiles >= args.columns) { release(); }
#pragma unroll
        for (int n = 0; n < K::kTiles; ++n) {
            const float part[4][4] = {{acc[0][n][0], acc[0][n][1], acc[0][n][2], acc[0][n][3]},
                                      {acc[1][n][0], acc[1][n][1], acc[1][n][2], acc[1][n][3]},
                                      {acc[2][n][0], acc[2][n][1], acc[2][n][2], acc[2][n][3]},
                                      {acc[3][n][0], acc[3][n][1], acc[3][n][2], acc[3][n][3]}};
            finish_coded<K>(part, zero[n / 2][n % 2 * 2], spread, columns + first + 8 * n, group, args.log2_tokens, poisoned, unbounded);
        }
    }
}

} // namespace oasis::cuda::detail
