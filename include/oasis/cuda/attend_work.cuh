// SPDX-License-Identifier: Apache-2.0
//
// Attention kernel: which chunk a CTA takes next, and which groups of 16 tokens the chunk consists of. All of it is the work
// of one warp.
#pragma once

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/ptx.cuh>
#include <oasis/cuda/warp.cuh>

#include <cstdint>

namespace oasis::cuda::detail {

/// A chunk of the sets of one (sequence, KV head), for one tile of its queries.
struct AttendWork {
    std::int32_t group = -1; ///< sequence * kv_heads + KV head; -1: nothing is left
    std::int32_t chunk = 0;
    std::int32_t tile = 0;
    std::int32_t chunks = 0;
    std::int32_t blocks = 0;    ///< of the list
    std::uint32_t place = 0;    ///< of the chunk in the workspace
    std::int32_t first_row = 0; ///< of the sequence
    std::int32_t rows = 0;
};

/// Sixteen tokens of a block, as they are loaded.
struct alignas(16) TokenGroup {
    const std::byte* keys;
    std::int32_t index; ///< position in the sequence, in groups
    std::uint8_t rows;  ///< that read it
    std::uint8_t begin; ///< tokens [begin, end) are read by some row
    std::uint8_t end;
    std::uint8_t partial; ///< a row does not see all 16
};

/// A chunk as one warp plans it and the others reduce it.
struct ChunkPlan {
    static constexpr int kMaxGroups = kAttendMaxRows * kAttendChunkTokens / kAttendGroupTokens;

    TokenGroup groups[kMaxGroups]; ///< coded ones first, each form in position order
    AttendWork work;
    TokenIndex position;      ///< of row 0
    std::int32_t first_query; ///< of the tile
    std::int32_t queries;
    std::int32_t coded; ///< groups
    std::int32_t native;
    std::uint32_t stored_rows; ///< whose chunk this launch reduces
    bool judged;               ///< several rows: a NaN is reported, not stored
    bool final;                ///< the unit of work is done with this plan
    bool exit;
    AttendWork merge; ///< what to merge before anything else; group -1: nothing
};

__device__ __forceinline__ std::uint32_t lanes_below() { return (1U << lane_id()) - 1U; }

/// The row of a query of a (sequence, KV head).
__device__ __forceinline__ int row_of_query(const AttendJob& job, int query) { return (query * job.heads_inverse) >> 16; }

/// Maps tickets to work. Tickets of a CTA grow, so the walk over the lists' lengths never turns back.
class AttendWalk {
public:
    __device__ explicit AttendWalk(const AttendJob& job) { load(job); }

    __device__ AttendWork find(const AttendJob& job, std::uint32_t ticket)
    {
        while (ticket >= before_ + units_) {
            before_ += units_;
            first_ += kWindow;
            if (first_ >= job.groups) {
                // The last of all draws: each CTA makes one that finds nothing.
                if (job.drawn && lane_id() == 0 && ticket == before_ + gridDim.x - 1) { *job.ticket = 0; }
                return {};
            }
            load(job);
        }
        std::uint32_t rest = ticket - before_ - below_; // wraps round in lanes above
        const bool mine = rest < own_;
        AttendWork work;
        std::uint32_t units = 0;
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) {
            const std::uint32_t at = units_of(job, k);
            if (work.group < 0 && rest < at) {
                work.group = first_ + kPerLane * lane_id() + k;
                work.blocks = blocks_[k];
                units = at;
            } else if (work.group < 0) {
                rest -= at;
            }
        }
        const int source = __ffs(static_cast<int>(__ballot_sync(~0U, mine))) - 1;
        work.group = __shfl_sync(~0U, work.group, source);
        work.blocks = __shfl_sync(~0U, work.blocks, source);
        const std::uint32_t tiles = static_cast<std::uint32_t>(job.tiles);
        rest = __shfl_sync(~0U, rest, source);
        work.chunk = static_cast<std::int32_t>(rest / tiles);
        work.tile = static_cast<std::int32_t>(rest % tiles);
        work.chunks = static_cast<std::int32_t>(__shfl_sync(~0U, units, source) / tiles);
        work.place = ticket / tiles;
        return work;
    }

private:
    static constexpr int kPerLane = 4;
    static constexpr int kWindow = 32 * kPerLane;

