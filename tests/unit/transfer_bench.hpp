// SPDX-License-Identifier: Apache-2.0
//
// A prefetch engine with threads of its own over a store that can be stopped: `blocks` blocks of one layer and set, block b full of byte b + 1.
#pragma once

#include "faulty_fixture.hpp"

#include <oasis/pool/block_pool.hpp>
#include <oasis/pool/eviction.hpp>
#include <oasis/prefetch/prefetch_engine.hpp>

#include <algorithm>
#include <optional>

namespace oasis::test {

class TransferBench {
public:
    static constexpr std::size_t kUnitBytes = 128;
    using Store = fault::FailingStore<>;
    using Blocks = BlockPool<Store>;
    using Transfers = PrefetchEngine<LruEviction, Blocks>;

    TransferBench(std::int32_t block_count, std::int64_t slot_count, std::int32_t threads, std::int32_t allocated)
        : blocks(block_count, kUnitBytes, std::make_unique<Store>(StoreOptions{kUnitBytes, 1, 1, std::size_t(block_count) * kUnitBytes}, script.faults)),
          slots({kUnitBytes, 1, 1, block_count}, LruEviction{}), engine(std::in_place, slots, blocks, threads)
    {
        slots.set_capacity(slot_count);
        for (std::int32_t b = 0; b < allocated; ++b) { allocate(); }
    }
    ~TransferBench()
    {
        script.gate.open();
        if (engine) {
            engine->finish_all();
            engine->settle();
        }
    }

    std::optional<BlockId> allocate()
    {
        const auto block = blocks.try_allocate([](BlockId) {});
        if (!block) { return block; }
        std::vector<std::byte> bytes(kUnitBytes, value_of(*block));
        EXPECT_TRUE(blocks.store().write({*block, 0, 0, bytes.data()}));
        return block;
    }
    /// As a sequence does that is removed: its slots and its place in the store go, as soon as they can.
    void free(BlockId block)
    {
        blocks.release(block, [&](BlockId id) { slots.drop(unit(id)); });
    }
    static std::byte value_of(BlockId block) { return std::byte(raw(block) % 251 + 1); }
    std::int64_t unit(BlockId block) const { return slots.unit(0, 0, block); }

    std::optional<SlotId> plan(std::int32_t block, TransferKind kind, SequenceId sequence = SequenceId{0})
    {
        return engine->plan(kind, sequence, BlockId{block}, 0, 0, unit(BlockId{block}), ++now);
    }
    /// Books what is over, until `landed` units have landed since the last call.
    std::vector<Settled> wait_landed(std::int64_t landed)
    {
        std::vector<Settled> all;
        while (count(all, TransferOutcome::kLanded) < landed && engine->wait()) {
            const auto settled = engine->settle();
            all.insert(all.end(), settled.begin(), settled.end());
        }
        return all;
    }
    std::vector<Settled> finish()
    {
        std::vector<Settled> all;
        while (engine->wait()) {
            const auto settled = engine->settle();
            all.insert(all.end(), settled.begin(), settled.end());
        }
        return all;
    }
    static std::int64_t count(const std::vector<Settled>& settled, TransferOutcome outcome)
    {
        return std::count_if(settled.begin(), settled.end(), [&](const Settled& s) { return s.outcome == outcome; });
    }
    bool resident(std::int32_t block) const
    {
        const SlotId slot = slots.slot_of(unit(BlockId{block}));
        return slot != SlotId::kNone && slots.landed(slot);
    }
    /// Every resident unit has its own bytes, and the books balance.
    void check()
    {
        slots.check();
        for (std::int32_t b = 0; b < blocks.capacity(); ++b) {
            if (!resident(b)) { continue; }
            const std::vector<std::byte> expected(kUnitBytes, value_of(BlockId{b}));
            ASSERT_EQ(std::memcmp(slots.data(slots.slot_of(unit(BlockId{b}))), expected.data(), kUnitBytes), 0) << "block " << b;
        }
    }

    StoreScript script;
    Blocks blocks;
    SlotTable<LruEviction> slots;
    std::optional<Transfers> engine;
    InlineExecutor here;
    std::uint64_t now = 0;
};

} // namespace oasis::test
