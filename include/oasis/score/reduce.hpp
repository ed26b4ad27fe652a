// SPDX-License-Identifier: Apache-2.0
//
// From the log masses of a GQA group's query heads to one score per block.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/core/options.hpp>
#include <oasis/cpu/score_kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace oasis {
namespace detail {

/// Log of the sum of the finite blocks' masses, summed over fixed chunks of 256 tokens aligned to position 0, chunks in
/// order. 0 when no block is finite.
inline float log_normaliser(const float* x, std::int32_t blocks, std::int32_t block_tokens, std::int32_t first_block,
                            const cpu::ScoreKernels& kernels)
{
    const float high = kernels.max_finite(x, blocks);
    if (high == -std::numeric_limits<float>::infinity()) { return 0.0F; }
    constexpr std::int32_t kPiece = 1024;
    const std::int32_t chunk = 256 / block_tokens;
    float values[kPiece + 16];
    double total = 0.0;
    // A first chunk that begins before the range is a short one.
    for (std::int32_t begin = 0; begin < blocks;) {
        const std::int32_t lead = begin == 0 ? first_block % chunk : 0;
        const std::int32_t count = std::min(kPiece - lead, blocks - begin);
        std::fill_n(values, lead, 0.0F);
        kernels.exp_shifted(x + begin, count, high, values + lead);
        std::fill_n(values + lead + count, 16, 0.0F);
        for (std::int32_t i = 0; i < lead + count; i += chunk) {
            float part[4] = {};
            for (std::int32_t k = 0; k < chunk; k += 4) {
                for (std::int32_t j = 0; j < 4; ++j) { part[j] += values[i + k + j]; }
            }
            total += double((part[0] + part[2]) + (part[1] + part[3]));
        }
        begin += count;
    }
    return high + static_cast<float>(std::log(total));
}

} // namespace detail

/// Scores of one (row, KV head). kMax: the maximum over heads of the raw log masses. kSoftmaxMax: the maximum of (log
/// mass - logZ of the head). kMean: the log of the mean of exp(log mass - logZ). logZ skips blocks that are not finite;
/// heads whose log mass is NaN are skipped, and the score is NaN when all are. `first_block` is the position of entry
/// 0.
inline void reduce_scores(GroupReduction reduction, const float* log_mass /*[heads, stride]*/, int heads,
                          std::int64_t stride, int blocks, int block_tokens, float* scores /*[blocks]*/,
                          int first_block = 0, const cpu::ScoreKernels& kernels = cpu::score_kernels())
{
    detail::expects(heads >= 1 && heads <= kMaxGroup, "reduce_scores: ", heads, " heads, expected 1 to ", kMaxGroup);
    detail::expects(blocks >= 0 && blocks <= stride, "reduce_scores: ", blocks, " blocks in rows of ", stride);
    detail::expects(block_tokens == 16 || block_tokens == 32 || block_tokens == 64, "reduce_scores: block_tokens is ",
                    block_tokens);
    detail::expects(first_block >= 0, "reduce_scores: first_block is ", first_block);
    float shift[kMaxGroup] = {};
    for (int h = 0; h < heads && reduction != GroupReduction::kMax; ++h) {
        shift[h] = detail::log_normaliser(log_mass + h * stride, blocks, block_tokens, first_block, kernels);
    }
    if (reduction == GroupReduction::kMean) {
        kernels.log_mean(log_mass, heads, stride, shift, blocks, scores);
        return;
    }
    std::fill_n(scores, blocks, std::numeric_limits<float>::quiet_NaN());
    for (int h = 0; h < heads; ++h) { kernels.max_into(log_mass + h * stride, blocks, shift[h], scores); }
}

} // namespace oasis
