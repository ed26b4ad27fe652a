// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a decoder block. Rows are independent: a row's result does not depend, to the bit, on how many
// others are computed with it, nor on the number of threads; only steps of up to `kFewRows` rows and larger ones may
// round differently (products of floats).
#pragma once

#include "model/buffer.hpp"
#include "model/integer_kernels.hpp"
#include "model/matrix.hpp"

#include <oasis/cpu/executor.hpp>

#include <cstdint>
#include <span>

namespace oasis_decode {

/// Up to here a product is bound by reading the weights: dot products straight from the codes. Above: tiles of
/// weights are made floats, once for all rows.
inline constexpr std::int64_t kFewRows = 16;

/// y[rows, out] = x[rows, in] * w[out, in]^T, added to y when `accumulate`. Rows of x and y are contiguous.
struct Product {
    std::int64_t rows = 0;
    const Matrix* w = nullptr;
    const float* x = nullptr;
    float* y = nullptr;
    bool accumulate = false;
    std::int64_t outputs = 0; ///< only the first rows of w, and y [rows, outputs]; 0: all

    std::int64_t out() const noexcept { return outputs > 0 ? outputs : w->out(); }
};

/// Multiplies on the threads of an executor: floats with floats, or with a matrix in panels, codes with codes. Owns the
/// scratch for matrices up to `widest`.
class Multiplier {
public:
    Multiplier(oasis::Executor& executor, std::int64_t widest);

    void operator()(const Product& product);

    /// The two ways of floats, for tests and measurements.
    void few(const Product& product);
    void many(const Product& product);

    oasis::Executor& executor() const noexcept { return *executor_; }

private:
    void integers(const Product& product);

    oasis::Executor* executor_;
    std::int64_t tile_values_;
    Buffer tiles_;
    QuantisedRows quantised_;
};

/// out[rows, width] = x / rms(x) * weight, row by row; out may be x.
void rms_norm(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* x, const float* weight,
              float eps, float* out);

/// act[rows, width] = silu(gate) * up, where gate_up[rows, 2 * width] holds a row's gates, then its ups.
void swiglu(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* gate_up, float* act);

/// The sum of exp(x - top), where no x exceeds top; within 1e-6 of it relatively.
float sum_exp(std::span<const float> x, float top);

/// y[width] += x.
void add(std::int64_t width, const float* x, float* y);

/// Head vectors of one row, each divided by its rms, times weight[head_dim]; in place.
void norm_heads(std::int64_t heads, std::int64_t head_dim, const float* weight, float eps, float* x);

/// Copies head vectors of one row, turned by RoPE with halves paired (i with i + d/2): cosine, sine [d/2].
void rotate_heads(std::int64_t heads, std::int64_t head_dim, const float* in, const float* cosine, const float* sine,
                  float* out);

} // namespace oasis_decode
