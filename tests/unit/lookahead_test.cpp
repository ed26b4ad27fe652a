// SPDX-License-Identifier: Apache-2.0
#include <oasis/lookahead/lookahead_predictor.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace oasis {
namespace {

using Blocks = std::vector<std::int32_t>;
constexpr SequenceId kSeq{3};

struct Fixture {
    LookaheadPredictor predictor{LookaheadOptions{.layers = 2, .sets = 2, .must_blocks = 4}};

    void verify(const Blocks& must, LayerId layer = 0, std::int32_t set = 0)
    {
        predictor.observe_row(kSeq, layer, set, must, false);
    }
    void lookahead(const Blocks& must, LayerId layer = 0, std::int32_t set = 0)
    {
        predictor.observe_row(kSeq, layer, set, must, true);
    }
    Blocks guess(std::size_t room = 16, LayerId layer = 0, std::int32_t set = 0)
    {
        Blocks out(room);
        out.resize(predictor.predict(kSeq, layer, set, out));
        return out;
    }
};

TEST(LookaheadPredictor, LastVerifyRowWithoutALookaheadRow)
{
    Fixture f;
    EXPECT_EQ(f.guess(), Blocks{});
    f.verify({1, 2});
    f.verify({5, 6, 7});
    EXPECT_EQ(f.guess(), (Blocks{5, 6, 7}));
    EXPECT_EQ(f.guess(2), (Blocks{5, 6}));
}

TEST(LookaheadPredictor, LookaheadRowsOfTheLastStepTheNearerFirst)
{
    Fixture f;
    f.verify({1, 2});
    f.lookahead({4, 9});
    EXPECT_EQ(f.guess(), (Blocks{4, 9}));
    f.lookahead({3, 4, 8});
    EXPECT_EQ(f.guess(), (Blocks{4, 9, 3, 8}));
    f.verify({6});
    EXPECT_EQ(f.guess(), Blocks{6}) << "lookahead rows of an older step are no guess for the next one";
}

TEST(LookaheadPredictor, LayersSetsAndSequencesAreApart)
{
    Fixture f;
    f.verify({1}, 0, 0);
    f.verify({2}, 0, 1);
    f.verify({3}, 1, 0);
    f.predictor.observe_row(SequenceId{4}, 0, 0, Blocks{9}, false);
    EXPECT_EQ(f.guess(4, 0, 0), Blocks{1});
    EXPECT_EQ(f.guess(4, 0, 1), Blocks{2});
    EXPECT_EQ(f.guess(4, 1, 0), Blocks{3});
    EXPECT_EQ(f.guess(4, 1, 1), Blocks{});
}

TEST(LookaheadPredictor, ForgottenSequencesLeaveNothingToLaterOnes)
{
    Fixture f;
    f.verify({1, 2, 3});
    f.guess();
    f.predictor.forget(kSeq);
    f.predictor.observe_row(SequenceId{8}, 1, 1, Blocks{5}, false);
    Blocks out(4);
    EXPECT_EQ(f.predictor.predict(SequenceId{8}, 0, 0, out), 0U) << "memory that is used again still held a guess";
    EXPECT_EQ(f.predictor.agreement().terms, 0U);
}

TEST(LookaheadPredictor, AgreementIsOfTheRowThatFollowed)
{
    Fixture f;
    f.verify({1, 2, 3, 4});
    EXPECT_EQ(f.predictor.agreement().terms, 0U) << "nothing was guessed before the first row";
    f.lookahead({2, 3, 7});
    f.guess();
    f.lookahead({40, 41});
    EXPECT_EQ(f.predictor.agreement().terms, 0U) << "a lookahead row is no outcome";
    f.verify({2, 3, 5, 6});
    EXPECT_EQ(f.predictor.agreement().terms, 1U);
    EXPECT_DOUBLE_EQ(f.predictor.agreement().mean, 0.5);
    f.verify({2, 3, 5, 6});
    EXPECT_EQ(f.predictor.agreement().terms, 1U) << "further rows of the same step were not guessed";
    f.guess();
    f.verify({2, 3, 5, 6});
    EXPECT_EQ(f.predictor.agreement().terms, 2U);
    EXPECT_DOUBLE_EQ(f.predictor.agreement().mean, 0.75);
}

TEST(LookaheadPredictor, AgreementCountsOnlyWhatWasPassedOn)
{
    Fixture f;
    f.verify({1, 2, 3, 4});
    f.guess(1);
    f.verify({1, 2, 3, 4});
    EXPECT_DOUBLE_EQ(f.predictor.agreement().mean, 0.25);
}

TEST(LookaheadPredictor, BadPlacesAreRefused)
{
    Fixture f;
    EXPECT_THROW(f.verify({1}, 2, 0), InvalidArgument);
    EXPECT_THROW(f.verify({1}, 0, -1), InvalidArgument);
    EXPECT_THROW(LookaheadPredictor(LookaheadOptions{.layers = 1, .sets = 0, .must_blocks = 4}), InvalidArgument);
}

} // namespace
} // namespace oasis
