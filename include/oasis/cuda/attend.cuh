// SPDX-License-Identifier: Apache-2.0
//
// The attention kernel. A CTA takes chunks of 256 tokens of a row's set from an atomic counter and reduces each on its own:
// stages of K and V stream through shared memory, groups of 16 tokens are folded in position order with a running maximum.
// The CTA that finishes the last chunk of a (sequence, KV head) merges them in order. What a row gets depends on its own
// set alone: groups of 16 that it does not read change no bit of its sums.
#pragma once

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/attend_tile.cuh>
#include <oasis/cuda/attend_work.cuh>

#include <cstdint>

namespace oasis::cuda::detail {

inline constexpr float kLog2OfSmallestScale = -24.0F; ///< f16 scales are 2^-24 at least, or zero

template <class Traits>
struct alignas(128) AttendShared {
    std::uint16_t weights[Traits::kStageGroups][Traits::kQueryTiles][kAttendGroupTokens][8];
    std::uint8_t queries[Traits::kQueries * Traits::kNativeRow];
    std::uint8_t half_queries[Traits::kCoded ? Traits::kQueries * Traits::kNativeRow : 16]; ///< f16, scaled, in the codes' order
    float peaks[Traits::kStageGroups][Traits::kQueries];   ///< of each group
    float shrinks[Traits::kStageGroups][Traits::kQueries]; ///< factor of the sums so far
    float masses[Traits::kStageGroups][Traits::kQueries];  ///< sum of a group's weights
    float query_scales[Traits::kQueries];
    float tops[Traits::kQueries];
    AttendScratch scratch;
};

/// Reduces one chunk for one tile of queries: the registers and steps of a CTA.
template <class Traits>
class ChunkReduction {
public:
    using Shared = AttendShared<Traits>;
    static constexpr int kQueryTiles = Traits::kQueryTiles;
    static constexpr int kQueries = Traits::kQueries;

    __device__ ChunkReduction(const AttendJob& job, const AttendWork& work, Shared& shared, std::uint32_t ring)
        : job_(job), work_(work), shared_(shared), ring_(ring)
    {
        const int sequence = work.group / job.kv_heads;
        first_row_ = job.params.row_starts[sequence];
        rows_ = min(job.params.row_starts[sequence + 1] - first_row_, job.max_rows);
        position_ = job.params.first_positions[sequence];
        list_ = job.params.blocks + std::int64_t{work.group} * job.max_blocks;
        first_query_ = work.tile * kQueries;
        queries_ = min(rows_ * job.heads - first_query_, kQueries);
        if (queries_ <= 0) { return; }
        const int first = first_query_ / job.heads;
        const int last = (first_query_ + queries_ - 1) / job.heads;
        tile_rows_ = (2U << last) - (1U << first);
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int query = 8 * n + 2 * (lane_id() % 4) + e;
                row_of_[n][e] = query < queries_ ? (first_query_ + query) / job.heads : 31;
            }
        }
    }

    /// All rows at once; if a NaN came out, row by row, since a product with zero does not keep a NaN out of the others' sums.
    __device__ void run()
    {
        bool single = false;
        for (std::uint32_t left = tile_rows_; left;) {
            const std::uint32_t rows = single ? left & (0U - left) : left;
            const std::uint32_t stored = reduce(rows);
            if (__syncthreads_or(has_nan()) && (rows & (rows - 1))) {
                single = true;
                continue;
            }
            store(stored);
            left &= ~rows;
            __syncthreads();
        }
    }

