// SPDX-License-Identifier: Apache-2.0
//
// Attention kernel: the warp that draws work and plans chunks, and the warp that keeps the ring of K and V full; both run
// ahead of the warps that compute, across chunks.
#pragma once

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/attend_tile.cuh>
#include <oasis/cuda/attend_work.cuh>

#include <cstdint>

namespace oasis::cuda::detail {

template <class Traits> struct alignas(128) AttendShared {
    std::uint16_t weights[Traits::kStageGroups][Traits::kQueryTiles][kAttendGroupTokens][8];
    std::uint8_t queries[2][Traits::kQueries * Traits::kNativeRow];
    std::uint8_t half_queries[Traits::kCoded ? Traits::kQueries * Traits::kNativeRow : 16]; ///< f16, scaled, in the codes' order
    float peaks[Traits::kStageGroups][Traits::kQueries];                                    ///< of each group
    float shrinks[Traits::kStageGroups][Traits::kQueries];                                  ///< factor of the sums so far
    float masses[Traits::kStageGroups][Traits::kQueries];                                   ///< sum of a group's weights
    float query_scales[Traits::kQueries];
    ChunkPlan plans[2];
    ChunkBlocks blocks;
    AttendWork done;  ///< finished, not counted yet
    AttendWork merge; ///< to be merged
    std::uint64_t plan_full[2];
    std::uint64_t queries_full[2];
    std::uint64_t plan_empty[2];
    std::uint64_t stage_full[kAttendMaxDepth];
    std::uint64_t stage_empty[kAttendMaxDepth];
    std::uint64_t judged; ///< a plan of several rows was reduced, and `nan` says how
    std::uint8_t nan[4];  ///< by warp

    /// By all threads of the CTA.
    __device__ void init()
    {
        const int i = static_cast<int>(threadIdx.x);
        if (i < kAttendMaxDepth) {
            init_barrier(shared_address(&stage_full[i]), 32);
            init_barrier(shared_address(&stage_empty[i]), kAttendComputeThreads);
        } else if (i < kAttendMaxDepth + 2) {
            init_barrier(shared_address(&plan_full[i - kAttendMaxDepth]), 32);
            init_barrier(shared_address(&queries_full[i - kAttendMaxDepth]), 32);
            init_barrier(shared_address(&plan_empty[i - kAttendMaxDepth]), kAttendComputeThreads + 32);
        } else if (i == kAttendMaxDepth + 2) {
            init_barrier(shared_address(&judged), kAttendComputeThreads);
        }
        __syncthreads();
    }
};

/// A place in a ring, and the parity of the round.
struct RingPlace {
    int slot = 0;
    std::uint32_t parity = 0;

