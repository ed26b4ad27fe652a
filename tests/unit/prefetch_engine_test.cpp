// SPDX-License-Identifier: Apache-2.0
//
// Transfers: what lands, what is stale, what failed. A slot holds a unit only after a copy that arrived in its own
// generation.
#include "fault/failing_store.hpp"

#include <oasis/pool/eviction.hpp>
#include <oasis/prefetch/prefetch_engine.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

namespace oasis::test {
namespace {

constexpr std::size_t kUnitBytes = 256;
constexpr std::int32_t kBlocks = 8;

/// A store with blocks 0..7 of one layer and set, block b full of byte b + 1, and a slot table of 3 slots.
class PrefetchEngineTest : public testing::Test {
protected:
    using Store = fault::FailingStore<>;

    PrefetchEngineTest()
    {
        for (std::int32_t b = 0; b < kBlocks; ++b) {
            EXPECT_TRUE(store.reserve(BlockId{b}));
            std::vector<std::byte> bytes(kUnitBytes, std::byte(b + 1));
            EXPECT_TRUE(store.write({BlockId{b}, 0, 0, bytes.data()}));
        }
        slots.set_capacity(3);
    }
    ~PrefetchEngineTest() override { slots.check(); }

    std::optional<SlotId> plan(std::int32_t block) { return engine.plan(BlockId{block}, 0, 0, unit(block), ++now); }
    std::int64_t unit(std::int32_t block) const { return slots.unit(0, 0, BlockId{block}); }
    bool holds(std::int32_t block) const
    {
        const SlotId slot = slots.slot_of(unit(block));
        if (slot == SlotId::kNone || !slots.landed(slot)) { return false; }
        const std::vector<std::byte> expected(kUnitBytes, std::byte(block + 1));
        return std::memcmp(slots.data(slot), expected.data(), kUnitBytes) == 0;
    }

    std::shared_ptr<fault::StoreFaults> faults = std::make_shared<fault::StoreFaults>();
    Store store{StoreOptions{kUnitBytes, 1, 1, kBlocks* kUnitBytes}, faults};
    SlotTable<LruEviction> slots{{kUnitBytes, 1, 1, kBlocks}, LruEviction{}};
    PrefetchEngine<LruEviction, Store> engine{slots, store};
    InlineExecutor here;
    std::uint64_t now = 0;
};

TEST_F(PrefetchEngineTest, PlannedUnitsLandWithTheirBytes)
{
    ASSERT_TRUE(plan(4) && plan(2));
    EXPECT_EQ(engine.plan().count, 2);
    EXPECT_EQ(slots.counts().in_flight, 2);
    EXPECT_FALSE(holds(4)); // nobody reads what has not arrived
    const TransferResult result = engine.run(Queue(here));
    EXPECT_EQ(result.landed, 2);
    EXPECT_EQ(result.bytes, 2 * kUnitBytes);
    EXPECT_TRUE(holds(4) && holds(2));
    EXPECT_EQ(engine.plan().count, 0);
    EXPECT_EQ(slots.counts().in_flight, 0);
}

TEST_F(PrefetchEngineTest, AFailedReadIsAMissAndNeverData)
{
    faults->when = [](fault::StoreOperation op, const StorePiece& piece) {
        return op == fault::StoreOperation::kRead && raw(piece.block) == 5;
    };
    ASSERT_TRUE(plan(5) && plan(6));
    const TransferResult result = engine.run(Queue(here));
    ASSERT_EQ(result.failed.size(), 1U);
    EXPECT_EQ(raw(result.failed[0].block), 5);
    EXPECT_EQ(result.landed, 1);
    EXPECT_EQ(result.bytes, kUnitBytes);
    EXPECT_EQ(slots.slot_of(unit(5)), SlotId::kNone);
    EXPECT_TRUE(holds(6));
    EXPECT_EQ(slots.counts().free, 2);
}

TEST_F(PrefetchEngineTest, AStaleTransferIsNotConsumed)
{
    const auto slot = plan(1);
    ASSERT_TRUE(slot);
    slots.abandon(*slot); // the slot changes hands before the copy is made
    const auto other = slots.try_acquire(unit(7), ++now);
    ASSERT_EQ(other, slot);
    ASSERT_TRUE(slots.land(*other, slots.generation(*other)));
    std::memset(slots.data(*other), 8, kUnitBytes);
    const TransferResult result = engine.run(Queue(here));
    EXPECT_EQ(result.stale, 1);
    EXPECT_EQ(result.landed, 0);
    EXPECT_EQ(result.bytes, 0U);
    EXPECT_TRUE(holds(7));
    EXPECT_EQ(slots.slot_of(unit(1)), SlotId::kNone);
}

TEST_F(PrefetchEngineTest, CancelledPlansLeaveNoTrace)
{
    ASSERT_TRUE(plan(0) && plan(1));
    engine.cancel();
    EXPECT_EQ(engine.plan().count, 0);
    EXPECT_EQ(slots.counts().free, 3);
    EXPECT_EQ(engine.run(Queue(here)).landed, 0);
    EXPECT_FALSE(holds(0) || holds(1));
}

TEST_F(PrefetchEngineTest, LogicalPinnedAndFlyingUnitsAreNoVictims)
{
    ASSERT_TRUE(plan(0) && plan(1));
    engine.run(Queue(here));
    slots.add_logical(unit(0));
    slots.pin(slots.slot_of(unit(1)), ++now);
    ASSERT_TRUE(plan(2)); // the last free slot, in flight
    EXPECT_FALSE(plan(3));
    const NoVictim why = slots.no_victim();
    EXPECT_EQ(why.capacity, 3);
    EXPECT_EQ(why.logical, 1);
    EXPECT_EQ(why.pinned, 1);
    EXPECT_EQ(why.in_flight, 1);
    engine.run(Queue(here));
    ASSERT_TRUE(plan(3)); // takes the place of 2, the only one that may go
    engine.run(Queue(here));
    EXPECT_TRUE(holds(0) && holds(1) && holds(3));
    EXPECT_FALSE(holds(2));
    slots.unpin(slots.slot_of(unit(1)));
}

} // namespace
} // namespace oasis::test
