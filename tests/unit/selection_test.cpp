// SPDX-License-Identifier: Apache-2.0
//
// The stock selection against a full sort, and the cases that broke others.
#include "oracle/scoring.hpp"

#include <oasis/score/selection.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace oasis::tests {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Buffers full of an old step's ids.
struct Chosen {
    explicit Chosen(const SelectionInput& in, std::size_t room)
        : ids(room, 0x7f7f7f7f), must(room, 0x7f), ranked(room, 0x7f7f7f7f)
    {
        out.ids = ids;
        out.must = must;
        out.ranked = ranked;
        TopKSelection().select(in, out);
    }
    Ids may() const { return {ids.begin(), ids.begin() + out.count}; }
    Ids best() const { return {ranked.begin(), ranked.begin() + out.ranked_count}; }
    Ids musts() const
    {
        Ids result;
        for (std::size_t i = 0; i < std::size_t(out.count); ++i) {
            if (must[i]) { result.push_back(ids[i]); }
        }
        return result;
    }

    Ids ids;
    std::vector<std::uint8_t> must;
    Ids ranked;
    SelectionOutput out{};
};

SelectionInput plain(const std::vector<float>& scores, std::int32_t k)
{
    return {.scores = scores, .recent_begin = std::int32_t(scores.size()), .must_blocks = k, .may_blocks = k};
}

/// Everything that must hold of any selection, and equality with the oracle.
void expect_right(const SelectionInput& in)
{
    const std::vector<float> scores(in.scores.begin(), in.scores.end());
    const std::size_t room = std::size_t(std::max({in.may_blocks, in.rank_blocks, 1})) + 3;
    const Chosen chosen(in, room);
    const auto expected = [&](std::int32_t k) {
        return oracle::best_blocks(scores, in.first, in.sink_end, in.recent_begin, std::size_t(k));
    };
    ASSERT_EQ(chosen.may(), expected(in.may_blocks));
    ASSERT_EQ(chosen.musts(), expected(in.must_blocks));
    ASSERT_EQ(chosen.out.must_count, std::int32_t(chosen.musts().size()));
    ASSERT_EQ(chosen.best(), in.rank_blocks > 0 ? expected(in.rank_blocks) : Ids{});
    for (std::size_t i = std::size_t(chosen.out.count); i < room; ++i) {
        ASSERT_EQ(chosen.ids[i], -1);
        ASSERT_EQ(chosen.must[i], 0);
    }
    for (std::size_t i = std::size_t(chosen.out.ranked_count); i < room; ++i) { ASSERT_EQ(chosen.ranked[i], -1); }
}

TEST(SelectionCases, SCORE_01_MoreWantedThanThereAre)
{
    std::mt19937 random(1);
    for (const std::size_t n : {0U, 1U, 31U, 32U, 33U}) {
        std::vector<float> scores(n);
        for (float& x : scores) { x = float(random() % 100); }
        expect_right(plain(scores, 32));
        EXPECT_EQ(Chosen(plain(scores, 32), 32).out.count, std::int32_t(std::min<std::size_t>(n, 32)));
    }
}

TEST(SelectionCases, SCORE_05_TiesGoToTheLowerPosition)
{
    std::vector<float> scores(4096, 1.5F);
    Ids first(64);
    for (std::int32_t i = 0; i < 64; ++i) { first[std::size_t(i)] = i; }
    for (int round = 0; round < 100; ++round) { ASSERT_EQ(Chosen(plain(scores, 64), 64).may(), first); }
    for (std::size_t i = 0; i < 32; ++i) { scores[4095 - i * 100] = 2.0F; }
    expect_right(plain(scores, 64));
    scores[5] = -0.0F;
    scores[3] = 0.0F;
    std::vector<float> zeros{-0.0F, 0.0F, -0.0F, 0.0F};
    EXPECT_EQ(Chosen(plain(zeros, 2), 2).may(), (Ids{0, 1}));
}

