// SPDX-License-Identifier: Apache-2.0
//
// Rounding and coding of summaries: nearest for estimates, outwards for bounds. Runs once per sub-block and once per
// group, so plain C++.
#pragma once

#include <oasis/core/half.hpp>
#include <oasis/core/views.hpp>
#include <oasis/score/summary_layout.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace oasis::detail {

enum class Rounding : std::uint8_t { kNearest, kUp, kDown };

struct SubBlockFlags {
    bool poisoned = false;
    bool unbounded = false;
};

constexpr Rounding rounding_of(const SummaryLayout& layout, std::int32_t plane) noexcept
{
    if (!layout.upper_bound) { return Rounding::kNearest; }
    return plane == 0 ? Rounding::kUp : Rounding::kDown;
}

inline bool all_finite(KeyRows keys) noexcept
{
    // x - x is 0 for what is finite and NaN for the rest; a sum in 16 parts vectorises.
    float sum[16] = {};
    for (std::int32_t t = 0; t < keys.tokens; ++t) {
        const float* key = keys[t];
        for (std::int32_t c = 0; c < keys.head_dim; c += 16) {
            for (std::int32_t i = 0; i < 16; ++i) { sum[i] += key[c + i] - key[c + i]; }
        }
    }
    float total = 0.0F;
    for (const float part : sum) { total += part; }
    return total == 0.0F;
}

/// What the native form keeps of x, as float. Beyond f16's range it saturates.
inline float round_native(float x, Rounding rounding, bool keep_f32) noexcept
{
    if (keep_f32) { return x; }
    switch (rounding) {
    case Rounding::kUp: return std::min(to_float(to_f16_up(x)), kMaxF16);
    case Rounding::kDown: return std::max(to_float(to_f16_down(x)), -kMaxF16);
    default: return to_float(to_f16_saturated(x));
    }
}

inline void store_native(std::byte* data, std::size_t index, float x, bool keep_f32) noexcept
{
    if (keep_f32) {
        std::memcpy(data + 4 * index, &x, 4);
    } else {
        const f16 half = to_f16(x); // exact: already rounded
        std::memcpy(data + 2 * index, &half, 2);
    }
}

inline void set_bit(std::uint64_t& mask, std::int32_t bit, bool value) noexcept
{
    mask = (mask & ~(std::uint64_t{1} << bit)) | (std::uint64_t{value} << bit);
}

/// value = zero + scale * code for the 64 slots of one channel; slots outside `valid` (a mask by slot) get code 0.
struct AffineCode {
    f16 scale{};
    f16 zero{};
    std::uint8_t codes[64] = {};
};

/// f16 values coded with 0..max_code. `zero` is their minimum, exact. `scale` is rounded up so that the maximum is in
/// reach; for codes rounded down it is rounded down, or the maximum would lose a whole step.
inline AffineCode code_affine(const float* values, std::uint64_t valid, int max_code, Rounding rounding)
{
    AffineCode result;
    float low = 0.0F;
    float high = 0.0F;
    bool any = false;
    for (int i = 0; i < 64; ++i) {
        if (((valid >> i) & 1U) == 0) { continue; }
        low = any ? std::min(low, values[i]) : values[i];
        high = any ? std::max(high, values[i]) : values[i];
        any = true;
    }
    if (!any) { return result; }
    result.zero = to_f16(low);
    if (!(high > low)) { return result; }
    const double zero = low;
    const auto step = static_cast<float>((high - zero) / max_code);
    result.scale = rounding == Rounding::kDown ? to_f16_down(step) : to_f16_up(step);
    if (rounding != Rounding::kDown) {
        while (zero + double(to_float(result.scale)) * max_code < high) { result.scale = next_up(result.scale); }
    }
    const double scale = to_float(result.scale);
    if (scale == 0.0) { return result; } // a range below f16, rounded down

    double codes[64];
    const double lift = rounding == Rounding::kNearest ? 0.5 : 0.0;
    for (int i = 0; i < 64; ++i) { codes[i] = (values[i] - zero) / scale + lift; }
    for (int i = 0; i < 64; ++i) {
        if (((valid >> i) & 1U) == 0) { continue; }
        int code = std::clamp(static_cast<int>(codes[i]), 0, max_code);
        // The quotient is rounded, the test is exact: 11 + 8 bits of product and 11 of zero fit a double.
        if (rounding == Rounding::kUp) {
            while (code < max_code && zero + scale * code < values[i]) { ++code; }
        } else if (rounding == Rounding::kDown) {
            while (code > 0 && zero + scale * code > values[i]) { --code; }
            while (code < max_code && zero + scale * (code + 1) <= values[i]) { ++code; }
        }
        result.codes[i] = static_cast<std::uint8_t>(code);
    }
    return result;
}

inline void read_native(const std::byte* data, float* out) noexcept
{
    for (std::size_t i = 0; i < 64; ++i) {
        f16 half;
        std::memcpy(&half, data + 2 * i, 2);
        out[i] = to_float(half);
    }
}

/// Codes a whole group; `valid` is a mask by slot of the sub-blocks to code.
inline void code_group(const SummaryLayout& layout, const std::byte* native, std::uint64_t valid, SummaryHeader header,
                       std::byte* coded)
{
    std::fill_n(coded, layout.coded_bytes(), std::byte{0});
    float values[64];
    for (std::int32_t c = 0; c < layout.channels(); ++c) {
        read_native(native + sizeof(SummaryHeader) + std::size_t(c) * layout.native_channel_bytes(), values);
        const bool four = layout.options.code == SummaryCode::kInt4;
        const AffineCode code = code_affine(values, valid, four ? 15 : 255, rounding_of(layout, c / layout.head_dim));
        std::memcpy(coded + layout.scales_offset() + 2 * std::size_t(c), &code.scale, 2);
        std::memcpy(coded + layout.zeros_offset() + 2 * std::size_t(c), &code.zero, 2);
        std::byte* out = coded + layout.codes_offset() + std::size_t(c) * layout.channel_bytes();
        if (four) {
            for (int i = 0; i < 32; ++i) { out[i] = std::byte(code.codes[i] | (code.codes[i + 32] << 4)); }
        } else {
            std::memcpy(out, code.codes, 64);
        }
    }
    if (layout.spread) {
        read_native(native + layout.native_spread_offset(), values);
        const AffineCode code =
            code_affine(values, valid, 255, layout.upper_bound ? Rounding::kUp : Rounding::kNearest);
        header.spread_scale = code.scale;
        header.spread_zero = code.zero;
        std::memcpy(coded + layout.coded_spread_offset(), code.codes, 64);
    }
    std::memcpy(coded, &header, sizeof(header));
}

} // namespace oasis::detail
