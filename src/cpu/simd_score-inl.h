// SPDX-License-Identifier: Apache-2.0
//
// Scoring kernels for vectors of 4, 8 or 16 floats. Included once per instruction set.
#if defined(OASIS_CPU_SIMD_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OASIS_CPU_SIMD_SCORE_INL_H_
#undef OASIS_CPU_SIMD_SCORE_INL_H_
#else
#define OASIS_CPU_SIMD_SCORE_INL_H_
#endif

#include <oasis/cpu/score_kernels.hpp>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::scoring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using Vec = hn::Vec<F32>;
inline constexpr int kLanes = static_cast<int>(HWY_LANES(float) < 16 ? HWY_LANES(float) : 16);
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr int kSlab = 32; // channels decoded at a time: 8 KiB, so that they stay in the first-level cache

HWY_INLINE Vec load_f16(const void* from)
{
    const hn::Rebind<hwy::float16_t, F32> half;
    return hn::PromoteTo(F32(), hn::LoadU(half, static_cast<const hwy::float16_t*>(from)));
}

HWY_INLINE hn::Vec<hn::RebindToSigned<F32>> load_u8(const std::byte* from)
{
    const hn::Rebind<std::uint8_t, F32> narrow;
    return hn::PromoteTo(hn::RebindToSigned<F32>(), hn::LoadU(narrow, reinterpret_cast<const std::uint8_t*>(from)));
}

HWY_INLINE Vec load_code(const std::byte* from) { return hn::ConvertTo(F32(), load_u8(from)); }

// One channel of 64 slots as floats.
HWY_INLINE void decode_f16(const std::byte* from, float* out)
{
    for (int i = 0; i < 64; i += kLanes) { hn::Store(load_f16(from + 2 * i), F32(), out + i); }
}

HWY_INLINE void decode_int8(const std::byte* from, float* out)
{
    for (int i = 0; i < 64; i += kLanes) { hn::Store(load_code(from + i), F32(), out + i); }
}

HWY_INLINE void decode_int4(const std::byte* from, float* out)
{
    const auto low = hn::Set(hn::RebindToSigned<F32>(), 15);
    for (int i = 0; i < 32; i += kLanes) {
        const auto both = load_u8(from + i);
        hn::Store(hn::ConvertTo(F32(), hn::And(both, low)), F32(), out + i);
        hn::Store(hn::ConvertTo(F32(), hn::ShiftRight<4>(both)), F32(), out + 32 + i);
    }
}

/// Decodes `channels` channels from `first` on; returns where they are as floats.
inline const float* decode_slab(const GroupEstimate& job, int first, int channels, float* buffer)
{
    const SummaryLayout& layout = job.layout;
    if (!job.coded || layout.plain()) {
        const std::byte* data = job.group + sizeof(SummaryHeader) + std::size_t(first) * layout.native_channel_bytes();
        if (layout.native_element() == 4) {
            std::memcpy(buffer, data, std::size_t(channels) * 64 * sizeof(float));
            return buffer;
        }
        for (int c = 0; c < channels; ++c) { decode_f16(data + 128 * c, buffer + 64 * c); }
        return buffer;
    }
    const std::byte* data = job.group + layout.codes_offset() + std::size_t(first) * layout.channel_bytes();
    if (layout.options.code == SummaryCode::kInt8) {
        for (int c = 0; c < channels; ++c) { decode_int8(data + 64 * c, buffer + 64 * c); }
    } else {
        for (int c = 0; c < channels; ++c) { decode_int4(data + 32 * c, buffer + 64 * c); }
    }
    return buffer;
}