    __device__ std::uint32_t units_of(const AttendJob& job, int k) const
    {
        const int group = first_ + kPerLane * lane_id() + k;
        const int chunks = (blocks_[k] + (1 << job.chunk_shift) - 1) >> job.chunk_shift;
        return group < job.groups ? static_cast<std::uint32_t>(max(chunks, 1) * job.tiles) : 0U;
    }

    __device__ void load(const AttendJob& job)
    {
        own_ = 0;
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) {
            const int group = first_ + kPerLane * lane_id() + k;
            blocks_[k] = group < job.groups ? min(max(job.params.block_counts[group], 0), job.max_blocks) : 0;
        }
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) { own_ += units_of(job, k); }
        const std::uint32_t through = warp_scan(own_);
        below_ = through - own_;
        units_ = __shfl_sync(~0U, through, 31);
    }

    std::int32_t first_ = 0;
    std::uint32_t before_ = 0; ///< units of the groups before the window
    std::uint32_t units_ = 0;  ///< of the window
    std::uint32_t below_ = 0;  ///< of the lanes below
    std::uint32_t own_ = 0;
    std::int32_t blocks_[kPerLane]{};
};

/// Of 16 tokens from `first` on, those that a row at `position` sees: [x, y).
__device__ __forceinline__ int2 tokens_seen(TokenIndex position, TokenIndex first, std::int32_t window)
{
    const TokenIndex seen = position + 1 - first;
    const int end = static_cast<int>(min(max(seen, TokenIndex{0}), TokenIndex{kAttendGroupTokens}));
    const int begin = window > 0 ? static_cast<int>(min(max(seen - window, TokenIndex{0}), TokenIndex{end})) : 0;
    return {begin, end};
}

/// The blocks of a chunk, as places in the list and the rows that read them.
struct ChunkBlocks {
    std::int32_t at[ChunkPlan::kMaxGroups];
    std::uint8_t rows[ChunkPlan::kMaxGroups];
};

/// Finds the blocks of chunk `work.chunk` of each row in `rows`: the place of a block in a chunk counts along the row's own
/// set, so that a row's chunks are the same whoever shares the list. Returns how many.
__device__ inline int find_blocks(const AttendJob& job, const AttendWork& work, const AttendBlock* list, std::int32_t sequence_rows,
                                  std::uint32_t rows, ChunkBlocks& blocks)
{
    if (sequence_rows == 1) {
        const int begin = work.chunk << job.chunk_shift;
        const int count = max(min(work.blocks - begin, 1 << job.chunk_shift), 0);
        if (lane_id() < count) {
            blocks.at[lane_id()] = begin + lane_id();
            blocks.rows[lane_id()] = 1;
        }
        __syncwarp();
        return count;
    }
    int found = 0;
    std::int32_t before[kAttendMaxRows] = {};
    bool more = true;
    for (int base = 0; base < work.blocks && more; base += 32) {
        const int at = base + lane_id();
        const std::uint32_t readers = at < work.blocks ? list[at].rows & rows : 0U;
        std::uint32_t mine = 0;
        more = false;
#pragma unroll
        for (int r = 0; r < kAttendMaxRows; ++r) {
            const bool reads = (readers >> r) & 1U;
            const std::uint32_t votes = __ballot_sync(~0U, reads);
            const std::int32_t rank = before[r] + __popc(votes & lanes_below());
            if (reads && (rank >> job.chunk_shift) == work.chunk) { mine |= 1U << r; }
            before[r] += __popc(votes);
            more |= ((rows >> r) & 1U) && (before[r] >> job.chunk_shift) <= work.chunk;
        }
        const std::uint32_t votes = __ballot_sync(~0U, mine != 0);
        if (mine) {
            const int place = found + __popc(votes & lanes_below());
            blocks.at[place] = at;
            blocks.rows[place] = static_cast<std::uint8_t>(mine);
        }
        found += __popc(votes);
    }
    __syncwarp();
    return found;
}