private:
    __device__ Stage stage_of(int i) const
    {
        Stage stage;
        if (i < 0) { return stage; }
        if (Traits::kCoded && i < coded_stages_) {
            stage.first = i * Traits::kCodedGroups;
            stage.count = min(groups_.coded - stage.first, Traits::kCodedGroups);
            stage.coded = true;
        } else {
            const int at = (i - coded_stages_) * Traits::kNativeGroups;
            stage.first = groups_.coded + at;
            stage.count = max(0, min(groups_.native - at, Traits::kNativeGroups));
        }
        return stage;
    }

    __device__ std::uint32_t key_slot(int stage) const { return ring_ + static_cast<std::uint32_t>((stage % job_.ring_depth) * Traits::kStageBytes); }
    __device__ std::uint32_t value_slot(int stage) const { return key_slot(stage) + static_cast<std::uint32_t>(job_.ring_depth * Traits::kStageBytes); }

    /// The copies that step i waits for: K of stage i, V of the stage before.
    __device__ void load_step(int i)
    {
        if (const Stage stage = stage_of(i); stage.count) { load_keys<Traits>(stage, shared_.scratch, job_.block_tokens, key_slot(i)); }
        if (const Stage stage = stage_of(i - 1); stage.count) { load_values<Traits>(stage, shared_.scratch, job_.block_tokens, value_slot(i - 1)); }
        commit_copies();
    }

    __device__ void load_queries()
    {
        constexpr int kPieces = Traits::kNativeRow / 16;
        const int q_heads = job_.heads * job_.kv_heads;
        const int head = (work_.group % job_.kv_heads) * job_.heads;
        const std::uint32_t to = shared_address(shared_.queries);
        const auto* q = static_cast<const std::byte*>(job_.params.q);
        for (int i = static_cast<int>(threadIdx.x); i < kQueries * kPieces; i += kAttendThreads) {
            const int query = i / kPieces;
            const int row = (first_query_ + query) / job_.heads;
            const std::int64_t at = std::int64_t{first_row_ + row} * q_heads + head + (first_query_ + query) % job_.heads;
            const bool valid = query < queries_;
            copy_async(to + tile_offset<Traits::kNativeRow>(query, i % kPieces), valid ? q + at * Traits::kNativeRow + (i % kPieces) * 16 : q, valid);
        }
        commit_copies();
    }

    /// Queries for coded keys: a power of two brings each into the range of f16, and channels follow the codes' order.
    __device__ void convert_queries()
    {
        constexpr int kPerWarp = kQueries / 4;
        for (int query = warp_id() * kPerWarp; query < (warp_id() + 1) * kPerWarp; ++query) {
            float peak = 0.0F;
            for (int c = lane_id(); c < Traits::kHeadDim; c += 32) { peak = fmaxf(peak, fabsf(channel(query, c))); }
            for (int step = 16; step; step /= 2) { peak = fmaxf(peak, __shfl_xor_sync(~0U, peak, step)); }
            const std::uint32_t exponent = min(max(__float_as_uint(peak) >> 23, 1U), 253U);
            const float shrink = __uint_as_float((254U - exponent) << 23);
            if (lane_id() == 0) { shared_.query_scales[query] = job_.scale_log2 * __uint_as_float(exponent << 23); }
            for (int c = lane_id(); c < Traits::kHeadDim; c += 32) {
                const int within = (c % 16) / 4 * 2 + (c % 4) / 2 + 8 * (c % 2);
                const std::uint32_t at = tile_offset<Traits::kNativeRow>(query, c / 16 * 2 + within / 8) + static_cast<std::uint32_t>(within % 8 * 2);
                *reinterpret_cast<std::uint16_t*>(shared_.half_queries + at) = static_cast<std::uint16_t>(pack<f16>(channel(query, c) * shrink, 0.0F));
            }
        }
    }

    __device__ float channel(int query, int c) const
    {
        const std::uint32_t at = tile_offset<Traits::kNativeRow>(query, c / 8) + static_cast<std::uint32_t>(c % 8 * 2);
        return to_float_bits<typename Traits::Element>(*reinterpret_cast<const std::uint16_t*>(shared_.queries + at));
    }

    __device__ std::uint32_t reduce(std::uint32_t rows)
    {
        const int candidates = find_candidates(job_, work_, list_, rows_, rows, shared_.scratch);
        __syncthreads();
        groups_ = list_groups<Traits::kCoded ? Traits::kCodedRow : 0, Traits::kNativeRow>(job_, list_, position_, candidates, rows, shared_.scratch);
        coded_stages_ = Traits::kCoded ? (groups_.coded + Traits::kCodedGroups - 1) / Traits::kCodedGroups : 0;
        const int stages = coded_stages_ + (groups_.native + Traits::kNativeGroups - 1) / Traits::kNativeGroups;
        clear();
        load_queries();
        __syncthreads();
        for (int i = 0; i + 1 < job_.ring_depth; ++i) { load_step(i); }
        for (int i = 0; i <= stages; ++i) {
            wait_copies(job_.ring_depth - 2);
            __syncthreads();
            load_step(i + job_.ring_depth - 1);
            if (Traits::kCoded && i == 0) {
                convert_queries();
                __syncthreads();
            }
            const Stage stage = stage_of(i);
            if (stage.count) { score(stage, key_slot(i)); }
            if (i > 0) { accumulate(stage_of(i - 1), value_slot(i - 1)); }
            if (stage.count) {
                __syncthreads();
                weigh(stage);
            }
        }
        if (warp_id() == 0 && lane_id() < 4) {
#pragma unroll
            for (int n = 0; n < kQueryTiles; ++n) {
                shared_.tops[8 * n + 2 * lane_id()] = top_[n][0];
                shared_.tops[8 * n + 2 * lane_id() + 1] = top_[n][1];
            }
        }
        return groups_.stored_rows;
    }

    __device__ void clear()
    {
        mass_ = 0.0F;
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
            top_[n][0] = top_[n][1] = -INFINITY;
#pragma unroll
            for (int m = 0; m < Traits::kValueTiles; ++m) {
#pragma unroll
                for (int e = 0; e < 4; ++e) { sums_[m][n][e] = 0.0F; }
            }
        }
    }

    /// Logits of this warp's groups, log2 domain, -inf where a row does not look; their maxima to shared memory. With a coded
    /// V the maximum is that of weight times scale: so the products with the scales fill the range of f16.
    __device__ void score(const Stage& stage, std::uint32_t keys)
    {
#pragma unroll
        for (int t = 0; t < Traits::kRowTiles; ++t) {
            const int group = warp_id() + 4 * t;
            if (group >= stage.count) { continue; }
            float scale[2] = {1.0F, 1.0F};
            float lift[2] = {0.0F, 0.0F};
            if (Traits::kCoded && stage.coded) {
                multiply_coded_keys<Traits>(keys, shared_address(shared_.half_queries), group, logits_[t]);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const std::uint32_t at = keys + static_cast<std::uint32_t>(Traits::kScaleOffset + group * Traits::kScaleBytes + 4 * (lane_id() / 8) + 16 * half);
                    const int shift = 16 * (lane_id() / 4 % 2);
                    scale[half] = to_float_bits<f16>(static_cast<std::uint16_t>(load_shared(at) >> shift));
                    value_scale_[t][half] = to_float_bits<f16>(static_cast<std::uint16_t>(load_shared(at + 2 * kAttendGroupTokens) >> shift));
                    lift[half] = fmaxf(log2_approx(value_scale_[t][half]), kLog2OfSmallestScale);
                }
            } else {
                multiply_keys<Traits>(keys, shared_address(shared_.queries), group, logits_[t]);
            }
            mask(shared_.scratch.groups[stage.first + group], stage.coded, scale, logits_[t]);
#pragma unroll
            for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float peak = fmaxf(logits_[t][n][e] + lift[0], logits_[t][n][e + 2] + lift[1]);
#pragma unroll
                    for (int step = 4; step < 32; step *= 2) { peak = fmaxf(peak, __shfl_xor_sync(~0U, peak, step)); }
                    if (lane_id() < 4) { shared_.peaks[group][8 * n + 2 * lane_id() + e] = peak; }
                }
            }
        }
    }

    __device__ void mask(const TokenGroup& group, bool coded, const float (&scale)[2], float (&logits)[kQueryTiles][4])
    {
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = row_of_[n][e % 2];
                const int token = lane_id() / 4 + 8 * (e / 2);
                bool seen = (group.rows >> row) & 1U;
                if (group.partial) {
                    const int2 range = tokens_seen(position_ + row, TokenIndex{group.index} * kAttendGroupTokens, job_.params.window);
                    seen = seen && token >= range.x && token < range.y;
                }
                const float factor = Traits::kCoded && coded ? scale[e / 2] * shared_.query_scales[8 * n + 2 * (lane_id() % 4) + e % 2] : job_.scale_log2;
                logits[n][e] = seen ? logits[n][e] * factor : -INFINITY;
            }
        }
    }

    /// Maxima before and after each group, the weights of this warp's groups, and what the sums have to be multiplied with.
    __device__ void weigh(const Stage& stage)
    {
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int query = 8 * n + 2 * (lane_id() % 4) + e;
                float before[Traits::kRowTiles];
                float after[Traits::kRowTiles];
#pragma unroll
                for (int group = 0; group < Traits::kStageGroups; ++group) {
                    if (group >= stage.count) { continue; }
                    if (group % 4 == warp_id()) { before[group / 4] = top_[n][e]; }
                    top_[n][e] = fmaxf(top_[n][e], shared_.peaks[group][query]);
                    if (group % 4 == warp_id()) { after[group / 4] = top_[n][e]; }
                }
#pragma unroll
                for (int t = 0; t < Traits::kRowTiles; ++t) {
                    const int group = warp_id() + 4 * t;
                    if (group >= stage.count) { continue; }
                    const float reference = after[t] == -INFINITY ? 0.0F : after[t];
                    float& low = logits_[t][n][e];
                    float& high = logits_[t][n][e + 2];
                    low = exp2_approx(low - reference);
                    high = exp2_approx(high - reference);
                    float mass = low + high;
#pragma unroll
                    for (int step = 4; step < 32; step *= 2) { mass += __shfl_xor_sync(~0U, mass, step); }
                    if (Traits::kCoded && stage.coded) {
                        low = low == 0.0F ? 0.0F : low * value_scale_[t][0];
                        high = high == 0.0F ? 0.0F : high * value_scale_[t][1];
                    }
                    if (lane_id() < 4) {
                        shared_.masses[group][query] = mass;
                        shared_.shrinks[group][query] = before[t] == after[t] ? 1.0F : exp2_approx(before[t] - after[t]);
                    }
                }
            }
