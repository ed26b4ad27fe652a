// SPDX-License-Identifier: Apache-2.0
//
// How a step's scoring is cut into tiles, and in what order CTAs take them. A tile is a run of groups of one (sequence, KV
// head) in one form. Tiles are counted on the device, from positions, and handed out by an atomic counter: the grid knows
// neither contexts nor how many SMs others keep busy. Nothing that is written depends on where tiles begin.
#pragma once

#include <oasis/cuda/score.hpp>
#include <oasis/cuda/warp.cuh>

namespace oasis::cuda::detail {

inline constexpr int kTileGroups = 128; ///< most of a tile
inline constexpr int kNativeTileGroups = 16;

struct ScoreTile {
    std::int32_t sequence;
    std::int32_t head;
    std::int32_t first; ///< group
    std::int32_t end;
    std::int32_t native;
    std::int32_t id[kTileGroups];
};

/// Groups that some row of a sequence reads. One that lies between two rows' recent windows is in both ranges.
struct GroupRange {
    std::int32_t coded_begin = 0;
    std::int32_t coded_end = 0;
    std::int32_t native_begin = 0;
    std::int32_t native_end = 0;

    __device__ std::int32_t coded_tiles(std::int32_t tile_groups) const
    {
        return (max(coded_end - coded_begin, 0) + tile_groups - 1) / tile_groups;
    }
    __device__ std::int32_t native_tiles() const { return (native_end - native_begin + kNativeTileGroups - 1) / kNativeTileGroups; }
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
    return {begin, coded_groups(high, p.recent, group_tokens), max(begin, coded_groups(low, p.recent, group_tokens)),
            high / group_tokens + 1};
}

/// A step's tiles, in shared memory.
struct TileCount {
    unsigned long long groups; ///< of all (sequence, KV head)s, in coded form
    std::int32_t tile_groups;
    std::int32_t first[1]; ///< [sequences + 1]: tiles of the sequences before
};

/// All threads of a CTA. Tiles are long enough to be worth a change of queries and short enough that the last ones end together.
__device__ inline void count_tiles(const ScoreParams& p, std::int32_t group_tokens, TileCount& count)
{
    if (threadIdx.x == 0) { count.groups = 0; }
    __syncthreads();
    for (std::int32_t s = std::int32_t(threadIdx.x); s < p.sequences; s += std::int32_t(blockDim.x)) {
        const GroupRange range = group_range(p, s, group_tokens);
        atomicAdd(&count.groups, static_cast<unsigned long long>(p.kv_heads) * max(range.coded_end - range.coded_begin, 0));
    }
    __syncthreads();
    const auto share = static_cast<std::int32_t>(min(count.groups / (gridDim.x * 16), 1024ULL));
    const std::int32_t tile_groups = min(max((share + 7) / 8 * 8, 8), kTileGroups);
    for (std::int32_t s = std::int32_t(threadIdx.x); s < p.sequences; s += std::int32_t(blockDim.x)) {
        const GroupRange range = group_range(p, s, group_tokens);
        count.first[s + 1] = p.kv_heads * (range.coded_tiles(tile_groups) + range.native_tiles());
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const auto lane = std::int32_t(threadIdx.x);
        std::int32_t before = 0;
        for (std::int32_t begin = 0; begin < p.sequences; begin += 32) {
            const std::int32_t sum = warp_scan(begin + lane < p.sequences ? count.first[begin + lane + 1] : 0);
            if (begin + lane < p.sequences) { count.first[begin + lane + 1] = before + sum; }
            before += __shfl_sync(0xFFFFFFFFU, sum, 31);
        }
        if (lane == 0) { count.first[0] = 0, count.tile_groups = tile_groups; }
    }
    __syncthreads();
}

/// A tile as one warp knows it before its slot is free. The ids' loads are under way while the warp does other things.
class NextTile {
public:
    /// Looks up tile `index`.
    __device__ void look(const ScoreParams& p, std::int32_t group_tokens, const TileCount& count, std::uint32_t index)
    {
        valid_ = index < std::uint32_t(count.first[p.sequences]);
        if (!valid_) { return; }
        std::int32_t s = 0;
        for (std::int32_t step = kMaxScoreSequences / 2; step > 0; step /= 2) {
            if (s + step < p.sequences && std::uint32_t(count.first[s + step]) <= index) { s += step; }
        }
        const GroupRange range = group_range(p, s, group_tokens);
        const std::int32_t native_tiles = range.native_tiles();
        const std::int32_t per_head = native_tiles + range.coded_tiles(count.tile_groups);
        const auto rest = std::int32_t(index) - count.first[s];
        std::int32_t piece = rest % per_head; // native ones come first: they take longest
        native_ = piece < native_tiles;
        const std::int32_t most = native_ ? kNativeTileGroups : count.tile_groups;
        if (!native_) { piece -= native_tiles; }
        sequence_ = s;
        head_ = rest / per_head;
        first_ = (native_ ? range.native_begin : range.coded_begin) + piece * most;
        end_ = min(first_ + most, native_ ? range.native_end : range.coded_end);
        const SummaryTable& table = native_ ? p.native : p.coded;
#pragma unroll
        for (int i = 0; i < kIds; ++i) {
            const std::int32_t group = first_ + 32 * i + std::int32_t(threadIdx.x % 32);
            id_[i] = group < end_ ? table.id[s * table.id_stride + group] : 0;
        }
    }

    /// Writes the tile to its slot; false if there is none.
    __device__ bool write(ScoreTile& tile) const
    {
        if (!valid_) { return false; }
        const auto lane = std::int32_t(threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < kIds; ++i) { tile.id[32 * i + lane] = id_[i]; }
        if (lane == 0) { tile.sequence = sequence_, tile.head = head_, tile.first = first_, tile.end = end_, tile.native = native_; }
        __syncwarp();
        return true;
    }

private:
    static constexpr int kIds = kTileGroups / 32;
    std::int32_t id_[kIds];
    std::int32_t sequence_;
    std::int32_t head_;
    std::int32_t first_;
    std::int32_t end_;
    bool native_;
    bool valid_;
};

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
