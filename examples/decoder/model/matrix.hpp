// SPDX-License-Identifier: Apache-2.0
//
// A weight matrix [out, in] that stays as small in memory as it was in the file: decode is bound by the bytes of
// the weights. Its elements are exactly the floats that dequantising gives; they are formed in registers when few
// rows are multiplied, and in tiles for BLAS when many are.
#pragma once

#include "model/buffer.hpp"
#include "model/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis_decode {

class Matrix {
public:
    /// Codes of blocks of 32. Q8 (Q8_0, Q5_0): value = code * scale. Q4 (Q4_0, Q4_1, Q4_K): code * scale + offset.
    /// Q8Affine: the same with codes of 8 bits and a scale and an offset for each half-block; it holds every quantised
    /// type, and parts of different types. All are the file's values, to the bit.
    ///
    /// Codes lie in groups of 16 words, so that shifts and masks of whole vectors take them apart: code `lane` of
    /// the group's half-block j is in word `lane`, at bit 4j (Q4: 8 half-blocks a group), 8j (Q8: 4) or 16j
    /// (BF16: 2). The last group of a row may be part empty.
    enum class Code : std::uint8_t { kF32, kBF16, kQ8, kQ4, kQ8Affine };
    static constexpr std::int64_t kBlock = 32;
    static constexpr std::int64_t kLanes = 16;

    /// Half-blocks of 16 codes in a group.
    static constexpr std::int64_t halves(Code code) noexcept
    {
        return code == Code::kQ4 ? 8 : code == Code::kBF16 ? 2 : code == Code::kF32 ? 1 : 4;
    }

    Matrix() = default;
    Matrix(Code code, std::int64_t out, std::int64_t in);

    /// The code that keeps a tensor of this type and width small: whole blocks only, F16 becomes F32.
    static Code code_for(StorageType type, std::int64_t in) noexcept;
    /// The code that holds what either holds.
    static Code common(Code a, Code b) noexcept;
    static std::size_t row_bytes(Code code, std::int64_t in) noexcept;

    /// Fills row `row` from `bytes`, one row of a tensor of type `type` that the code holds; F32 holds any.
    void set_row(std::int64_t row, StorageType type, std::span<const std::byte> bytes);

    /// Writes the values of a row, [in].
    void row(std::int64_t row, float* out) const noexcept;

    Code code() const noexcept { return code_; }
    std::int64_t out() const noexcept { return out_; }
    std::int64_t in() const noexcept { return in_; }
    bool empty() const noexcept { return out_ == 0; }
    std::size_t bytes() const noexcept { return (codes_.size() + scales_.size()) * sizeof(float); }

    const std::uint32_t* codes(std::int64_t row) const noexcept { return codes_.data() + row * row_words_; }
    /// The same of an F32 matrix.
    const float* floats(std::int64_t row) const noexcept { return reinterpret_cast<const float*>(codes(row)); }
    /// One float a block (Q8), two (Q4: scale, offset), four (Q8Affine: the same of each half), none otherwise.
    const float* scales(std::int64_t row) const noexcept { return scales_.data() + row * row_scales_; }

private:
    void set_half(std::int64_t row, std::int64_t half, const QuantisedRun& run) noexcept;
    void pack(std::uint32_t* row, std::int64_t half, std::int64_t lane, std::uint32_t code) const noexcept;

    Code code_ = Code::kF32;
    std::int64_t out_ = 0;
    std::int64_t in_ = 0;
    std::int64_t row_words_ = 0;
    std::int64_t row_scales_ = 0;
    Array<std::uint32_t> codes_;
    Array<float> scales_;
};

/// Whether two matrices have equal values.
bool equal_values(const Matrix& a, const Matrix& b);

} // namespace oasis_decode
