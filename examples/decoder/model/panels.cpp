// SPDX-License-Identifier: Apache-2.0
//
// Matrices in panels: how rows of a file get into them, and out again.
#include "model/matrix.hpp"

#include "model/mapped_file.hpp"

#include <oasis/core/half.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace oasis_decode {

/// A block of one row: unsigned codes, see `Matrix::Code`.
struct Matrix::PanelBlock {
    std::array<std::uint8_t, kBlock> codes{};
    oasis::f16 scale{};
    oasis::f16 offset{};
};

namespace {

constexpr std::int64_t kQuad = 4; ///< inputs whose codes lie side by side

float from_bits(std::uint16_t bits) noexcept { return oasis::to_float(oasis::f16{bits}); }

oasis::f16 narrow(float x)
{
    const oasis::f16 out = oasis::to_f16(x);
    if (!std::isfinite(oasis::to_float(out))) { fail("a scale of weights is ", x, ": it has no 16-bit form"); }
    return out;
}

} // namespace

bool Matrix::keeps(Code code, StorageType type) noexcept
{
    switch (code) {
    case Code::kInt4: return type == StorageType::kQ4_0;
    case Code::kInt4Offset: return type == StorageType::kQ4_1 || type == StorageType::kQ4_K;
    case Code::kInt8: return type == StorageType::kQ8_0 || type == StorageType::kQ5_0;
    default: return true;
    }
}

/// As Q8_0: the scale is rounded to 16 bits first, then the codes fit it.
Matrix::PanelBlock Matrix::rounded(std::span<const float, kBlock> values)
{
    float most = 0;
    for (const float x : values) {
        if (!(std::abs(x) <= 127.0F * oasis::kMaxF16)) { fail("a weight is ", x, ": it has no 8-bit form"); }
        most = std::max(most, std::abs(x));
    }
    PanelBlock out{.scale = oasis::to_f16(most / 127.0F)};
    const float width = oasis::to_float(out.scale);
    for (std::size_t i = 0; i < out.codes.size(); ++i) {
        const float code = width > 0 ? std::clamp(std::nearbyint(values[i] / width), -127.0F, 127.0F) : 0.0F;
        out.codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code) + zero_point(Code::kInt8));
    }
    return out;
}

/// The codes of the file, two runs of 16 with one scale.
Matrix::PanelBlock Matrix::kept(const QuantisedRun* runs) const
{
    PanelBlock out{.scale = narrow(runs->scale)};
    if (code_ == Code::kInt4Offset) { out.offset = narrow(runs->offset); }
    for (std::size_t i = 0; i < out.codes.size(); ++i) {
        const int code = runs[i / QuantisedRun::kElements].codes[i % QuantisedRun::kElements];
        out.codes[i] = static_cast<std::uint8_t>(code_ == Code::kInt8 ? code + zero_point(code_) : code);
    }
    return out;
}

void Matrix::set_panel_row(std::int64_t row, StorageType type, std::span<const std::byte> bytes)
{
    if (!keeps(code_, type)) {
        std::vector<float> values(static_cast<std::size_t>(in_));
        dequantise(type, bytes, values);
        for (std::int64_t b = 0; b < in_ / kBlock; ++b) {
            set_panel_block(row, b, rounded(std::span<const float, kBlock>(values.data() + b * kBlock, kBlock)));
        }
        return;
    }
    const BlockLayout layout = layout_of(type);
    std::array<QuantisedRun, QuantisedRun::kMostRuns> runs;
    for (std::int64_t b = 0; b < in_ / kBlock; ++b) {
        const std::int64_t first = b * kBlock % layout.elements;
        if (first == 0) { unpack(type, bytes.data() + b * kBlock / layout.elements * layout.bytes, runs.data()); }
        set_panel_block(row, b, kept(runs.data() + first / std::int64_t{QuantisedRun::kElements}));
    }
}

void Matrix::set_panel_block(std::int64_t row, std::int64_t block, const PanelBlock& values) noexcept
{
    const std::int64_t at = row / kPanelRows * (in_ / kBlock) + block;
    const std::int64_t lane = row % kPanelRows;
    auto* const codes = reinterpret_cast<std::uint8_t*>(codes_.data()) + at * panel_block_bytes(code_) + lane * kQuad;
    std::uint16_t* const scales = panel_scales_.data() + at * panel_block_scales(code_) + lane;
    scales[0] = values.scale.bits;
    if (code_ == Code::kInt4Offset) { scales[kPanelRows] = values.offset.bits; }
    // Of bytes of two codes, the second half of the block is in the high halves.
    const bool pairs = code_ != Code::kInt8;
    const std::int64_t count = pairs ? kBlock / 2 : kBlock;
    for (std::int64_t i = 0; i < count; ++i) {
        const auto j = static_cast<std::size_t>(i);
        const unsigned high = pairs ? unsigned{values.codes[j + kBlock / 2]} << 4 : 0U;
        codes[i / kQuad * kPanelRows * kQuad + i % kQuad] = static_cast<std::uint8_t>(values.codes[j] | high);
    }
}

void Matrix::panel_row(std::int64_t row, float* out) const noexcept
{
    const std::uint8_t* codes = panel_codes(row / kPanelRows) + row % kPanelRows * kQuad;
    const std::uint16_t* scales = panel_scales(row / kPanelRows) + row % kPanelRows;
    const bool pairs = code_ != Code::kInt8;
    for (std::int64_t b = 0; b < in_ / kBlock; ++b, out += kBlock) {
        const float scale = from_bits(scales[0]);
        const float offset = code_ == Code::kInt4Offset ? from_bits(scales[kPanelRows]) : 0.0F;
        for (std::int64_t i = 0; i < kBlock; ++i) {
            const std::int64_t at = pairs ? i % (kBlock / 2) : i;
            const unsigned byte = codes[at / kQuad * kPanelRows * kQuad + at % kQuad];
            const unsigned code = !pairs ? byte : i < kBlock / 2 ? byte & 0xFU : byte >> 4;
            out[i] = static_cast<float>(static_cast<std::int32_t>(code) - zero_point(code_)) * scale + offset;
        }
        codes += panel_block_bytes(code_);
        scales += panel_block_scales(code_);
    }
}

} // namespace oasis_decode