#pragma unroll
            for (int t = 0; t < Traits::kRowTiles; ++t) {
                const int group = warp_id() + 4 * t;
                if (group >= stage.count) { continue; }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float even = logits_[t][n][2 * half];
                    const float odd = logits_[t][n][2 * half + 1];
                    auto* to = reinterpret_cast<std::uint32_t*>(&shared_.weights[group][n][lane_id() / 4 + 8 * half][2 * (lane_id() % 4)]);
                    *to = Traits::kCoded && stage.coded ? pack<f16>(even, odd) : pack<typename Traits::Element>(even, odd);
                }
            }
        }
    }

    __device__ void accumulate(const Stage& stage, std::uint32_t values)
    {
        multiply_values<Traits>(stage, values, shared_address(shared_.weights), shared_.shrinks, sums_);
        if (threadIdx.x < kQueries) {
            for (int group = 0; group < stage.count; ++group) {
                mass_ = __fmaf_rn(mass_, shared_.shrinks[group][threadIdx.x], shared_.masses[group][threadIdx.x]);
            }
        }
    }

    __device__ bool has_nan() const
    {
        float sum = 0.0F; // NaN if one is
#pragma unroll
        for (int m = 0; m < Traits::kValueTiles; ++m) {
#pragma unroll
            for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) { sum += sums_[m][n][e] * 0.0F; }
            }
        }
        return sum != sum;
    }

    /// The chunk's maximum, sum and weighted sum of V, for the queries of `rows`.
    __device__ void store(std::uint32_t rows)
    {
        const std::int64_t base = std::int64_t{work_.place} * (job_.max_rows * job_.heads) + first_query_;
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < queries_ && ((rows >> ((first_query_ + thread) / job_.heads)) & 1U)) { job_.states[base + thread] = {shared_.tops[thread], mass_}; }
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int query = 8 * n + 2 * (lane_id() % 4) + e % 2;
                if (query >= queries_ || !((rows >> row_of_[n][e % 2]) & 1U)) { continue; }