/// The spread, not its root, of 64 slots.
inline void decode_spread(const GroupEstimate& job, float* out)
{
    const SummaryLayout& layout = job.layout;
    const F32 d;
    SummaryHeader header;
    std::memcpy(&header, job.group, sizeof(header));
    const Vec scale = hn::Set(d, to_float(header.spread_scale));
    const Vec zero = hn::Set(d, to_float(header.spread_zero));
    for (int i = 0; i < 64; i += kLanes) {
        Vec root;
        if (job.coded && !layout.plain()) {
            root = hn::MulAdd(scale, load_code(job.group + layout.coded_spread_offset() + i), zero);
        } else if (layout.native_element() == 4) {
            root = hn::LoadU(d, reinterpret_cast<const float*>(job.group + layout.native_spread_offset()) + i);
        } else {
            root = load_f16(job.group + layout.native_spread_offset() + 2 * i);
        }
        hn::Store(hn::Mul(root, root), d, out + i);
    }
}

/// estimates += weights . values for kPairs pairs and kVectors vectors of slots, one FMA per channel in channel order:
/// what a slot gets does not depend on how pairs are tiled.
template <int kPairs, int kVectors>
HWY_INLINE void accumulate_tile(const float* HWY_RESTRICT values, const float* HWY_RESTRICT weights, int channels,
                                float* HWY_RESTRICT estimates)
{
    const F32 d;
    Vec sum[kPairs][kVectors];
    for (int p = 0; p < kPairs; ++p) {
        for (int v = 0; v < kVectors; ++v) { sum[p][v] = hn::Load(d, estimates + p * 64 + v * kLanes); }
    }
    for (int c = 0; c < channels; ++c) {
        Vec value[kVectors];
        for (int v = 0; v < kVectors; ++v) { value[v] = hn::Load(d, values + c * 64 + v * kLanes); }
        for (int p = 0; p < kPairs; ++p) {
            const Vec weight = hn::Set(d, weights[p * kSlab + c]);
            for (int v = 0; v < kVectors; ++v) { sum[p][v] = hn::MulAdd(weight, value[v], sum[p][v]); }
        }
    }
    for (int p = 0; p < kPairs; ++p) {
        for (int v = 0; v < kVectors; ++v) { hn::Store(sum[p][v], d, estimates + p * 64 + v * kLanes); }
    }
}

template <int kPairs>
HWY_INLINE void accumulate_pairs(const float* values, const float* weights, int channels, float* estimates)
{
    constexpr int kVectors = kLanes == 16 ? 4 : 2; // 6 x 4 of 32 registers, 6 x 2 of 16
    for (int i = 0; i < 64; i += kVectors * kLanes) {
        accumulate_tile<kPairs, kVectors>(values + i, weights, channels, estimates + i);
    }
}

inline void accumulate(const float* values, const float* weights, int channels, int pairs, float* estimates)
{
    for (; pairs > 0; pairs -= 6, weights += 6 * kSlab, estimates += 6 * 64) {
        switch (pairs) {
        case 1: accumulate_pairs<1>(values, weights, channels, estimates); break;
        case 2: accumulate_pairs<2>(values, weights, channels, estimates); break;
        case 3: accumulate_pairs<3>(values, weights, channels, estimates); break;
        case 4: accumulate_pairs<4>(values, weights, channels, estimates); break;
        case 5: accumulate_pairs<5>(values, weights, channels, estimates); break;
        default: accumulate_pairs<6>(values, weights, channels, estimates); break;
        }
    }
}

/// log(tokens) + weights . zeros + spread weight * spread: what each slot starts from.
inline void begin_estimates(const GroupEstimate& job, bool affine)
{
    const SummaryLayout& layout = job.layout;
    const F32 d;
    HWY_ALIGN float spread[64];
    if (layout.spread) { decode_spread(job, spread); }
    const float log_tokens = std::log(static_cast<float>(layout.options.tokens));
    for (int p = 0; p < job.pairs; ++p) {
        const float* weights = job.weights[p];
        float constant = log_tokens;
        if (affine) {
            Vec sum = hn::Zero(d);
            const std::byte* zeros = job.group + layout.zeros_offset();
            for (int c = 0; c < layout.channels(); c += kLanes) {
                sum = hn::MulAdd(hn::LoadU(d, weights + c), load_f16(zeros + 2 * c), sum);
            }
            constant += hn::GetLane(hn::SumOfLanes(d, sum));
        }
        float* estimates = job.estimates + p * 64;
        for (int i = 0; i < 64; i += kLanes) {
            Vec start = hn::Set(d, constant);
            if (layout.spread) {
                start = hn::MulAdd(hn::Set(d, weights[layout.channels()]), hn::Load(d, spread + i), start);
            }
            hn::Store(start, d, estimates + i);
        }
    }
}

