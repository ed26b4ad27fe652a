// SPDX-License-Identifier: Apache-2.0
//
// The laws of a lookahead policy. A guess may be wrong, so they ask for little: bounds, memory and repeatability. For
// one of your own:
//     INSTANTIATE_TYPED_TEST_SUITE_P(Mine, LookaheadContract, MyLookahead);
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/lookahead/lookahead_predictor.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

namespace oasis::contracts {

/// Makes the policy under test: from `LookaheadOptions` where it takes them, else by default.
template <class Policy> struct LookaheadFactory {
    static Policy make(const LookaheadOptions& options)
    {
        if constexpr (std::is_constructible_v<Policy, const LookaheadOptions&>) {
            return Policy(options);
        } else {
            return Policy{};
        }
    }
};

template <class Policy> class LookaheadContract : public testing::Test {
protected:
    static_assert(check_lookahead<Policy>());
    static constexpr std::int32_t kLayers = 2;
    static constexpr std::int32_t kSets = 3;
    static constexpr std::int32_t kMust = 16;
    static constexpr std::int32_t kGuard = -77;

    Policy make() { return LookaheadFactory<Policy>::make({kLayers, kSets, kMust}); }

    /// A guess of at most `room` blocks; fails when anything beyond it was written.
    std::vector<std::int32_t> guess(Policy& policy, SequenceId sequence, LayerId layer, std::int32_t set,
                                    std::size_t room)
    {
        std::vector<std::int32_t> out(room + 8, kGuard);
        const std::size_t n = policy.predict(sequence, layer, set, std::span(out).first(room));
        EXPECT_LE(n, room);
        for (std::size_t i = room; i < out.size(); ++i) { EXPECT_EQ(out[i], kGuard) << "wrote beyond its room"; }
        out.resize(n < room ? n : room);
        return out;
    }

    static std::vector<std::int32_t> must_set(std::mt19937& random)
    {
        std::vector<std::int32_t> blocks;
        for (std::int32_t b = 0; b < 64 && std::int32_t(blocks.size()) < kMust; ++b) {
            if (random() % 3 == 0) { blocks.push_back(b); }
        }
        return blocks;
    }
};
TYPED_TEST_SUITE_P(LookaheadContract);

TYPED_TEST_P(LookaheadContract, KnowsNothingOfSequencesItNeverSaw)
{
    TypeParam policy = this->make();
    EXPECT_TRUE(this->guess(policy, SequenceId{4}, 0, 0, 16).empty());
    policy.accepted(SequenceId{4}, 3);
    policy.accepted(SequenceId{4}, 0);
    EXPECT_TRUE(this->guess(policy, SequenceId{4}, 0, 0, 16).empty());
    policy.copy(SequenceId{4}, SequenceId{5});
    EXPECT_TRUE(this->guess(policy, SequenceId{5}, 0, 0, 16).empty());
    policy.forget(SequenceId{4});
}

TYPED_TEST_P(LookaheadContract, ForgetsRemovedSequences)
{
    TypeParam policy = this->make();
    const std::vector<std::int32_t> must{1, 2, 3};
    policy.observe_row(SequenceId{1}, 0, 0, 0, must, false);
    policy.observe_row(SequenceId{2}, 0, 0, 0, must, true);
    policy.copy(SequenceId{1}, SequenceId{3});
    policy.accepted(SequenceId{1}, 1);
    for (const std::int64_t id : {1, 2, 3}) { policy.forget(SequenceId{id}); }
    for (const std::int64_t id : {1, 2, 3}) {
        EXPECT_TRUE(this->guess(policy, SequenceId{id}, 0, 0, 16).empty()) << id;
    }
}

TYPED_TEST_P(LookaheadContract, StaysInTheRoomItIsGiven)
{
    TypeParam policy = this->make();
    std::mt19937 random(3);
    for (int n = 0; n < 200; ++n) {
        const LayerId layer = static_cast<LayerId>(random() % this->kLayers);
        const std::int32_t set = static_cast<std::int32_t>(random() % this->kSets);
        if (n % 10 == 0) { policy.accepted(SequenceId{5}, n / 10 % 3); }
        policy.observe_row(SequenceId{5}, layer, set, n % 10, this->must_set(random), n % 10 > 7);
        for (const std::size_t room : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{200}}) {
            this->guess(policy, SequenceId{5}, layer, set, room);
        }
    }
}

