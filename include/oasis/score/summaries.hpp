// SPDX-License-Identifier: Apache-2.0
//
// The stock summary policies. Definitions and what they cost in accuracy: docs/design/score.md. Min/max is the bound of
// Quest (Tang et al., 2024), cuboid the halved box around the mean, spread our own second-order cumulant.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/core/options.hpp>
#include <oasis/core/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace oasis {

/// A `SummaryPolicy` chosen at run time.
class StockSummary {
public:
    /// 1/2 for keys that vary alike in every direction. Queries look where keys vary more: docs/design/score.md has what was measured.
    static constexpr float kSpreadFactor = 0.6F;

    /// Throws `InvalidArgument` for an unknown kind.
    explicit StockSummary(SummaryKind kind = SummaryKind::kSpread) : kind_(kind)
    {
        detail::expects(static_cast<std::uint8_t>(kind) <= static_cast<std::uint8_t>(SummaryKind::kOracle),
                        "StockSummary: unknown summary kind ", int(kind));
    }

    /// What was asked for.
    SummaryKind kind() const noexcept { return kind_; }
    /// See the concept `SummaryPolicy`.
    ///@{
    std::int32_t planes() const noexcept
    {
        switch (kind_) {
        case SummaryKind::kCuboid:
        case SummaryKind::kMinMax: return 2;
        case SummaryKind::kOracle: return 0;
        default: return 1;
        }
    }
    bool has_spread() const noexcept { return kind_ == SummaryKind::kSpread; }
    bool is_upper_bound() const noexcept { return kind_ == SummaryKind::kMinMax; }

    void summarise(KeyRows keys, SummaryRow row) const
    {
        if (kind_ != SummaryKind::kMinMax) { mean(keys, row.plane[0]); }
        if (kind_ == SummaryKind::kSpread) { *row.spread = variance(keys, row.plane[0]); }
        if (kind_ == SummaryKind::kMinMax) { box(keys, row.plane[0], row.plane[1]); }
        if (kind_ == SummaryKind::kCuboid) { cuboid(keys, row.plane[0], row.plane[1]); }
    }

    void weigh(const float* q, std::int32_t head_dim, float scale, QueryWeights weights) const
    {
        if (planes() == 2) {
            for (std::int32_t c = 0; c < head_dim; ++c) {
                const float w = q[c] * scale;
                weights.plane[0][c] = w > 0.0F ? w : w - w; // NaN stays NaN
                weights.plane[1][c] = w > 0.0F ? 0.0F : w;
            }
            return;
        }
        for (std::int32_t c = 0; c < head_dim; ++c) { weights.plane[0][c] = q[c] * scale; }
        if (kind_ != SummaryKind::kSpread) { return; }
        float square = 0.0F;
        for (std::int32_t c = 0; c < head_dim; ++c) { square += weights.plane[0][c] * weights.plane[0][c]; }
        *weights.spread = kSpreadFactor * square / static_cast<float>(head_dim);
    }
    ///@}

private:
    static void mean(KeyRows keys, float* out)
    {
        // Dividing first keeps large keys finite; it is exact for the usual powers of two.
        const float share = 1.0F / static_cast<float>(keys.tokens);
        std::fill_n(out, keys.head_dim, 0.0F);
        for (std::int32_t t = 0; t < keys.tokens; ++t) {
            const float* key = keys[t];
            for (std::int32_t c = 0; c < keys.head_dim; ++c) { out[c] += key[c] * share; }
        }
    }

    /// Sum over channels of the population variance.
    static float variance(KeyRows keys, const float* mean)
    {
        float sum[16] = {};
        for (std::int32_t t = 0; t < keys.tokens; ++t) {
            const float* key = keys[t];
            for (std::int32_t c = 0; c < keys.head_dim; c += 16) {
                for (std::int32_t i = 0; i < 16; ++i) {
                    const float deviation = key[c + i] - mean[c + i];
                    sum[i] += deviation * deviation;
                }
            }
        }
        float total = 0.0F;
        for (const float part : sum) { total += part; }
        return total / static_cast<float>(keys.tokens);
    }

    static void box(KeyRows keys, float* high, float* low)
    {
        std::copy_n(keys[0], keys.head_dim, high);
        std::copy_n(keys[0], keys.head_dim, low);
        for (std::int32_t t = 1; t < keys.tokens; ++t) {
            const float* key = keys[t];
            for (std::int32_t c = 0; c < keys.head_dim; ++c) {
                high[c] = key[c] > high[c] ? key[c] : high[c];
                low[c] = key[c] < low[c] ? key[c] : low[c];
            }
        }
    }

    /// high = (max + mean) / 2, low = (min + mean) / 2; expects the mean in `high`.
    static void cuboid(KeyRows keys, float* high, float* low)
    {
        for (std::int32_t c = 0; c < keys.head_dim; ++c) {
            float top = keys[0][c];
            float bottom = top;
            for (std::int32_t t = 1; t < keys.tokens; ++t) {
                top = std::max(top, keys[t][c]);
                bottom = std::min(bottom, keys[t][c]);
            }
            const float mean = high[c];
            high[c] = 0.5F * top + 0.5F * mean;
            low[c] = 0.5F * bottom + 0.5F * mean;
        }
    }

    SummaryKind kind_;
};

/// Min/max alone: a summary that is known to be an upper bound when the program is compiled, as `MissPolicy::kBounded` in a policy set asks.
class MinMaxSummary : public StockSummary {
public:
    /// What `MissPolicy::kBounded` in a policy set asks for.
    static constexpr bool kUpperBound = true;

    /// Throws `InvalidArgument` for another kind.
    explicit MinMaxSummary(SummaryKind kind = SummaryKind::kMinMax) : StockSummary(kind)
    {
        detail::expects(kind == SummaryKind::kMinMax, "MinMaxSummary: summary.kind is ", int(kind), "; it must be kMinMax (",
                        int(SummaryKind::kMinMax), ").");
    }
};

} // namespace oasis
