// SPDX-License-Identifier: Apache-2.0
//
// The scoring kernels of the CPU backend behind one table of functions: SIMD where the library is compiled in, scalar
// in header-only use. All arithmetic is float in a fixed order, so that a value never depends on its neighbours.
#pragma once

#include <oasis/score/summary_layout.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis::cpu {

/// Estimates of one group, in one form, for a number of (row, head) pairs:
/// log(tokens) + sum of weight * plane + spread weight * spread.
struct GroupEstimate {
    SummaryLayout layout;
    const std::byte* group = nullptr;
    bool coded = false;
    const float* const* weights = nullptr; ///< [pairs] -> [planes, head_dim], then the spread's weight
    std::int32_t pairs = 0;
    float* estimates = nullptr; ///< [pairs, 64], by slot; aligned to 64 bytes
};

/// Pairs of one call at most.
inline constexpr std::int32_t kMaxEstimatePairs = 32;

struct ScoreKernels {
    void (*estimate)(const GroupEstimate&);
    /// Log-sum-exp over the sub-blocks of each block: estimates [64] by slot, log_mass [blocks], blocks a power of two
    /// up to 64.
    void (*block_log_mass)(const float* estimates, std::int32_t blocks, float* log_mass);
    /// The largest finite value; -inf when there is none.
    float (*max_finite)(const float* x, std::int32_t n);
    /// out = exp(x - shift), 0 where x is not finite.
    void (*exp_shifted)(const float* x, std::int32_t n, float shift, float* out);
    /// scores = max(scores, x - shift), skipping NaN on either side.
    void (*max_into)(const float* x, std::int32_t n, float shift, float* scores);
    /// scores = log of the mean over heads of exp(x_h - shift_h), skipping heads that are NaN.
    void (*log_mean)(const float* x, std::int32_t heads, std::int64_t stride, const float* shift, std::int32_t n,
                     float* scores);
    const char* name; ///< "scalar", or the instruction set chosen at run time
};

/// The table in use: the best of `all_score_kernels`, or the one that OASIS_SIMD in the environment names.
const ScoreKernels& score_kernels();
/// The scalar table, always there: the reference of the tests and all there is in header-only use.
const ScoreKernels& scalar_score_kernels();
/// Every table this machine can run, scalar first, the best last.
std::span<const ScoreKernels* const> all_score_kernels();

} // namespace oasis::cpu

#include <oasis/cpu/scalar_score.hpp>
