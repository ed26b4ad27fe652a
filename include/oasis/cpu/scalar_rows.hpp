// SPDX-License-Identifier: Apache-2.0
//
// Rows of K and V in plain C++: element types to float and back, and the int8 code of a head-block.
#pragma once

#include <oasis/core/half.hpp>
#include <oasis/cpu/attend_jobs.hpp>
#include <oasis/cpu/prefill_spans.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace oasis::cpu::detail {

template <class Element> Element load_element(const void* from, std::size_t i) noexcept
{
    Element element;
    std::memcpy(&element, static_cast<const std::byte*>(from) + i * sizeof(Element), sizeof(Element));
    return element;
}

inline void to_float_scalar(DType type, const void* from, std::size_t n, float scale, float* to)
{
    for (std::size_t i = 0; i < n; ++i) {
        switch (type) {
        case DType::kF32: to[i] = load_element<float>(from, i) * scale; break;
        case DType::kF16: to[i] = oasis::to_float(load_element<f16>(from, i)) * scale; break;
        case DType::kBF16: to[i] = oasis::to_float(load_element<bf16>(from, i)) * scale; break;
        }
    }
}

inline void from_float_scalar(DType type, const float* from, std::size_t n, void* to)
{
    auto* bytes = static_cast<std::byte*>(to);
    for (std::size_t i = 0; i < n; ++i) {
        const f16 half = to_f16(from[i]);
        const bf16 brain = to_bf16(from[i]);
        switch (type) {
        case DType::kF32: std::memcpy(bytes + i * 4, from + i, 4); break;
        case DType::kF16: std::memcpy(bytes + i * 2, &half, 2); break;
        case DType::kBF16: std::memcpy(bytes + i * 2, &brain, 2); break;
        }
    }
}

/// Where the scale of token `token` is, of K (plane 0) or V (plane 1).
inline std::size_t scale_offset(const BlockFormat& format, std::int32_t plane, std::int32_t token) noexcept
{
    return layout_of(format, true).int8_scales_offset() +
           2 * static_cast<std::size_t>(plane * format.block_tokens + token);
}

/// K (plane 0) or V (plane 1) of one token as floats; exact: an int8 code times an f16 scale fits a float.
inline void load_row(const BlockFormat& format, const BlockRef& block, std::int32_t plane, std::int32_t token,
                     float* to)
{
    const std::size_t n = static_cast<std::size_t>(format.head_dim);
    const std::size_t first = static_cast<std::size_t>(plane * format.block_tokens + token) * n;
    if (!block.coded) {
        to_float_scalar(format.dtype, block.data + first * size_of(format.dtype), n, 1.0F, to);
        return;
    }
    const float scale = oasis::to_float(load_element<f16>(block.data + scale_offset(format, plane, token), 0));
    for (std::size_t i = 0; i < n; ++i) {
        to[i] = static_cast<float>(static_cast<std::int8_t>(block.data[first + i])) * scale;
    }
}

/// The f16 scale of a row with this largest magnitude: rounded up, so that no code exceeds 127, and finite.
inline f16 int8_scale(float amax) noexcept { return to_f16_up(std::min(amax / 127.0F, kMaxF16)); }

inline void encode_row_scalar(const float* row, std::int32_t n, std::byte* codes, std::byte* scale_bytes) noexcept
{
    float amax = 0;
    for (std::int32_t i = 0; i < n; ++i) { amax = std::abs(row[i]) > amax ? std::abs(row[i]) : amax; } // false for NaN
    const f16 scale = int8_scale(amax);
    std::memcpy(scale_bytes, &scale, sizeof(scale));
    const float width = oasis::to_float(scale);
    for (std::int32_t i = 0; i < n; ++i) {
        const float scaled = width > 0 ? std::clamp(row[i] / width, -127.0F, 127.0F) : 0.0F;
        codes[i] = static_cast<std::byte>(static_cast<std::int8_t>(scaled == scaled ? std::nearbyint(scaled) : 0.0F));
    }
}

inline void check_tokens(const BlockFormat& format, std::int32_t tokens)
{
    check_format(format, 1);
    expects(tokens >= 0 && tokens <= format.block_tokens, "encode_int8: ", tokens, " tokens of a block of ",
            format.block_tokens);
}

inline void encode_int8_scalar(const BlockFormat& format, const std::byte* native, std::int32_t tokens,
                               std::byte* coded)
{
    check_tokens(format, tokens);
    const BlockRef block{native, 0, 0, false};
    const std::int64_t n = format.head_dim;
    float row[256];
    for (std::int32_t plane = 0; plane < 2; ++plane) {
        for (std::int32_t t = 0; t < format.block_tokens; ++t) {
            if (t < tokens) {
                load_row(format, block, plane, t, row);
            } else {
                std::fill_n(row, n, 0.0F);
            }
            encode_row_scalar(row, format.head_dim, coded + (plane * format.block_tokens + t) * n,
                              coded + scale_offset(format, plane, t));
        }
    }
}

inline void decode_int8_scalar(const BlockFormat& format, const std::byte* coded, std::byte* native)
{
    check_format(format, 1);
    const BlockRef block{coded, 0, 0, true};
    const std::int64_t bytes = std::int64_t{format.head_dim} * static_cast<std::int64_t>(size_of(format.dtype));
    float row[256];
    for (std::int32_t plane = 0; plane < 2; ++plane) {
        for (std::int32_t t = 0; t < format.block_tokens; ++t) {
            load_row(format, block, plane, t, row);
            if (format.dtype == DType::kF16) {
                for (std::int32_t i = 0; i < format.head_dim; ++i) { row[i] = std::clamp(row[i], -kMaxF16, kMaxF16); }
            }
            from_float_scalar(format.dtype, row, static_cast<std::size_t>(format.head_dim),
                              native + (plane * format.block_tokens + t) * bytes);
        }
    }
}

} // namespace oasis::cpu::detail
