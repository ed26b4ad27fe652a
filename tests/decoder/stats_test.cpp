// SPDX-License-Identifier: Apache-2.0
#include "app/sampler.hpp"
#include "app/stats.hpp"
#include "app/table.hpp"

#include <oasis/core/error.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace {

using namespace oasis_decode;
using Row = std::vector<float>;

TEST(Stats, ArgmaxTakesTheLowestOfEqualsAndNeverNan)
{
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(argmax(Row{1, 3, 3, 2}), 1U);
    EXPECT_EQ(argmax(Row{nan, 3, 4}), 2U);
    EXPECT_EQ(argmax(Row{5, nan, 4}), 0U);
    EXPECT_THROW(static_cast<void>(argmax(Row{})), oasis::InvalidArgument);
}

TEST(Stats, KlOfKnownDistributions)
{
    const Row p{std::log(0.5F), std::log(0.25F), std::log(0.25F)};
    const Row q{std::log(0.25F), std::log(0.25F), std::log(0.5F)};
    EXPECT_NEAR(kl_divergence(p, q), 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-6);
    EXPECT_NEAR(kl_divergence(p, p), 0.0, 1e-12);
    // Logits are known up to a constant only, and may be large.
    const Row shifted{p[0] + 1000, p[1] + 1000, p[2] + 1000};
    EXPECT_NEAR(kl_divergence(shifted, q), kl_divergence(p, q), 1e-3);
    EXPECT_THROW(static_cast<void>(kl_divergence(p, Row{1})), oasis::InvalidArgument);
}

TEST(Stats, LikelihoodIsOfTheNormalisedRow)
{
    EXPECT_NEAR(negative_log_likelihood(Row{0, 0, 0, 0}, 2), std::log(4.0), 1e-12);
    EXPECT_THROW(static_cast<void>(negative_log_likelihood(Row{0, 0}, 2)), oasis::InvalidArgument);
}

TEST(Stats, WilsonIntervalAgainstPublishedValues)
{
    EXPECT_NEAR(wilson(26, 26).low, 0.8713, 1e-4);
    EXPECT_DOUBLE_EQ(wilson(26, 26).high, 1.0);
    EXPECT_NEAR(wilson(5, 10).low, 0.2366, 1e-4);
    EXPECT_NEAR(wilson(5, 10).high, 0.7634, 1e-4);
    EXPECT_DOUBLE_EQ(wilson(0, 10).low, 0.0);
    EXPECT_NEAR(wilson(0, 10).high, 0.2775, 1e-4);
    EXPECT_EQ(wilson(0, 0).high, 1.0);
    EXPECT_THROW(static_cast<void>(wilson(3, 2)), oasis::InvalidArgument);
}

TEST(Stats, RowComparisonLeavesTheLastRowOutOfThePerplexityOnly)
{
    RowComparison rows;
    EXPECT_TRUE(std::isnan(rows.kl()));
    rows.add(Row{0, 0}, Row{0, 0}, 1);
    rows.add(Row{2, 0}, Row{0, 2}, -1);
    EXPECT_DOUBLE_EQ(rows.top1(), 0.5);
    EXPECT_NEAR(rows.dense_perplexity(), 2.0, 1e-9);
    EXPECT_NEAR(rows.perplexity_ratio(), 1.0, 1e-9);
    EXPECT_NEAR(rows.kl(), 0.5 * kl_divergence(Row{2, 0}, Row{0, 2}), 1e-12);
}

TEST(Sampler, TemperatureZeroIsGreedyWhateverTheSeed)
{
    EXPECT_EQ(Sampler(0, 1, 1).pick(Row{1, 5, 2}, 0), 1);
    EXPECT_EQ(Sampler(0, 1, 99).pick(Row{1, 5, 2}, 7), 1);
}

TEST(Sampler, AFunctionOfSeedAndPositionAlone)
{
    const Row logits{1, 1.5F, 0.5F, 1.2F};
    Sampler forwards(1, 1, 42);
    Sampler backwards(1, 1, 42);
    std::vector<int> a;
    std::vector<int> b(64);
    for (int i = 0; i < 64; ++i) { a.push_back(forwards.pick(logits, i)); }
    for (int i = 63; i >= 0; --i) { b[static_cast<std::size_t>(i)] = backwards.pick(logits, i); }
    EXPECT_EQ(a, b);
    Sampler other(1, 1, 43);
    std::vector<int> c;
    for (int i = 0; i < 64; ++i) { c.push_back(other.pick(logits, i)); }
    EXPECT_NE(a, c);
}

TEST(Sampler, SharesFollowTheSoftmaxAndTopPCutsTheTail)
{
    const Row logits{std::log(0.6F), std::log(0.3F), std::log(0.1F)};
    std::map<int, int> all;
    std::map<int, int> cut;
    Sampler free(1, 1, 5);
    Sampler nucleus(1, 0.8, 5);
    for (int i = 0; i < 20000; ++i) {
        ++all[free.pick(logits, i)];
        ++cut[nucleus.pick(logits, i)];
    }
    EXPECT_NEAR(all[0] / 20000.0, 0.6, 0.02);
    EXPECT_NEAR(all[2] / 20000.0, 0.1, 0.02);
    EXPECT_NEAR(cut[0] / 20000.0, 2.0 / 3, 0.02);
    EXPECT_EQ(cut[2], 0);
    EXPECT_EQ(Sampler(1, 0, 5).pick(logits, 3), 0);
}

TEST(Table, AlignsNumbersToTheRightAndCountsCharactersNotBytes)
{
    Table table({"name", "value"});
    table.add({"\xC3\xA9t\xC3\xA9", "7"});
    table.add({"x", "12345"});
    EXPECT_EQ(table.text(), "name  value\n-----------\n\xC3\xA9t\xC3\xA9       7\nx     12345\n");
    EXPECT_THROW(table.add({"one"}), oasis::InvalidArgument);
}

TEST(Table, Numbers)
{
    EXPECT_EQ(number(std::nan(""), 1), "-");
    EXPECT_EQ(small_number(0.000063), "0.000063");
    EXPECT_EQ(small_number(0.184), "0.18");
    EXPECT_EQ(small_number(0), "0");
    EXPECT_EQ(bytes(1536), "1.5 KiB");
    EXPECT_EQ(percent(0.981), "98.1 %");
}

} // namespace
