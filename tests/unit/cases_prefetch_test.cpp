// SPDX-License-Identifier: Apache-2.0
//
// Cases of transfers in the background: what is demoted, cancelled, refused.

#include "background_cases.hpp"
#include "transfer_bench.hpp"

#include <algorithm>
#include <future>
#include <map>
#include <tuple>

namespace oasis::test {
namespace {

/// K and V as the store gets them are what a copy made at once would be: in the write itself, however late, and afterwards.
TEST(PrefetchCases, PREF_01_WhatIsDemotedIsWhatWasAppended)
{
    CacheConfig c = small_config();
    c.shape = {.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 32};
    c.limits = {.max_sequences = 1, .max_rows = 512, .max_context = 2048};
    c.share_prefixes = false;
    constexpr std::size_t kFloats = 16 * 32;
    std::mutex mutex;
    std::map<BlockId, std::pair<std::uint64_t, TokenIndex>> owners; // block: stream and position
    std::atomic<std::int64_t> compared{0};
    const auto expect_unit = [&](const StorePiece& piece, const char* when) {
        std::uint64_t stream = 0;
        TokenIndex first = 0;
        {
            const std::scoped_lock lock(mutex);
            std::tie(stream, first) = owners.at(piece.block);
        }
        std::vector<float> expected(2 * kFloats);
        for (TokenIndex t = 0; t < 16; ++t) {
            fill_vector(stream, Kind::kK, piece.layer, piece.set, first + t, {expected.data() + t * 32, 32});
            fill_vector(stream, Kind::kV, piece.layer, piece.set, first + t, {expected.data() + kFloats + t * 32, 32});
        }
        EXPECT_EQ(std::memcmp(piece.data, expected.data(), expected.size() * sizeof(float)), 0) << when << ": block " << raw(piece.block) << " set " << piece.set;
        ++compared;
    };
    FaultyCache f(c, {}, 4);
    f.script.set_rule([&](StoreOperation op, const StorePiece& piece) {
        if (op != StoreOperation::kWrite) { return false; }
        if (raw(piece.block) % 8 == 0) { std::this_thread::sleep_for(std::chrono::microseconds(100)); }
        expect_unit(piece, "write");
        return false;
    });
    std::vector<std::byte> bytes(f.cache.pool().shape().unit_bytes);
    for (std::uint64_t stream = 1; compared < 20'000; ++stream) { // 10,000 units, each compared twice
        const SequenceId id = f.cache.create({}).id;
        f.take_in(id, stream, 2000, 400, [&] {
            const std::scoped_lock lock(mutex);
            const auto& blocks = f.cache.pool().find(id)->blocks;
            for (std::size_t j = 0; j < blocks.size(); ++j) { owners[blocks[j]] = {stream, TokenIndex(j) * 16}; }
        });
        for (const BlockId block : f.cache.pool().find(id)->blocks) {
            if (!f.cache.pool().blocks()[block].sealed) { continue; }
            for (std::int32_t set = 0; set < 2; ++set) {
                const StorePiece piece{block, 0, set, bytes.data()};
                ASSERT_TRUE(f.ram->read(piece));
                expect_unit(piece, "afterwards");
            }
        }
        f.cache.remove(id);
        ASSERT_FALSE(testing::Test::HasFailure());
    }
}

/// The same the other way: what background reads bring while steps append, seal and read is what the slow tier has.
TEST(PrefetchCases, PREF_01_WhatIsPromotedIsWhatWasDemoted)
{
    CacheConfig c = in_background();
    FaultyCache f(c, {}, 2);
    f.script.read_delay_us = 100;
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 500);
    for (std::uint64_t i = 0; i < 60; ++i) {
        f.engine.step({{{.sequence = id, .verify_rows = 4, .lookahead_rows = 1}, {1, 60 + i, 61 + i, 62 + i, 1}, 1 + std::int32_t(i % 4), {}}});
        f.expect_bytes("step " + std::to_string(i));
    }
    f.quiesce();
    f.expect_bytes("all over");
    EXPECT_GT(f.cache.stats().counters.prefetched_bytes, 0U);
}

TEST(PrefetchCases, PREF_05_CancelWhileThePrefetchIsInFlight)
{
    CacheConfig c = in_background();
    c.miss = MissPolicy::kResidentOnly;
    c.limits.max_sequences = 2;
    c.prefetch_cap = 31 * 16;
    c.slow_bytes = 48 * 16 * footprint(c).slow_bytes_per_token;
    FaultyCache f(c);
    const SequenceId a = f.cache.create({}).id;
    f.engine.prefill(a, 1, 44 * 16);
    fill_the_queue(f, a);
    f.script.gate.wait_held(1);
    const auto owned = f.cache.pool().find(a)->blocks;
    EXPECT_EQ(f.cache.remove(a), RemoveResult::kRemoved);
    const std::int64_t leaving = f.cache.pool().blocks().leaving();
    EXPECT_GE(leaving, 1) << "what flies is not over";
    EXPECT_EQ(f.cache.pool().blocks().available(), 48 - leaving);
    f.cache.pool().check();
    // B wants all there is: it waits for the transfers, and gets nothing that one of them may still write.
    const SequenceId b = f.cache.create({}).id;
    auto opener = std::async(std::launch::async, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        f.script.gate.open();
    });
    EXPECT_TRUE(f.take_in(b, 7, 48 * 16));
    EXPECT_TRUE(f.script.gate.is_open()) << "a block was still the target of a transfer";
    opener.get();
    EXPECT_EQ(f.cache.length(b), 48 * 16);
    f.quiesce();
    EXPECT_EQ(f.cache.pool().blocks().leaving(), 0);
    f.expect_bytes("after the late writes");
    f.expect_map("after the late writes");
    // A cancel of what is over changes nothing.
    const SlotCounts before = f.cache.pool().slots().counts();
    EXPECT_EQ(f.cache.remove(a), RemoveResult::kNotFound);
    f.cache.request_remove(a);
    f.cache.request_cancel(a);
    f.cache.request_cancel(SequenceId{12345});
    EXPECT_TRUE(f.cache.begin_step(f.engine.queue(), {}));
    EXPECT_EQ(f.cache.pool().slots().counts(), before);
    EXPECT_EQ(f.cache.stats().sequences, 1);
    f.cache.pool().check();
}

