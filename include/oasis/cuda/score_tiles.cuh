// SPDX-License-Identifier: Apache-2.0
//
// How a step's scoring is cut into tiles, and in what order CTAs take them. A tile is up to 16 groups of one (sequence, KV
// head) in one form. Tiles are counted on the device, from positions, and handed out by an atomic counter: the grid knows
// neither contexts nor how many SMs others keep busy.
#pragma once

#include <oasis/cuda/score.hpp>

namespace oasis::cuda::detail {

inline constexpr int kTileGroups = 16;
inline constexpr int kScoreWarps = 8;
inline constexpr int kScoreThreads = 32 * kScoreWarps;

struct ScoreTile {
    std::int32_t sequence;
    std::int32_t head;
    std::int32_t first; ///< group
    std::int32_t end;
    bool native;
    bool valid;
    std::int32_t id[kTileGroups];
};

/// Groups that some row of a sequence reads. One that lies between two rows' recent windows is in both ranges.
struct GroupRange {
    std::int32_t coded_begin = 0;
    std::int32_t coded_end = 0;
    std::int32_t native_begin = 0;
    std::int32_t native_end = 0;

    __device__ std::int32_t coded_tiles() const { return (max(coded_end - coded_begin, 0) + kTileGroups - 1) / kTileGroups; }
    __device__ std::int32_t native_tiles() const { return (native_end - native_begin + kTileGroups - 1) / kTileGroups; }
};

/// Groups that a row at `position` reads in coded form: all before this one.
__device__ inline std::int32_t coded_groups(std::int32_t position, std::int32_t recent, std::int32_t group_tokens)
{
    return max(position + 1 - recent, 0) / group_tokens;
}

__device__ inline GroupRange group_range(const ScoreParams& p, std::int32_t sequence, std::int32_t group_tokens)
{
    std::int32_t low = 0x7FFFFFFF;
    std::int32_t high = -1;
    for (std::int32_t r = 0; r < p.rows; ++r) {
        const auto position = static_cast<std::int32_t>(p.position[std::int64_t(sequence) * p.rows + r]);
        if (position < 0) { continue; }
        low = min(low, position);
        high = max(high, position);
    }
    if (high < 0) { return {}; }
    const std::int32_t begin = p.window > 0 ? max(low + 1 - p.window, 0) / group_tokens : 0;
    return {begin, coded_groups(high, p.recent, group_tokens), max(begin, coded_groups(low, p.recent, group_tokens)), high / group_tokens + 1};
}

/// `first[s]`: tiles of the sequences before s; all CTA's threads take part.
__device__ inline void count_tiles(const ScoreParams& p, std::int32_t group_tokens, std::int32_t* first /*[sequences + 1]*/)
{
    for (std::int32_t s = std::int32_t(threadIdx.x); s < p.sequences; s += kScoreThreads) {
        const GroupRange range = group_range(p, s, group_tokens);
        first[s + 1] = p.kv_heads * (range.coded_tiles() + range.native_tiles());
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const auto lane = std::int32_t(threadIdx.x);
        std::int32_t before = 0;
        for (std::int32_t begin = 0; begin < p.sequences; begin += 32) {
            std::int32_t sum = begin + lane < p.sequences ? first[begin + lane + 1] : 0;
            for (std::int32_t step = 1; step < 32; step *= 2) {
                const std::int32_t other = __shfl_up_sync(0xFFFFFFFFU, sum, step);
                if (lane >= step) { sum += other; }
            }
            if (begin + lane < p.sequences) { first[begin + lane + 1] = before + sum; }
            before += __shfl_sync(0xFFFFFFFFU, sum, 31);
        }
        if (lane == 0) { first[0] = 0; }
    }
    __syncthreads();
}

/// One warp takes the next tile.
__device__ inline void take_tile(const ScoreParams& p, std::int32_t group_tokens, const std::int32_t* first, ScoreTile& tile)
{
    const auto lane = std::int32_t(threadIdx.x % 32);
    std::uint32_t index = 0;
    if (lane == 0) { index = atomicAdd(p.counter, 1U); }
    index = __shfl_sync(0xFFFFFFFFU, index, 0);
    if (index >= std::uint32_t(first[p.sequences])) {
        if (lane == 0) { tile.first = tile.end = 0, tile.native = tile.valid = false; }
        return;
    }
    std::int32_t s = 0;
    for (std::int32_t step = kMaxScoreSequences / 2; step > 0; step /= 2) {
        if (s + step < p.sequences && std::uint32_t(first[s + step]) <= index) { s += step; }
    }
    const GroupRange range = group_range(p, s, group_tokens);
    const std::int32_t native_tiles = range.native_tiles();
    const std::int32_t per_head = native_tiles + range.coded_tiles();
    const auto rest = std::int32_t(index) - first[s];
    const std::int32_t head = rest / per_head;
    std::int32_t piece = rest % per_head; // native ones come first: they take longest
    const bool native = piece < native_tiles;
    if (!native) { piece -= native_tiles; }
    const std::int32_t begin = (native ? range.native_begin : range.coded_begin) + piece * kTileGroups;
    const std::int32_t end = min(begin + kTileGroups, native ? range.native_end : range.coded_end);
    const SummaryTable& table = native ? p.native : p.coded;
    if (lane < end - begin) { tile.id[lane] = table.id[s * table.id_stride + begin + lane]; }
    if (lane == 0) { tile.sequence = s, tile.head = head, tile.first = begin, tile.end = end, tile.native = native, tile.valid = true; }
}

__device__ inline const std::byte* group_address(const SummaryTable& table, const ScoreTile& tile, std::int32_t group)
{
    return table.base + tile.id[group - tile.first] * table.group_bytes + tile.head * table.head_bytes;
}

/// The last CTA to leave makes the counter ready for the next launch; one thread of each calls it.
__device__ inline void leave(const ScoreParams& p)
{
    if (atomicInc(p.counter + 1, gridDim.x - 1) == gridDim.x - 1) { atomicExch(p.counter, 0U); }
}

} // namespace oasis::cuda::detail
