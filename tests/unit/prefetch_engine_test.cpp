// SPDX-License-Identifier: Apache-2.0
//
// Transfers: what lands, what is stale, what failed. A slot holds a unit only after a copy that arrived in its own
// generation.
#include "fault/failing_store.hpp"

#include <oasis/pool/block_pool.hpp>
#include <oasis/pool/eviction.hpp>
#include <oasis/prefetch/prefetch_engine.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace oasis::test {
namespace {

constexpr std::size_t kUnitBytes = 256;
constexpr std::int32_t kBlocks = 8;

/// A store with blocks 0..7 of one layer and set, block b full of byte b + 1, and a slot table of 3 slots.
class PrefetchEngineTest : public testing::Test {
protected:
    using Store = fault::FailingStore<>;
    using Blocks = BlockPool<Store>;

    PrefetchEngineTest()
    {
        const auto no_drop = [](BlockId) {};
        for (std::int32_t b = 0; b < kBlocks; ++b) {
            EXPECT_EQ(blocks.try_allocate(no_drop), BlockId{b});
            std::vector<std::byte> bytes(kUnitBytes, std::byte(b + 1));
            EXPECT_TRUE(blocks.store().write({BlockId{b}, 0, 0, bytes.data()}));
        }
        slots.set_capacity(3);
    }
    ~PrefetchEngineTest() override
    {
        engine->finish_all();
        engine->settle();
        slots.check();
    }

    std::optional<SlotId> plan(std::int32_t block, TransferKind kind = TransferKind::kDemand)
    {
        return engine->plan(kind, SequenceId{0}, BlockId{block}, 0, 0, unit(block), ++now);
    }
    /// Starts what is planned and waits for all of it.
    std::span<const Settled> run()
    {
        engine->start(Queue(here));
        return engine->settle();
    }
    static std::int64_t count(std::span<const Settled> settled, TransferOutcome outcome)
    {
        return std::count_if(settled.begin(), settled.end(), [&](const Settled& s) { return s.outcome == outcome; });
    }
    std::int64_t unit(std::int32_t block) const { return slots.unit(0, 0, BlockId{block}); }
    bool holds(std::int32_t block) const
    {
        const SlotId slot = slots.slot_of(unit(block));
        if (slot == SlotId::kNone || !slots.landed(slot)) { return false; }
        const std::vector<std::byte> expected(kUnitBytes, std::byte(block + 1));
        return std::memcmp(slots.data(slot), expected.data(), kUnitBytes) == 0;
    }