#pragma unroll
                for (int m = 0; m < Traits::kValueTiles; ++m) {
                    const int tile = warp_id() + 4 * m;
                    if (tile < Traits::kHeadDim / 16) { job_.sums[(base + query) * Traits::kHeadDim + channel_of<Traits>(tile, e)] = sums_[m][n][e]; }
                }
            }
        }
    }

    const AttendJob& job_;
    const AttendWork work_;
    Shared& shared_;
    const std::uint32_t ring_;
    const AttendBlock* list_ = nullptr;
    TokenIndex position_ = 0;     ///< of row 0
    std::int32_t first_row_ = 0;
    std::int32_t rows_ = 0;       ///< of the sequence
    std::int32_t first_query_ = 0;
    std::int32_t queries_ = 0;    ///< of the tile
    std::uint32_t tile_rows_ = 0;
    std::int32_t row_of_[kQueryTiles][2];
    AttendGroups groups_;
    std::int32_t coded_stages_ = 0;
    float logits_[Traits::kRowTiles][kQueryTiles][4];
    float value_scale_[Traits::kRowTiles][2];
    float top_[kQueryTiles][2];   ///< running maximum, the same in all warps
    float mass_ = 0.0F;           ///< of query threadIdx.x
    float sums_[Traits::kValueTiles][kQueryTiles][4];
};

