// SPDX-License-Identifier: Apache-2.0
//
// An upper bound is one in every code and form; spreads that are bounds of a user are rounded upwards too.
#include "unit/score_fixture.hpp"

namespace oasis::tests {
namespace {

struct UpperBound : EveryTable {};

/// 1e5 blocks over all codes, keys of bf16 and float, magnitudes from tiny to huge, q of random signs.
TEST_P(UpperBound, SCORE_16_HoldsForEveryBlock)
{
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    constexpr int kDim = 32;
    std::int64_t checked = 0;
    for (int round = 0; checked < 100000; ++round) {
        const SummaryCode code = kCodes[round % 4];
        const std::int32_t tokens = std::array{16, 4, 1}[std::size_t(round % 3)];
        auto sequence = stock_sequence({SummaryKind::kMinMax, tokens, code}, kDim, 16, 16, *GetParam());
        const std::int64_t n = 64 * tokens + 48;
        std::vector<float> keys(std::size_t(n) * kDim);
        const float scale = std::array{1.0F, 1e-4F, 300.0F, 1e-7F}[std::size_t(round / 4 % 4)];
        const float offset = round % 5 == 0 ? 20.0F * scale : 0.0F;
        for (float& x : keys) {
            x = normal(random) * scale + offset;
            if (round % 2) { x = to_float(to_bf16(x)); }
        }
        sequence.set_keys(keys);
        std::vector<float> q(kDim);
        for (float& x : q) { x = normal(random); }
        const auto got = sequence.score(q, 1, {n - 1}, 1.0F);
        for (std::int64_t t = 0; t < n; ++t) {
            double dot = 0.0;
            double size = 0.0;
            for (int c = 0; c < kDim; ++c) {
                dot += double(q[std::size_t(c)]) * sequence.key(t)[c];
                size += std::abs(double(q[std::size_t(c)]) * sequence.key(t)[c]);
            }
            ASSERT_GE(double(got[std::size_t(t / 16)]) + 4e-6 * (size + 1.0), dot)
                << describe(sequence.layout().options) << " token " << t;
        }
        checked += n / 16;
    }
    EXPECT_TRUE(stock_sequence({SummaryKind::kMinMax, 2, SummaryCode::kInt4}, kDim, 16, 16).scorer().is_upper_bound());
    EXPECT_FALSE(stock_sequence({SummaryKind::kCuboid, 2, SummaryCode::kInt4}, kDim, 16, 16).scorer().is_upper_bound());
}

/// Min/max with the width of the box, summed over channels, as a spread of weight 1: a looser bound, for the rounding
/// of spreads.
struct WideBox {
    std::int32_t planes() const { return 2; }
    bool has_spread() const { return true; }
    bool is_upper_bound() const { return true; }
    void summarise(KeyRows keys, SummaryRow row) const
    {
        StockSummary(SummaryKind::kMinMax).summarise(keys, row);
        *row.spread = 0.0F;
        for (std::int32_t c = 0; c < keys.head_dim; ++c) { *row.spread += row.plane[0][c] - row.plane[1][c]; }
    }
    void weigh(const float* q, std::int32_t head_dim, float scale, QueryWeights weights) const
    {
        StockSummary(SummaryKind::kMinMax).weigh(q, head_dim, scale, weights);
        *weights.spread = 1.0F;
    }
};

TEST_P(UpperBound, SpreadOfABoundIsRoundedUp)
{
    std::mt19937 random(2);
    for (const SummaryCode code : kCodes) {
        Sequence<WideBox> sequence({WideBox(), {SummaryKind::kMinMax, 2, code}, 32, 16, *GetParam()}, 0);
        sequence.set_keys(grid_values(128 * 32, random));
        const auto got =
            sequence.score(std::vector<float>(32, 0.0F), 1, {127}, 1.0F); // q = 0: log n and the spread alone
        for (std::size_t b = 0; b < 8; ++b) {
            double largest = 0.0;
            for (std::size_t s = 0; s < 8; ++s) {
                double width = 0.0;
                for (int c = 0; c < 32; ++c) {
                    width += std::abs(sequence.key(std::int64_t(b * 16 + s * 2))[c] -
                                      sequence.key(std::int64_t(b * 16 + s * 2 + 1))[c]);
                }
                largest = std::max(largest, width);
            }
            EXPECT_GE(got[b] + 1e-5, largest + std::log(2.0)) << int(code);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, UpperBound, every_table(), table_name);

} // namespace
} // namespace oasis::tests