/// `job.estimates` is aligned to a vector.
inline void estimate(const GroupEstimate& job)
{
    const SummaryLayout& layout = job.layout;
    const F32 d;
    const bool affine = job.coded && !layout.plain();
    HWY_ALIGN float buffer[kSlab * 64];
    HWY_ALIGN float folded[kMaxEstimatePairs * kSlab]; // weight * scale
    begin_estimates(job, affine);
    for (int first = 0; first < layout.channels(); first += kSlab) {
        const int channels = std::min(kSlab, layout.channels() - first);
        const float* values = decode_slab(job, first, channels, buffer);
        for (int c = 0; c < channels; c += kLanes) {
            const Vec scale =
                affine ? load_f16(job.group + layout.scales_offset() + 2 * (first + c)) : hn::Set(d, 1.0F);
            for (int p = 0; p < job.pairs; ++p) {
                hn::Store(hn::Mul(hn::LoadU(d, job.weights[p] + first + c), scale), d, folded + p * kSlab + c);
            }
        }
        accumulate(values, folded, channels, job.pairs, job.estimates);
    }
}

struct MaxOp {
    HWY_INLINE Vec operator()(Vec a, Vec b) const { return hn::Max(a, b); }
};
struct AddOp {
    HWY_INLINE Vec operator()(Vec a, Vec b) const { return hn::Add(a, b); }
};

/// Reduces lanes whose indices are equal modulo `period`; every lane gets its class's result.
template <class Op> HWY_INLINE Vec fold(Vec v, int period, Op op)
{
#if HWY_TARGET == HWY_AVX3
    if (period <= 8) { v = op(v, hn::ConcatLowerUpper(F32(), v, v)); }
#endif
    if constexpr (kLanes >= 8) {
        if (period <= 4) { v = op(v, hn::SwapAdjacentBlocks(v)); }
    }
    if (period <= 2) { v = op(v, hn::Shuffle1032(v)); }
    if (period <= 1) { v = op(v, hn::Shuffle2301(v)); }
    return v;
}

/// exp of what is not above 0, -inf included; NaN stays NaN.
HWY_INLINE Vec exp_of(Vec x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(F32(), x)); }

/// Vector `column` of the blocks' log masses: the 64 estimates are `rows` rows of `columns` vectors.
HWY_INLINE Vec block_column(const float* estimates, int blocks, int columns, int column)
{
    const F32 d;
    const int step = columns * kLanes;
    Vec high = hn::Set(d, -kInf);
    for (int i = column * kLanes; i < 64; i += step) { high = hn::Max(high, hn::LoadU(d, estimates + i)); }
    high = fold(high, blocks, MaxOp());
    const Vec shift = hn::IfThenElse(hn::Eq(high, hn::Set(d, -kInf)), hn::Zero(d), high);
    Vec sum = hn::Zero(d);
    for (int i = column * kLanes; i < 64; i += step) {
        sum = hn::Add(sum, exp_of(hn::Sub(hn::LoadU(d, estimates + i), shift)));
    }
    sum = fold(sum, blocks, AddOp());
    const Vec result = hn::Add(high, hn::Log(d, sum));
    const Vec kept = hn::IfThenElse(hn::IsNaN(sum), sum, result);
    return hn::IfThenElse(hn::Eq(hn::Abs(high), hn::Set(d, kInf)), high, kept);
}

inline void block_log_mass(const float* estimates, std::int32_t blocks, float* log_mass)
{
    if (blocks >= kLanes) {
        const int columns = blocks / kLanes;
        for (int c = 0; c < columns; ++c) {
            hn::StoreU(block_column(estimates, blocks, columns, c), F32(), log_mass + c * kLanes);
        }
        return;
    }
    HWY_ALIGN float all[kLanes];
    hn::Store(block_column(estimates, blocks, 1, 0), F32(), all);
    std::memcpy(log_mass, all, std::size_t(blocks) * sizeof(float));
}