TEST(SelectionCases, SCORE_07_NaNLastMinusInfinityNever)
{
    std::vector<float> scores(16);
    for (std::size_t i = 0; i < 16; ++i) { scores[i] = -float(i); }
    scores[7] = kNaN;
    scores[9] = kInf;
    scores[11] = -kInf;
    EXPECT_EQ(Chosen(plain(scores, 1), 1).may(), Ids{9});
    EXPECT_EQ(Chosen(plain(scores, 4), 4).may(), (Ids{0, 1, 2, 9}));
    EXPECT_EQ(Chosen(plain(scores, 14), 14).may(), (Ids{0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15}));
    EXPECT_EQ(Chosen(plain(scores, 16), 16).may(), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15}));
    scores.assign(8, kNaN);
    EXPECT_EQ(Chosen(plain(scores, 3), 3).may(), (Ids{0, 1, 2}));
    scores.assign(8, -kNaN);
    EXPECT_EQ(Chosen(plain(scores, 3), 3).may(), (Ids{0, 1, 2}));
    scores.assign(8, -kInf);
    EXPECT_EQ(Chosen(plain(scores, 3), 3).may(), Ids{});
}

TEST(SelectionCases, SCORE_08_VeryLowScoresAreNotPadding)
{
    std::mt19937 random(2);
    for (const std::size_t n : {1U, 31U, 33U, 1023U, 1025U}) {
        std::vector<float> scores(n);
        for (float& x : scores) { x = -std::pow(10.0F, 4.8F + float(random() % 1000) / 40.0F); }
        expect_right(plain(scores, 16));
        EXPECT_EQ(Chosen(plain(scores, 16), 16).out.count, std::int32_t(std::min<std::size_t>(n, 16)));
    }
    expect_right(plain({-std::numeric_limits<float>::max(), -kInf, kNaN, -1e-45F}, 2));
}

TEST(SelectionCases, SCORE_10_LongRowsInOneBucket)
{
    std::mt19937 random(3);
    for (const std::size_t n : {65536U, 262144U, 1048576U, 1048577U}) {
        std::vector<float> scores(n);
        for (float& x : scores) { x = 1.0F + float(random() % 4096) * 1e-6F; }
        expect_right(plain(scores, 2048));
        std::fill(scores.begin(), scores.end(), 3.0F);
        scores.back() = 4.0F;
        expect_right(plain(scores, 2048));
    }
}

TEST(SelectionCases, SCORE_12_RowOfLengthZero)
{
    const Chosen chosen(
        {.scores = {}, .sink_end = 4, .recent_begin = 0, .must_blocks = 8, .may_blocks = 16, .rank_blocks = 16}, 16);
    EXPECT_EQ(chosen.out.count, 0);
    EXPECT_EQ(chosen.out.must_count, 0);
    EXPECT_EQ(chosen.ids, Ids(16, -1));
}

TEST(SelectionCases, SCORE_14_TooManyScoresAreRefused)
{
    float one = 1.0F;
    SelectionInput in{.scores = {&one, (std::size_t{1} << 31) + 7}, .must_blocks = 1, .may_blocks = 1};
    EXPECT_THROW(Chosen(in, 4), InvalidArgument);
    in.scores = {&one, 1};
    in.first = std::numeric_limits<std::int32_t>::max();
    EXPECT_THROW(Chosen(in, 4), InvalidArgument);
    in.scores = {&one, std::size_t(1) << 33}; // 0 when cut to 32 bits
    in.first = 0;
    EXPECT_THROW(Chosen(in, 4), InvalidArgument);
}

TEST(SelectionCases, SCORE_18_ForcedBlocksWhateverTheirScore)
{
    std::vector<float> scores{-kInf, 5, 4, 3, 2, 6, kNaN, -9};
    SelectionInput in{.scores = scores, .sink_end = 1, .recent_begin = 6, .must_blocks = 4, .may_blocks = 5};
    const Chosen chosen(in, 5);
    EXPECT_EQ(chosen.may(), (Ids{0, 1, 5, 6, 7}));
    EXPECT_EQ(chosen.musts(), (Ids{0, 5, 6, 7}));
    in.may_blocks = 2;
    in.must_blocks = 2;
    try {
        const Chosen refused(in, 5);
        FAIL() << "3 forced blocks in a budget of 2";
    } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("3 "), std::string::npos);
        EXPECT_NE(std::string(error.what()).find("2 blocks"), std::string::npos);
    }
    in.must_blocks = 5;
    in.may_blocks = 4;
    EXPECT_THROW(Chosen(in, 5), InvalidArgument);
    // Sinks and recents that overlap, or reach beyond the sequence, are counted once.
    EXPECT_EQ(
        Chosen({.scores = {scores.data(), 3}, .sink_end = 9, .recent_begin = -5, .must_blocks = 3, .may_blocks = 3}, 3)
            .may(),
        (Ids{0, 1, 2}));
}

