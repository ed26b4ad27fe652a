// SPDX-License-Identifier: Apache-2.0
//
// Attention kernels: which chunk a CTA takes next, and which groups of 16 tokens the chunk consists of.
#pragma once

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/mma.cuh>

#include <cstdint>

namespace oasis::cuda::detail {

/// A chunk of the sets of one (sequence, KV head), for one tile of its queries.
struct AttendWork {
    std::int32_t group = -1; ///< sequence * kv_heads + KV head; -1: nothing is left
    std::int32_t chunk = 0;
    std::int32_t tile = 0;
    std::int32_t chunks = 0;
    std::int32_t blocks = 0; ///< of the list
    std::uint32_t place = 0; ///< of the chunk in the workspace
};

/// Sixteen tokens of a block, as they are loaded.
struct alignas(16) TokenGroup {
    const std::byte* keys;
    std::int32_t index;   ///< position in the sequence, in groups
    std::uint8_t rows;    ///< that read it
    std::uint8_t begin;   ///< tokens [begin, end) are read by some row
    std::uint8_t end;
    std::uint8_t partial; ///< a row does not see all 16
};

/// Scratch of the planning, in shared memory.
struct AttendScratch {
    static constexpr int kMaxGroups = kAttendMaxRows * kAttendChunkTokens / kAttendGroupTokens;

    TokenGroup groups[kMaxGroups]; ///< coded ones first, each form in position order
    std::int32_t candidates[kAttendThreads];
    std::uint8_t candidate_rows[kAttendThreads];
    std::int32_t row_counts[kAttendThreads / 32][kAttendMaxRows];
    std::uint32_t counts[kAttendThreads / 32];
    AttendWork work;
    bool last;
};

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ std::uint32_t lanes_below() { return (1U << lane_id()) - 1U; }

/// Maps tickets to work; the state of one warp. Tickets grow, so the walk over the lists' lengths never turns back.
class AttendWalk {
public:
    __device__ AttendWork find(const AttendJob& job, std::uint32_t ticket)
    {
        while (ticket >= before_ + units_) {
            before_ += units_;
            first_ += kWindow;
            if (first_ >= job.groups) {
                // The last of all draws: each CTA makes one that finds nothing.
                if (lane_id() == 0 && ticket == before_ + gridDim.x - 1) { *job.ticket = 0; }
                return {};
            }
            load(job);
        }
        std::uint32_t rest = ticket - before_ - below_;
        const bool mine = ticket - before_ >= below_ && rest < own_;
        AttendWork work;
        work.place = ticket / static_cast<std::uint32_t>(job.tiles);
        for (int k = 0; k < kPerLane; ++k) {
            const std::uint32_t units = units_of(job, k);
            if (work.group < 0 && rest < units) {
                work.group = first_ + kPerLane * lane_id() + k;
                work.chunks = static_cast<std::int32_t>(units) / job.tiles;
                work.chunk = static_cast<std::int32_t>(rest) / job.tiles;
                work.tile = static_cast<std::int32_t>(rest) % job.tiles;
                work.blocks = blocks_[k];
            }
            rest -= units;
        }
        const int source = __ffs(static_cast<int>(__ballot_sync(~0U, mine))) - 1;
        work.group = __shfl_sync(~0U, work.group, source);
        work.chunks = __shfl_sync(~0U, work.chunks, source);
        work.chunk = __shfl_sync(~0U, work.chunk, source);
        work.tile = __shfl_sync(~0U, work.tile, source);
        work.blocks = __shfl_sync(~0U, work.blocks, source);
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
        std::uint32_t through = own_;
        for (int step = 1; step < 32; step *= 2) {
            const std::uint32_t other = __shfl_up_sync(~0U, through, step);
            if (lane_id() >= step) { through += other; }
        }
        below_ = through - own_;
        units_ = __shfl_sync(~0U, through, 31);
    }

