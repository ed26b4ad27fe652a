// SPDX-License-Identifier: Apache-2.0
#include "model/matrix.hpp"

#include "model/mapped_file.hpp"

#include <oasis/core/half.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

namespace oasis_decode {
namespace {

std::uint16_t load_u16(const std::byte* p) noexcept
{
    std::uint16_t bits = 0;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
}

float load_f16(const std::byte* p) noexcept { return oasis::to_float(oasis::f16{load_u16(p)}); }

} // namespace

Matrix::Matrix(Code code, std::int64_t out, std::int64_t in) : code_(code), out_(out), in_(in)
{
    const std::int64_t blocks = in / kBlock;
    const std::int64_t groups = (2 * blocks + halves(code) - 1) / halves(code);
    row_words_ = code == Code::kF32 ? in : groups * kLanes;
    row_scales_ = code == Code::kQ8 ? blocks : code == Code::kQ4 ? 2 * blocks : 0;
    codes_ = Array<std::uint32_t>(static_cast<std::size_t>(out * row_words_));
    scales_ = Array<float>(static_cast<std::size_t>(out * row_scales_));
}

Matrix::Code Matrix::code_for(StorageType type, std::int64_t in) noexcept
{
    if (in % kBlock != 0) { return Code::kF32; }
    switch (type) {
    case StorageType::kBF16: return Code::kBF16;
    case StorageType::kQ8_0: return Code::kQ8;
    case StorageType::kQ4_0:
    case StorageType::kQ4_1: return Code::kQ4;
    default: return Code::kF32;
    }
}

void Matrix::set_row(std::int64_t row, StorageType type, std::span<const std::byte> bytes)
{
    const BlockLayout layout = layout_of(type);
    const auto count = static_cast<std::size_t>(in_);
    if (row < 0 || row >= out_ || bytes.size() != count / layout.elements * layout.bytes ||
        (code_ != Code::kF32 && code_for(type, in_) != code_)) {
        fail("matrix of ", out_, " x ", in_, ": row ", row, " cannot take ", bytes.size(), " bytes of ", name(type));
    }
    std::uint32_t* target = codes_.data() + row * row_words_;
    float* scale = scales_.data() + row * row_scales_;
    if (code_ == Code::kF32) {
        dequantise(type, bytes, {reinterpret_cast<float*>(target), count});
        return;
    }
    std::fill_n(target, row_words_, 0U);
    if (code_ == Code::kBF16) {
        for (std::int64_t i = 0; i < in_; ++i) { pack(target, i / kLanes, i % kLanes, load_u16(bytes.data() + 2 * i)); }
        return;
    }
    for (std::int64_t block = 0; block < in_ / kBlock; ++block) {
        const std::byte* from = bytes.data() + block * layout.bytes;
        if (code_ == Code::kQ8) {
            scale[block] = load_f16(from);
            for (std::int64_t i = 0; i < kBlock; ++i) {
                pack(target, 2 * block + i / kLanes, i % kLanes, std::to_integer<std::uint32_t>(from[2 + i]));
            }
            continue;
        }
        const bool offset_stored = type == StorageType::kQ4_1;
        scale[2 * block] = load_f16(from);
        scale[2 * block + 1] = offset_stored ? load_f16(from + 2) : -8.0F * load_f16(from);
        const std::byte* pairs = from + (offset_stored ? 4 : 2);
        // The low nibbles of a block's 16 bytes are its first half, the high ones its second.
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            const auto pair = std::to_integer<std::uint32_t>(pairs[lane]);
            pack(target, 2 * block, lane, pair & 0xFU);
            pack(target, 2 * block + 1, lane, pair >> 4);
        }
    }
}

void Matrix::pack(std::uint32_t* row, std::int64_t half, std::int64_t lane, std::uint32_t code) const noexcept
{
    const std::int64_t in_group = halves(code_);
    row[half / in_group * kLanes + lane] |= code << (half % in_group * (32 / in_group));
}

void Matrix::row(std::int64_t row, float* out) const noexcept
{
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
        } else {
            out[i] = static_cast<float>(word & 0xFU) * scale[2 * block] + scale[2 * block + 1];
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