/// Runs `step(i)` on whole vectors and `rest(i, count)` on what is left.
template <class Step> HWY_INLINE void for_vectors(const float* x, std::int32_t n, float filler, const Step& step)
{
    const F32 d;
    std::int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) { step(hn::LoadU(d, x + i), i, kLanes); }
    if (i == n) { return; }
    HWY_ALIGN float last[kLanes];
    for (int k = 0; k < kLanes; ++k) { last[k] = i + k < n ? x[i + k] : filler; }
    step(hn::Load(d, last), i, n - i);
}

HWY_INLINE void store_some(Vec v, float* to, int count)
{
    if (count == kLanes) {
        hn::StoreU(v, F32(), to);
        return;
    }
    HWY_ALIGN float lanes[kLanes];
    hn::Store(v, F32(), lanes);
    std::memcpy(to, lanes, std::size_t(count) * sizeof(float));
}

HWY_INLINE Vec load_some(const float* from, int count)
{
    if (count == kLanes) { return hn::LoadU(F32(), from); }
    HWY_ALIGN float lanes[kLanes] = {};
    std::memcpy(lanes, from, std::size_t(count) * sizeof(float));
    return hn::Load(F32(), lanes);
}

inline float max_finite(const float* x, std::int32_t n)
{
    const F32 d;
    Vec high = hn::Set(d, -kInf);
    for_vectors(x, n, -kInf, [&](Vec v, std::int32_t, int) {
        high = hn::Max(high, hn::IfThenElse(hn::IsFinite(v), v, hn::Set(d, -kInf)));
    });
    return hn::GetLane(hn::MaxOfLanes(d, high));
}

inline void exp_shifted(const float* x, std::int32_t n, float shift, float* out)
{
    const F32 d;
    const Vec by = hn::Set(d, shift);
    for_vectors(x, n, -kInf, [&](Vec v, std::int32_t i, int count) {
        store_some(hn::IfThenElseZero(hn::IsFinite(v), hn::Exp(d, hn::Sub(v, by))), out + i, count);
    });
}

/// max(a, b); the other where one is NaN.
HWY_INLINE Vec max_number(Vec a, Vec b)
{
    return hn::IfThenElse(hn::IsNaN(a), b, hn::IfThenElse(hn::IsNaN(b), a, hn::Max(a, b)));
}

inline void max_into(const float* x, std::int32_t n, float shift, float* scores)
{
    const Vec by = hn::Set(F32(), shift);
    for_vectors(x, n, 0.0F, [&](Vec v, std::int32_t i, int count) {
        store_some(max_number(load_some(scores + i, count), hn::Sub(v, by)), scores + i, count);
    });
}

inline void log_mean(const float* x, std::int32_t heads, std::int64_t stride, const float* shift, std::int32_t n,
                     float* scores)
{
    const F32 d;
    const Vec log_heads = hn::Set(d, std::log(static_cast<float>(heads)));
    for (std::int32_t i = 0; i < n; i += kLanes) {
        const int count = std::min(kLanes, n - i);
        Vec high = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
        for (std::int32_t h = 0; h < heads; ++h) {
            high = max_number(high, hn::Sub(load_some(x + h * stride + i, count), hn::Set(d, shift[h])));
        }
        Vec sum = hn::Zero(d);
        for (std::int32_t h = 0; h < heads; ++h) {
            const Vec v = hn::Sub(load_some(x + h * stride + i, count), hn::Set(d, shift[h]));
            sum = hn::Add(sum, hn::IfThenZeroElse(hn::IsNaN(v), hn::Exp(d, hn::Sub(v, high))));
        }
        const Vec mean = hn::Sub(hn::Add(high, hn::Log(d, sum)), log_heads);
        store_some(hn::IfThenElse(hn::IsFinite(high), mean, high), scores + i, count);
    }
}

} // namespace oasis::cpu::scoring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