    __device__ void advance(int depth)
    {
        if (++slot == depth) {
            slot = 0;
            parity ^= 1U;
        }
    }
};

template <class Traits> class ChunkPlanner {
public:
    __device__ ChunkPlanner(const AttendJob& job, AttendShared<Traits>& shared) : job_(job), shared_(shared) {}

    __device__ void run()
    {
        if (lane_id() == 0) { shared_.done.group = shared_.merge.group = -1; }
        std::uint32_t ticket = blockIdx.x;
        AttendWalk walk(job_);
        do {
            wait_for_place(); // before the draw: no CTA sits on work that another could do
            if (job_.drawn && lane_id() == 0) { ticket = atomicAdd(job_.ticket, 1U); }
            const AttendWork work = walk.find(job_, __shfl_sync(~0U, ticket, 0));
            if (work.group < 0) { break; }
            plan(work);
        } while (job_.drawn);
        for (int left = 3; left; --left) { // what is under way comes to its end, and is merged
            ChunkPlan& plan = acquire();
            complete();
            if (lane_id() == 0) {
                plan.work.group = -1;
                plan.final = false;
                plan.exit = left == 1;
            }
            publish();
        }
    }

private:
    __device__ void wait_for_place() { wait(shared_address(&shared_.plan_empty[plan_.slot]), plan_.parity ^ 1U); }

    /// The next plan, when the one before in its place is done with; what that finished is left to `complete`.
    __device__ ChunkPlan& acquire()
    {
        wait_for_place();
        ChunkPlan& plan = shared_.plans[plan_.slot];
        if (lane_id() == 0) {
            if (started_ >= 2 && plan.final && job_.params.phase != AttendPhase::kReady) { shared_.done = plan.work; }
            plan.merge = shared_.merge;
            shared_.merge.group = -1;
        }
        ++started_;
        __syncwarp();
        return plan;
    }

    /// Counts the unit that was done with. If the others of its (sequence, KV head) are too, what they wrote can be read, and the
    /// next plan says so. The fence takes longer than a plan: it comes when the loader has one.
    __device__ void complete()
    {
        if (lane_id() > 0 || shared_.done.group < 0) { return; }
        const AttendWork& done = shared_.done;
        if (add_release(&job_.arrivals[done.group], 1U) == static_cast<std::uint32_t>(done.chunks * job_.tiles) - 1) {
            fence_acquire();
            job_.arrivals[done.group] = 0;
            shared_.merge = done;
        }
        shared_.done.group = -1;
    }

    /// Lets the other warps go on: the loader at once, the others when their queries have landed as well.
    __device__ void publish(const ChunkPlan* with_queries = nullptr)
    {
        arrive(shared_address(&shared_.plan_full[plan_.slot]));
        if (with_queries) { load_queries(*with_queries); }
        arrive_after_copies(shared_address(&shared_.queries_full[plan_.slot]));
        plan_.advance(2);
    }

    /// All rows at once; if a NaN came out, row by row, since a product with zero does not keep a NaN out of the others' sums.
    __device__ void plan(AttendWork work)
    {
        const int sequence = work.group / job_.kv_heads;
        const AttendBlock* list = job_.params.blocks + std::int64_t{work.group} * job_.max_blocks;
        prefetch(list + min((work.chunk << job_.chunk_shift) + lane_id(), job_.max_blocks - 1)); // what one row will read
        work.first_row = job_.params.row_starts[sequence];
        const std::int32_t sequence_rows = work.rows = min(job_.params.row_starts[sequence + 1] - work.first_row, job_.max_rows);
        const TokenIndex position = job_.params.first_positions[sequence];
        const std::int32_t first_query = work.tile * Traits::kQueries;
        const std::int32_t queries = max(0, min(sequence_rows * job_.heads - first_query, Traits::kQueries));
        std::uint32_t left = 0;
        if (queries > 0) { left = (2U << row_of_query(job_, first_query + queries - 1)) - (1U << row_of_query(job_, first_query)); }
        bool single = false;
        do {
            const std::uint32_t rows = single ? left & (0U - left) : left;
            const bool judged = (rows & (rows - 1)) != 0;
            const int count = queries > 0 ? find_blocks(job_, work, list, sequence_rows, rows, shared_.blocks) : 0;
            std::uint32_t stored = rows;
            if (job_.params.phase != AttendPhase::kAll) {
                const std::uint32_t waiting = rows_waiting(list, shared_.blocks, count);
                stored &= job_.params.phase == AttendPhase::kReady ? ~waiting : waiting;
            }
            ChunkPlan& plan = acquire();
            if (lane_id() == 0) {
                plan.work = work;
                plan.position = position;
                plan.first_query = first_query;
                plan.queries = queries;
                plan.stored_rows = stored;
                plan.judged = judged;
                plan.final = judged || rows == left;
                plan.exit = false;
            }
            __syncwarp();
            list_groups<Traits::kCoded ? Traits::kCodedRow : 0, Traits::kNativeRow>(job_, list, shared_.blocks, count, plan);
            publish(&plan);
            complete();
            if (judged && found_nan()) {
                if (lane_id() == 0) { plan.final = false; }
                single = true;
                continue;
            }
            left &= ~rows;
        } while (left);
    }

    __device__ bool found_nan()
    {
        wait(shared_address(&shared_.judged), judged_parity_);
        judged_parity_ ^= 1U;
        bool nan = false;
        for (int w = 0; w < 4; ++w) { nan |= shared_.nan[w] != 0; }
        __syncwarp();
        return nan;
    }

    __device__ void load_queries(const ChunkPlan& plan)
    {
        constexpr int kPieces = Traits::kNativeRow / 16;
        const int q_heads = job_.heads * job_.kv_heads;
        const int head = (plan.work.group % job_.kv_heads) * job_.heads;
        const std::uint32_t to = shared_address(shared_.queries[plan_.slot]);
        const auto* q = static_cast<const std::byte*>(job_.params.q);
        for (int i = lane_id(); i < Traits::kQueries * kPieces; i += 32) {
            const int query = i / kPieces;
            const int row = row_of_query(job_, plan.first_query + query);
            const std::int64_t at = std::int64_t{plan.work.first_row + row} * q_heads + head + plan.first_query + query - row * job_.heads;
            const bool valid = query < plan.queries;
            copy_async(to + tile_offset<Traits::kNativeRow>(query, i % kPieces), valid ? q + at * Traits::kNativeRow + i % kPieces * 16 : q,
                       valid);
        }
    }

    const AttendJob& job_;
    AttendShared<Traits>& shared_;
    RingPlace plan_;
    std::uint32_t judged_parity_ = 0;
    std::int32_t started_ = 0;
};

template <class Traits> class ChunkLoader {
public:
    __device__ ChunkLoader(const AttendJob& job, AttendShared<Traits>& shared, std::uint32_t ring)
        : shared_(shared), block_tokens_(job.block_tokens), depth_(job.ring_depth), ring_(ring)
    {
    }

    __device__ void run()
    {
        for (;;) {
            wait(shared_address(&shared_.plan_full[plan_.slot]), plan_.parity);
            const ChunkPlan& plan = shared_.plans[plan_.slot];
            if (plan.work.group >= 0) { load(plan); }
            const bool exit = plan.exit;
            arrive(shared_address(&shared_.plan_empty[plan_.slot]));
            if (exit) { return; }
            plan_.advance(2);
        }
    }

private:
    /// K and V of a group one after the other: where blocks have 16 tokens, that is one run of memory.
    __device__ void load(const ChunkPlan& plan)
    {
        const StageList<Traits> stages{plan.coded, plan.native};
        for (int i = 0, count = stages.count(); i < count; ++i) {
            const Stage stage = stages.at(i);
            const TokenGroup* groups = plan.groups + stage.first;
            wait(shared_address(&shared_.stage_empty[place_.slot]), place_.parity ^ 1U);
            const std::uint32_t keys = ring_ + static_cast<std::uint32_t>(place_.slot * 2 * Traits::kStageBytes);
            const std::uint32_t values = keys + Traits::kStageBytes;
            if (Traits::kCoded && stage.coded) {
                load_scales<Traits>(groups, stage.count, block_tokens_, keys);
                load_groups(groups, stage.count, coded_, keys, values);
            } else {
                load_groups(groups, stage.count, native_, keys, values);
            }
            arrive_after_copies(shared_address(&shared_.stage_full[place_.slot]));
            place_.advance(depth_);
        }
    }

    template <int kRowBytes>
    __device__ __forceinline__ void load_groups(const TokenGroup* groups, int count, const LanePieces<kRowBytes>& pieces,
                                                std::uint32_t keys, std::uint32_t values)
    {
        for (int g = 0; g < count; ++g) {
            const auto at = static_cast<std::uint32_t>(g * kAttendGroupTokens * kRowBytes);
            load_group<kRowBytes>(groups[g], 0, pieces, keys + at);
            load_group<kRowBytes>(groups[g], block_tokens_ * kRowBytes, pieces, values + at);
        }
    }

    AttendShared<Traits>& shared_;
    const std::int32_t block_tokens_;
    const std::int32_t depth_;
    const std::uint32_t ring_;
    const LanePieces<Traits::kNativeRow> native_;
    const LanePieces<Traits::kCodedRow> coded_;
    RingPlace plan_;
    RingPlace place_;
};

} // namespace oasis::cuda::detail