TYPED_TEST_P(LookaheadContract, TakesEmptyAndOversizedSets)
{
    TypeParam policy = this->make();
    policy.observe_row(SequenceId{1}, 0, 0, 0, {}, false);
    this->guess(policy, SequenceId{1}, 0, 0, 16);
    std::vector<std::int32_t> many(1000);
    for (std::size_t i = 0; i < many.size(); ++i) { many[i] = static_cast<std::int32_t>(i); }
    policy.observe_row(SequenceId{1}, 0, 0, 1, many, false);
    policy.observe_row(SequenceId{1}, 0, 0, 2, many, true);
    this->guess(policy, SequenceId{1}, 0, 0, 2000);
    policy.accepted(SequenceId{1}, 2);
    this->guess(policy, SequenceId{1}, 0, 0, 2000);
}

TYPED_TEST_P(LookaheadContract, TakesStepsThatAreRolledBackOrObserveNothing)
{
    TypeParam policy = this->make();
    const std::vector<std::int32_t> must{1, 2, 3};
    for (std::int32_t rows = 0; rows <= kMaxVerifyRows; ++rows) {
        policy.observe_row(SequenceId{1}, 1, 2, 0, must, false);
        policy.accepted(SequenceId{1}, 0);
        policy.accepted(SequenceId{1}, rows);
        this->guess(policy, SequenceId{1}, 1, 2, 16);
        this->guess(policy, SequenceId{1}, 0, 0, 16);
    }
}

TYPED_TEST_P(LookaheadContract, AForkAndItsParentAreApart)
{
    TypeParam policy = this->make();
    TypeParam alone = this->make();
    std::mt19937 random(9);
    for (std::int32_t step = 0; step < 40; ++step) {
        const auto must = this->must_set(random);
        for (TypeParam* p : {&policy, &alone}) {
            p->observe_row(SequenceId{1}, 0, 0, 0, must, false);
            p->accepted(SequenceId{1}, 1);
        }
        // Copied twice, used, and forgotten: the parent does not notice.
        policy.copy(SequenceId{1}, SequenceId{2});
        policy.copy(SequenceId{1}, SequenceId{2});
        policy.observe_row(SequenceId{2}, 0, 0, 0, this->must_set(random), false);
        policy.accepted(SequenceId{2}, 0);
        policy.forget(SequenceId{2});
        ASSERT_EQ(this->guess(policy, SequenceId{1}, 0, 0, 12), this->guess(alone, SequenceId{1}, 0, 0, 12));
    }
}

TYPED_TEST_P(LookaheadContract, TheSameHistoryGivesTheSameGuess)
{
    TypeParam one = this->make();
    TypeParam two = this->make();
    std::mt19937 random(5);
    for (int n = 0; n < 300; ++n) {
        const SequenceId sequence{static_cast<std::int64_t>(random() % 4)};
        const LayerId layer = static_cast<LayerId>(random() % this->kLayers);
        const std::int32_t set = static_cast<std::int32_t>(random() % this->kSets);
        const auto must = this->must_set(random);
        const bool lookahead = random() % 3 == 0;
        const std::int32_t row = static_cast<std::int32_t>(random() % 10);
        const std::int32_t rows = static_cast<std::int32_t>(random() % 9);
        const SequenceId child{static_cast<std::int64_t>(random() % 4)};
        for (TypeParam* policy : {&one, &two}) {
            policy->observe_row(sequence, layer, set, row, must, lookahead);
            if (n % 5 == 0) { policy->accepted(sequence, rows); }
            if (n % 11 == 0 && child != sequence) { policy->copy(sequence, child); }
        }
        ASSERT_EQ(this->guess(one, sequence, layer, set, 12), this->guess(two, sequence, layer, set, 12));
        if (random() % 16 == 0) { one.forget(sequence), two.forget(sequence); }
    }
}

REGISTER_TYPED_TEST_SUITE_P(LookaheadContract, KnowsNothingOfSequencesItNeverSaw, ForgetsRemovedSequences,
                            StaysInTheRoomItIsGiven, TakesEmptyAndOversizedSets,
                            TakesStepsThatAreRolledBackOrObserveNothing, AForkAndItsParentAreApart,
                            TheSameHistoryGivesTheSameGuess);

} // namespace oasis::contracts
