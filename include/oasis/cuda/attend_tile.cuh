// SPDX-License-Identifier: Apache-2.0
//
// Attention kernels: stages of K and V in shared memory, and their products with a tile of queries. Products are taken the
// other way round (K times Q, V times P): queries are the narrow side of the matrix instruction, so up to 8 of them waste
// nothing.
#pragma once

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/attend_work.cuh>
#include <oasis/cuda/ptx.cuh>

#include <cstdint>

namespace oasis::cuda::detail {

/// The numbers of a kernel. `kQueryTiles` is in units of 8 queries.
template <class Element_, int kHeadDim_, bool kCoded_, int kQueryTiles_> struct AttendTraits {
    using Element = Element_;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr bool kCoded = kCoded_; ///< lists may hold int8 blocks
    static constexpr int kQueryTiles = kQueryTiles_;
    static constexpr int kQueries = 8 * kQueryTiles;
    static constexpr int kNativeRow = 2 * kHeadDim; ///< bytes
    static constexpr int kCodedRow = kHeadDim;
    static constexpr int kNativeGroups = kCoded ? 2 : 4; ///< token groups of a stage
    static constexpr int kCodedGroups = 4;
    static constexpr int kStageGroups = 4;                                  ///< at most: one for each warp
    static constexpr int kValueTiles = (kHeadDim / 16 + 3) / 4;             ///< tiles of 16 channels per warp
    static constexpr int kScaleBytes = kCoded ? 4 * kAttendGroupTokens : 0; ///< K scales, V scales of a group
    static constexpr int kScaleOffset = kNativeGroups * kAttendGroupTokens * kNativeRow;
    static constexpr int kStageBytes = kScaleOffset + kStageGroups * kScaleBytes;
    static constexpr int kCtasPerSm = kQueryTiles == 1 && kCoded && kHeadDim <= 128 ? 4 : 2; ///< for which registers and rings are cut
};

struct Stage {
    std::int32_t first = 0; ///< token group
    std::int32_t count = 0; ///< 0: no stage
    bool coded = false;
};

/// The stages of a chunk: coded groups, then native ones.
template <class Traits> struct StageList {
    std::int32_t coded = 0; ///< groups
    std::int32_t native = 0;

    __device__ int coded_stages() const { return Traits::kCoded ? (coded + Traits::kCodedGroups - 1) / Traits::kCodedGroups : 0; }
    __device__ int count() const { return coded_stages() + (native + Traits::kNativeGroups - 1) / Traits::kNativeGroups; }
    __device__ Stage at(int i) const
    {
        const int after_coded = i - coded_stages();
        if (after_coded < 0) {
            const int first = i * Traits::kCodedGroups;
            return {first, min(coded - first, Traits::kCodedGroups), true};
        }
        const int first = after_coded * Traits::kNativeGroups;
        return {coded + first, min(native - first, Traits::kNativeGroups), false};
    }
};

/// Where a lane puts its pieces of a group's 16 rows: with 32 lanes, step by step through the rows.
template <int kRowBytes> struct LanePieces {
    static constexpr int kPieces = kRowBytes / 16;
    static constexpr int kSteps = (kPieces + 1) / 2;
    std::uint32_t offset[kSteps];

    __device__ LanePieces()
    {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) { offset[step] = tile_offset<kRowBytes>(row(step), (32 * step + lane_id()) % kPieces); }
    }
    __device__ static int row(int step) { return (32 * step + lane_id()) / kPieces; }
};

/// A warp starts the copies of a group's rows of K (or V, `offset` bytes behind). Tokens that no row reads become zeros: whatever
/// an unused place holds, it is not multiplied.
template <int kRowBytes>
__device__ __forceinline__ void load_group(const TokenGroup& group, std::int64_t offset, const LanePieces<kRowBytes>& pieces,
                                           std::uint32_t to)
{
    const std::byte* from = group.keys + offset + 16 * lane_id(); // 16 rows, one after another
    const bool whole = group.begin == 0 && group.end == kAttendGroupTokens;
    constexpr int kWholeSteps = LanePieces<kRowBytes>::kPieces / 2;
    if (whole) {
#pragma unroll
        for (int step = 0; step < kWholeSteps; ++step) { copy_async(to + pieces.offset[step], from + 512 * step); }
        if (kWholeSteps < pieces.kSteps && lane_id() < 16) {
            copy_async(to + pieces.offset[pieces.kSteps - 1], from + 512 * (pieces.kSteps - 1));
        }
    } else {
        for (int step = 0; step < pieces.kSteps; ++step) {
            const int row = pieces.row(step);
            if (row >= kAttendGroupTokens) { break; }
            copy_async(to + tile_offset<kRowBytes>(row, (32 * step + lane_id()) % pieces.kPieces), from + 512 * step,
                       row >= group.begin && row < group.end);
        }
    }
}