    std::shared_ptr<fault::StoreFaults> faults = std::make_shared<fault::StoreFaults>();
    Blocks blocks{kBlocks, kUnitBytes, std::make_unique<Store>(StoreOptions{kUnitBytes, 1, 1, kBlocks* kUnitBytes}, faults)};
    SlotTable<LruEviction> slots{{kUnitBytes, 1, 1, kBlocks}, LruEviction{}};
    std::optional<PrefetchEngine<LruEviction, Blocks>> engine{std::in_place, slots, blocks};
    InlineExecutor here;
    std::uint64_t now = 0;
};

TEST_F(PrefetchEngineTest, PlannedUnitsLandWithTheirBytes)
{
    ASSERT_TRUE(plan(4) && plan(2));
    EXPECT_EQ(engine->planned().size(), 2U);
    EXPECT_EQ(slots.counts().in_flight, 2);
    EXPECT_FALSE(holds(4)); // nobody reads what has not arrived
    EXPECT_EQ(count(run(), TransferOutcome::kLanded), 2);
    EXPECT_TRUE(holds(4) && holds(2));
    EXPECT_TRUE(engine->planned().empty());
    EXPECT_EQ(slots.counts().in_flight, 0);
}

TEST_F(PrefetchEngineTest, AFailedReadIsAMissAndNeverData)
{
    faults->when = [](fault::StoreOperation op, const StorePiece& piece) {
        return op == fault::StoreOperation::kRead && raw(piece.block) == 5;
    };
    ASSERT_TRUE(plan(5) && plan(6));
    const auto settled = run();
    ASSERT_EQ(settled.size(), 2U);
    EXPECT_EQ(raw(settled[0].transfer.piece.block), 5);
    EXPECT_EQ(settled[0].outcome, TransferOutcome::kFailed);
    EXPECT_EQ(settled[1].outcome, TransferOutcome::kLanded);
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
    const auto settled = run();
    EXPECT_EQ(count(settled, TransferOutcome::kStale), 1);
    EXPECT_EQ(count(settled, TransferOutcome::kLanded), 0);
    EXPECT_TRUE(holds(7));
    EXPECT_EQ(slots.slot_of(unit(1)), SlotId::kNone);
}

TEST_F(PrefetchEngineTest, CancelledPlansLeaveNoTrace)
{
    ASSERT_TRUE(plan(0) && plan(1));
    engine->abandon_planned();
    EXPECT_TRUE(engine->planned().empty());
    EXPECT_EQ(slots.counts().free, 3);
    EXPECT_TRUE(run().empty());
    EXPECT_FALSE(holds(0) || holds(1));
}

TEST_F(PrefetchEngineTest, LogicalPinnedAndFlyingUnitsAreNoVictims)
{
    ASSERT_TRUE(plan(0) && plan(1));
    run();
    slots.add_logical(unit(0));
    slots.pin(slots.slot_of(unit(1)), ++now);
    ASSERT_TRUE(plan(2)); // the last free slot, in flight
    EXPECT_FALSE(plan(3));
    const NoVictim why = slots.no_victim();
    EXPECT_EQ(why.capacity, 3);
    EXPECT_EQ(why.logical, 1);
    EXPECT_EQ(why.pinned, 1);
    EXPECT_EQ(why.in_flight, 1);
    run();
    ASSERT_TRUE(plan(3)); // takes the place of 2, the only one that may go
    run();
    EXPECT_TRUE(holds(0) && holds(1) && holds(3));
    EXPECT_FALSE(holds(2));
    slots.unpin(slots.slot_of(unit(1)));
}

TEST_F(PrefetchEngineTest, WhatIsExpectedNextIsAVictimOfDemandAlone)
{
    slots.begin_step(1);
    ASSERT_TRUE(plan(0) && plan(1) && plan(2));
    run();
    for (const std::int32_t block : {0, 1, 2}) { slots.guard(slots.slot_of(unit(block)), ++now); }
    EXPECT_FALSE(plan(3, TransferKind::kPrefetch));
    slots.begin_step(2); // the step it was expected in
    EXPECT_FALSE(plan(3, TransferKind::kPrefetch));
    ASSERT_TRUE(plan(3));
    run();
    EXPECT_TRUE(holds(3) && holds(1) && holds(2));
    slots.begin_step(3);
    ASSERT_TRUE(plan(4, TransferKind::kPrefetch));
    run();
    EXPECT_TRUE(holds(4));
}

/// The same with threads, and a store whose reads wait for a word.
class BackgroundEngineTest : public PrefetchEngineTest {
protected:
    BackgroundEngineTest()
    {
        faults->when = [this](fault::StoreOperation op, const StorePiece& piece) {
            if (op != fault::StoreOperation::kRead) { return false; }
            std::unique_lock lock(mutex);
            begun.push_back(raw(piece.block));
            changed.notify_all();
            changed.wait(lock, [&] { return open; });
            return false;
        };
    }
    ~BackgroundEngineTest() override { let_go(); }

    void use_threads(std::int32_t threads) { engine.emplace(slots, blocks, threads); }
    void let_go()
    {
        const std::scoped_lock lock(mutex);
        open = true;
        changed.notify_all();
    }
    void wait_begun(std::size_t transfers)
    {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return begun.size() >= transfers; });
    }
    std::vector<Settled> finish()
    {
        let_go();
        std::vector<Settled> all;
        while (engine->wait()) {
            const auto settled = engine->settle();
            all.insert(all.end(), settled.begin(), settled.end());
        }
        return all;
    }

    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    std::vector<std::int32_t> begun;
};

