// SPDX-License-Identifier: Apache-2.0
#include <oasis/pool/eviction.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>

namespace oasis {
namespace {

bool any(SlotId) { return true; }

TEST(LruEviction, LeastRecentFirstTiesToTheLowerSlot)
{
    LruEviction lru;
    lru.resize(5);
    for (const std::int32_t i : {3, 1, 4, 0, 2}) { lru.on_insert(SlotId{i}, 1); }
    lru.on_access(SlotId{0}, 2);
    lru.on_access(SlotId{4}, 3);
    lru.on_access(SlotId{1}, 3);
    for (const std::int32_t expected : {2, 3, 0, 1, 4}) {
        const auto victim = lru.victim(any);
        ASSERT_EQ(victim, SlotId{expected});
        lru.on_erase(*victim);
    }
}

TEST(LruEviction, ASlotMayComeInWithAnOldTime)
{
    LruEviction lru;
    lru.resize(3);
    lru.on_insert(SlotId{0}, 10);
    lru.on_insert(SlotId{1}, 20);
    lru.on_insert(SlotId{2}, 5);
    EXPECT_EQ(lru.victim(any), SlotId{2});
    EXPECT_EQ(lru.victim([](SlotId s) { return s != SlotId{2}; }), SlotId{0});
}

TEST(LruEviction, ReadingASlotThatIsNotThereDoesNothing)
{
    LruEviction lru;
    lru.resize(2);
    lru.on_access(SlotId{1}, 4);
    EXPECT_EQ(lru.victim(any), std::nullopt);
}

TEST(LruEviction, AgreesWithASortedModel)
{
    constexpr std::int32_t kSlots = 40;
    LruEviction lru;
    lru.resize(kSlots);
    std::map<std::int32_t, std::uint64_t> model;
    std::mt19937 random(23);
    for (int n = 0; n < 30000; ++n) {
        const std::int32_t i = static_cast<std::int32_t>(random() % kSlots);
        const std::uint64_t now = std::uint64_t(n) / 5 + random() % 3;
        switch (random() % 4) {
        case 0:
            lru.on_insert(SlotId{i}, now);
            model[i] = now;
            break;
        case 1:
            lru.on_access(SlotId{i}, now);
            if (model.contains(i)) { model[i] = now; }
            break;
        case 2:
            lru.on_erase(SlotId{i});
            model.erase(i);
            break;
        default: {
            const std::int32_t rest = static_cast<std::int32_t>(random() % 3);
            std::optional<std::tuple<std::uint64_t, std::int32_t>> oldest;
            for (const auto& [slot, stamp] : model) {
                if (slot % 3 == rest && (!oldest || std::tuple(stamp, slot) < *oldest)) { oldest = {stamp, slot}; }
            }
            const auto victim = lru.victim([&](SlotId s) { return raw(s) % 3 == rest; });
            ASSERT_EQ(victim.has_value(), oldest.has_value());
            if (victim) { ASSERT_EQ(raw(*victim), std::get<1>(*oldest)); }
        }
        }
    }
}

TEST(ClockEviction, GivesReadSlotsASecondChance)
{
    ClockEviction clock;
    clock.resize(3);
    for (const std::int32_t i : {0, 1, 2}) { clock.on_insert(SlotId{i}, 1); }
    ASSERT_EQ(clock.victim(any), SlotId{0}) << "all marked: the first pass clears, the second takes";
    clock.on_access(SlotId{1}, 2);
    EXPECT_EQ(clock.victim(any), SlotId{2});
}

template <class Policy> class EvictionCases : public testing::Test {
};
using Stock = testing::Types<LruEviction, ClockEviction>;
TYPED_TEST_SUITE(EvictionCases, Stock);

TYPED_TEST(EvictionCases, POOL_15_MetadataIsOfTheCapacityNotOfTheHistory)
{
    constexpr std::int32_t kSlots = 4096;
    TypeParam policy;
    policy.resize(kSlots);
    const std::size_t before = policy.metadata_bytes();
    EXPECT_LE(before, std::size_t{kSlots} * 32);
    std::mt19937 random(3);
    for (std::uint64_t n = 0; n < 1000000; ++n) {
        const SlotId slot{static_cast<std::int32_t>(random() % kSlots)};
        if (n % 3 == 2) {
            if (const auto victim = policy.victim(any)) { policy.on_erase(*victim); }
        } else {
            policy.on_insert(slot, n);
        }
    }
    EXPECT_EQ(policy.metadata_bytes(), before);
}

TYPED_TEST(EvictionCases, SlotOutsideIsRefusedByName)
{
    TypeParam policy;
    policy.resize(8);
    try {
        policy.on_insert(SlotId{8}, 1);
        FAIL() << "slot 8 of 8 was taken";
    } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("slot 8 is not one of 8"), std::string::npos) << error.what();
    }
    EXPECT_THROW(policy.on_erase(SlotId::kNone), InvalidArgument);
}

} // namespace
} // namespace oasis
