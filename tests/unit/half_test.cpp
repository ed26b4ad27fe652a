// SPDX-License-Identifier: Apache-2.0
#include <oasis/core/half.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace oasis {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

f16 half(std::uint32_t bits) { return f16{static_cast<std::uint16_t>(bits)}; }
bool is_nan(f16 x) { return (x.bits & 0x7FFFU) > 0x7C00U; }

/// What the bits mean, by the definition of binary16.
double meaning(f16 x)
{
    const int exponent = (x.bits >> 10) & 31;
    const int mantissa = x.bits & 1023;
    const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    return x.bits & 0x8000U ? -magnitude : magnitude;
}

float below(float x) { return std::nextafter(x, -kInf); }
float above(float x) { return std::nextafter(x, kInf); }

TEST(F16, EveryValueComesBack)
{
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const f16 x = half(bits);
        if (is_nan(x)) {
            ASSERT_TRUE(std::isnan(to_float(x)) && is_nan(to_f16(to_float(x)))) << bits;
            continue;
        }
        ASSERT_EQ(static_cast<double>(to_float(x)), meaning(x)) << bits;
        ASSERT_EQ(std::signbit(to_float(x)), bits >= 0x8000U) << bits;
        ASSERT_EQ(to_f16(to_float(x)), x) << bits;
        ASSERT_EQ(to_f16_up(to_float(x)), x) << bits;
        ASSERT_EQ(to_f16_down(to_float(x)), x) << bits;
    }
}

TEST(F16, RoundsToNearestAndHalvesToEven)
{
    for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
        const f16 low = half(bits);
        const f16 high = half(bits + 1);
        const double top = bits == 0x7BFFU ? 65536.0 : meaning(high);
        const float middle = static_cast<float>((meaning(low) + top) / 2);
        const f16 even = bits % 2 == 0 ? low : high;
        ASSERT_EQ(to_f16(middle), even) << bits;
        ASSERT_EQ(to_f16(below(middle)), low) << bits;
        ASSERT_EQ(to_f16(above(middle)), high) << bits;
        ASSERT_EQ(to_f16(-middle), half(even.bits | 0x8000U)) << bits;
        ASSERT_EQ(to_f16(-below(middle)), half(low.bits | 0x8000U)) << bits;
        ASSERT_EQ(to_f16(-above(middle)), half(high.bits | 0x8000U)) << bits;
    }
    EXPECT_EQ(to_f16(1e30F).bits, 0x7C00U);
    EXPECT_EQ(to_f16(-kInf).bits, 0xFC00U);
}

TEST(F16, OutwardRoundingIsTheTightestBound)
{
    for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
        const f16 low = half(bits);
        const f16 high = half(bits + 1);
        const float just_above = above(to_float(low));
        ASSERT_EQ(to_f16_up(just_above), high) << bits;
        ASSERT_EQ(to_f16_down(just_above), low) << bits;
        ASSERT_EQ(to_f16_up(-just_above), half(low.bits | 0x8000U)) << bits;
        ASSERT_EQ(to_f16_down(-just_above), half(high.bits | 0x8000U)) << bits;
    }
    EXPECT_EQ(to_f16_up(70000.0F).bits, 0x7C00U);
    EXPECT_EQ(to_f16_down(70000.0F).bits, 0x7BFFU);
    EXPECT_EQ(to_f16_up(-70000.0F).bits, 0xFBFFU);
    EXPECT_EQ(to_f16_down(-70000.0F).bits, 0xFC00U);
    EXPECT_TRUE(is_nan(to_f16_up(std::nanf(""))) && is_nan(to_f16_down(std::nanf(""))));
}

TEST(F16, SaturatedIsFinite)
{
    EXPECT_EQ(to_f16_saturated(65519.0F).bits, 0x7BFFU);
    EXPECT_EQ(to_f16_saturated(65520.0F).bits, 0x7BFFU);
    EXPECT_EQ(to_f16_saturated(kInf).bits, 0x7BFFU);
    EXPECT_EQ(to_f16_saturated(-kInf).bits, 0xFBFFU);
    EXPECT_EQ(to_f16_saturated(1.0F).bits, 0x3C00U);
    EXPECT_TRUE(is_nan(to_f16_saturated(std::nanf(""))));
}

TEST(BF16, EveryValueComesBackAndHalvesGoToEven)
{
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const bf16 x{static_cast<std::uint16_t>(bits)};
        const float value = std::bit_cast<float>(bits << 16);
        if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(to_float(x)) && std::isnan(to_float(to_bf16(value)))) << bits;
            continue;
        }
        ASSERT_EQ(to_bf16(to_float(x)), x) << bits;
        if (std::isinf(value)) { continue; }
        const std::uint32_t middle = (bits << 16) | 0x8000U;
        ASSERT_EQ(to_bf16(std::bit_cast<float>(middle)).bits, bits % 2 == 0 ? bits : bits + 1) << bits;
        ASSERT_EQ(to_bf16(std::bit_cast<float>(middle - 1)).bits, bits) << bits;
        ASSERT_EQ(to_bf16(std::bit_cast<float>(middle + 1)).bits, bits + 1) << bits;
    }
    const float quiet_low_bits = std::bit_cast<float>(0x7F800001U);
    EXPECT_TRUE(std::isnan(to_float(to_bf16(quiet_low_bits)))) << "a NaN whose high bits are those of infinity";
}

TEST(FromFloat, PicksTheElementType)
{
    static_assert(from_float<f16>(1.0F).bits == 0x3C00U && from_float<bf16>(1.0F).bits == 0x3F80U &&
                  from_float<float>(0.1F) == 0.1F);
}

} // namespace
} // namespace oasis
