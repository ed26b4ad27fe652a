// SPDX-License-Identifier: Apache-2.0
//
// Conversions between float and the 16-bit element types, round to nearest even, and the two outward
// roundings that keep a bound a bound.
#pragma once

#include <oasis/core/types.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace oasis {

/// The largest finite f16.
inline constexpr float kMaxF16 = 65504.0F;

/// Exact.
///@{
constexpr float to_float(float x) noexcept { return x; }

constexpr float to_float(bf16 x) noexcept { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

constexpr float to_float(f16 x) noexcept
{
    const std::uint32_t sign = std::uint32_t(x.bits & 0x8000U) << 16;
    const std::uint32_t exponent = (x.bits >> 10) & 0x1FU;
    const std::uint32_t mantissa = x.bits & 0x3FFU;
    if (exponent == 0x1F) { return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13)); }
    if (exponent != 0) { return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13)); }
    // Subnormal: mantissa x 2^-24, exact in float.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign ? -magnitude : magnitude;
}
///@}

/// To the nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
constexpr f16 to_f16(float x) noexcept
{
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    if (magnitude > 0x7F800000U) { return f16{static_cast<std::uint16_t>(sign | 0x7E00U)}; }          // NaN
    if (magnitude >= 0x477FF000U) { return f16{static_cast<std::uint16_t>(sign | 0x7C00U)}; }         // rounds to infinity
    if (magnitude < 0x38800000U) {                                                                      // subnormal or zero
        if (magnitude < 0x33000000U) { return f16{static_cast<std::uint16_t>(sign)}; }
        const std::uint32_t shift = 126U - (magnitude >> 23);
        const std::uint32_t full = (magnitude & 0x7FFFFFU) | 0x800000U;
        const std::uint32_t kept = full >> shift;
        const std::uint32_t rest = full & ((1U << shift) - 1);
        const std::uint32_t half = 1U << (shift - 1);
        return f16{static_cast<std::uint16_t>(sign | (kept + ((rest > half || (rest == half && (kept & 1U))) ? 1U : 0U)))};
    }
    const std::uint32_t rebased = magnitude - 0x38000000U;
    const std::uint32_t kept = rebased >> 13;
    const std::uint32_t rest = rebased & 0x1FFFU;
    return f16{static_cast<std::uint16_t>(sign | (kept + ((rest > 0x1000U || (rest == 0x1000U && (kept & 1U))) ? 1U : 0U)))};
}

/// To the nearest, ties to even; NaN stays NaN.
constexpr bf16 to_bf16(float x) noexcept
{
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    if ((bits & 0x7FFFFFFFU) > 0x7F800000U) { return bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40U)}; }
    return bf16{static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

/// `to_f16` or `to_bf16`, or the value itself.
///@{
template <class Element> constexpr Element from_float(float x) noexcept;
template <> constexpr float from_float<float>(float x) noexcept { return x; }
template <> constexpr f16 from_float<f16>(float x) noexcept { return to_f16(x); }
template <> constexpr bf16 from_float<bf16>(float x) noexcept { return to_bf16(x); }
///@}

/// The next f16 towards +infinity.
constexpr f16 next_up(f16 x) noexcept
{
    if ((x.bits & 0x7FFFU) > 0x7C00U || x.bits == 0x7C00U) { return x; }
    if (x.bits == 0x8000U || x.bits == 0) { return f16{0x0001U}; }
    return f16{static_cast<std::uint16_t>((x.bits & 0x8000U) ? x.bits - 1 : x.bits + 1)};
}

/// The smallest f16 not below x (`inf` above 65504), so that a coded upper bound stays one.
constexpr f16 to_f16_up(float x) noexcept
{
    const f16 nearest = to_f16(x);
    return to_float(nearest) < x ? next_up(nearest) : nearest;
}

/// The largest f16 not above x.
constexpr f16 to_f16_down(float x) noexcept
{
    const f16 up = to_f16_up(-x);
    return f16{static_cast<std::uint16_t>(up.bits ^ 0x8000U)};
}

/// The nearest finite f16: what lies beyond +-65504 saturates there. NaN stays NaN.
constexpr f16 to_f16_saturated(float x) noexcept
{
    if (x > kMaxF16) { return f16{0x7BFFU}; }
    if (x < -kMaxF16) { return f16{0xFBFFU}; }
    return to_f16(x);
}

} // namespace oasis