/// Four channels to the output's type.
template <class Element> __device__ __forceinline__ void write_output(const AttendParams& params, std::int64_t at, float4 value)
{
    if (params.out_dtype == DType::kF32) {
        *reinterpret_cast<float4*>(static_cast<float*>(params.out) + at) = value;
    } else {
        *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(params.out) + at) = {pack<Element>(value.x, value.y), pack<Element>(value.z, value.w)};
    }
}

/// Merges the chunks of a (sequence, KV head) in position order and writes its rows. Empty chunks change nothing.
template <class Traits> __device__ void merge_chunks(const AttendJob& job, const AttendWork& work)
{
    constexpr int kQuads = Traits::kHeadDim / 4;
    const int sequence = work.group / job.kv_heads;
    const int first_row = job.params.row_starts[sequence];
    const int rows = min(job.params.row_starts[sequence + 1] - first_row, job.max_rows);
    const int stride = job.max_rows * job.heads;
    const std::int64_t base = (std::int64_t{work.place} - work.chunk) * stride;
    for (int i = static_cast<int>(threadIdx.x); i < rows * job.heads * kQuads; i += kAttendThreads) {
        const int query = i / kQuads;
        const float2* states = job.states + base + query;
        const float4* sums = reinterpret_cast<const float4*>(job.sums) + (base + query) * kQuads + i % kQuads;
        float top = -INFINITY;
#pragma unroll 4
        for (int c = 0; c < work.chunks; ++c) { top = fmaxf(top, __ldcg(&states[c * std::int64_t{stride}].x)); }
        const float reference = top == -INFINITY ? 0.0F : top;
        float mass = 0.0F;
        float4 sum{};
#pragma unroll 4
        for (int c = 0; c < work.chunks; ++c) {
            const float2 state = __ldcg(&states[c * std::int64_t{stride}]);
            const float4 part = __ldcg(&sums[c * std::int64_t{stride} * kQuads]);
            const float weight = exp2_approx(state.x - reference);
            if (state.x == -INFINITY) { continue; }
            mass = __fmaf_rn(state.y, weight, mass);
            sum.x = __fmaf_rn(part.x, weight, sum.x);
            sum.y = __fmaf_rn(part.y, weight, sum.y);
            sum.z = __fmaf_rn(part.z, weight, sum.z);
            sum.w = __fmaf_rn(part.w, weight, sum.w);
        }
        const float share = top == -INFINITY ? 0.0F : 1.0F / mass;
        const std::int64_t head = std::int64_t{first_row + query / job.heads} * (job.heads * job.kv_heads) + (work.group % job.kv_heads) * job.heads + query % job.heads;
        write_output<typename Traits::Element>(job.params, head * Traits::kHeadDim + 4 * (i % kQuads), {sum.x * share, sum.y * share, sum.z * share, sum.w * share});
        if (job.params.lse && i % kQuads == 0) {
            constexpr float kLn2 = 0.693147180559945309F;
            job.params.lse[head] = top == -INFINITY ? -INFINITY : (top + log2f(mass)) * kLn2;
        }
    }
}

