// SPDX-License-Identifier: Apache-2.0
//
// What a scoring kernel is compiled for, what it is given and how it lays out shared memory.
#pragma once

#include <oasis/cuda/score_columns.cuh>

namespace oasis::cuda::detail {

/// Everything that a kernel is compiled for. `kBlocks`: blocks of a group, 64 * sub-block / block tokens. `kTiles`: columns of
/// a pass, in eights.
template <int kChannels_, SummaryCode kCode_, int kBlocks_, bool kSpread_, int kTiles_> struct ScoreKernel {
    static constexpr int kChannels = kChannels_;
    static constexpr SummaryCode kCode = kCode_;
    static constexpr int kBlocks = kBlocks_;
    static constexpr bool kSpread = kSpread_;
    static constexpr int kTiles = kTiles_;
    static constexpr bool kPlain = kCode == SummaryCode::kF16;
    static constexpr int kSteps = kChannels / 16;
    static constexpr int kStages = kPlain ? 0 : 2;
    static constexpr bool kHoist = kTiles * kChannels <= 256; ///< a pass's queries stay in registers
    /// Offsets in a group depend on channels, code and spread alone.
    static constexpr SummaryLayout kLayout{.options = {SummaryKind::kMean, 16, kCode}, .planes = 1, .head_dim = kChannels, .block_tokens = 16, .spread = kSpread, .upper_bound = false};
    static constexpr std::uint32_t kGroupBytes = kPlain ? 0 : std::uint32_t(kLayout.coded_bytes());
};

/// What shared memory holds, in this order: rings, barriers, queries and columns of two tiles, tiles, counts.
template <class K> struct ScoreShared {
    std::int32_t columns;

    __host__ __device__ std::uint32_t barriers() const { return kScoreWarps * K::kStages * K::kGroupBytes; }
    __host__ __device__ std::uint32_t queries(int buffer) const { return barriers() + 128 + std::uint32_t(buffer * columns * kQueryStride<K::kChannels> * 2); }
    __host__ __device__ std::uint32_t column(int buffer) const { return queries(2) + std::uint32_t(buffer * columns) * std::uint32_t(sizeof(ScoreColumn)); }
    __host__ __device__ std::uint32_t tile(int buffer) const { return column(2) + std::uint32_t(buffer) * std::uint32_t(sizeof(ScoreTile)); }
    __host__ __device__ std::uint32_t first() const { return tile(3); }
    __host__ __device__ std::uint32_t bytes(std::int32_t sequences) const { return first() + std::uint32_t(sequences + 1) * 4; }
};

struct ScoreArgs {
    ScoreParams params;
    std::int32_t planes;
    std::int32_t tokens;     ///< of a sub-block
    float log2_tokens;
    std::int32_t columns;    ///< a multiple of 8 * kTiles
    std::int64_t tail_bytes;

    __host__ __device__ std::int32_t group_tokens() const { return SummaryLayout::kGroupSubBlocks * tokens; }
};

} // namespace oasis::cuda::detail
