// SPDX-License-Identifier: Apache-2.0
//
// Products of integers for `Compute::kQ8`. Dots of 32 codes are exact; their scaled values are added block by block in
// the order of the inputs. So a result does not depend on how many rows or outputs are computed together, and not on
// threads; instruction sets without fused multiply-adds may round differently.
#pragma once

#include "model/buffer.hpp"
#include "model/matrix.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis_decode {

/// Rows of activations: per block of 32 values a scale, largest magnitude / 127, and codes rounded to nearest even. A block
/// with a value that is not finite has the scale NaN.
class QuantisedRows {
public:
    QuantisedRows(std::int64_t rows, std::int64_t widest);

    /// Room for rows of `width` values; what was there is lost.
    void resize(std::int64_t rows, std::int64_t width);
    std::int64_t rows() const noexcept { return rows_; }
    std::int64_t width() const noexcept { return width_; }
    std::int64_t blocks() const noexcept { return width_ / Matrix::kBlock; }

    std::int8_t* codes(std::int64_t row) noexcept { return codes_.data() + row * width_; }
    const std::int8_t* codes(std::int64_t row) const noexcept { return codes_.data() + row * width_; }
    /// [blocks]: the scales, the sums of the codes, and the products of both.
    float* scales(std::int64_t row) noexcept { return scales_.data() + row * blocks(); }
    const float* scales(std::int64_t row) const noexcept { return scales_.data() + row * blocks(); }
    std::int32_t* sums(std::int64_t row) noexcept { return sums_.data() + row * blocks(); }
    const std::int32_t* sums(std::int64_t row) const noexcept { return sums_.data() + row * blocks(); }
    float* scaled_sums(std::int64_t row) noexcept { return scaled_sums_.data() + row * blocks(); }
    const float* scaled_sums(std::int64_t row) const noexcept { return scaled_sums_.data() + row * blocks(); }

private:
    std::int64_t rows_ = 0;
    std::int64_t width_ = 0;
    Array<std::int8_t> codes_;
    Array<float> scales_;
    Array<std::int32_t> sums_;
    Array<float> scaled_sums_;
};

/// y[r, o] = x[r] . w[o], added to y when `accumulate`, for all rows of x and the outputs of some panels.
struct IntegerProduct {
    const QuantisedRows* x = nullptr;
    const Matrix* w = nullptr; ///< in panels
    float* y = nullptr;        ///< [rows, outputs]
    std::int64_t outputs = 0;  ///< at most w's; what panels have beyond is left out
    bool accumulate = false;
};

struct IntegerKernels {
    /// One row of x [width of out] into row `row` of out.
    void (*quantise)(const float* x, QuantisedRows& out, std::int64_t row);
    void (*multiply)(const IntegerProduct& product, std::int64_t first_panel, std::int64_t last_panel);
    const char* name;
};

/// What this machine can run, the best last.
std::span<const IntegerKernels* const> all_integer_kernels();
/// The best one, or the one that OASIS_SIMD in the environment names; scalar where that is none of them.
const IntegerKernels& integer_kernels();

} // namespace oasis_decode