/// The scales of a stage's coded groups: 16 of K and 16 of V each.
template <class Traits> __device__ __forceinline__ void load_scales(const TokenGroup* groups, int count, int block_tokens, std::uint32_t to)
{
    const int i = lane_id();
    if (i >= 4 * count) { return; }
    const TokenGroup& group = groups[i / 4];
    const int part = group.index & (block_tokens / kAttendGroupTokens - 1); // of the block
    const int of_values = (i % 4) / 2;
    const int half = i % 2;
    const std::byte* block = group.keys - part * kAttendGroupTokens * Traits::kCodedRow;
    const std::byte* scales = block + 2 * block_tokens * Traits::kCodedRow + 2 * (of_values * block_tokens + part * kAttendGroupTokens);
    copy_async(to + static_cast<std::uint32_t>(Traits::kScaleOffset + (i / 4) * Traits::kScaleBytes + of_values * 2 * kAttendGroupTokens +
                                               half * 16),
               scales + half * 16);
}

/// Q as the right operand, for the steps of 16 channels: kept in registers where there are enough, else loaded when
/// it is used.
template <class Traits> struct QueryFragments {
    static constexpr int kSteps = Traits::kHeadDim / 16;
    static constexpr bool kKept = Traits::kQueryTiles == 1 && !Traits::kCoded;
    std::uint32_t address = 0;
    std::uint32_t kept[kKept ? kSteps : 1][2];

    __device__ void take(std::uint32_t queries)
    {
        address = queries;
        if constexpr (kKept) {
#pragma unroll
            for (int k = 0; k < kSteps; ++k) {
                load_matrices(kept[k], queries + tile_offset<Traits::kNativeRow>(lane_id() % 8, 2 * k + (lane_id() / 8) % 2));
            }
        }
    }
    __device__ void get(int k, std::uint32_t (&b)[Traits::kQueryTiles][2]) const
    {
        if constexpr (kKept) {
            b[0][0] = kept[k][0];
            b[0][1] = kept[k][1];
        } else if constexpr (Traits::kQueryTiles == 1) {
            load_matrices(b[0], address + tile_offset<Traits::kNativeRow>(lane_id() % 8, 2 * k + (lane_id() / 8) % 2));
        } else {
#pragma unroll
            for (int n = 0; n < Traits::kQueryTiles; n += 2) {
                std::uint32_t two[4];
                load_matrices(
                    two, address + tile_offset<Traits::kNativeRow>(8 * (n + lane_id() / 16) + lane_id() % 8, 2 * k + (lane_id() / 8) % 2));
                b[n][0] = two[0];
                b[n][1] = two[1];
                b[n + 1][0] = two[2];
                b[n + 1][1] = two[3];
            }
        }
    }
};

/// K of 16 tokens and of the 16 channels of step k as the left operand, in native elements or in f16 from codes.
template <class Traits, bool kCodedStage>
__device__ __forceinline__ void load_key_tile(std::uint32_t keys, int row, int k, std::uint32_t (&a)[4])
{
    if constexpr (kCodedStage) {
        std::uint32_t codes[2];
        load_matrices(codes, keys + tile_offset<Traits::kCodedRow>(row, k));
        a[0] = codes[0];
        a[1] = codes[1];
    } else {
        load_matrices(a, keys + tile_offset<Traits::kNativeRow>(row, 2 * k + lane_id() / 16));
    }
}

/// logits[n][e] of group `group` of a stage: tokens i and i + 8 (e / 2) with queries 8 n + 2j + e % 2. Two chains of sums,
/// over even and odd steps: half the latency, and the same for any number of queries. Queries for coded keys are f16 with the
/// channels in the order in which `unpack_int8` delivers codes.
template <class Traits, bool kCodedStage>
__device__ __forceinline__ void multiply_keys(std::uint32_t keys, const QueryFragments<Traits>& queries, int group,
                                              float (&logits)[Traits::kQueryTiles][4])
{
    constexpr int kSteps = Traits::kHeadDim / 16;
    constexpr int kAhead = Traits::kQueryTiles == 1 ? 4 : 2; // tiles loaded before they are used
    const int row = group * kAttendGroupTokens + lane_id() % 16;
    float odd[Traits::kQueryTiles][4] = {};
#pragma unroll
    for (int n = 0; n < Traits::kQueryTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) { logits[n][e] = 0.0F; }
    }
    std::uint32_t tiles[kAhead][4];