/// The rows of which a block is late.
__device__ inline std::uint32_t rows_waiting(const AttendBlock* list, const ChunkBlocks& blocks, int count)
{
    std::uint32_t late = 0;
    for (int i = lane_id(); i < count; i += 32) { late |= (list[blocks.at[i]].flags & AttendBlock::kLate) ? blocks.rows[i] : 0U; }
    return __reduce_or_sync(~0U, late);
}

/// What all rows together see of a group of 16 tokens.
__device__ inline TokenGroup describe_group(const AttendJob& job, TokenIndex position, const std::byte* keys, std::int32_t index,
                                            std::uint32_t readers)
{
    int begin = kAttendGroupTokens;
    int end = 0;
    bool partial = false;
    for (std::uint32_t left = readers; left; left &= left - 1) {
        const int2 seen =
            tokens_seen(position + __ffs(static_cast<int>(left)) - 1, TokenIndex{index} * kAttendGroupTokens, job.params.window);
        partial |= seen.x > 0 || seen.y < kAttendGroupTokens;
        begin = min(begin, seen.x);
        end = max(end, seen.y);
    }
    return {keys, index, static_cast<std::uint8_t>(readers), static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(end), partial};
}

/// Lists the token groups of the blocks in `plan`, coded ones first. `kCodedBytes` and `kNativeBytes` are those of a token's K.
template <int kCodedBytes, int kNativeBytes>
__device__ void list_groups(const AttendJob& job, const AttendBlock* list, const ChunkBlocks& blocks, int count, ChunkPlan& plan)
{
    const int parts = job.block_tokens / kAttendGroupTokens;
    std::int32_t coded = 0;
    if constexpr (kCodedBytes > 0) { // native ones start behind all coded ones
        for (int i = lane_id(); i < count; i += 32) {
            coded += (blocks.rows[i] & plan.stored_rows) && !(list[blocks.at[i]].flags & AttendBlock::kNativeForm) ? parts : 0;
        }
        coded = __reduce_add_sync(~0U, coded);
    }
    std::int32_t next_coded = 0;
    std::int32_t next_native = coded;
    for (int base = 0; base < count; base += 32) {
        const int i = base + lane_id();
        AttendBlock block;
        std::uint32_t readers = 0;
        if (i < count) {
            block = list[blocks.at[i]];
            readers = blocks.rows[i] & plan.stored_rows;
        }
        const bool native = kCodedBytes == 0 || (block.flags & AttendBlock::kNativeForm);
        const std::uint32_t natives = __ballot_sync(~0U, readers && native);
        const std::uint32_t codes = __ballot_sync(~0U, readers && !native);
        if (readers) {
            const int place =
                native ? next_native + __popc(natives & lanes_below()) * parts : next_coded + __popc(codes & lanes_below()) * parts;
            const std::byte* keys = ((block.flags & AttendBlock::kNativeForm) ? job.params.native : job.params.slots) + block.offset;
            for (int part = 0; part < parts; ++part) {
                plan.groups[place + part] =
                    describe_group(job, plan.position, keys + part * kAttendGroupTokens * (native ? kNativeBytes : kCodedBytes),
                                   block.block * parts + part, readers);
            }
        }
        next_native += __popc(natives) * parts;
        next_coded += __popc(codes) * parts;
    }
    plan.coded = coded;
    plan.native = next_native - coded;
    __syncwarp();
}

} // namespace oasis::cuda::detail
