// SPDX-License-Identifier: Apache-2.0
//
// The laws of an eviction policy. For one of your own:
//     INSTANTIATE_TYPED_TEST_SUITE_P(Mine, EvictionContract, MyEviction);
#pragma once

#include <oasis/core/check.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>

namespace oasis::contracts {

template <class Policy> class EvictionContract : public testing::Test {
protected:
    static_assert(check_eviction<Policy>());
    static SlotId slot(std::int32_t i) { return SlotId{i}; }
    static bool any(SlotId) { return true; }
};
TYPED_TEST_SUITE_P(EvictionContract);

TYPED_TEST_P(EvictionContract, NothingThereNoVictim)
{
    TypeParam policy{};
    EXPECT_EQ(policy.victim(this->any), std::nullopt);
    policy.resize(4);
    EXPECT_EQ(policy.victim(this->any), std::nullopt);
    policy.on_insert(this->slot(2), 1);
    policy.on_erase(this->slot(2));
    EXPECT_EQ(policy.victim(this->any), std::nullopt);
}

TYPED_TEST_P(EvictionContract, FindsTheOnlySlotThatMayBeTaken)
{
    TypeParam policy{};
    policy.resize(32);
    for (std::int32_t i = 0; i < 32; ++i) { policy.on_insert(this->slot(i), 1); }
    for (std::int32_t wanted = 0; wanted < 32; ++wanted) {
        policy.on_access(this->slot(wanted), 2);
        EXPECT_EQ(policy.victim([&](SlotId s) { return s == this->slot(wanted); }), this->slot(wanted));
    }
    EXPECT_EQ(policy.victim([](SlotId) { return false; }), std::nullopt);
}

TYPED_TEST_P(EvictionContract, VictimStaysUntilErased)
{
    TypeParam policy{};
    policy.resize(8);
    policy.on_insert(this->slot(5), 1);
    for (int i = 0; i < 4; ++i) { EXPECT_EQ(policy.victim(this->any), this->slot(5)); }
}

TYPED_TEST_P(EvictionContract, DrainsEverySlotOnce)
{
    TypeParam policy{};
    policy.resize(100);
    for (std::int32_t i = 0; i < 100; ++i) { policy.on_insert(this->slot(i), std::uint64_t(i % 7)); }
    std::set<std::int32_t> seen;
    while (const auto victim = policy.victim(this->any)) {
        EXPECT_TRUE(seen.insert(raw(*victim)).second) << raw(*victim);
        policy.on_erase(*victim);
        ASSERT_LE(seen.size(), 100U);
    }
    EXPECT_EQ(seen.size(), 100U);
}

TYPED_TEST_P(EvictionContract, KeepsWhatItHoldsWhenResized)
{
    TypeParam policy{};
    policy.resize(4);
    policy.on_insert(this->slot(1), 1);
    policy.on_insert(this->slot(3), 2);
    policy.resize(64);
    policy.on_insert(this->slot(63), 3);
    std::set<std::int32_t> seen;
    while (const auto victim = policy.victim(this->any)) {
        seen.insert(raw(*victim));
        policy.on_erase(*victim);
    }
    EXPECT_EQ(seen, (std::set<std::int32_t>{1, 3, 63}));
}

TYPED_TEST_P(EvictionContract, AgreesWithASetUnderRandomUse)
{
    constexpr std::int32_t kSlots = 48;
    TypeParam policy{};
    TypeParam twin{};
    policy.resize(kSlots);
    twin.resize(kSlots);
    std::set<std::int32_t> present;
    std::mt19937 random(7);
    for (std::uint64_t now = 1; now < 20000; ++now) {
        const std::int32_t i = static_cast<std::int32_t>(random() % kSlots);
        const std::uint32_t odd = random() % 2;
        const auto may_take = [&](SlotId s) { return std::uint32_t(raw(s)) % 2 == odd; };
        switch (random() % 4) {
        case 0:
            if (present.insert(i).second) {
                policy.on_insert(this->slot(i), now / 3), twin.on_insert(this->slot(i), now / 3);
            }
            break;
        case 1:
            if (present.contains(i)) {
                policy.on_access(this->slot(i), now / 3), twin.on_access(this->slot(i), now / 3);
            }
            break;
        case 2:
            if (present.erase(i) != 0) { policy.on_erase(this->slot(i)), twin.on_erase(this->slot(i)); }
            break;
        default: {
            const auto victim = policy.victim(may_take);
            ASSERT_EQ(victim, twin.victim(may_take)) << "the same history must give the same victim";
            bool possible = false;
            for (const std::int32_t p : present) { possible = possible || may_take(this->slot(p)); }
            ASSERT_EQ(victim.has_value(), possible);
            if (victim) { ASSERT_TRUE(present.contains(raw(*victim)) && may_take(*victim)) << raw(*victim); }
        }
        }
    }
}

REGISTER_TYPED_TEST_SUITE_P(EvictionContract, NothingThereNoVictim, FindsTheOnlySlotThatMayBeTaken,
                            VictimStaysUntilErased, DrainsEverySlotOnce, KeepsWhatItHoldsWhenResized,
                            AgreesWithASetUnderRandomUse);

} // namespace oasis::contracts
