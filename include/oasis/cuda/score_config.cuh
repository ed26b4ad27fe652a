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
    static constexpr int kWarps = kTiles == 1 ? 20 : 16; ///< of the only CTA of an SM: as many as registers allow
    static constexpr int kThreads = 32 * kWarps;
    static constexpr bool kPlain = kCode == SummaryCode::kF16;
    static constexpr int kSteps = kChannels / 16;
    static constexpr int kUnroll = kTiles == 4 ? 1 : kSteps; ///< four tiles fill the registers
    /// Offsets in a group depend on channels, code and spread alone.
    static constexpr SummaryLayout kLayout{.options = {SummaryKind::kMean, 16, kCode},
                                           .planes = 1,
                                           .head_dim = kChannels,
                                           .block_tokens = 16,
                                           .spread = kSpread,
                                           .upper_bound = false};
    static constexpr std::uint32_t kGroupBytes = kPlain ? 0 : std::uint32_t(kLayout.coded_bytes());
};

inline constexpr int kTileSlots = 3; ///< tiles whose queries and columns are held
inline constexpr int kMostStages = 32;

/// Work of one warp.
struct alignas(16) ScoreItem {
    enum Kind : std::int32_t { kStop, kColumn, kNative, kGroup };
    Kind kind;
    std::int32_t tile; ///< counted by the CTA: slot tile % kTileSlots
    std::int32_t group;
    std::int32_t column; ///< kColumn; first of 8 in kNative
};

/// Head of shared memory. Stages, queries, columns and counts follow.
struct ScoreShared {
    std::uint64_t full[kMostStages];
    std::uint64_t empty[kMostStages];
    std::uint64_t columns_ready[kTileSlots];
    std::uint32_t next; ///< item to be taken
    std::uint32_t put
        [kMostStages]; ///< number of the item that a stage holds or waits for: a barrier's phase alone cannot tell it from the one before
    std::uint32_t done[kTileSlots]; ///< groups scored of all tiles of the slot
    alignas(16) ScoreItem item[kMostStages];
    ScoreTile tile[kTileSlots];
};

struct ScoreArgs {
    ScoreParams params;
    std::int32_t planes;
    std::int32_t tokens; ///< of a sub-block
    float log2_tokens;
    std::int64_t tail_bytes;
    std::int32_t columns = 0; ///< a multiple of 8 * kTiles
    std::int32_t log2_stages = 0;

    __host__ __device__ std::int32_t group_tokens() const { return SummaryLayout::kGroupSubBlocks * tokens; }
    template <class K> __host__ __device__ std::uint32_t stage(std::uint32_t i) const
    {
        return (std::uint32_t(sizeof(ScoreShared)) + 127) / 128 * 128 + i * K::kGroupBytes;
    }
    template <class K> __host__ __device__ std::uint32_t queries(std::uint32_t slot) const
    {
        return stage<K>(1U << log2_stages) + slot * std::uint32_t((columns + 15) / 16) * kQueryBytes<K::kChannels>;
    }
    template <class K> __host__ __device__ std::uint32_t column(std::uint32_t slot) const
    {
        return queries<K>(kTileSlots) + slot * std::uint32_t(columns) * std::uint32_t(sizeof(ScoreColumn));
    }
    template <class K> __host__ __device__ std::uint32_t count() const { return column<K>(kTileSlots); }
    template <class K> __host__ __device__ std::uint32_t bytes() const
    {
        return count<K>() + std::uint32_t(sizeof(TileCount) + std::size_t(params.sequences) * 4);
    }
};

} // namespace oasis::cuda::detail
