// SPDX-License-Identifier: Apache-2.0
//
// The scoring kernels in plain C++: readable, standard library alone.
#pragma once

#include <oasis/core/half.hpp>
#include <oasis/cpu/score_kernels.hpp>
#include <oasis/score/summary_layout.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace oasis::detail::score {

using cpu::GroupEstimate;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T> T load_at(const std::byte* bytes, std::size_t index) noexcept
{
    T value;
    std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
    return value;
}

/// One channel of 64 slots as floats: codes as they are, native values as they are.
inline void read_channel(const GroupEstimate& job, std::int32_t channel, float* out)
{
    const SummaryLayout& layout = job.layout;
    if (!job.coded || layout.plain()) {
        const std::byte* data =
            job.group + sizeof(SummaryHeader) + std::size_t(channel) * layout.native_channel_bytes();
        for (std::size_t i = 0; i < 64; ++i) {
            out[i] = layout.native_element() == 4 ? load_at<float>(data, i) : to_float(load_at<f16>(data, i));
        }
        return;
    }
    const std::byte* data = job.group + layout.codes_offset() + std::size_t(channel) * layout.channel_bytes();
    for (std::size_t i = 0; i < 64; ++i) {
        if (layout.options.code == SummaryCode::kInt8) {
            out[i] = static_cast<float>(std::to_integer<int>(data[i]));
        } else {
            out[i] = static_cast<float>(std::to_integer<int>(i < 32 ? data[i] & std::byte{15} : data[i - 32] >> 4));
        }
    }
}

/// The spread (not its root) of 64 slots.
inline void read_spread(const GroupEstimate& job, float* out)
{
    const SummaryLayout& layout = job.layout;
    const bool native = !job.coded || layout.plain();
    const auto header = load_at<SummaryHeader>(job.group, 0);
    for (std::size_t i = 0; i < 64; ++i) {
        float root = 0.0F;
        if (native) {
            const std::byte* data = job.group + layout.native_spread_offset();
            root = layout.native_element() == 4 ? load_at<float>(data, i) : to_float(load_at<f16>(data, i));
        } else {
            const int code = std::to_integer<int>(job.group[layout.coded_spread_offset() + i]);
            root = to_float(header.spread_zero) + to_float(header.spread_scale) * static_cast<float>(code);
        }
        out[i] = root * root;
    }
}

inline void scalar_estimate(const GroupEstimate& job)
{
    const SummaryLayout& layout = job.layout;
    const bool affine = job.coded && !layout.plain();
    float values[64] = {};
    if (layout.spread) { read_spread(job, values); }
    const float log_tokens = std::log(static_cast<float>(layout.options.tokens));
    for (std::int32_t p = 0; p < job.pairs; ++p) {
        const float* weights = job.weights[p];
        float constant = log_tokens;
        for (std::int32_t c = 0; affine && c < layout.channels(); ++c) {
            constant += weights[c] * to_float(load_at<f16>(job.group + layout.zeros_offset(), std::size_t(c)));
        }
        const float spread_weight = layout.spread ? weights[layout.channels()] : 0.0F;
        for (std::int32_t i = 0; i < 64; ++i) { job.estimates[p * 64 + i] = constant + spread_weight * values[i]; }
    }
    for (std::int32_t c = 0; c < layout.channels(); ++c) {
        read_channel(job, c, values);
        const float scale = affine ? to_float(load_at<f16>(job.group + layout.scales_offset(), std::size_t(c))) : 1.0F;
        for (std::int32_t p = 0; p < job.pairs; ++p) {
            const float weight = job.weights[p][c] * scale;
            float* estimates = job.estimates + p * 64;
            for (std::int32_t i = 0; i < 64; ++i) { estimates[i] += weight * values[i]; }
        }
    }
}

inline void scalar_block_log_mass(const float* estimates, std::int32_t blocks, float* log_mass)
{
    for (std::int32_t b = 0; b < blocks; ++b) {
        float high = -kInfinity;
        for (std::int32_t i = b; i < 64; i += blocks) { high = std::max(high, estimates[i]); }
        const float shift = high == -kInfinity ? 0.0F : high;
        float sum = 0.0F;
        for (std::int32_t i = b; i < 64; i += blocks) { sum += std::exp(estimates[i] - shift); }
        log_mass[b] = std::isinf(high) ? high : high + std::log(sum);
    }
}

inline float scalar_max_finite(const float* x, std::int32_t n)
{
    float high = -kInfinity;
    for (std::int32_t i = 0; i < n; ++i) {
        if (std::isfinite(x[i])) { high = std::max(high, x[i]); }
    }
    return high;
}

inline void scalar_exp_shifted(const float* x, std::int32_t n, float shift, float* out)
{
    for (std::int32_t i = 0; i < n; ++i) { out[i] = std::isfinite(x[i]) ? std::exp(x[i] - shift) : 0.0F; }
}

inline void scalar_max_into(const float* x, std::int32_t n, float shift, float* scores)
{
    for (std::int32_t i = 0; i < n; ++i) {
        const float value = x[i] - shift;
        if (std::isnan(scores[i]) || value > scores[i]) { scores[i] = value; }
    }
}

inline void scalar_log_mean(const float* x, std::int32_t heads, std::int64_t stride, const float* shift, std::int32_t n,
                            float* scores)
{
    const float log_heads = std::log(static_cast<float>(heads));
    for (std::int32_t i = 0; i < n; ++i) {
        float high = std::numeric_limits<float>::quiet_NaN();
        for (std::int32_t h = 0; h < heads; ++h) {
            const float value = x[h * stride + i] - shift[h];
            if (std::isnan(high) || value > high) { high = value; }
        }
        float sum = 0.0F;
        for (std::int32_t h = 0; h < heads; ++h) {
            const float value = x[h * stride + i] - shift[h];
            if (!std::isnan(value)) { sum += std::exp(value - high); }
        }
        scores[i] = std::isfinite(high) ? high + std::log(sum) - log_heads : high;
    }
}

} // namespace oasis::detail::score

namespace oasis::cpu {

inline const ScoreKernels& scalar_score_kernels()
{
    namespace scalar = oasis::detail::score;
    static constexpr ScoreKernels kernels{scalar::scalar_estimate,
                                          scalar::scalar_block_log_mass,
                                          scalar::scalar_max_finite,
                                          scalar::scalar_exp_shifted,
                                          scalar::scalar_max_into,
                                          scalar::scalar_log_mean,
                                          "scalar"};
    return kernels;
}

#ifndef OASIS_COMPILED
inline const ScoreKernels& score_kernels() { return scalar_score_kernels(); }

inline std::span<const ScoreKernels* const> all_score_kernels()
{
    static const ScoreKernels* const kTables[] = {&scalar_score_kernels()};
    return kTables;
}
#endif

} // namespace oasis::cpu
