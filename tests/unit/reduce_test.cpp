// SPDX-License-Identifier: Apache-2.0
//
// From heads to one score, and the selection that follows.
#include "unit/score_fixture.hpp"

#include <oasis/score/selection.hpp>

namespace oasis::tests {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Reduce : EveryTable {
    std::vector<float> reduce(GroupReduction how, const std::vector<float>& x, int heads, int blocks,
                              int block_tokens = 16, int first = 0) const
    {
        std::vector<float> scores(std::size_t(blocks), 777.0F);
        reduce_scores(how, x.data(), heads, std::int64_t(x.size()) / heads, blocks, block_tokens, scores.data(), first,
                      *GetParam());
        return scores;
    }
};

/// Log of the sum of a head's finite masses.
double log_total(const float* x, std::size_t blocks)
{
    oracle::Row finite;
    for (std::size_t i = 0; i < blocks; ++i) {
        if (std::isfinite(x[i])) { finite.push_back(x[i]); }
    }
    return finite.empty() ? 0.0 : oracle::log_sum_exp(finite);
}

TEST_P(Reduce, AgainstTheDefinition)
{
    std::mt19937 random(1);
    for (const int block : {16, 32, 64}) {
        for (const int blocks : {0, 1, 3, 15, 16, 17, 100, 1023, 1025, 2100}) {
            const int heads = 1 + blocks % 7;
            const std::size_t stride = std::size_t(blocks) + 5;
            auto x = grid_values(stride * std::size_t(heads), random, 8.0F);
            if (blocks > 20) {
                x[4] = -kInf;
                x[7] = kNaN;
            }
            const auto raw = reduce(GroupReduction::kMax, x, heads, blocks, block);
            const auto soft = reduce(GroupReduction::kSoftmaxMax, x, heads, blocks, block);
            const auto mean = reduce(GroupReduction::kMean, x, heads, blocks, block);
            oracle::Row totals;
            for (std::size_t h = 0; h < std::size_t(heads); ++h) {
                totals.push_back(log_total(x.data() + h * stride, std::size_t(blocks)));
            }
            for (std::size_t b = 0; b < std::size_t(blocks); ++b) {
                double top = -oracle::kInf;
                double best = -oracle::kInf;
                double sum = 0.0;
                bool any = false;
                for (std::size_t h = 0; h < std::size_t(heads); ++h) {
                    if (std::isnan(x[h * stride + b])) { continue; }
                    any = true;
                    top = std::max<double>(top, x[h * stride + b]);
                    const double s = x[h * stride + b] - totals[h];
                    best = std::max(best, s);
                    sum += std::exp(s);
                }
                if (!any) {
                    ASSERT_TRUE(std::isnan(raw[b]) && std::isnan(soft[b]) && std::isnan(mean[b]));
                    continue;
                }
                ASSERT_EQ(raw[b], float(top));
                if (std::isinf(best)) {
                    ASSERT_EQ(soft[b], -kInf);
                    ASSERT_EQ(mean[b], -kInf);
                    continue;
                }
                ASSERT_NEAR(soft[b], best, 2e-5 * (1 + std::abs(best)));
                ASSERT_NEAR(mean[b], std::log(sum / heads), 2e-5 * (1 + std::abs(std::log(sum / heads))));
            }
        }
    }
}

TEST_P(Reduce, SharesBelowTheFloatRangeDoNotTie)
{
    // exp(-200) is 0 in float, the log domain tells the blocks apart.
    const auto scores = reduce(GroupReduction::kMean, {0.0F, -200.0F, -201.0F, -300.0F}, 1, 4);
    EXPECT_GT(scores[1], scores[2]);
    EXPECT_GT(scores[2], scores[3]);
    EXPECT_TRUE(std::isfinite(scores[3]));
}

TEST_P(Reduce, InfinitiesStayAndDoNotSpread)
{
    for (const auto how : {GroupReduction::kSoftmaxMax, GroupReduction::kMax, GroupReduction::kMean}) {
        const auto scores = reduce(how, {1.0F, kInf, kNaN, -kInf, 2.0F, 1.0F, kInf, kNaN, -kInf, 2.0F}, 2, 5);
        EXPECT_TRUE(std::isfinite(scores[0]) && std::isfinite(scores[4]));
        EXPECT_EQ(scores[1], kInf);
        EXPECT_TRUE(std::isnan(scores[2]));
        EXPECT_EQ(scores[3], -kInf);
    }
}

/// A window sums the same chunks, aligned to position 0, as the whole sequence would with nothing before it.
TEST_P(Reduce, WindowsKeepTheChunks)
{
    std::mt19937 random(3);
    for (const int first : {1, 5, 15, 16, 40}) {
        const auto x = grid_values(1500, random, 4.0F);
        std::vector<float> whole(std::size_t(first), -kInf);
        whole.insert(whole.end(), x.begin(), x.end());
        const auto windowed = reduce(GroupReduction::kSoftmaxMax, x, 1, 1500, 16, first);
        const auto expected = reduce(GroupReduction::kSoftmaxMax, whole, 1, 1500 + first);
        EXPECT_EQ(0, std::memcmp(windowed.data(), expected.data() + first, 1500 * sizeof(float))) << first;
    }
}

TEST_P(Reduce, RefusesBadShapes)
{
    EXPECT_THROW(reduce(GroupReduction::kMax, {1.0F}, 1, 2), InvalidArgument);
    EXPECT_THROW(reduce(GroupReduction::kMax, {1.0F}, 1, 1, 24), InvalidArgument);
    EXPECT_THROW(reduce_scores(GroupReduction::kMax, nullptr, 0, 0, 0, 16, nullptr), InvalidArgument);
}

/// One head strongly prefers block 3, the others block 9: both are chosen with two places.
TEST_P(Reduce, SCORE_17_EveryGroupSize)
{
    std::mt19937 random(2);
    for (const std::int32_t group : {1, 3, 5, 6, 7, 8, 16}) {
        auto sequence = stock_sequence({}, 64, 16, 32, *GetParam());
        auto keys = grid_values(16 * 16 * 64, random, 0.1F);
        for (std::size_t t = 0; t < 16; ++t) {
            keys[(3 * 16 + t) * 64] += 6.0F;
            keys[(9 * 16 + t) * 64 + 1] += 6.0F;
        }
        sequence.set_keys(keys);
        auto q = grid_values(std::size_t(group) * 64, random, 0.1F);
        for (std::size_t h = 0; h < std::size_t(group); ++h) { q[h * 64 + (h == 0 ? 0 : 1)] += 20.0F; }
        if (group == 1) { q[1] += 19.5F; }
        const auto log_mass = sequence.score(q, group, {255}, 0.125F);
        const auto scores = reduce(GroupReduction::kSoftmaxMax, log_mass, group, 16);
        std::vector<std::int32_t> ids(2);
        std::vector<std::uint8_t> must(2);
        SelectionOutput out{};
        out.ids = ids;
        out.must = must;
        TopKSelection().select({.scores = scores, .recent_begin = 16, .must_blocks = 2, .may_blocks = 2}, out);
        EXPECT_EQ(ids, (std::vector<std::int32_t>{3, 9})) << "group " << group;
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, Reduce, every_table(), table_name);

} // namespace
} // namespace oasis::tests
