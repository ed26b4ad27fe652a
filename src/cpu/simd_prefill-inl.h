// SPDX-License-Identifier: Apache-2.0
//
// Prefill: causal attention of many rows, key tile by key tile, with a running maximum and sum per (row, head).
#if defined(OASIS_CPU_SIMD_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OASIS_CPU_SIMD_PREFILL_INL_H_
#undef OASIS_CPU_SIMD_PREFILL_INL_H_
#else
#define OASIS_CPU_SIMD_PREFILL_INL_H_
#endif

#include "cpu/simd_attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::HWY_NAMESPACE {

/// A tile as the products want it: keys as columns, values as rows. Tokens nobody sees hold whatever was there.
struct PackedTile {
    float* keys = nullptr;   ///< [head_dim, 64]
    float* values = nullptr; ///< [64, head_dim]
    float* logits = nullptr; ///< [kPrefillLogitRows, 64]
};

inline PackedTile tile_in(const PrefillJob& job)
{
    auto address = reinterpret_cast<std::uintptr_t>(job.scratch);
    float* base = job.scratch + (64 - address % 64) % 64 / sizeof(float);
    const std::size_t plane =
        static_cast<std::size_t>(kPrefillTileTokens) * static_cast<std::size_t>(job.format.head_dim);
    return {base, base + plane, base + 2 * plane};
}

inline void load_plane(const PrefillJob& job, const detail::PrefillSpan& span, std::int32_t plane, float* to)
{
    const std::int64_t n = job.format.head_dim;
    for (std::int32_t i = 0; i < span.blocks; ++i) {
        const BlockRef block = detail::block_of(job, span, i);
        if (block.begin >= block.end) { continue; }
        float* rows = to + (i * job.format.block_tokens + block.begin) * n;
        const float* from = rows_of(job.format, block, plane, block.begin, block.end, rows);
        if (from != rows) { std::copy_n(from, (block.end - block.begin) * n, rows); }
    }
}

/// [64, n] to [n, 64], in squares of four.
inline void transpose(const float* rows, std::int32_t n, float* columns)
{
    const hn::FixedTag<float, 4> d;
    const hn::Repartition<double, decltype(d)> pairs;
    for (std::int32_t t = 0; t < kPrefillTileTokens; t += 4) {
        for (std::int32_t i = 0; i < n; i += 4) {
            const float* from = rows + std::int64_t{t} * n + i;
            const auto a = hn::LoadU(d, from);
            const auto b = hn::LoadU(d, from + n);
            const auto c = hn::LoadU(d, from + 2 * n);
            const auto e = hn::LoadU(d, from + 3 * n);
            const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
            const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
            const auto ce_low = hn::BitCast(pairs, hn::InterleaveLower(d, c, e));
            const auto ce_high = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
            float* to = columns + std::int64_t{i} * kPrefillTileTokens + t;
            hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ce_low)), d, to);
            hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ce_low)), d, to + kPrefillTileTokens);
            hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ce_high)), d, to + 2 * kPrefillTileTokens);
            hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ce_high)), d, to + 3 * kPrefillTileTokens);
        }
    }
}

/// Logits of one (row, head) to weights, and the running state brought to the new maximum.
inline void softmax_row(const PrefillJob& job, std::int64_t m, detail::TokenRange range, float* logits)
{
    const F32 d;
    constexpr std::int32_t kVecs = kPrefillTileTokens / kLanes;
    const Vec nothing = hn::Set(d, detail::kMinusInfinity);
    Vec row[kVecs];
    for (std::int32_t v = 0; v < kVecs; ++v) { row[v] = load_lanes(logits + v * kLanes); }
    if (range != detail::TokenRange{0, kPrefillTileTokens}) {
        const Vec begin = hn::Set(d, static_cast<float>(range.begin));
        const Vec end = hn::Set(d, static_cast<float>(range.end));
        for (std::int32_t v = 0; v < kVecs; ++v) {
            const Vec token = hn::Iota(d, static_cast<float>(v * kLanes));
            row[v] = hn::IfThenElse(hn::And(hn::Ge(token, begin), hn::Lt(token, end)), row[v], nothing);
        }
    }
    Vec largest = row[0];
    for (std::int32_t v = 1; v < kVecs; ++v) { largest = hn::Max(largest, row[v]); }
    const float before = job.max[m];
    const float top = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
    const Vec shift = hn::Set(d, top == detail::kMinusInfinity ? 0.0F : top);
    Vec total = hn::Zero(d);
    for (std::int32_t v = 0; v < kVecs; ++v) {
        const Vec weight = exp_of(hn::Sub(row[v], shift));
        total = hn::Add(total, weight);
        hn::StoreU(weight, d, logits + v * kLanes);
    }
    if (top != before) {
        const float shrink = std::exp(before - top);
        const Vec factor = hn::Set(d, shrink);
        float* out = job.out + m * job.format.head_dim;
        for (std::int32_t i = 0; i < job.format.head_dim; i += kLanes) {
            hn::StoreU(hn::Mul(load_lanes(out + i), factor), d, out + i);
        }
        job.sum[m] *= shrink;
        job.max[m] = top;
    }
    job.sum[m] += hn::GetLane(hn::SumOfLanes(d, total));
}

/// (row, head) pairs [begin, end) of the span, at most kPrefillLogitRows of them.
inline void attend_rows(const PrefillJob& job, const detail::PrefillSpan& span, const PackedTile& tile,
                        std::int64_t begin, std::int64_t end)
{
    const std::int32_t n = job.format.head_dim;
    const auto count = static_cast<std::int32_t>(end - begin);
    multiply({count, kPrefillTileTokens, n, job.q + begin * n, n, 1, tile.keys, kPrefillTileTokens, tile.logits,
              kPrefillTileTokens, false});
    // Rows that see the same tokens share a product; V of tokens that a row does not see is never touched for it.
    const std::int32_t tile_tokens = span.blocks * job.format.block_tokens;
    std::int64_t m = begin;
    while (m < end) {
        const detail::TokenRange range =
            detail::visible(job, static_cast<std::int32_t>(m / job.group), span.tile_begin, tile_tokens);
        std::int64_t stop = m;
        while (stop < end && detail::visible(job, static_cast<std::int32_t>(stop / job.group), span.tile_begin,
                                             tile_tokens) == range) {
            const std::int64_t next = std::min((stop / job.group + 1) * job.group, end);
            for (; stop < next; ++stop) {
                softmax_row(job, stop, range, tile.logits + (stop - begin) * kPrefillTileTokens);
            }
        }
        multiply({static_cast<std::int32_t>(stop - m), n, range.end - range.begin,
                  tile.logits + (m - begin) * kPrefillTileTokens + range.begin, kPrefillTileTokens, 1,
                  tile.values + range.begin * n, n, job.out + m * n, n, true});
        m = stop;
    }
}

inline void prefill(const PrefillJob& job)
{
    const PackedTile tile = tile_in(job);
    detail::PrefillSpans spans(job);
    for (detail::PrefillSpan span; spans.next(span);) {
        load_plane(job, span, 0, tile.values);
        transpose(tile.values, job.format.head_dim, tile.keys);
        load_plane(job, span, 1, tile.values);
        const std::int64_t last = std::int64_t{span.row_end} * job.group;
        for (std::int64_t m = std::int64_t{span.row_begin} * job.group; m < last; m += detail::kPrefillLogitRows) {
            attend_rows(job, span, tile, m, std::min<std::int64_t>(m + detail::kPrefillLogitRows, last));
        }
    }
}

} // namespace oasis::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif // per-target include guard
