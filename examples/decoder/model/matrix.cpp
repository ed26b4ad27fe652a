// SPDX-License-Identifier: Apache-2.0
#include "model/matrix.hpp"

#include "model/mapped_file.hpp"

#include <oasis/core/half.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace oasis_decode {
namespace {

constexpr bool is_coded(Matrix::Code code) noexcept
{
    return code != Matrix::Code::kF32 && code != Matrix::Code::kBF16 && !Matrix::in_panels(code);
}

std::int64_t row_words(Matrix::Code code, std::int64_t in) noexcept
{
    if (code == Matrix::Code::kF32) { return in; }
    if (Matrix::in_panels(code)) { return 0; }
    const std::int64_t in_group = Matrix::halves(code);
    return (2 * (in / Matrix::kBlock) + in_group - 1) / in_group * Matrix::kLanes;
}

std::int64_t row_scales(Matrix::Code code, std::int64_t in) noexcept
{
    const std::int64_t blocks = in / Matrix::kBlock;
    switch (code) {
    case Matrix::Code::kQ8: return blocks;
    case Matrix::Code::kQ4: return 2 * blocks;
    case Matrix::Code::kQ8Affine: return 4 * blocks;
    default: return 0;
    }
}

} // namespace

Matrix::Matrix(Code code, std::int64_t out, std::int64_t in)
    : code_(code),
      out_(out),
      in_(in),
      row_words_(oasis_decode::row_words(code, in)),
      row_scales_(oasis_decode::row_scales(code, in)),
      codes_(static_cast<std::size_t>(out * row_words_)),
      scales_(static_cast<std::size_t>(out * row_scales_))
{
    if (!in_panels(code)) { return; }
    const std::int64_t panel_blocks = (out + kPanelRows - 1) / kPanelRows * (in / kBlock);
    codes_ = Array<std::uint32_t>(static_cast<std::size_t>(panel_blocks * panel_block_bytes(code) / 4));
    panel_scales_ = Array<std::uint16_t>(static_cast<std::size_t>(panel_blocks * panel_block_scales(code)));
    std::fill_n(codes_.data(), codes_.size(), 0U);
    std::fill_n(panel_scales_.data(), panel_scales_.size(), std::uint16_t{0});
}

std::size_t Matrix::row_bytes(Code code, std::int64_t in) noexcept
{
    if (in_panels(code)) {
        const std::int64_t block = panel_block_bytes(code) + 2 * panel_block_scales(code);
        return static_cast<std::size_t>(in / kBlock * block / kPanelRows);
    }
    return static_cast<std::size_t>(oasis_decode::row_words(code, in) + oasis_decode::row_scales(code, in)) *
           sizeof(float);
}

Matrix::Code Matrix::code_for(StorageType type, std::int64_t in, Compute compute) noexcept
{
    if (in % kBlock != 0) { return Code::kF32; }
    if (compute == Compute::kQ8) {
        for (const Code code : {Code::kInt4, Code::kInt4Offset}) {
            if (keeps(code, type)) { return code; }
        }
        return Code::kInt8;
    }
    switch (type) {
    case StorageType::kBF16: return Code::kBF16;
    case StorageType::kQ8_0:
    case StorageType::kQ5_0: return Code::kQ8;
    case StorageType::kQ4_0:
    case StorageType::kQ4_1:
    case StorageType::kQ4_K: return Code::kQ4;
    case StorageType::kQ5_1:
    case StorageType::kQ5_K:
    case StorageType::kQ6_K: return Code::kQ8Affine;
    case StorageType::kF32:
    case StorageType::kF16: break;
    }
    return Code::kF32;
}

Matrix::Code Matrix::common(Code a, Code b) noexcept
{
    if (a == b) { return a; }
    if (in_panels(a) && in_panels(b)) { return Code::kInt8; }
    return is_coded(a) && is_coded(b) ? Code::kQ8Affine : Code::kF32;
}

