// SPDX-License-Identifier: Apache-2.0
//
// A weight matrix [out, in] that stays as small in memory as it was in the file: decode is bound by the bytes of
// the weights. Codes for products of floats lie row after row, those for products of integers in panels of 16 rows.
#pragma once

#include "model/buffer.hpp"
#include "model/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis_decode {

/// What a model is computed in: floats, or products of int8 activations (a scale per 32 values) with integer weights.
enum class Compute : std::uint8_t { kF32, kQ8 };

class Matrix {
public:
    /// Codes of blocks of 32. Q8 (Q8_0, Q5_0): value = code * scale. Q4 (Q4_0, Q4_1, Q4_K): code * scale + offset.
    /// Q8Affine: the same with codes of 8 bits and a scale and an offset for each half-block; it holds every quantised
    /// type, and parts of different types. All are the file's values, to the bit.
    ///
    /// Codes lie in groups of 16 words, so that shifts and masks of whole vectors take them apart: code `lane` of
    /// the group's half-block j is in word `lane`, at bit 4j (Q4: 8 half-blocks a group), 8j (Q8: 4) or 16j
    /// (BF16: 2). The last group of a row may be part empty.
    ///
    /// Int8, Int4 and Int4Offset are the codes of `Compute::kQ8`. Int8 has Q8_0 and Q5_0 as they are in the file, and
    /// anything else rounded to Q8_0; Int4 has Q4_0, Int4Offset Q4_1, and Q4_K with scales rounded to 16 bits. A panel holds 16 rows; of each of its blocks, word `row` of a group of 16 has the row's codes of
    /// four inputs: group k the inputs 4k.. (Int8: 8 groups), or 4k.. in the low halves of the bytes and 4(k + 4).. in
    /// the high ones (Int4: 4 groups). Codes are unsigned: value = (code - zero_point) * scale, Int4Offset: code *
    /// scale + offset. Rows beyond `out` are zeros.
    enum class Code : std::uint8_t { kF32, kBF16, kQ8, kQ4, kQ8Affine, kInt8, kInt4, kInt4Offset };
    static constexpr std::int64_t kBlock = 32;
    static constexpr std::int64_t kLanes = 16;
    static constexpr std::int64_t kPanelRows = kLanes;

    static constexpr bool in_panels(Code code) noexcept { return code >= Code::kInt8; }
    static constexpr std::int32_t zero_point(Code code) noexcept
    {
        return code == Code::kInt8 ? 128 : code == Code::kInt4 ? 8 : 0;
    }
    /// Bytes of codes, and 16-bit floats, of one block of a panel: 16 scales, Int4Offset: then 16 offsets.
    static constexpr std::int64_t panel_block_bytes(Code code) noexcept
    {
        return kPanelRows * kBlock / (code == Code::kInt8 ? 1 : 2);
    }
    static constexpr std::int64_t panel_block_scales(Code code) noexcept
    {
        return kPanelRows * (code == Code::kInt4Offset ? 2 : 1);
    }

    /// Half-blocks of 16 codes in a group.
    static constexpr std::int64_t halves(Code code) noexcept
    {
        return code == Code::kQ4 ? 8 : code == Code::kBF16 ? 2 : code == Code::kF32 ? 1 : 4;
    }

    Matrix() = default;
    Matrix(Code code, std::int64_t out, std::int64_t in);

    /// The code that keeps a tensor of this type and width small: whole blocks only, F16 becomes F32.
    static Code code_for(StorageType type, std::int64_t in, Compute compute = Compute::kF32) noexcept;
    /// The code that holds what either holds.
    static Code common(Code a, Code b) noexcept;
    /// Whether rows of the type keep their codes in a matrix of this code; in Int8 others are rounded.
    static bool keeps(Code code, StorageType type) noexcept;
    static std::size_t row_bytes(Code code, std::int64_t in) noexcept;

    /// Fills row `row` from `bytes`, one row of a tensor of type `type` that the code holds; F32 holds any, Int8 rounds.
    /// Throws `ModelError` where a value has no 8-bit form.
    void set_row(std::int64_t row, StorageType type, std::span<const std::byte> bytes);

    /// Writes the values of a row, [in].
    void row(std::int64_t row, float* out) const noexcept;

    Code code() const noexcept { return code_; }
    std::int64_t out() const noexcept { return out_; }
    std::int64_t in() const noexcept { return in_; }
    bool empty() const noexcept { return out_ == 0; }
    std::size_t bytes() const noexcept
    {
        return (codes_.size() + scales_.size()) * sizeof(float) + panel_scales_.size() * sizeof(std::uint16_t);
    }

    const std::uint32_t* codes(std::int64_t row) const noexcept { return codes_.data() + row * row_words_; }
    /// The same of an F32 matrix.
    const float* floats(std::int64_t row) const noexcept { return reinterpret_cast<const float*>(codes(row)); }
    /// One float a block (Q8), two (Q4: scale, offset), four (Q8Affine: the same of each half), none otherwise.
    const float* scales(std::int64_t row) const noexcept { return scales_.data() + row * row_scales_; }

    /// Of a matrix in panels: the blocks of panel `panel`, one after another.
    const std::uint8_t* panel_codes(std::int64_t panel) const noexcept
    {
        return reinterpret_cast<const std::uint8_t*>(codes_.data()) + panel * (in_ / kBlock) * panel_block_bytes(code_);
    }
    const std::uint16_t* panel_scales(std::int64_t panel) const noexcept
    {
        return panel_scales_.data() + panel * (in_ / kBlock) * panel_block_scales(code_);
    }

private:
    void set_half(std::int64_t row, std::int64_t half, const QuantisedRun& run) noexcept;
    void pack(std::uint32_t* row, std::int64_t half, std::int64_t lane, std::uint32_t code) const noexcept;
    struct PanelBlock;
    static PanelBlock rounded(std::span<const float, kBlock> values);
    PanelBlock kept(const QuantisedRun* runs) const;
    void set_panel_block(std::int64_t row, std::int64_t block, const PanelBlock& values) noexcept;
    void set_panel_row(std::int64_t row, StorageType type, std::span<const std::byte> bytes);
    void panel_row(std::int64_t row, float* out) const noexcept;

    Code code_ = Code::kF32;
    std::int64_t out_ = 0;
    std::int64_t in_ = 0;
    std::int64_t row_words_ = 0;
    std::int64_t row_scales_ = 0;
    Array<std::uint32_t> codes_;
    Array<float> scales_;
    Array<std::uint16_t> panel_scales_;
};

/// Whether two matrices have equal values.
bool equal_values(const Matrix& a, const Matrix& b);

} // namespace oasis_decode