/// A small pool of slots as well: B takes every one that is not the target of a transfer, and never one that is.
TEST(PrefetchCases, PREF_05_SlotsInFlightAreNobodysUntilTheyHaveDrained)
{
    TransferBench bench(80, 48, 2, 80);
    bench.script.gate.close();
    for (std::int32_t b = 0; b < 31; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kPrefetch, SequenceId{1})); }
    bench.engine->start(Queue(bench.here));
    bench.script.gate.wait_begun(1);
    bench.engine->cancel_sequence(SequenceId{1});
    for (std::int32_t b = 0; b < 31; ++b) { bench.free(BlockId{b}); }
    const std::int64_t draining = bench.slots.draining();
    EXPECT_GE(draining, 1);
    std::int64_t had = 0;
    for (std::int32_t b = 31; b < 79; ++b) { // B, at once; copied by hand, not through the stopped store
        const auto slot = bench.slots.try_acquire(bench.unit(BlockId{b}), ++bench.now);
        if (!slot) { break; }
        std::memset(bench.slots.data(*slot), int(TransferBench::value_of(BlockId{b})), TransferBench::kUnitBytes);
        ASSERT_TRUE(bench.slots.land(*slot, bench.slots.generation(*slot)));
        bench.slots.pin(*slot, bench.now);
        ++had;
    }
    EXPECT_EQ(had, 48 - draining);
    bench.check();
    bench.script.gate.open();
    EXPECT_EQ(TransferBench::count(bench.finish(), TransferOutcome::kStale), draining);
    bench.check();
    EXPECT_EQ(bench.slots.counts().free, draining);
}

