// SPDX-License-Identifier: Apache-2.0
//
// Rows of K and V as vectors: element types to float and back, and the int8 code. Included once per instruction set.
#if defined(OASIS_CPU_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OASIS_CPU_SIMD_ROWS_INL_H_
#undef OASIS_CPU_SIMD_ROWS_INL_H_
#else
#define OASIS_CPU_SIMD_ROWS_INL_H_
#endif

#include <oasis/cpu/attend_kernels.hpp>

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>; // head_dim is a multiple of 16, so rows hold whole vectors
using Vec = hn::Vec<F32>;
inline constexpr std::int32_t kLanes = static_cast<std::int32_t>(HWY_LANES(float) < 16 ? HWY_LANES(float) : 16);

HWY_INLINE Vec load_lanes(const float* from) { return hn::LoadU(F32(), from); }

HWY_INLINE Vec load_lanes(const f16* from)
{
#if HWY_TARGET == HWY_SSE4 // has no conversion, and the emulation of Highway knows no infinity
    const F32 d;
    const hn::RebindToUnsigned<F32> wide;
    const hn::Rebind<std::uint16_t, F32> half;
    const auto bits = hn::PromoteTo(wide, hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(from)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(wide, 0x7FFFU)));
    const auto finite = hn::BitCast(wide, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112F)));
    const auto special = hn::Ge(hn::BitCast(d, magnitude), hn::BitCast(d, hn::Set(wide, 0x7C00U << 13)));
    const auto unsigned_bits =
        hn::IfThenElse(hn::RebindMask(wide, special), hn::Or(magnitude, hn::Set(wide, 0x7F800000U)), finite);
    return hn::BitCast(d, hn::Or(unsigned_bits, hn::ShiftLeft<16>(hn::And(bits, hn::Set(wide, 0x8000U)))));
#else
    const hn::Rebind<hwy::float16_t, F32> half;
    return hn::PromoteTo(F32(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
#endif
}

HWY_INLINE Vec load_lanes(const bf16* from)
{
    const hn::Rebind<std::uint16_t, F32> half;
    const hn::RebindToUnsigned<F32> wide;
    return hn::BitCast(
        F32(), hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(from)))));
}

HWY_INLINE Vec load_lanes(const std::int8_t* from)
{
    const hn::Rebind<std::int8_t, F32> narrow;
    return hn::ConvertTo(F32(), hn::PromoteTo(hn::RebindToSigned<F32>(), hn::LoadU(narrow, from)));
}

template <class Element> HWY_INLINE void convert(const Element* from, std::size_t n, float scale, float* to)
{
    const Vec factor = hn::Set(F32(), scale);
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) { hn::StoreU(hn::Mul(load_lanes(from + i), factor), F32(), to + i); }
    for (; i < n; ++i) { to[i] = oasis::to_float(from[i]) * scale; }
}

inline void to_float(DType type, const void* from, std::size_t n, float scale, float* to)
{
    switch (type) {
    case DType::kF32: convert(static_cast<const float*>(from), n, scale, to); break;
    case DType::kF16: convert(static_cast<const f16*>(from), n, scale, to); break;
    case DType::kBF16: convert(static_cast<const bf16*>(from), n, scale, to); break;
    }
}

HWY_INLINE void store_lanes(Vec x, bf16* to)
{
    const hn::RebindToUnsigned<F32> wide;
    const hn::Rebind<std::uint16_t, F32> half;
    const auto bits = hn::BitCast(wide, x);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(wide, 1U));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(wide, 0x7FFFU))));
    const auto quiet = hn::Or(high, hn::Set(wide, 0x40U));
    const auto chosen = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(x)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<F32>(), chosen)), half,
               reinterpret_cast<std::uint16_t*>(to));
}

inline void from_float(DType type, const float* from, std::size_t n, void* to)
{
    if (type == DType::kF32) {
        std::memcpy(to, from, n * sizeof(float));
        return;
    }
    std::size_t i = 0;
    if (type == DType::kBF16) {
        for (; i + kLanes <= n; i += kLanes) { store_lanes(load_lanes(from + i), static_cast<bf16*>(to) + i); }
    }
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 // the emulation elsewhere does not round to nearest even
    if (type == DType::kF16) {
        const hn::Rebind<hwy::float16_t, F32> half;
        for (; i + kLanes <= n; i += kLanes) {
            hn::StoreU(hn::DemoteTo(half, load_lanes(from + i)), half, static_cast<hwy::float16_t*>(to) + i);
        }
    }
#endif
    detail::from_float_scalar(type, from + i, n - i, static_cast<std::byte*>(to) + i * size_of(type));
}

