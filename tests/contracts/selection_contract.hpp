// SPDX-License-Identifier: Apache-2.0
//
// The laws of a selection policy. For one of your own (default-constructible):
//     INSTANTIATE_TYPED_TEST_SUITE_P(Mine, SelectionContract, MySelection);
#pragma once

#include <oasis/core/check.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace oasis::contracts {

template <class Policy> class SelectionContract : public testing::Test {
protected:
    static_assert(check_selection<Policy>());

    struct Result {
        std::vector<std::int32_t> ids = std::vector<std::int32_t>(64, 0x7f7f7f7f);
        std::vector<std::uint8_t> must = std::vector<std::uint8_t>(64, 0x7f);
        std::vector<std::int32_t> ranked = std::vector<std::int32_t>(64, 0x7f7f7f7f);
        SelectionOutput out{};
    };

    static Result select(const SelectionInput& in)
    {
        Result r;
        r.out.ids = r.ids;
        r.out.must = r.must;
        r.out.ranked = r.ranked;
        Policy{}.select(in, r.out);
        return r;
    }

    /// A random input with two sinks and two recents; every tenth score is no number.
    SelectionInput input(std::int32_t blocks)
    {
        scores_.assign(std::size_t(blocks), 0.0F);
        for (float& x : scores_) {
            x = float(random_() % 9) - 4.0F;
            if (random_() % 10 == 0) { x = std::numeric_limits<float>::quiet_NaN(); }
            if (random_() % 10 == 0) { x = -std::numeric_limits<float>::infinity(); }
        }
        return {.scores = scores_,
                .first = 5,
                .sink_end = 7,
                .recent_begin = 5 + std::max(blocks - 2, 0),
                .must_blocks = 10,
                .may_blocks = 20,
                .rank_blocks = 30};
    }

    std::mt19937 random_{3};
    std::vector<float> scores_;
};
TYPED_TEST_SUITE_P(SelectionContract);

TYPED_TEST_P(SelectionContract, IdsAreValidAscendingAndPadded)
{
    for (std::int32_t blocks = 0; blocks < 60; ++blocks) {
        const SelectionInput in = this->input(blocks);
        const auto r = this->select(in);
        ASSERT_LE(r.out.count, std::min(blocks, in.may_blocks));
        ASSERT_LE(r.out.must_count, std::min(r.out.count, in.must_blocks));
        std::int32_t musts = 0;
        for (std::int32_t i = 0; i < 64; ++i) {
            const auto k = std::size_t(i);
            if (i >= r.out.count) {
                ASSERT_EQ(r.ids[k], -1);
                continue;
            }
            ASSERT_GE(r.ids[k], in.first);
            ASSERT_LT(r.ids[k], in.first + blocks);
            if (i > 0) { ASSERT_LT(r.ids[k - 1], r.ids[k]); }
            musts += r.must[k] != 0;
        }
        ASSERT_EQ(musts, r.out.must_count);
        for (std::int32_t i = r.out.ranked_count; i < 64; ++i) { ASSERT_EQ(r.ranked[std::size_t(i)], -1); }
    }
}

TYPED_TEST_P(SelectionContract, ForcedBlocksAreInEverySet)
{
    for (std::int32_t blocks = 1; blocks < 60; ++blocks) {
        const SelectionInput in = this->input(blocks);
        const auto r = this->select(in);
        const std::set<std::int32_t> ranked(r.ranked.begin(), r.ranked.begin() + r.out.ranked_count);
        for (std::int32_t b = in.first; b < in.first + blocks; ++b) {
            if (b >= in.sink_end && b < in.recent_begin) { continue; }
            const auto at = std::find(r.ids.begin(), r.ids.begin() + r.out.count, b);
            ASSERT_NE(at, r.ids.begin() + r.out.count) << "block " << b << " of " << blocks;
            ASSERT_TRUE(r.must[std::size_t(at - r.ids.begin())]);
            ASSERT_TRUE(ranked.contains(b));
        }
    }
}

TYPED_TEST_P(SelectionContract, NeverTakesMinusInfinityUnforced)
{
    for (int round = 0; round < 50; ++round) {
        const SelectionInput in = this->input(40);
        const auto r = this->select(in);
        for (std::int32_t i = 0; i < r.out.count; ++i) {
            const std::int32_t b = r.ids[std::size_t(i)];
            if (b >= in.sink_end && b < in.recent_begin) {
                ASSERT_NE(in.scores[std::size_t(b - in.first)], -std::numeric_limits<float>::infinity());
            }
        }
    }
}

TYPED_TEST_P(SelectionContract, SameInputSameSets)
{
    const SelectionInput in = this->input(50);
    const auto first = this->select(in);
    for (int round = 0; round < 10; ++round) {
        const auto again = this->select(in);
        ASSERT_EQ(first.ids, again.ids);
        ASSERT_EQ(std::vector<std::uint8_t>(first.must.begin(), first.must.begin() + first.out.count),
                  std::vector<std::uint8_t>(again.must.begin(), again.must.begin() + again.out.count));
        ASSERT_EQ(first.ranked, again.ranked);
    }
}

REGISTER_TYPED_TEST_SUITE_P(SelectionContract, IdsAreValidAscendingAndPadded, ForcedBlocksAreInEverySet,
                            NeverTakesMinusInfinityUnforced, SameInputSameSets);

} // namespace oasis::contracts
