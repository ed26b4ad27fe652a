// SPDX-License-Identifier: Apache-2.0
//
// Decode attention over one chunk, and block masses. K and V are each read once, in order, for all heads of the group.
#if defined(OASIS_CPU_SIMD_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OASIS_CPU_SIMD_ATTEND_INL_H_
#undef OASIS_CPU_SIMD_ATTEND_INL_H_
#else
#define OASIS_CPU_SIMD_ATTEND_INL_H_
#endif

#include "cpu/simd_multiply-inl.h"

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::HWY_NAMESPACE {

inline constexpr std::int32_t kQuad = 4; ///< heads whose logits lie side by side: logits[token][4]
inline constexpr std::int32_t kQuadsAtOnce = 4;
inline constexpr std::int32_t kKeyStep = 4;    ///< tokens between prefetches in the pass over K
inline constexpr std::int32_t kValueStep = 16; ///< and in the pass over V
inline constexpr std::int32_t kQuadLogits = (kChunkTokens + 4) * kQuad;

/// Highway's exponential turns NaN into 0, which would hide a broken input.
HWY_INLINE Vec exp_of(Vec x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(F32(), x)); }

/// Lane sums of four vectors, as four lanes.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> sum_quad(Vec a, Vec b, Vec c, Vec e)
{
    const F32 d;
    const hn::Repartition<double, F32> pairs;
    const Vec ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
    const Vec ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
    const auto ab2 = hn::BitCast(pairs, ab);
    const auto ce2 = hn::BitCast(pairs, ce);
    const Vec all = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab2, ce2)),
                            hn::BitCast(d, hn::InterleaveUpper(pairs, ab2, ce2)));
#if HWY_TARGET == HWY_AVX3
    const hn::Half<F32> half;
    const auto folded = hn::Add(hn::LowerHalf(half, all), hn::UpperHalf(half, all));
    return hn::Add(hn::LowerHalf(folded), hn::UpperHalf(hn::FixedTag<float, 4>(), folded));
#elif HWY_TARGET == HWY_AVX2
    return hn::Add(hn::LowerHalf(all), hn::UpperHalf(hn::FixedTag<float, 4>(), all));
#else
    return all;
#endif
}

/// q . k of `tokens` rows and kHeads heads into logits[token][4]; the lanes of missing heads are 0.
template <int kHeads>
HWY_NOINLINE void dot_rows(const float* q, std::int32_t n, const float* k, std::int32_t tokens, float* logits)
{
    const F32 d;
    const hn::FixedTag<float, 4> quad;
    std::int32_t t = 0;
    for (; t + 2 <= tokens; t += 2, k += 2 * n, logits += 2 * kQuad) {
        Vec first[kQuad] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
        Vec second[kQuad] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
        for (std::int32_t i = 0; i < n; i += kLanes) {
            const Vec k0 = load_lanes(k + i);
            const Vec k1 = load_lanes(k + n + i);
            for (int h = 0; h < kHeads; ++h) {
                const Vec channel = load_lanes(q + h * n + i);
                first[h] = hn::MulAdd(channel, k0, first[h]);
                second[h] = hn::MulAdd(channel, k1, second[h]);
            }
        }
        hn::StoreU(sum_quad(first[0], first[1], first[2], first[3]), quad, logits);
        hn::StoreU(sum_quad(second[0], second[1], second[2], second[3]), quad, logits + kQuad);
    }
    if (t < tokens) {
        Vec last[kQuad] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
        for (std::int32_t i = 0; i < n; i += kLanes) {
            const Vec k0 = load_lanes(k + i);
            for (int h = 0; h < kHeads; ++h) { last[h] = hn::MulAdd(load_lanes(q + h * n + i), k0, last[h]); }
        }
        hn::StoreU(sum_quad(last[0], last[1], last[2], last[3]), quad, logits);
    }
}