/// K (plane 0) or V (plane 1) of tokens [begin, end) as floats, row after row: in place if the block holds floats,
/// else in `space`.
inline const float* rows_of(const BlockFormat& format, const BlockRef& block, std::int32_t plane, std::int32_t begin,
                            std::int32_t end, float* space)
{
    const std::size_t n = static_cast<std::size_t>(format.head_dim);
    const std::size_t first = static_cast<std::size_t>(plane * format.block_tokens + begin) * n;
    const std::size_t count = static_cast<std::size_t>(end - begin) * n;
    if (!block.coded) {
        const std::byte* rows = block.data + first * size_of(format.dtype);
        if (format.dtype == DType::kF32) { return reinterpret_cast<const float*>(rows); }
        HWY_NAMESPACE::to_float(format.dtype, rows, count, 1.0F, space);
        return space;
    }
    const auto* codes = reinterpret_cast<const std::int8_t*>(block.data) + first;
    for (std::int32_t t = begin; t < end; ++t) {
        const f16 scale = detail::load_element<f16>(block.data + detail::scale_offset(format, plane, t), 0);
        const Vec factor = hn::Set(F32(), oasis::to_float(scale));
        float* to = space + static_cast<std::size_t>(t - begin) * n;
        for (std::size_t i = 0; i < n; i += kLanes, codes += kLanes) {
            hn::StoreU(hn::Mul(load_lanes(codes), factor), F32(), to + i);
        }
    }
    return space;
}

inline void encode_row(const float* row, std::int32_t n, std::int8_t* codes, std::byte* scale_bytes)
{
    const F32 d;
    Vec largest = hn::Zero(d);
    for (std::int32_t i = 0; i < n; i += kLanes) {
        const Vec x = load_lanes(row + i);
        largest = hn::Max(largest, hn::IfThenZeroElse(hn::IsNaN(x), hn::Abs(x)));
    }
    const f16 scale = detail::int8_scale(hn::GetLane(hn::MaxOfLanes(d, largest)));
    std::memcpy(scale_bytes, &scale, sizeof(scale));
    const float width = oasis::to_float(scale);
    const Vec divisor = hn::Set(d, width);
    const Vec limit = hn::Set(d, 127.0F);
    for (std::int32_t i = 0; i < n; i += kLanes) {
        Vec x = width > 0 ? hn::Div(load_lanes(row + i), divisor) : hn::Zero(d);
        x = hn::IfThenZeroElse(hn::IsNaN(x), x);
        x = hn::Max(hn::Min(x, limit), hn::Neg(limit));
        const hn::Rebind<std::int8_t, F32> narrow;
        hn::StoreU(hn::DemoteTo(narrow, hn::NearestInt(x)), narrow, codes + i);
    }
}

inline void encode_int8(const BlockFormat& format, const std::byte* native, std::int32_t tokens, std::byte* coded)
{
    detail::check_tokens(format, tokens);
    const BlockRef block{native, 0, 0, false};
    const std::int64_t n = format.head_dim;
    const float zeros[256] = {};
    float space[256];
    for (std::int32_t plane = 0; plane < 2; ++plane) {
        for (std::int32_t t = 0; t < format.block_tokens; ++t) {
            const float* row = t < tokens ? rows_of(format, block, plane, t, t + 1, space) : zeros;
            encode_row(row, format.head_dim,
                       reinterpret_cast<std::int8_t*>(coded) + (plane * format.block_tokens + t) * n,
                       coded + detail::scale_offset(format, plane, t));
        }
    }
}

inline void decode_int8(const BlockFormat& format, const std::byte* coded, std::byte* native)
{
    detail::check_format(format, 1);
    const BlockRef block{coded, 0, 0, true};
    const std::size_t n = static_cast<std::size_t>(format.head_dim);
    const float bound = format.dtype == DType::kF16 ? kMaxF16 : hwy::HighestValue<float>();
    const Vec limit = hn::Set(F32(), bound);
    float space[256];
    for (std::int32_t plane = 0; plane < 2; ++plane) {
        for (std::int32_t t = 0; t < format.block_tokens; ++t, native += n * size_of(format.dtype)) {
            rows_of(format, block, plane, t, t + 1, space);
            for (std::size_t i = 0; i < n; i += kLanes) {
                hn::StoreU(hn::Max(hn::Min(load_lanes(space + i), limit), hn::Neg(limit)), F32(), space + i);
            }
            HWY_NAMESPACE::from_float(format.dtype, space, n, native);
        }
    }
}

} // namespace oasis::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif // per-target include guard