TEST_F(BackgroundEngineTest, StartReturnsAndWaitSeesTheEnd)
{
    use_threads(1);
    ASSERT_TRUE(plan(4) && plan(2));
    engine->start(Queue(here));
    wait_begun(1);
    EXPECT_TRUE(engine->settle().empty());
    EXPECT_EQ(slots.counts().in_flight, 2);
    EXPECT_FALSE(engine->wait(Transfer::Clock::now() + std::chrono::milliseconds(1)));
    EXPECT_EQ(count(finish(), TransferOutcome::kLanded), 2);
    EXPECT_TRUE(holds(4) && holds(2));
}

TEST_F(BackgroundEngineTest, DemandGoesBeforeGuessesAndAWantedGuessIsDemand)
{
    use_threads(1);
    ASSERT_TRUE(plan(0, TransferKind::kPrefetch));
    engine->start(Queue(here));
    wait_begun(1);
    ASSERT_TRUE(plan(1, TransferKind::kPrefetch));
    const auto wanted = plan(2, TransferKind::kPrefetch);
    ASSERT_TRUE(wanted);
    engine->start(Queue(here));
    engine->promote(*wanted);
    finish();
    EXPECT_EQ(begun, (std::vector<std::int32_t>{0, 2, 1}));
}

TEST_F(BackgroundEngineTest, ADroppedUnitsSlotIsNobodysUntilItsTransferIsOver)
{
    use_threads(2);
    ASSERT_TRUE(plan(0, TransferKind::kDemand));
    engine->start(Queue(here));
    wait_begun(1);
    const SlotId slot = slots.slot_of(unit(0));
    ASSERT_TRUE(slots.drop(unit(0)));
    blocks.release(BlockId{0}, [](BlockId) {});
    EXPECT_EQ(engine->cancel_dropped(), 0); // it has begun
    EXPECT_EQ(slots.draining(), 1);
    EXPECT_EQ(blocks.leaving(), 1);
    EXPECT_EQ(blocks.store().bytes_used(), kBlocks * kUnitBytes); // its place is kept
    ASSERT_TRUE(plan(1) && plan(2));
    EXPECT_NE(slots.slot_of(unit(1)), slot);
    EXPECT_NE(slots.slot_of(unit(2)), slot);
    engine->start(Queue(here));
    const auto settled = finish();
    EXPECT_EQ(count(settled, TransferOutcome::kStale), 1);
    EXPECT_EQ(slots.draining(), 0);
    EXPECT_EQ(blocks.leaving(), 0);
    EXPECT_EQ(blocks.store().bytes_used(), (kBlocks - 1) * kUnitBytes);
    EXPECT_EQ(slots.counts().free, 1);
}

TEST_F(BackgroundEngineTest, DemandTakesThePlaceOfGuessesThatHaveNotBegun)
{
    use_threads(1);
    ASSERT_TRUE(plan(0, TransferKind::kPrefetch) && plan(1, TransferKind::kPrefetch) && plan(2, TransferKind::kPrefetch));
    engine->start(Queue(here));
    wait_begun(1);
    ASSERT_TRUE(plan(5) && plan(6)); // the slots of 2 and 1
    EXPECT_EQ(slots.slot_of(unit(1)), SlotId::kNone);
    EXPECT_EQ(slots.slot_of(unit(2)), SlotId::kNone);
    engine->start(Queue(here));
    finish();
    EXPECT_TRUE(holds(0) && holds(5) && holds(6));
}

TEST_F(BackgroundEngineTest, OverdueGuessesAreGivenUp)
{
    use_threads(1);
    engine->begin_step(1);
    ASSERT_TRUE(plan(0, TransferKind::kPrefetch) && plan(1, TransferKind::kPrefetch));
    engine->start(Queue(here));
    wait_begun(1);
    EXPECT_EQ(engine->cancel_overdue(SequenceId{0}, 0), 0); // their step has not come
    engine->begin_step(2);
    EXPECT_EQ(engine->cancel_overdue(SequenceId{1}, 0), 0);
    EXPECT_EQ(engine->cancel_overdue(SequenceId{0}, 0), 1); // 0 has begun
    EXPECT_EQ(slots.counts().free, 2);
    finish();
    EXPECT_TRUE(holds(0));
}

} // namespace
} // namespace oasis::test