HWY_INLINE void dot_quad(const float* q, std::int32_t heads, std::int32_t n, const float* k, std::int32_t tokens,
                         float* logits)
{
    switch (heads) {
    case 1: dot_rows<1>(q, n, k, tokens, logits); break;
    case 2: dot_rows<2>(q, n, k, tokens, logits); break;
    case 3: dot_rows<3>(q, n, k, tokens, logits); break;
    default: dot_rows<4>(q, n, k, tokens, logits); break;
    }
}

/// Lane l of the result folds the lanes l, l + 4, l + 8, ... of x.
template <class Fold> HWY_INLINE void fold_quads(Vec x, Fold fold, float* out)
{
    float lanes[16];
    hn::StoreU(x, F32(), lanes);
    for (int h = 0; h < kQuad; ++h) {
        out[h] = lanes[h];
        for (int l = h + kQuad; l < kLanes; l += kQuad) { out[h] = fold(out[h], lanes[l]); }
    }
}

/// logits[token][4] to exp(logit - top) in place. The tokens are padded to whole vectors with -inf, room for that is
/// the caller's.
inline void softmax_quad(float* logits, std::int32_t tokens, float* top, float* sum)
{
    const F32 d;
    const std::int32_t used = tokens * kQuad;
    const std::int32_t padded = (used + kLanes - 1) / kLanes * kLanes;
    std::fill(logits + used, logits + padded, detail::kMinusInfinity);
    Vec largest = hn::Set(d, detail::kMinusInfinity);
    for (std::int32_t i = 0; i < padded; i += kLanes) { largest = hn::Max(largest, load_lanes(logits + i)); }
    fold_quads(
        largest, [](float a, float b) { return std::max(a, b); }, top);
    float repeated[16];
    for (int l = 0; l < kLanes; ++l) { repeated[l] = top[l % kQuad] == detail::kMinusInfinity ? 0.0F : top[l % kQuad]; }
    const Vec shift = load_lanes(repeated);
    Vec total = hn::Zero(d);
    for (std::int32_t i = 0; i < padded; i += kLanes) {
        const Vec weight = exp_of(hn::Sub(load_lanes(logits + i), shift));
        total = hn::Add(total, weight);
        hn::StoreU(weight, d, logits + i);
    }
    fold_quads(
        total, [](float a, float b) { return a + b; }, sum);
}

/// Always inlined: GCC takes a function that only prefetches for one without effect and drops the call.
/// Asks for tokens [t, t + step) of K (plane 0) or V (plane 1), as far as the block's range has them.
HWY_INLINE void prefetch_rows(const BlockFormat& format, const BlockRef& block, std::int32_t plane, std::int32_t t,
                              std::int32_t step)
{
    if (t < block.begin || t + step > block.end) { return; }
    const std::size_t row_bytes = static_cast<std::size_t>(format.head_dim) * (block.coded ? 1 : size_of(format.dtype));
    const std::byte* from = block.data + static_cast<std::size_t>(plane * format.block_tokens + t) * row_bytes;
    for (std::size_t i = 0; i < static_cast<std::size_t>(step) * row_bytes; i += 64) { __builtin_prefetch(from + i); }
}