    std::int32_t first_ = -kWindow;
    std::uint32_t before_ = 0; ///< units of the groups before the window
    std::uint32_t units_ = 0;  ///< of the window
    std::uint32_t below_ = 0;  ///< of the lanes below
    std::uint32_t own_ = 0;
    std::int32_t blocks_[kPerLane]{};
};

/// Finds the blocks of chunk `work.chunk` of each row in `rows`: the place of a block in a chunk counts along the row's own
/// set, so that a row's chunks are the same whoever shares the list. Returns how many; the caller synchronises.
__device__ inline int find_candidates(const AttendJob& job, const AttendWork& work, const AttendBlock* list, std::int32_t sequence_rows, std::uint32_t rows, AttendScratch& scratch)
{
    const int thread = static_cast<int>(threadIdx.x);
    if (sequence_rows == 1) {
        const int begin = work.chunk << job.chunk_shift;
        const int count = min(work.blocks - begin, 1 << job.chunk_shift);
        if (thread < count) {
            scratch.candidates[thread] = begin + thread;
            scratch.candidate_rows[thread] = 1;
        }
        return max(count, 0);
    }
    int found = 0;
    std::int32_t before[kAttendMaxRows] = {};
    bool more = true;
    for (int base = 0; base < work.blocks && more; base += kAttendThreads) {
        const int at = base + thread;
        const std::uint32_t readers = at < work.blocks ? list[at].rows & rows : 0U;
        std::int32_t rank[kAttendMaxRows];
#pragma unroll
        for (int r = 0; r < kAttendMaxRows; ++r) {
            const std::uint32_t votes = __ballot_sync(~0U, (readers >> r) & 1U);
            rank[r] = __popc(votes & lanes_below());
            if (lane_id() == r) { scratch.row_counts[warp_id()][r] = __popc(votes); }
        }
        __syncthreads();
        std::uint32_t mine = 0;
        more = false;
#pragma unroll
        for (int r = 0; r < kAttendMaxRows; ++r) {
            rank[r] += before[r];
            for (int w = 0; w < kAttendThreads / 32; ++w) {
                if (w < warp_id()) { rank[r] += scratch.row_counts[w][r]; }
                before[r] += scratch.row_counts[w][r];
            }
            if (((readers >> r) & 1U) && (rank[r] >> job.chunk_shift) == work.chunk) { mine |= 1U << r; }
            more |= ((rows >> r) & 1U) && (before[r] >> job.chunk_shift) <= work.chunk;
        }
        const std::uint32_t votes = __ballot_sync(~0U, mine != 0);
        if (lane_id() == 0) { scratch.counts[warp_id()] = static_cast<std::uint32_t>(__popc(votes)); }
        __syncthreads();
        int place = found + __popc(votes & lanes_below());
        for (int w = 0; w < kAttendThreads / 32; ++w) {
            if (w < warp_id()) { place += static_cast<int>(scratch.counts[w]); }
            found += static_cast<int>(scratch.counts[w]);
        }
        if (mine) {
            scratch.candidates[place] = at;
            scratch.candidate_rows[place] = static_cast<std::uint8_t>(mine);
        }
    }
    return found;
}

/// Of 16 tokens from `first` on, those that a row at `position` sees: [x, y).
__device__ __forceinline__ int2 tokens_seen(TokenIndex position, TokenIndex first, std::int32_t window)
{
    const TokenIndex seen = position + 1 - first;
    const int end = static_cast<int>(min(max(seen, TokenIndex{0}), TokenIndex{kAttendGroupTokens}));
    const int begin = window > 0 ? static_cast<int>(min(max(seen - window, TokenIndex{0}), TokenIndex{end})) : 0;
    return {begin, end};
}

struct AttendGroups {
    std::int32_t coded = 0;
    std::int32_t native = 0;
    std::uint32_t stored_rows = 0; ///< whose chunk this launch reduces
};

/// Lists the token groups of the candidates. `kCodedBytes` and `kNativeBytes` are those of a token's K.
template <int kCodedBytes, int kNativeBytes>
__device__ AttendGroups list_groups(const AttendJob& job, const AttendBlock* list, TokenIndex position, int candidates, std::uint32_t rows, AttendScratch& scratch)
{
    const int thread = static_cast<int>(threadIdx.x);
    AttendGroups result;
    result.stored_rows = rows;
    AttendBlock block;
    std::uint32_t readers = 0;
    if (thread < candidates) {
        block = list[scratch.candidates[thread]];
        readers = scratch.candidate_rows[thread] & rows;
    }
    if (job.params.phase != AttendPhase::kAll) {
        const std::uint32_t late = __reduce_or_sync(~0U, (block.flags & AttendBlock::kLate) ? readers : 0U);
        if (lane_id() == 0) { scratch.row_counts[warp_id()][0] = static_cast<std::int32_t>(late); }
        __syncthreads();
        std::uint32_t waiting = 0;
        for (int w = 0; w < kAttendThreads / 32; ++w) { waiting |= static_cast<std::uint32_t>(scratch.row_counts[w][0]); }
        result.stored_rows &= job.params.phase == AttendPhase::kReady ? ~waiting : waiting;
        readers &= result.stored_rows;
    }
    const bool native = kCodedBytes == 0 || (block.flags & AttendBlock::kNativeForm);
    const int mine = readers ? job.block_tokens / kAttendGroupTokens : 0;
    const std::uint32_t packed = static_cast<std::uint32_t>(mine) << (native ? 16 : 0);
    std::uint32_t through = packed;
    for (int step = 1; step < 32; step *= 2) {
        const std::uint32_t other = __shfl_up_sync(~0U, through, step);
        if (lane_id() >= step) { through += other; }
    }
    if (lane_id() == 31) { scratch.counts[warp_id()] = through; }
    __syncthreads();
    std::uint32_t below = through - packed;
    std::uint32_t all = 0;
    for (int w = 0; w < kAttendThreads / 32; ++w) {
        if (w < warp_id()) { below += scratch.counts[w]; }
        all += scratch.counts[w];
    }
    result.coded = static_cast<std::int32_t>(all & 0xFFFFU);
    result.native = static_cast<std::int32_t>(all >> 16);
    const int place = native ? result.coded + static_cast<int>(below >> 16) : static_cast<int>(below & 0xFFFFU);
    const std::byte* keys = ((block.flags & AttendBlock::kNativeForm) ? job.params.native : job.params.slots) + block.offset;
    for (int part = 0; part < mine; ++part) {
        TokenGroup group;
        group.keys = keys + part * kAttendGroupTokens * (native ? kNativeBytes : kCodedBytes);
        group.index = block.block * (job.block_tokens / kAttendGroupTokens) + part;
        group.rows = static_cast<std::uint8_t>(readers);
        int begin = kAttendGroupTokens;
        int end = 0;
        bool partial = false;
        for (std::uint32_t left = readers; left; left &= left - 1) {
            const int2 seen = tokens_seen(position + __ffs(static_cast<int>(left)) - 1, TokenIndex{group.index} * kAttendGroupTokens, job.params.window);
            partial |= seen.x > 0 || seen.y < kAttendGroupTokens;
            begin = min(begin, seen.x);
            end = max(end, seen.y);
        }
        group.begin = static_cast<std::uint8_t>(begin);
        group.end = static_cast<std::uint8_t>(end);
        group.partial = partial;
        scratch.groups[place + part] = group;
    }
    return result;
}

} // namespace oasis::cuda::detail