#pragma unroll
    for (int k = 0; k < kAhead && k < kSteps; ++k) { load_key_tile<Traits, kCodedStage>(keys, row, k, tiles[k]); }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
        std::uint32_t a[4];
        if constexpr (kCodedStage) {
            unpack_int8(tiles[k % kAhead][0], a[0], a[2]);
            unpack_int8(tiles[k % kAhead][1], a[1], a[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) { a[i] = tiles[k % kAhead][i]; }
        }
        if (k + kAhead < kSteps) { load_key_tile<Traits, kCodedStage>(keys, row, k + kAhead, tiles[k % kAhead]); }
        std::uint32_t b[Traits::kQueryTiles][2];
        queries.get(k, b);
#pragma unroll
        for (int n = 0; n < Traits::kQueryTiles; ++n) {
            if constexpr (kCodedStage) {
                multiply_add<f16>(k % 2 ? odd[n] : logits[n], a, b[n]);
            } else {
                multiply_add<typename Traits::Element>(k % 2 ? odd[n] : logits[n], a, b[n]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < Traits::kQueryTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) { logits[n][e] += odd[n][e]; }
    }
}

/// The channel of an accumulator's element e in tile `tile`. Codes come in pairs of channels, which decides the order in
/// kernels that may meet coded blocks.
template <class Traits> __device__ __forceinline__ int channel_of(int tile, int e)
{
    const int i = lane_id() / 4;
    return 16 * tile + (Traits::kCoded ? 2 * i + e / 2 : i + 8 * (e / 2));
}

/// V of 16 tokens and of 16 channels (tile `tile`) as the left operand.
template <class Traits, bool kCodedStage>
__device__ __forceinline__ void load_value_tile(std::uint32_t values, int group, int tile, std::uint32_t (&a)[4])
{
    const int lane = lane_id();
    if constexpr (!Traits::kCoded) {
        const int row = group * kAttendGroupTokens + lane % 8 + 8 * (lane / 16);
        load_transposed(a, values + tile_offset<Traits::kNativeRow>(row, 2 * tile + (lane / 8) % 2));
    } else if constexpr (kCodedStage) {
        std::uint32_t codes[2];
        load_transposed(codes, values + tile_offset<Traits::kCodedRow>(group * kAttendGroupTokens + lane % 16, tile));
        unpack_int8(codes[0], a[0], a[1]);
        unpack_int8(codes[1], a[2], a[3]);
    } else {
        const int piece = 2 * tile + lane / 16;
        const std::uint32_t within = static_cast<std::uint32_t>(4 * ((lane / 4) % 4));
        std::uint32_t pairs[4]; // channels 2i and 2i + 1 of tokens 2j, 2j + 1, 2j + 8, 2j + 9
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const int row = group * kAttendGroupTokens + 2 * (lane % 4) + t % 2 + 8 * (t / 2);
            pairs[t] = load_shared(values + tile_offset<Traits::kNativeRow>(row, piece) + within);
        }
        a[0] = __byte_perm(pairs[0], pairs[1], 0x5410);
        a[1] = __byte_perm(pairs[0], pairs[1], 0x7632);
        a[2] = __byte_perm(pairs[2], pairs[3], 0x5410);
        a[3] = __byte_perm(pairs[2], pairs[3], 0x7632);
    }
}

/// sums = sums * shrink + V^T P for the groups of a stage, in order. `weights` is P as [group][query tile][token][8 queries],
/// `shrink` [group][query]. A group that a query does not read has weights of zero and a factor of one: it changes no bit.
/// `kCount` groups, or `stage.count` if 0.
template <class Traits, int kCount, bool kCodedStage>
__device__ __forceinline__ void multiply_values(const Stage& stage, std::uint32_t values, std::uint32_t weights,
                                                const float (*shrink)[Traits::kQueries],
                                                float (&sums)[Traits::kValueTiles][Traits::kQueryTiles][4])
{
    const int lane = lane_id();
    const int count = kCount ? kCount : stage.count;
#pragma unroll kCount ? kCount : 1
    for (int group = 0; group < count; ++group) {
        std::uint32_t b[Traits::kQueryTiles][2];
        float2 factor[Traits::kQueryTiles];
#pragma unroll
        for (int n = 0; n < Traits::kQueryTiles; ++n) {
            load_transposed(b[n], weights + static_cast<std::uint32_t>((group * Traits::kQueryTiles + n) * 256 + (lane % 16) * 16));
            factor[n] = *reinterpret_cast<const float2*>(&shrink[group][8 * n + 2 * (lane % 4)]);
        }
#pragma unroll
        for (int m = 0; m < Traits::kValueTiles; ++m) {
            const int tile = warp_id() + 4 * m;
            if (Traits::kHeadDim / 16 % 4 && tile >= Traits::kHeadDim / 16) { continue; }
            std::uint32_t a[4];
            load_value_tile<Traits, kCodedStage>(values, group, tile, a);
#pragma unroll
            for (int n = 0; n < Traits::kQueryTiles; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) { sums[m][n][e] *= e % 2 ? factor[n].y : factor[n].x; }
                if constexpr (kCodedStage) {
                    multiply_add<f16>(sums[m][n], a, b[n]);
                } else {
                    multiply_add<typename Traits::Element>(sums[m][n], a, b[n]);
                }
            }
        }
    }
}

} // namespace oasis::cuda::detail