/// Up to kQuadsAtOnce quads of heads, `heads` heads.
inline void attend_heads(const AttendChunk& job, std::int32_t first_head, std::int32_t heads)
{
    const std::int32_t n = job.format.head_dim;
    const float* q = job.q + std::int64_t{first_head} * n;
    float* out = job.out + std::int64_t{first_head} * n;
    HWY_ALIGN float logits[kQuadsAtOnce][kQuadLogits];
    HWY_ALIGN float space[kValueStep * 256];
    std::int32_t tokens = 0;
    for (std::size_t i = 0; i < job.blocks.size(); ++i) {
        const BlockRef& block = job.blocks[i];
        for (std::int32_t t = block.begin; t < block.end; t += kKeyStep) {
            const std::int32_t step = std::min<std::int32_t>(kKeyStep, block.end - t);
            // The pass over K ends by asking for the first V.
            const bool more = i + 1 < job.blocks.size();
            prefetch_rows(job.format, more ? job.blocks[i + 1] : job.blocks[0], more ? 0 : 1, t, step);
            const float* k = rows_of(job.format, block, 0, t, t + step, space);
            for (std::int32_t h = 0; h < heads; h += kQuad) {
                dot_quad(q + h * n, std::min(kQuad, heads - h), n, k, step, logits[h / kQuad] + tokens * kQuad);
            }
            tokens += step;
        }
    }
    float top[kQuadsAtOnce * kQuad];
    float sum[kQuadsAtOnce * kQuad];
    for (std::int32_t h = 0; h < heads; h += kQuad) { softmax_quad(logits[h / kQuad], tokens, top + h, sum + h); }
    std::fill_n(out, std::int64_t{heads} * n, 0.0F);
    std::int32_t at = 0;
    for (std::size_t i = 0; i < job.blocks.size(); ++i) {
        const BlockRef& block = job.blocks[i];
        for (std::int32_t t = block.begin; t < block.end; t += kValueStep) {
            const std::int32_t step = std::min<std::int32_t>(kValueStep, block.end - t);
            if (i + 1 < job.blocks.size()) { prefetch_rows(job.format, job.blocks[i + 1], 1, t, step); }
            const float* v = rows_of(job.format, block, 1, t, t + step, space);
            for (std::int32_t h = 0; h < heads; h += kQuad) {
                multiply({std::min(kQuad, heads - h), n, step, logits[h / kQuad] + at * kQuad, 1, kQuad, v, n,
                          out + h * n, n, true});
            }
            at += step;
        }
    }
    for (std::int32_t h = 0; h < heads; ++h) {
        job.lse[first_head + h] = sum[h] == 0 ? detail::kMinusInfinity : top[h] + std::log(sum[h]);
        const Vec share = hn::Set(F32(), sum[h] == 0 ? 0.0F : 1.0F / sum[h]);
        float* row = out + h * n;
        for (std::int32_t j = 0; j < n; j += kLanes) {
            hn::StoreU(hn::Mul(load_lanes(row + j), share), F32(), row + j);
        }
    }
}

inline void attend_chunk(const AttendChunk& job)
{
    detail::check_chunk(job);
    for (std::int32_t head = 0; head < job.group; head += kQuadsAtOnce * kQuad) {
        attend_heads(job, head, std::min(kQuadsAtOnce * kQuad, job.group - head));
    }
}

inline void block_mass(const MassJob& job)
{
    detail::check_format(job.format, job.group);
    detail::count_tokens(job.format, job.blocks);
    const std::int32_t n = job.format.head_dim;
    HWY_ALIGN float logits[kQuadLogits];
    HWY_ALIGN float space[kKeyStep * 256];
    for (std::size_t i = 0; i < job.blocks.size(); ++i) {
        const BlockRef& block = job.blocks[i];
        for (std::int32_t h = 0; h < job.group; h += kQuad) {
            const std::int32_t heads = std::min(kQuad, job.group - h);
            for (std::int32_t t = block.begin; t < block.end; t += kKeyStep) {
                const std::int32_t step = std::min<std::int32_t>(kKeyStep, block.end - t);
                const float* k = rows_of(job.format, block, 0, t, t + step, space);
                dot_quad(job.q + std::int64_t{h} * n, heads, n, k, step, logits + (t - block.begin) * kQuad);
            }
            float top[kQuad];
            float sum[kQuad];
            softmax_quad(logits, std::max(block.end - block.begin, 0), top, sum);
            for (std::int32_t j = 0; j < heads; ++j) {
                job.log_mass[static_cast<std::size_t>(h + j) * job.blocks.size() + i] =
                    sum[j] == 0 ? detail::kMinusInfinity : top[j] + std::log(sum[j]);
            }
        }
    }
}

} // namespace oasis::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif // per-target include guard