TEST(SelectionCases, SCORE_21_EverySlotIsWritten)
{
    std::vector<float> ties(5000, 1.0F);
    expect_right(plain(ties, 100));
    expect_right(plain({1.0F, -kInf, 2.0F}, 3));
    expect_right({.scores = {ties.data(), 5},
                  .sink_end = 2,
                  .recent_begin = 4,
                  .must_blocks = 3,
                  .may_blocks = 8,
                  .rank_blocks = 20});
}

TEST(Selection, RandomAgainstAFullSort)
{
    std::mt19937 random(4);
    const auto below = [&random](std::int32_t n) { return std::int32_t(random() % std::uint32_t(n)); };
    for (int round = 0; round < 3000; ++round) {
        const std::int32_t n = below(round % 10 == 0 ? 3000 : 60) + 1;
        std::vector<float> scores;
        for (std::int32_t i = 0; i < n; ++i) {
            const int kind = below(20);
            scores.push_back(kind == 0   ? kNaN
                             : kind == 1 ? -kInf
                             : kind == 2 ? kInf
                             : kind < 12 ? float(below(5)) - 2.0F
                                         : std::ldexp(float(below(2000) - 1000), below(60) - 30));
        }
        SelectionInput in{.scores = scores, .first = below(3) * 1000};
        in.sink_end = in.first + below(5);
        in.recent_begin = in.first + n - below(6);
        const std::int32_t forced = std::min(n, std::min(n, in.sink_end - in.first) + (in.first + n - in.recent_begin));
        in.must_blocks = forced + below(n + 3);
        in.may_blocks = in.must_blocks + below(n);
        in.rank_blocks = below(3) == 0 ? 0 : in.may_blocks + below(8);
        expect_right(in);
        if (HasFatalFailure()) { FAIL() << "round " << round; }
    }
}

/// Shares 0.5, 0.25, 0.125, ...: how many blocks reach p is known.
TEST(Selection, TopPStopsAtTheMass)
{
    std::vector<float> scores;
    for (int i = 0; i < 30; ++i) {
        scores.push_back(-float((i * 7) % 30) * std::log(2.0F));
    } // rank of block i is 7 i mod 30
    SelectionInput in = plain(scores, 20);
    const auto count = [&](float p) {
        in.top_p = p;
        return Chosen(in, 20).out.count;
    };
    EXPECT_EQ(count(0.4F), 1);
    EXPECT_EQ(count(0.6F), 2);
    EXPECT_EQ(count(0.9F), 4);
    EXPECT_EQ(count(0.99F), 7);
    EXPECT_EQ(count(1.0F), 20);
    EXPECT_EQ(count(0.9999999F), 20);
    EXPECT_EQ(count(0.0F), 0);
    // The best block is forced: its half counts.
    in.sink_end = 1;
    EXPECT_EQ(count(0.4F), 1);
    EXPECT_EQ(count(0.6F), 2);
    // The must set shrinks with it, the ranking does not.
    in.must_blocks = 3;
    in.rank_blocks = 10;
    in.top_p = 0.6F;
    const Chosen chosen(in, 20);
    EXPECT_EQ(chosen.out.must_count, 2);
    EXPECT_EQ(chosen.out.ranked_count, 10);
    in.top_p = kNaN;
    EXPECT_THROW(Chosen(in, 20), InvalidArgument);
}

TEST(Selection, TopPWithTiesAndInfinities)
{
    std::vector<float> scores(100, 0.0F);
    SelectionInput in = plain(scores, 90);
    in.top_p = 0.305F;
    EXPECT_EQ(Chosen(in, 90).out.count, 31);
    scores[40] = kInf;
    scores[41] = kNaN;
    scores[42] = -kInf;
    in.top_p = 0.0F;
    EXPECT_EQ(Chosen(in, 90).may(), Ids{40});
    in.top_p = 0.02F;
    EXPECT_EQ(Chosen(in, 90).may(), (Ids{0, 1, 40}));
}

TEST(Selection, RefusesBuffersThatAreTooSmall)
{
    const std::vector<float> scores(10, 1.0F);
    SelectionInput in = plain(scores, 8);
    EXPECT_NO_THROW(Chosen(in, 8));
    EXPECT_THROW(Chosen(in, 7), InvalidArgument);
    in.rank_blocks = 9;
    EXPECT_THROW(Chosen(in, 8), InvalidArgument);
    in.rank_blocks = 20;
    EXPECT_NO_THROW(Chosen(in, 10));
}

} // namespace
} // namespace oasis::tests
