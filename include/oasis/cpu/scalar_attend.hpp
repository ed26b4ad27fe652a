// SPDX-License-Identifier: Apache-2.0
//
// The attention kernels in plain C++: what header-only users get and what the SIMD kernels are compared with.
#pragma once

#include <oasis/cpu/attend_kernels.hpp>
#include <oasis/cpu/prefill_spans.hpp>
#include <oasis/cpu/scalar_rows.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace oasis::cpu {

namespace detail {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr std::int32_t kHeadsAtOnce = 8;       ///< query heads that share one pass over a chunk
inline constexpr std::int32_t kPrefillLogitRows = 48; ///< (row, head) pairs whose logits prefill keeps at once

/// The tokens of a list of blocks; refuses ranges outside a block.
inline std::int32_t count_tokens(const BlockFormat& format, std::span<const BlockRef> blocks)
{
    std::int32_t tokens = 0;
    for (const BlockRef& block : blocks) {
        expects(block.begin >= 0 && block.end <= format.block_tokens, "attention kernel: tokens [", block.begin, ", ",
                block.end, ") of a block of ", format.block_tokens);
        tokens += std::max(block.end - block.begin, 0);
    }
    return tokens;
}

inline void check_chunk(const AttendChunk& job)
{
    check_format(job.format, job.group);
    const std::int32_t tokens = count_tokens(job.format, job.blocks);
    expects(tokens <= kChunkTokens, "attend_chunk: a chunk of ", tokens, " tokens, at most ", kChunkTokens,
            " are allowed");
}

inline float dot(const float* a, const float* b, std::int32_t n) noexcept
{
    std::array<float, 16> lanes{};
    for (std::int32_t i = 0; i < n; i += 16) {
        for (std::int32_t l = 0; l < 16; ++l) { lanes[static_cast<std::size_t>(l)] += a[i + l] * b[i + l]; }
    }
    float sum = 0;
    for (const float lane : lanes) { sum += lane; }
    return sum;
}

inline void add_scaled(float weight, const float* row, std::int32_t n, float* out) noexcept
{
    for (std::int32_t i = 0; i < n; ++i) { out[i] += weight * row[i]; }
}

/// Logits to exp(logit - top) in place; returns their sum. -inf gives 0 whatever `top` is.
inline float exponentials(float top, std::int32_t n, float* logits) noexcept
{
    float sum = 0;
    for (std::int32_t i = 0; i < n; ++i) {
        logits[i] = logits[i] == kMinusInfinity ? 0.0F : std::exp(logits[i] - top);
        sum += logits[i];
    }
    return sum;
}

inline void attend_heads_scalar(const AttendChunk& job, std::int32_t first_head, std::int32_t heads)
{
    const std::int32_t n = job.format.head_dim;
    float logits[kHeadsAtOnce][kChunkTokens];
    float row[256];
    std::int32_t tokens = 0;
    for (const BlockRef& block : job.blocks) {
        for (std::int32_t t = block.begin; t < block.end; ++t, ++tokens) {
            load_row(job.format, block, 0, t, row);
            for (std::int32_t h = 0; h < heads; ++h) {
                logits[h][tokens] = dot(job.q + std::int64_t{first_head + h} * n, row, n);
            }
        }
    }
    float sums[kHeadsAtOnce];
    for (std::int32_t h = 0; h < heads; ++h) {
        const float top = tokens ? *std::max_element(logits[h], logits[h] + tokens) : kMinusInfinity;
        sums[h] = exponentials(top, tokens, logits[h]);
        job.lse[first_head + h] = sums[h] == 0 ? kMinusInfinity : top + std::log(sums[h]);
    }
    std::fill_n(job.out + std::int64_t{first_head} * n, std::int64_t{heads} * n, 0.0F);
    std::int32_t at = 0;
    for (const BlockRef& block : job.blocks) {
        for (std::int32_t t = block.begin; t < block.end; ++t, ++at) {
            load_row(job.format, block, 1, t, row);
            for (std::int32_t h = 0; h < heads; ++h) {
                if (sums[h] != 0) {
                    add_scaled(logits[h][at] / sums[h], row, n, job.out + std::int64_t{first_head + h} * n);
                }
            }
        }
    }
}

inline void attend_chunk_scalar(const AttendChunk& job)
{
    check_chunk(job);
    for (std::int32_t head = 0; head < job.group; head += kHeadsAtOnce) {
        attend_heads_scalar(job, head, std::min(kHeadsAtOnce, job.group - head));
    }
}

/// One (row, head) of a prefill span: k and v hold the tile's rows [tokens, head_dim].
inline void prefill_row_scalar(const PrefillJob& job, TokenRange range, const float* k, const float* v, std::int64_t m)
{
    const std::int32_t n = job.format.head_dim;
    float logits[kPrefillTileTokens];
    float top = kMinusInfinity;
    for (std::int32_t t = range.begin; t < range.end; ++t) {
        logits[t] = dot(job.q + m * n, k + t * n, n);
        top = std::max(top, logits[t]);
    }
    const float before = job.max[m];
    top = std::max(top, before);
    const float sum = exponentials(top, range.end - range.begin, logits + range.begin);
    float* out = job.out + m * n;
    if (top != before) {
        const float shrink = std::exp(before - top);
        for (std::int32_t i = 0; i < n; ++i) { out[i] *= shrink; }
        job.sum[m] *= shrink;
        job.max[m] = top;
    }
    job.sum[m] += sum;
    for (std::int32_t t = range.begin; t < range.end; ++t) { add_scaled(logits[t], v + t * n, n, out); }
}

inline void prefill_scalar(const PrefillJob& job)
{
    const std::int32_t n = job.format.head_dim;
    float* k = job.scratch;
    float* v = k + kPrefillTileTokens * n;
    PrefillSpans spans(job);
    for (PrefillSpan span; spans.next(span);) {
        for (std::int32_t i = 0; i < span.blocks; ++i) {
            const BlockRef block = block_of(job, span, i);
            for (std::int32_t t = block.begin; t < block.end; ++t) {
                load_row(job.format, block, 0, t, k + (i * job.format.block_tokens + t) * n);
                load_row(job.format, block, 1, t, v + (i * job.format.block_tokens + t) * n);
            }
        }
        for (std::int32_t row = span.row_begin; row < span.row_end; ++row) {
            const TokenRange range = visible(job, row, span.tile_begin, span.blocks * job.format.block_tokens);
            for (std::int32_t h = 0; h < job.group; ++h) {
                prefill_row_scalar(job, range, k, v, std::int64_t{row} * job.group + h);
            }
        }
    }
}

inline void block_mass_scalar(const MassJob& job)
{
    check_format(job.format, job.group);
    count_tokens(job.format, job.blocks);
    const std::int32_t n = job.format.head_dim;
    float row[256];
    for (std::size_t i = 0; i < job.blocks.size(); ++i) {
        const BlockRef& block = job.blocks[i];
        for (std::int32_t h = 0; h < job.group; ++h) {
            float logits[kPrefillTileTokens];
            float top = kMinusInfinity;
            for (std::int32_t t = block.begin; t < block.end; ++t) {
                load_row(job.format, block, 0, t, row);
                logits[t] = dot(job.q + std::int64_t{h} * n, row, n);
                top = std::max(top, logits[t]);
            }
            const float sum =
                block.begin < block.end ? exponentials(top, block.end - block.begin, logits + block.begin) : 0.0F;
            job.log_mass[static_cast<std::size_t>(h) * job.blocks.size() + i] =
                sum == 0 ? kMinusInfinity : top + std::log(sum);
        }
    }
}

} // namespace detail

