// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a decoder block, in float. Rows are independent: up to `kFewRows` rows, a row's result does not
// depend, to the bit, on how many others are computed with it. Larger batches go through BLAS, which may round
// differently.
#pragma once

#include <oasis/cpu/executor.hpp>

#include <cstdint>

namespace oasis_decode {

/// Up to here a product reads the weights once and is bound by memory: own dot products. Above: BLAS.
inline constexpr std::int64_t kFewRows = 8;

/// y[rows, out] = x[rows, in] * w[out, in]^T, added to y when `accumulate`. Rows of x, w and y are contiguous.
struct Product {
    std::int64_t rows = 0;
    std::int64_t in = 0;
    std::int64_t out = 0;
    const float* x = nullptr;
    const float* w = nullptr;
    float* y = nullptr;
    bool accumulate = false;
};
void multiply(oasis::Executor& executor, const Product& product);

/// The two ways of `multiply`, for the benchmark and the tests.
void multiply_few(oasis::Executor& executor, const Product& product);
void multiply_blas(oasis::Executor& executor, const Product& product);

/// out[rows, width] = x / rms(x) * weight, row by row; out may be x.
void rms_norm(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* x, const float* weight, float eps, float* out);

/// act[rows, width] = silu(gate) * up, where gate_up[rows, 2 * width] holds a row's gates, then its ups.
void swiglu(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* gate_up, float* act);

/// Copies head vectors of one row, turned by RoPE with halves paired (i with i + d/2): cosine, sine [d/2].
void rotate_heads(std::int64_t heads, std::int64_t head_dim, const float* in, const float* cosine, const float* sine, float* out);

} // namespace oasis_decode