void Matrix::set_row(std::int64_t row, StorageType type, std::span<const std::byte> bytes)
{
    const BlockLayout layout = layout_of(type);
    const auto count = static_cast<std::size_t>(in_);
    const Code own = code_for(type, in_, in_panels(code_) ? Compute::kQ8 : Compute::kF32);
    if (row < 0 || row >= out_ || bytes.size() != count / layout.elements * layout.bytes ||
        common(code_, own) != code_) {
        fail("matrix of ", out_, " x ", in_, ": row ", row, " cannot take ", bytes.size(), " bytes of ", name(type));
    }
    if (in_panels(code_)) { return set_panel_row(row, type, bytes); }
    std::uint32_t* target = codes_.data() + row * row_words_;
    if (code_ == Code::kF32) {
        dequantise(type, bytes, {reinterpret_cast<float*>(target), count});
        return;
    }
    std::fill_n(target, row_words_, 0U);
    if (code_ == Code::kBF16) {
        for (std::int64_t i = 0; i < in_; ++i) { pack(target, i / kLanes, i % kLanes, load_u16(bytes.data() + 2 * i)); }
        return;
    }
    std::array<QuantisedRun, QuantisedRun::kMostRuns> runs;
    for (std::int64_t half = 0; half < in_ / kLanes; half += layout.elements / kLanes) {
        unpack(type, bytes.data() + half * kLanes / layout.elements * layout.bytes, runs.data());
        for (std::int64_t i = 0; i < layout.elements / kLanes; ++i) {
            set_half(row, half + i, runs[static_cast<std::size_t>(i)]);
        }
    }
}

void Matrix::set_half(std::int64_t row, std::int64_t half, const QuantisedRun& run) noexcept
{
    const std::uint32_t mask = code_ == Code::kQ4 ? 0xFU : 0xFFU;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const auto code = static_cast<std::uint32_t>(run.codes[static_cast<std::size_t>(lane)]) & mask;
        pack(codes_.data() + row * row_words_, half, lane, code);
    }
    float* const scale = scales_.data() + row * row_scales_;
    switch (code_) {
    case Code::kQ8: scale[half / 2] = run.scale; break;
    case Code::kQ4:
        scale[half / 2 * 2] = run.scale;
        scale[half / 2 * 2 + 1] = run.offset;
        break;
    default: // Q8Affine
        scale[2 * half] = run.scale;
        scale[2 * half + 1] = run.offset;
    }
}

void Matrix::pack(std::uint32_t* row, std::int64_t half, std::int64_t lane, std::uint32_t code) const noexcept
{
    const std::int64_t in_group = halves(code_);
    row[half / in_group * kLanes + lane] |= code << (half % in_group * (32 / in_group));
}

void Matrix::row(std::int64_t row, float* out) const noexcept
{
    if (in_panels(code_)) { return panel_row(row, out); }
    if (code_ == Code::kF32) {
        std::copy_n(floats(row), in_, out);
        return;
    }
    const std::uint32_t* from = codes(row);
    const float* scale = scales(row);
    const std::int64_t in_group = halves(code_);
    const std::int64_t bits = 32 / in_group;
    for (std::int64_t i = 0; i < in_; ++i) {
        const std::int64_t half = i / kLanes;
        const std::int64_t block = i / kBlock;
        const std::uint32_t word = from[half / in_group * kLanes + i % kLanes] >> (half % in_group * bits);
        if (code_ == Code::kBF16) {
            out[i] = oasis::to_float(oasis::bf16{static_cast<std::uint16_t>(word)});
        } else if (code_ == Code::kQ8) {
            out[i] = static_cast<float>(static_cast<std::int8_t>(word)) * scale[block];
        } else if (code_ == Code::kQ4) {
            out[i] = static_cast<float>(word & 0xFU) * scale[2 * block] + scale[2 * block + 1];
        } else {
            out[i] = static_cast<float>(static_cast<std::int8_t>(word)) * scale[2 * half] + scale[2 * half + 1];
        }
    }
}

bool equal_values(const Matrix& a, const Matrix& b)
{
    if (a.out() != b.out() || a.in() != b.in()) { return false; }
    std::vector<float> row_a(static_cast<std::size_t>(a.in())), row_b(row_a);
    for (std::int64_t r = 0; r < a.out(); ++r) {
        a.row(r, row_a.data());
        b.row(r, row_b.data());
        if (std::memcmp(row_a.data(), row_b.data(), row_a.size() * sizeof(float)) != 0) { return false; }
    }
    return true;
}

} // namespace oasis_decode