/// Every way in which a guess is not carried out leaves nothing that counts as there, and what is needed is fetched.
TEST(PrefetchCases, PREF_07_ARefusedPrefetchIsNowhereResident)
{
    const auto expect_nothing = [](TransferBench& bench, const std::string& why) {
        for (std::int32_t b = 0; b < 4; ++b) {
            EXPECT_FALSE(bench.resident(b)) << why;
            EXPECT_EQ(bench.slots.slot_of(bench.unit(BlockId{b})), SlotId::kNone) << why;
            EXPECT_EQ(bench.blocks.transfers(BlockId{b}), 0) << why;
        }
        EXPECT_EQ(bench.slots.counts().in_flight, 0) << why;
        EXPECT_EQ(bench.slots.counts().free + bench.slots.counts().pinned, 4) << why;
        bench.check();
    };
    for (const std::int32_t threads : {0, 1, 2}) {
        { // no slot: all are read now
            TransferBench bench(8, 4, threads, 8);
            for (std::int32_t b = 4; b < 8; ++b) { bench.plan(b, TransferKind::kDemand); }
            bench.engine->start(Queue(bench.here));
            while (bench.slots.counts().resident < 4) { bench.engine->settle(); }
            for (std::int32_t b = 4; b < 8; ++b) { bench.slots.pin(bench.slots.slot_of(bench.unit(BlockId{b})), ++bench.now); }
            for (std::int32_t b = 0; b < 4; ++b) { EXPECT_FALSE(bench.plan(b, TransferKind::kPrefetch)); }
            EXPECT_TRUE(bench.engine->planned().empty());
            expect_nothing(bench, "no slot");
        }
        { // called off before it was started
            TransferBench bench(8, 4, threads, 8);
            for (std::int32_t b = 0; b < 4; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kPrefetch)); }
            bench.engine->abandon_planned();
            bench.engine->start(Queue(bench.here));
            EXPECT_TRUE(bench.engine->settle().empty());
            expect_nothing(bench, "abandoned");
        }
        { // the store fails
            TransferBench bench(8, 4, threads, 8);
            bench.script.fail(StoreOperation::kRead);
            for (std::int32_t b = 0; b < 4; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kPrefetch)); }
            bench.engine->start(Queue(bench.here));
            std::vector<Settled> settled = bench.finish();
            if (threads == 0) {
                const auto now = bench.engine->settle();
                settled.assign(now.begin(), now.end());
            }
            EXPECT_EQ(TransferBench::count(settled, TransferOutcome::kFailed), 4);
            expect_nothing(bench, "failed");
            bench.script.repair();
            ASSERT_TRUE(bench.plan(2, TransferKind::kDemand)) << "then it is fetched";
            bench.engine->start(Queue(bench.here));
            while (!bench.resident(2)) { bench.engine->settle(); }
            EXPECT_FALSE(bench.slots.take_prefetched(bench.slots.slot_of(bench.unit(BlockId{2}))));
            bench.check();
        }
    }
    { // cancelled while it waits in the queue, and while it flies
        TransferBench bench(8, 4, 1, 8);
        bench.script.gate.close();
        for (std::int32_t b = 0; b < 4; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kPrefetch)); }
        bench.engine->start(Queue(bench.here));
        bench.script.gate.wait_begun(1);
        EXPECT_EQ(bench.engine->cancel_sequence(SequenceId{0}), 3);
        bench.slots.drop(bench.unit(BlockId{0}));
        bench.script.gate.open();
        EXPECT_EQ(TransferBench::count(bench.finish(), TransferOutcome::kStale), 1);
        expect_nothing(bench, "cancelled");
    }
    { // shutdown with a full queue: the threads end, nothing lands any more
        TransferBench bench(8, 4, 2, 8);
        bench.script.gate.close();
        for (std::int32_t b = 0; b < 4; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kPrefetch)); }
        bench.engine->start(Queue(bench.here));
        bench.script.gate.wait_begun(1);
        const std::size_t begun = bench.script.gate.begun().size();
        auto opener = std::async(std::launch::async, [&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            bench.script.gate.open();
        });
        bench.engine.reset();
        EXPECT_EQ(bench.script.gate.begun().size(), begun) << "what had not begun never does";
        for (std::int32_t b = 0; b < 4; ++b) { EXPECT_FALSE(bench.resident(b)); }
        EXPECT_EQ(bench.slots.counts().resident, 0);
    }
}

TEST(PrefetchCases, PREF_07_WithoutACapNothingIsGuessed)
{
    for (const bool cap : {false, true}) {
        CacheConfig c = in_background();
        c.prefetch_cap = cap ? c.prefetch_cap : 0;
        FaultyCache f(c);
        const SequenceId id = f.cache.create({}).id;
        f.engine.prefill(id, 1, 500);
        for (std::uint64_t i = 0; i < 10; ++i) { guess(f.engine, id, 1, 60 + i); }
        f.quiesce();
        const Counters counters = f.cache.stats().counters;
        EXPECT_EQ(counters.prefetched_tokens > 0, cap);
        EXPECT_EQ(counters.prefetched_bytes > 0, cap);
        const auto promoted = f.events_of(EventKind::kPromoted);
        EXPECT_EQ(std::any_of(promoted.begin(), promoted.end(), [](const Event& e) { return e.reason == EventReason::kPrefetch; }), cap);
        f.expect_map("decoded");
    }
}

} // namespace
} // namespace oasis::test