/// Whether this CTA finished the last unit of the (sequence, KV head); then what the others wrote can be read.
__device__ inline bool finishes(const AttendJob& job, const AttendWork& work, AttendScratch& scratch)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const std::uint32_t units = static_cast<std::uint32_t>(work.chunks * job.tiles);
        scratch.last = atomicAdd(&job.arrivals[work.group], 1U) == units - 1;
        if (scratch.last) { job.arrivals[work.group] = 0; }
        __threadfence();
    }
    __syncthreads();
    return scratch.last;
}

template <class Traits> __global__ void __launch_bounds__(kAttendThreads, Traits::kCtasPerSm) attend(const __grid_constant__ AttendJob job)
{
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<AttendShared<Traits>*>(memory);
    AttendWork& work = shared.scratch.work;
    AttendWalk walk;
    std::uint32_t ticket = threadIdx.x == 0 ? atomicAdd(job.ticket, 1U) : 0U;
    for (;;) {
        if (warp_id() == 0) {
            const AttendWork found = walk.find(job, __shfl_sync(~0U, ticket, 0));
            if (lane_id() == 0) {
                work = found;
                if (found.group >= 0) { ticket = atomicAdd(job.ticket, 1U); } // looked at when this one is done
            }
        }
        __syncthreads();
        if (work.group < 0) { return; }
        ChunkReduction<Traits>(job, work, shared, shared_address(memory + sizeof(shared))).run();
        if (job.params.phase != AttendPhase::kReady && finishes(job, work, shared.scratch)) { merge_chunks<Traits>(job, work); }
        __syncthreads();
    }
}

template <class Traits> AttendKernel attend_kernel_of()
{
    return {reinterpret_cast<const void*>(&attend<Traits>), Traits::kQueries, int{sizeof(AttendShared<Traits>)}, Traits::kStageBytes};
}

template <class Element, int kHeadDim> AttendKernel attend_kernel(BlockCode code, std::int32_t queries)
{
    const bool few = queries <= 8;
    if (code == BlockCode::kInt8) {
        return few ? attend_kernel_of<AttendTraits<Element, kHeadDim, true, 1>>() : attend_kernel_of<AttendTraits<Element, kHeadDim, true, 4>>();
    }
    return few ? attend_kernel_of<AttendTraits<Element, kHeadDim, false, 1>>() : attend_kernel_of<AttendTraits<Element, kHeadDim, false, 4>>();
}

} // namespace oasis::cuda::detail
