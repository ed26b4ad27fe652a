// SPDX-License-Identifier: Apache-2.0
//
// Attention kernel: the four warps that reduce chunks. Groups of 16 tokens are folded in position order with a running
// maximum. What a row gets depends on its own set alone: a group that it does not read changes no bit of its sums.
#pragma once

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/attend_loader.cuh>
#include <oasis/cuda/attend_tile.cuh>

#include <cstdint>

namespace oasis::cuda::detail {

inline constexpr float kLog2OfSmallestScale = -24.0F; ///< f16 scales are 2^-24 at least, or zero

template <class Traits> class ChunkReducer {
public:
    static constexpr int kQueryTiles = Traits::kQueryTiles;
    static constexpr int kQueries = Traits::kQueries;

    __device__ ChunkReducer(const AttendJob& job, AttendShared<Traits>& shared, std::uint32_t ring)
        : job_(job), shared_(shared), ring_(ring)
    {
    }

    /// Takes the next plan; `merge` is called with the work to merge before it, if there is some. False after the last.
    template <class Merge> __device__ bool next(Merge&& merge)
    {
        wait(shared_address(&shared_.plan_full[plan_.slot]), plan_.parity);
        const ChunkPlan& plan = shared_.plans[plan_.slot];
        if (plan.merge.group >= 0) { merge(plan.merge); }
        const bool more = !plan.exit;
        if (plan.work.group >= 0) {
            wait(shared_address(&shared_.queries_full[plan_.slot]), plan_.parity);
            reduce(plan, shared_.queries[plan_.slot]);
            if (!plan.judged || !report_nan()) { store(plan); }
        }
        arrive(shared_address(&shared_.plan_empty[plan_.slot]));
        plan_.advance(2);
        return more;
    }

private:
    __device__ void reduce(const ChunkPlan& plan, const std::uint8_t* queries)
    {
        mass_ = 0.0F;
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int query = 8 * n + 2 * (lane_id() % 4) + e;
                row_of_[n][e] = query < plan.queries ? row_of_query(job_, plan.first_query + query) : 31;
                top_[n][e] = -INFINITY;
            }
#pragma unroll
            for (int m = 0; m < Traits::kValueTiles; ++m) {
#pragma unroll
                for (int e = 0; e < 4; ++e) { sums_[m][n][e] = 0.0F; }
            }
        }
        if (Traits::kCoded && plan.coded > 0) {
            convert_queries(queries);
            synchronize(kAttendComputeThreads);
        }
        const StageList<Traits> stages{plan.coded, plan.native};
        const int count = stages.count();
        for (int i = 0; i < count; ++i) {
            const Stage stage = stages.at(i);
            if (i == 0 || i == stages.coded_stages()) {
                queries_.take(shared_address(Traits::kCoded && stage.coded ? shared_.half_queries : queries));
            }
            wait(shared_address(&shared_.stage_full[place_.slot]), place_.parity);
            const std::uint32_t keys = ring_ + static_cast<std::uint32_t>(place_.slot * 2 * Traits::kStageBytes);
            score(plan, stage, keys);
            synchronize(kAttendComputeThreads);
            weigh(stage);
            synchronize(kAttendComputeThreads);
            accumulate(stage, keys + Traits::kStageBytes);
            arrive(shared_address(&shared_.stage_empty[place_.slot]));
            place_.advance(job_.ring_depth);
        }
    }

    /// Queries for coded keys: a power of two brings each into the range of f16, and channels follow the codes' order.
    __device__ void convert_queries(const std::uint8_t* queries)
    {
        using Element = typename Traits::Element;
        constexpr int kQuads = Traits::kHeadDim / 4; // of channels
        constexpr int kPerWarp = kQueries / 4;
        for (int query = warp_id() * kPerWarp; query < (warp_id() + 1) * kPerWarp; ++query) {
            const auto quad = [&](int i) {
                return *reinterpret_cast<const ushort4*>(queries + tile_offset<Traits::kNativeRow>(query, i / 2) + i % 2 * 8);
            };
            float peak = 0.0F;
            for (int i = lane_id(); i < kQuads; i += 32) {
                const ushort4 q = quad(i);
                peak = fmaxf(peak, fmaxf(fmaxf(fabsf(to_float_bits<Element>(q.x)), fabsf(to_float_bits<Element>(q.y))),
                                         fmaxf(fabsf(to_float_bits<Element>(q.z)), fabsf(to_float_bits<Element>(q.w)))));
            }
            peak = warp_max(peak);
            const std::uint32_t exponent = min(max(__float_as_uint(peak) >> 23, 1U), 253U);
            const float shrink = __uint_as_float((254U - exponent) << 23);
            if (lane_id() == 0) { shared_.query_scales[query] = job_.scale_log2 * __uint_as_float(exponent << 23); }
            for (int i = lane_id(); i < kQuads; i += 32) { // channels 4j + 0, 2 to places 2j, 2j + 1 of the 16; 4j + 1, 3 behind eight
                const ushort4 q = quad(i);
                std::uint8_t* to = shared_.half_queries + i % 4 * 4;
                *reinterpret_cast<std::uint32_t*>(to + tile_offset<Traits::kNativeRow>(query, i / 4 * 2)) =
                    pack<f16>(to_float_bits<Element>(q.x) * shrink, to_float_bits<Element>(q.z) * shrink);
                *reinterpret_cast<std::uint32_t*>(to + tile_offset<Traits::kNativeRow>(query, i / 4 * 2 + 1)) =
                    pack<f16>(to_float_bits<Element>(q.y) * shrink, to_float_bits<Element>(q.w) * shrink);
            }
        }
    }

    /// Logits of this warp's group, log2 domain, -inf where a row does not look; their maxima to shared memory. With a coded V
    /// the maximum is that of weight times scale: so the products with the scales fill the range of f16.
    __device__ void score(const ChunkPlan& plan, const Stage& stage, std::uint32_t keys)
    {
        const int group = warp_id();
        float scale[2] = {1.0F, 1.0F};
        float lift[2] = {0.0F, 0.0F};
        if (group >= stage.count) {
            if (lane_id() < kQueries) { shared_.peaks[group][lane_id()] = -INFINITY; }
            return;
        }
        if (Traits::kCoded && stage.coded) {
            multiply_keys<Traits, true>(keys, queries_, group, logits_);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const std::uint32_t at =
                    keys + static_cast<std::uint32_t>(Traits::kScaleOffset + group * Traits::kScaleBytes + 4 * (lane_id() / 8) + 16 * half);
                const int shift = 16 * (lane_id() / 4 % 2);
                scale[half] = to_float_bits<f16>(static_cast<std::uint16_t>(load_shared(at) >> shift));
                value_scale_[half] = to_float_bits<f16>(static_cast<std::uint16_t>(load_shared(at + 2 * kAttendGroupTokens) >> shift));
                lift[half] = fmaxf(log2_approx(value_scale_[half]), kLog2OfSmallestScale);
            }
        } else {
            multiply_keys<Traits, false>(keys, queries_, group, logits_);
        }
        scale_and_mask(plan, plan.groups[stage.first + group], stage.coded, scale);
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
            float peak[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) { peak[e] = fmaxf(logits_[n][e] + lift[0], logits_[n][e + 2] + lift[1]); }
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
#pragma unroll
                for (int e = 0; e < 2; ++e) { peak[e] = fmaxf(peak[e], __shfl_xor_sync(~0U, peak[e], step)); }
            }
            if (lane_id() < 4) { *reinterpret_cast<float2*>(&shared_.peaks[group][8 * n + 2 * lane_id()]) = {peak[0], peak[1]}; }
        }
    }

    __device__ void scale_and_mask(const ChunkPlan& plan, const TokenGroup& group, bool coded, const float (&scale)[2])
    {
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                logits_[n][e] *=
                    Traits::kCoded && coded ? scale[e / 2] * shared_.query_scales[8 * n + 2 * (lane_id() % 4) + e % 2] : job_.scale_log2;
            }
        }
        if (group.rows == plan.stored_rows && !group.partial) { return; }
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int row = row_of_[n][e];
                int2 range = (group.rows >> row) & 1U ? int2{0, kAttendGroupTokens} : int2{0, 0};
                if (group.partial && range.y > 0) {
                    range = tokens_seen(plan.position + row, TokenIndex{group.index} * kAttendGroupTokens, job_.params.window);
                }
                const int token = lane_id() / 4;
                if (token < range.x || token >= range.y) { logits_[n][e] = -INFINITY; }
                if (token + 8 < range.x || token + 8 >= range.y) { logits_[n][e + 2] = -INFINITY; }
            }
        }
    }

    /// Maxima before and after each group, the weights of this warp's group, and what the sums have to be multiplied with.
    __device__ void weigh(const Stage& stage)
    {
        const int group = warp_id();
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
            float2 peaks[Traits::kStageGroups];
#pragma unroll
            for (int g = 0; g < Traits::kStageGroups; ++g) {
                peaks[g] = *reinterpret_cast<const float2*>(&shared_.peaks[g][8 * n + 2 * (lane_id() % 4)]);
            }
            float mass[2];
            float shrink[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float before = top_[n][e];
                float after = before;
#pragma unroll
                for (int g = 0; g < Traits::kStageGroups; ++g) {
                    before = g == group ? top_[n][e] : before;
                    top_[n][e] = fmaxf(top_[n][e], e ? peaks[g].y : peaks[g].x);
                    after = g == group ? top_[n][e] : after;
                }
                const float reference = after == -INFINITY ? 0.0F : after;
                logits_[n][e] = exp2_approx(logits_[n][e] - reference);
                logits_[n][e + 2] = exp2_approx(logits_[n][e + 2] - reference);
                mass[e] = logits_[n][e] + logits_[n][e + 2];
                shrink[e] = before == after ? 1.0F : exp2_approx(before - after);
            }
            if (group >= stage.count) { continue; }
            store_weights(stage, n);
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
#pragma unroll
                for (int e = 0; e < 2; ++e) { mass[e] += __shfl_xor_sync(~0U, mass[e], step); }
            }
            if (lane_id() < 4) {
                *reinterpret_cast<float2*>(&shared_.masses[group][8 * n + 2 * lane_id()]) = {mass[0], mass[1]};
                *reinterpret_cast<float2*>(&shared_.shrinks[group][8 * n + 2 * lane_id()]) = {shrink[0], shrink[1]};
            }
        }
    }

    __device__ void store_weights(const Stage& stage, int n)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float even = logits_[n][2 * half];
            float odd = logits_[n][2 * half + 1];
            auto* to = reinterpret_cast<std::uint32_t*>(&shared_.weights[warp_id()][n][lane_id() / 4 + 8 * half][2 * (lane_id() % 4)]);
            if (Traits::kCoded && stage.coded) {
                even = even == 0.0F ? 0.0F : even * value_scale_[half];
                odd = odd == 0.0F ? 0.0F : odd * value_scale_[half];
                *to = pack<f16>(even, odd);
            } else {
                *to = pack<typename Traits::Element>(even, odd);
            }
        }
    }

    __device__ void accumulate(const Stage& stage, std::uint32_t values)
    {
        const std::uint32_t weights = shared_address(shared_.weights);
        constexpr int kWhole = Traits::kStageGroups;
        if (stage.count == kWhole) { // in a kernel for codes, of codes
            multiply_values<Traits, kWhole, Traits::kCoded>(stage, values, weights, shared_.shrinks, sums_);
        } else if (Traits::kCoded && stage.coded) {
            multiply_values<Traits, 0, Traits::kCoded>(stage, values, weights, shared_.shrinks, sums_);
        } else {
            multiply_values<Traits, 0, false>(stage, values, weights, shared_.shrinks, sums_);
        }
        if (threadIdx.x < kQueries) {
#pragma unroll
            for (int group = 0; group < Traits::kStageGroups; ++group) {
                if (group < stage.count) {
                    mass_ = __fmaf_rn(mass_, shared_.shrinks[group][threadIdx.x], shared_.masses[group][threadIdx.x]);
                }
            }
        }
    }

    /// Tells the planner whether a sum is NaN.
    __device__ bool report_nan()
    {
        float zero = 0.0F; // NaN if a sum is
#pragma unroll
        for (int m = 0; m < Traits::kValueTiles; ++m) {
#pragma unroll
            for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) { zero += sums_[m][n][e] * 0.0F; }
            }
        }
        const bool mine = __any_sync(~0U, zero != zero);
        if (lane_id() == 0) { shared_.nan[warp_id()] = mine; }
        synchronize(kAttendComputeThreads);
        bool nan = false;
        for (int w = 0; w < kAttendComputeThreads / 32; ++w) { nan |= shared_.nan[w] != 0; }
        arrive(shared_address(&shared_.judged));
        return nan;
    }

    /// The chunk's maximum, sum and weighted sum of V, for the rows whose chunk it is.
    __device__ void store(const ChunkPlan& plan)
    {
        const std::int64_t base = std::int64_t{plan.work.place} * (job_.max_rows * job_.heads) + plan.first_query;
        if (warp_id() == 0) {
            float top = 0.0F; // of query lane_id()
#pragma unroll
            for (int n = 0; n < kQueryTiles; ++n) {
                const float even = __shfl_sync(~0U, top_[n][0], lane_id() % 8 / 2);
                const float odd = __shfl_sync(~0U, top_[n][1], lane_id() % 8 / 2);
                if (lane_id() / 8 == n) { top = lane_id() % 2 ? odd : even; }
            }
            const int row = row_of_query(job_, plan.first_query + lane_id());
            if (lane_id() < plan.queries && ((plan.stored_rows >> row) & 1U)) { job_.states[base + lane_id()] = {top, mass_}; }
        }
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int query = 8 * n + 2 * (lane_id() % 4) + e % 2;
                if (query >= plan.queries || !((plan.stored_rows >> row_of_[n][e % 2]) & 1U)) { continue; }
#pragma unroll
                for (int m = 0; m < Traits::kValueTiles; ++m) {
                    const int tile = warp_id() + 4 * m;
                    if (tile < Traits::kHeadDim / 16) {
                        job_.sums[(base + query) * Traits::kHeadDim + channel_of<Traits>(tile, e)] = sums_[m][n][e];
                    }
                }
            }
        }
    }

    const AttendJob& job_;
    AttendShared<Traits>& shared_;
    const std::uint32_t ring_;
    RingPlace plan_;
    RingPlace place_;
    std::int32_t row_of_[kQueryTiles][2];
    QueryFragments<Traits> queries_;
    float logits_[kQueryTiles][4];
    float value_scale_[2];
    float top_[kQueryTiles][2]; ///< running maximum, the same in all warps
    float mass_ = 0.0F;         ///< of query threadIdx.x
    float sums_[Traits::kValueTiles][kQueryTiles][4];
};

} // namespace oasis::cuda::detail
