// SPDX-License-Identifier: Apache-2.0
#include "unit/counted_new.hpp"

#include <oasis/lookahead/lookahead_predictor.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace oasis {
namespace {

using Blocks = std::vector<std::int32_t>;
constexpr SequenceId kSeq{3};
constexpr SequenceId kChild{9};

struct Fixture {
    explicit Fixture(LookaheadSource source = LookaheadSource::kRows)
        : predictor(LookaheadOptions{.layers = 2, .sets = 2, .must_blocks = 4, .source = source})
    {
    }

    LookaheadPredictor predictor;

    void verify(std::int32_t row, const Blocks& must, LayerId layer = 0, std::int32_t set = 0,
                SequenceId sequence = kSeq)
    {
        predictor.observe_row(sequence, layer, set, row, must, false);
    }
    void lookahead(std::int32_t row, const Blocks& must, LayerId layer = 0, std::int32_t set = 0)
    {
        predictor.observe_row(kSeq, layer, set, row, must, true);
    }
    void accepted(std::int32_t rows) { predictor.accepted(kSeq, rows); }
    Blocks guess(std::size_t room = 16, LayerId layer = 0, std::int32_t set = 0, SequenceId sequence = kSeq)
    {
        Blocks out(room);
        out.resize(predictor.predict(sequence, layer, set, out));
        return out;
    }
    void expect_agreement(double mean, std::uint64_t terms)
    {
        EXPECT_DOUBLE_EQ(predictor.agreement().mean, mean);
        EXPECT_EQ(predictor.agreement().terms, terms);
    }
};

TEST(LookaheadPredictor, LastVerifyRowWithoutALookaheadRow)
{
    Fixture f;
    EXPECT_EQ(f.guess(), Blocks{});
    f.verify(0, {1, 2});
    EXPECT_EQ(f.guess(), (Blocks{1, 2}));
    f.verify(1, {5, 6, 7});
    EXPECT_EQ(f.guess(), (Blocks{5, 6, 7}));
    EXPECT_EQ(f.guess(2), (Blocks{5, 6}));
}

TEST(LookaheadPredictor, LookaheadRowsTheNearerFirstWithoutRepeats)
{
    Fixture f;
    f.verify(0, {1, 2});
    f.lookahead(1, {9, 4});
    EXPECT_EQ(f.guess(), (Blocks{9, 4}));
    f.lookahead(2, {3, 4, 8, 9});
    EXPECT_EQ(f.guess(), (Blocks{9, 4, 3, 8}));
    EXPECT_EQ(f.guess(3), (Blocks{9, 4, 3}));
    f.accepted(1);
    f.verify(0, {6});
    EXPECT_EQ(f.guess(), Blocks{6}) << "lookahead rows of an older step are no guess for the next one";
}

TEST(LookaheadPredictor, SourceSameIsTheLastVerifyRowAndNoneIsNothing)
{
    Fixture same(LookaheadSource::kSame);
    Fixture none(LookaheadSource::kNone);
    for (Fixture* f : {&same, &none}) {
        f->verify(0, {1, 2});
        f->verify(1, {3, 4});
        f->lookahead(2, {5});
    }
    EXPECT_EQ(same.guess(), (Blocks{3, 4}));
    EXPECT_EQ(none.guess(), Blocks{});
    for (Fixture* f : {&same, &none}) {
        f->accepted(1);
        f->verify(0, {2, 3});
    }
    same.expect_agreement(0.5, 1);
    none.expect_agreement(0, 0);
}

// Four rows at positions p..p+3: two drafts to verify and one lookahead row. Row i asks what stands at p+i.
struct Step : Fixture {
    explicit Step(LookaheadSource source = LookaheadSource::kRows) : Fixture(source)
    {
        verify(0, {0, 1, 2, 3});
        verify(1, {10, 11, 12, 13});
        verify(2, {20, 21, 22, 23});
        lookahead(3, {30, 31, 32, 33});
    }
    /// Agreement with the first row of the next step, which reads these blocks.
    double with(std::int32_t rows, const Blocks& actual)
    {
        accepted(rows);
        verify(0, actual);
        EXPECT_EQ(predictor.agreement().terms, 1U);
        return predictor.agreement().mean;
    }
};

TEST(LookaheadPredictor, TheGuessIsTheRowAtThePositionThatFollows)
{
    EXPECT_DOUBLE_EQ(Step().with(3, {30, 31, 32, 40}), 0.75) << "all stand: the lookahead row";
    EXPECT_DOUBLE_EQ(Step().with(2, {20, 21, 40, 41}), 0.5) << "the last draft is rejected: its own row";
    EXPECT_DOUBLE_EQ(Step().with(1, {10, 40, 41, 42}), 0.25) << "both drafts are rejected: the first one's row";
    EXPECT_DOUBLE_EQ(Step().with(1, {0, 1, 2, 3}), 0) << "not the accepted row's";
    EXPECT_DOUBLE_EQ(Step(LookaheadSource::kSame).with(3, {20, 21, 22, 40}), 0.75);
    EXPECT_DOUBLE_EQ(Step(LookaheadSource::kSame).with(1, {0, 40, 41, 42}), 0.25);
}

TEST(LookaheadPredictor, WithoutARowAtThatPositionTheLastAcceptedRowIsTheGuess)
{
    Fixture f;
    f.verify(0, {1, 2});
    f.verify(1, {3, 4});
    f.accepted(2);
    EXPECT_EQ(f.guess(), (Blocks{3, 4})) << "until the next step's first row, the guess after acceptance";
    f.verify(0, {3, 4, 5, 6});
    f.expect_agreement(0.5, 1);
}

TEST(LookaheadPredictor, ARolledBackStepLeavesNoGuess)
{
    Step f;
    f.accepted(0);
    EXPECT_EQ(f.guess(), Blocks{});
    f.verify(0, {0, 1});
    f.expect_agreement(0, 0);
    EXPECT_EQ(f.guess(), (Blocks{0, 1})) << "the step that follows is a step like any other";
}

TEST(LookaheadPredictor, AStepThatObservedNothingEndsTheGuess)
{
    for (const std::int32_t rows : {1, 512}) { // a dense row, a chunk of prefill
        Step f;
        f.accepted(3);
        f.accepted(rows);
        EXPECT_EQ(f.guess(), Blocks{});
        f.verify(0, {30, 31});
        f.expect_agreement(0, 0);
    }
    Step f;
    f.accepted(512);
    EXPECT_EQ(f.guess(), Blocks{});
}

TEST(LookaheadPredictor, RowsBeforeTheFirstSparseOneAreLeftOut)
{
    Fixture f;
    f.verify(1, {1, 2});
    f.verify(2, {3, 4});
    EXPECT_EQ(f.guess(), (Blocks{3, 4}));
    f.accepted(1);
    EXPECT_EQ(f.guess(), (Blocks{1, 2}));
    f.verify(1, {5});
    f.expect_agreement(0, 0);
    f.accepted(1);
    f.verify(0, {5});
    f.expect_agreement(1, 1);
    Fixture dense;
    dense.verify(2, {1});
    dense.accepted(1);
    EXPECT_EQ(dense.guess(), Blocks{}) << "neither the row that follows nor the accepted one was observed";
}

TEST(LookaheadPredictor, AgreementCountsOneTermForEachStep)
{
    Step f;
    f.accepted(3);
    f.verify(0, {30, 31, 40, 41});
    f.verify(1, {30, 31, 32, 33});
    f.lookahead(2, {30, 31, 32, 33});
    f.expect_agreement(0.5, 1);
    f.guess();
    f.accepted(2);
    f.verify(0, {30, 31, 32, 33});
    f.expect_agreement(0.75, 2);
    f.verify(0, {9});
    f.expect_agreement(0.75, 2);
}

TEST(LookaheadPredictor, AgreementIsOverWhatTheRowHadToRead)
{
    Fixture f;
    f.verify(0, {1, 2, 3, 4});
    f.accepted(1);
    f.verify(0, {4, 3});
    f.expect_agreement(1, 1);
    f.accepted(1);
    f.verify(0, {4, 3, 2, 1, 8, 7, 6, 5});
    f.expect_agreement(0.625, 2);
    f.accepted(1);
    f.verify(0, {});
    f.expect_agreement(0.625, 2);
}

TEST(LookaheadPredictor, AgreementByLayer)
{
    Fixture f;
    f.verify(0, {1, 2}, 0, 0);
    f.verify(0, {1, 2}, 0, 1);
    f.verify(0, {1, 2}, 1, 0);
    f.accepted(1);
    f.verify(0, {1, 2}, 0, 0);
    f.verify(0, {1, 5}, 0, 1);
    f.verify(0, {5, 6}, 1, 0);
    EXPECT_DOUBLE_EQ(f.predictor.agreement(0).mean, 0.75);
    EXPECT_EQ(f.predictor.agreement(0).terms, 2U);
    EXPECT_DOUBLE_EQ(f.predictor.agreement(1).mean, 0);
    EXPECT_EQ(f.predictor.agreement(1).terms, 1U);
    f.expect_agreement(0.5, 3);
    EXPECT_THROW((void)f.predictor.agreement(2), InvalidArgument);
    EXPECT_THROW((void)f.predictor.agreement(-1), InvalidArgument);
}

TEST(LookaheadPredictor, LayersSetsAndSequencesAreApart)
{
    Fixture f;
    f.verify(0, {1}, 0, 0);
    f.verify(0, {2}, 0, 1);
    f.verify(0, {3}, 1, 0);
    f.verify(0, {9}, 0, 0, kChild);
    EXPECT_EQ(f.guess(4, 0, 0), Blocks{1});
    EXPECT_EQ(f.guess(4, 0, 1), Blocks{2});
    EXPECT_EQ(f.guess(4, 1, 0), Blocks{3});
    EXPECT_EQ(f.guess(4, 1, 1), Blocks{});
    f.predictor.accepted(kChild, 0);
    EXPECT_EQ(f.guess(4, 0, 0), Blocks{1});
    EXPECT_EQ(f.guess(4, 0, 0, kChild), Blocks{});
}

TEST(LookaheadPredictor, ForgottenSequencesLeaveNothingToLaterOnes)
{
    Step f;
    f.accepted(3);
    f.predictor.forget(kSeq);
    EXPECT_EQ(f.guess(), Blocks{});
    f.verify(0, {5}, 1, 1, SequenceId{8});
    EXPECT_EQ(f.guess(4, 0, 0, SequenceId{8}), Blocks{}) << "memory that is used again still held a guess";
    f.verify(0, {30, 31}, 0, 0, SequenceId{8});
    f.expect_agreement(0, 0);
}

TEST(LookaheadPredictor, AForkGoesOnAsItsParent)
{
    Step f;
    f.accepted(2);
    f.predictor.copy(kSeq, kChild);
    EXPECT_EQ(f.guess(16, 0, 0, kChild), (Blocks{20, 21, 22, 23}));
    f.verify(0, {20, 21}, 0, 0, kChild);
    f.expect_agreement(1, 1);
    EXPECT_EQ(f.guess(), (Blocks{20, 21, 22, 23})) << "the child's rows are not the parent's";
    f.predictor.forget(kSeq);
    EXPECT_EQ(f.guess(16, 0, 0, kChild), (Blocks{20, 21}));
    f.predictor.copy(SequenceId{77}, kChild);
    EXPECT_EQ(f.guess(16, 0, 0, kChild), Blocks{}) << "a parent that knows nothing has a child that knows nothing";
    f.predictor.copy(kSeq, kSeq);
}

TEST(LookaheadPredictor, ARowThatDoesNotAscendStartsTheStepOver)
{
    Step f;
    f.verify(0, {7});
    EXPECT_EQ(f.guess(), Blocks{7});
    f.accepted(1);
    EXPECT_EQ(f.guess(), Blocks{7}) << "rows of the step that was started over are gone";
}

TEST(LookaheadPredictor, RowsBeyondTheirRoomAreCut)
{
    Fixture f;
    f.verify(0, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(f.guess(), (Blocks{1, 2, 3, 4}));
    for (std::int32_t row = 1; row < LookaheadPredictor::kStepRows; ++row) { f.lookahead(row, {row, row + 20}); }
    EXPECT_EQ(f.guess(100).size(), 2U * 9U);
}

TEST(LookaheadPredictor, AllocatesForASequencesFirstRowAndNeverForASecondOneInItsPlace)
{
    Fixture f;
    const Blocks near{1, 2, 3, 4};
    const Blocks far{3, 4, 5, 6};
    std::array<std::int32_t, 16> out{};
    const auto step = [&](SequenceId sequence) {
        f.predictor.observe_row(sequence, 1, 1, 0, near, false);
        f.predictor.observe_row(sequence, 1, 1, 1, near, true);
        f.predictor.observe_row(sequence, 1, 1, 2, far, true);
        EXPECT_EQ(f.predictor.predict(sequence, 1, 1, out), 6U);
        f.predictor.accepted(sequence, 1);
    };
    std::int64_t before = test::allocations;
    step(SequenceId{1});
    EXPECT_GT(test::allocations, before);
    step(SequenceId{2});
    before = test::allocations;
    for (std::int64_t id = 3; id < 1000; ++id) {
        step(SequenceId{id - 1});
        f.predictor.forget(SequenceId{id - 2});
        f.predictor.copy(SequenceId{id - 1}, SequenceId{id});
        step(SequenceId{id});
    }
    EXPECT_EQ(test::allocations, before);
    f.expect_agreement(1, f.predictor.agreement().terms);
}

TEST(LookaheadPredictor, BadPlacesAreRefused)
{
    Fixture f;
    EXPECT_THROW(f.verify(0, {1}, 2, 0), InvalidArgument);
    EXPECT_THROW(f.verify(0, {1}, 0, -1), InvalidArgument);
    EXPECT_THROW(f.verify(-1, {1}), InvalidArgument);
    EXPECT_THROW(f.accepted(-1), InvalidArgument);
    EXPECT_THROW(LookaheadPredictor(LookaheadOptions{.layers = 1, .sets = 0, .must_blocks = 4}), InvalidArgument);
    try {
        f.verify(10, {1});
        FAIL();
    } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("row 10 of sequence 3 is outside the 10 rows"), std::string::npos)
            << error.what();
    }
}

} // namespace
} // namespace oasis