inline const AttendKernels& scalar_attend_kernels()
{
    static constexpr AttendKernels kTable{
        detail::attend_chunk_scalar, detail::prefill_scalar,  detail::block_mass_scalar, detail::encode_int8_scalar,
        detail::decode_int8_scalar,  detail::to_float_scalar, detail::from_float_scalar, "scalar"};
    return kTable;
}

#ifndef OASIS_COMPILED
inline const AttendKernels& attend_kernels() { return scalar_attend_kernels(); }

inline std::span<const AttendKernels* const> all_attend_kernels()
{
    static const AttendKernels* const kOnly[] = {&scalar_attend_kernels()};
    return kOnly;
}
#endif

/// The tile's K and V, the logits of `kPrefillLogitRows` (row, head) pairs, and slack to align them.
inline std::size_t prefill_scratch_floats(const BlockFormat& format, std::int32_t group)
{
    detail::check_format(format, group);
    return static_cast<std::size_t>(kPrefillTileTokens) *
               static_cast<std::size_t>(2 * format.head_dim + detail::kPrefillLogitRows) +
           16;
}

inline void merge_states(std::int32_t group, std::int32_t head_dim, const float* other_out, const float* other_lse,
                         float* out, float* lse)
{
    for (std::int32_t h = 0; h < group; ++h, other_out += head_dim, out += head_dim) {
        if (other_lse[h] == detail::kMinusInfinity) { continue; }
        if (lse[h] == detail::kMinusInfinity) {
            std::copy_n(other_out, head_dim, out);
            lse[h] = other_lse[h];
            continue;
        }
        const float top = std::max(lse[h], other_lse[h]);
        const float mine = std::exp(lse[h] - top);
        const float theirs = std::exp(other_lse[h] - top);
        const float sum = mine + theirs;
        const float weight = mine / sum;
        const float other_weight = theirs / sum;
        for (std::int32_t i = 0; i < head_dim; ++i) { out[i] = out[i] * weight + other_out[i] * other_weight; }
        lse[h] = top + std::log(sum);
    }
}

inline void finish_prefill(std::int32_t rows, std::int32_t group, std::int32_t head_dim, const float* max,
                           const float* sum, float* out, float* lse)
{
    for (std::int64_t m = 0; m < std::int64_t{rows} * group; ++m, out += head_dim) {
        if (sum[m] == 0) {
            std::fill_n(out, head_dim, 0.0F);
        } else {
            std::transform(out, out + head_dim, out, [s = sum[m]](float x) { return x / s; });
        }
        if (lse) { lse[m] = sum[m] == 0 ? detail::kMinusInfinity : max[m] + std::log(sum[m]); }
    }
}

} // namespace oasis::cpu
