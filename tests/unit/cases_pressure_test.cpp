// SPDX-License-Identifier: Apache-2.0
//
// Cases of memory that is short while transfers are under way: double releases, a full pool that is evictable, preemption between two books.

#include "sequence_digest.hpp"
#include "transfer_bench.hpp"

#include <future>
#include <map>
#include <set>
#include <tuple>

namespace oasis::test {
namespace {

/// Calls `work` on this thread; `rescue` is called when it takes longer than any loaded machine would.
template <class Work, class Rescue>
void with_watchdog(Work&& work, Rescue&& rescue)
{
    std::promise<void> done;
    auto watchdog = std::async(std::launch::async, [&, over = done.get_future()]() mutable {
        if (over.wait_for(std::chrono::seconds(10)) == std::future_status::ready) { return; }
        ADD_FAILURE() << "the watchdog fired";
        rescue();
    });
    work();
    done.set_value();
    watchdog.get();
}

CacheConfig little_room()
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.limits = {.max_sequences = 4, .max_rows = 128, .max_context = 1024};
    c.prefetch_cap = 64;
    return c;
}

/// Prefetches of eight blocks, three land, the rest is called off while others allocate: a thousand times.
TEST(PressureCases, POOL_01_TheTailOfAPrefetchIsReleasedOnce)
{
    TransferBench bench(32, 24, 2, 0);
    std::int64_t stale = 0;
    for (std::uint64_t round = 0; round < 1000; ++round) {
        bench.script.gate.close();
        std::vector<BlockId> own;
        for (int i = 0; i < 8; ++i) {
            own.push_back(bench.allocate().value());
            ASSERT_TRUE(bench.plan(raw(own.back()), TransferKind::kPrefetch, SequenceId{std::int64_t(round)}));
        }
        bench.engine->start(Queue(bench.here));
        bench.script.gate.let(3);
        EXPECT_EQ(TransferBench::count(bench.wait_landed(3), TransferOutcome::kLanded), 3);
        // Terminated early, by cancellation first or by removal first.
        if (round % 2 == 0) { bench.engine->cancel_sequence(SequenceId{std::int64_t(round)}); }
        for (const BlockId block : own) { bench.free(block); }
        if (round % 2 == 1) { bench.engine->cancel_dropped(); }
        EXPECT_EQ(bench.blocks.leaving(), bench.slots.draining()) << "what is copied keeps its block and its slot";
        // Others allocate meanwhile: no block and no slot that somebody still has.
        std::set<BlockId> others;
        std::set<SlotId> slots;
        for (int i = 0; i < 16; ++i) {
            const auto block = bench.allocate();
            if (!block) { break; }
            ASSERT_TRUE(others.insert(*block).second) << "block " << raw(*block) << " has two owners";
            ASSERT_EQ(bench.blocks[*block].refs, 1);
            ASSERT_EQ(bench.blocks.transfers(*block), 0) << "block " << raw(*block) << " is still copied";
            const auto slot = bench.slots.try_acquire(bench.unit(*block), ++bench.now);
            ASSERT_TRUE(slot && slots.insert(*slot).second);
            std::memset(bench.slots.data(*slot), int(TransferBench::value_of(*block)), TransferBench::kUnitBytes);
            ASSERT_TRUE(bench.slots.land(*slot, bench.slots.generation(*slot)));
        }
        EXPECT_EQ(others.size(), 16U);
        bench.slots.check();
        bench.script.gate.open();
        stale += TransferBench::count(bench.finish(), TransferOutcome::kStale);
        bench.check(); // no late copy landed on another's block
        for (const BlockId block : others) { bench.free(block); }
        ASSERT_EQ(bench.blocks.available(), 32) << "round " << round;
        ASSERT_EQ(bench.slots.counts().free, 24) << "round " << round;
        ASSERT_EQ(bench.blocks.store().bytes_used(), 0U);
        ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
    }
    EXPECT_GT(stale, 100) << "some were in flight";
}

TEST(PressureCases, POOL_01_ASecondReleaseIsRefusedAndChangesNothing)
{
    TransferBench bench(8, 4, 0, 2);
    const auto refused = [&](const std::function<void()>& again, const std::vector<std::string>& fields) {
        const SlotCounts slots = bench.slots.counts();
        const std::int64_t blocks = bench.blocks.available();
        try {
            again();
            ADD_FAILURE() << "released twice";
        } catch (const InvalidArgument& e) {
            expect_fields(e.what(), fields);
        }
        EXPECT_EQ(bench.slots.counts(), slots);
        EXPECT_EQ(bench.blocks.available(), blocks);
        bench.check();
    };
    bench.free(BlockId{1});
    refused([&] { bench.free(BlockId{1}); }, {"release of block 1", "nobody holds"});
    const auto slot = bench.plan(0, TransferKind::kPrefetch);
    ASSERT_TRUE(slot);
    bench.engine->abandon_planned();
    refused([&] { bench.slots.abandon(*slot); }, {"abandon of slot", "not in flight"});
    refused([&] { bench.slots.unpin(*slot); }, {"unpin of slot", "not pinned"});
    bench.slots.reclaim(*slot); // of a slot that does not drain: nothing
    bench.check();
    EXPECT_EQ(bench.slots.counts().free, 4);
}

/// 64 slots: 58 clean ones, four targets of a stalled link, two free. Eight are had at once.
TEST(PressureCases, POOL_03_CleanSlotsAreTakenWhileTheLinkIsStalled)
{
    TransferBench bench(96, 64, 2, 96);
    for (std::int32_t b = 0; b < 58; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kDemand)); }
    bench.engine->start(Queue(bench.here));
    bench.finish();
    bench.script.gate.close();
    for (std::int32_t b = 58; b < 62; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kDemand)); } // a row waits for them: they stay
    bench.engine->start(Queue(bench.here));
    bench.script.gate.wait_begun(58 + 2);
    EXPECT_EQ(bench.slots.counts().free, 2);
    with_watchdog(
        [&] {
            for (std::int32_t b = 80; b < 88; ++b) { EXPECT_TRUE(bench.plan(b, TransferKind::kDemand)) << "block " << b; }
        },
        [&] { bench.script.gate.open(); });
    EXPECT_FALSE(bench.script.gate.is_open()) << "nothing waited for the link";
    for (std::int32_t b = 58; b < 62; ++b) { EXPECT_NE(bench.slots.slot_of(bench.unit(BlockId{b})), SlotId::kNone); }
    bench.engine->start(Queue(bench.here));
    bench.script.gate.open();
    bench.finish();
    for (std::int32_t b = 80; b < 88; ++b) { EXPECT_TRUE(bench.resident(b)); }
    bench.check();
}

/// Nothing can be evicted: what is left is said at once, or as soon as what flies is over.
TEST(PressureCases, POOL_03_NothingToEvictIsAnAnswer)
{
    TransferBench bench(16, 4, 2, 16);
    for (std::int32_t b = 0; b < 3; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kDemand)); }
    bench.engine->start(Queue(bench.here));
    bench.finish();
    for (std::int32_t b = 0; b < 3; ++b) { bench.slots.pin(bench.slots.slot_of(bench.unit(BlockId{b})), ++bench.now); }
    bench.script.gate.close();
    ASSERT_TRUE(bench.plan(3, TransferKind::kPrefetch));
    bench.engine->start(Queue(bench.here));
    bench.script.gate.wait_begun(4);
    EXPECT_FALSE(bench.plan(9, TransferKind::kPrefetch)) << "a guess never waits";
    auto opener = std::async(std::launch::async, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        bench.script.gate.open();
    });
    with_watchdog([&] { EXPECT_TRUE(bench.plan(8, TransferKind::kDemand)) << "the guess lands and makes room"; }, [&] { bench.script.gate.open(); });
    opener.get();
    EXPECT_FALSE(bench.resident(3));
    bench.engine->start(Queue(bench.here));
    bench.finish();
    bench.slots.pin(bench.slots.slot_of(bench.unit(BlockId{8})), ++bench.now);
    with_watchdog([&] { EXPECT_FALSE(bench.plan(9, TransferKind::kDemand)); }, [] {});
    EXPECT_EQ(bench.slots.no_victim().pinned, 4);
    bench.check();
}

/// The slow tier is full of prefixes that nobody uses, and copies of some of them hang: a new sequence gets the others' places.
TEST(PressureCases, POOL_03_ATierFullOfCachedPrefixesHasRoom)
{
    CacheConfig c = little_room();
    c.miss = MissPolicy::kResidentOnly;
    c.transfer_threads = 2;
    c.fast_bytes = std::size_t{1} << 25;
    c.slow_bytes = 64 * 16 * footprint(c).slow_bytes_per_token;
    FaultyCache f(c);
    const std::vector<TokenId> prompt = tokens_of(1, 62 * 16);
    const SequenceId a = f.cache.create({.prompt = prompt}).id;
    f.engine.prefill(a, 1, 62 * 16 - 40, 128, prompt);
    f.engine.decode(a, 1, 1);
    f.quiesce();
    f.script.gate.close();
    for (std::uint64_t stream = 50; f.cache.pool().slots().counts().in_flight < 4; ++stream) {
        ASSERT_LT(stream, 70U) << "no guess flies";
        f.engine.step({{{.sequence = a, .verify_rows = 1, .lookahead_rows = 1}, {1, stream}, -1, {}}});
    }
    f.script.gate.wait_held(1);
    f.cache.remove(a);
    const std::int64_t cached = f.cache.pool().blocks().cached();
    EXPECT_GT(cached, 50);
    EXPECT_EQ(f.cache.pool().blocks().available() + f.cache.pool().blocks().leaving(), 64);
    const SequenceId b = f.cache.create({}).id;
    with_watchdog([&] { EXPECT_TRUE(f.take_in(b, 2, 12 * 16)); }, [&] { f.script.gate.open(); });
    EXPECT_FALSE(f.script.gate.is_open()) << "nothing waited for the copies that hang";
    EXPECT_LT(f.cache.pool().blocks().cached(), cached) << "by dropping prefixes";
    f.script.gate.open();
    f.quiesce();
    f.expect_bytes("drained");
    f.expect_map("drained");
}

/// Every unit that left the window is stored exactly once for as long as its block lives.
void expect_stored_once(const FaultyCache& f)
{
    std::map<std::tuple<BlockId, LayerId, std::int32_t>, int> stored;
    for (const Event& e : f.log.events()) {
        if (e.tier != Tier::kSlow) { continue; }
        if (e.kind == EventKind::kStored) { EXPECT_EQ(++stored[std::tuple(e.block, e.layer, e.set)], 1) << "block " << raw(e.block) << " layer " << e.layer << " set " << e.set; }
        if (e.kind == EventKind::kDropped) {
            std::erase_if(stored, [&](const auto& entry) { return std::get<0>(entry.first) == e.block; });
        }
    }
}

/// Preempted and resumed between any two steps, whatever part of a block, of a sub-block or of a group is open.
TEST(PressureCases, POOL_16_PreemptedAnywhereAndNothingIsLost)
{
    for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
        CacheConfig c = little_room();
        c.block_code = code;
        FaultyCache f(c);
        const auto plain = make_cache(c);
        Engine other(*plain);
        const SequenceId id = f.cache.create({}).id;
        const SequenceId same = plain->create({}).id;
        std::int32_t chunk = 1;
        while (f.cache.length(id) < 420) {
            chunk = chunk * 5 % 37 + 1;
            const TokenIndex to = f.cache.length(id) + chunk;
            ASSERT_EQ(f.engine.prefill(id, 1, to), other.prefill(same, 1, to));
            const SequenceDigest before = digest_of(f.cache.pool(), id);
            const std::int64_t native = std::int64_t(f.cache.pool().blocks().native().in_use());
            ASSERT_TRUE(f.cache.preempt(id));
            EXPECT_EQ(f.cache.pool().blocks().native().in_use(), 0U);
            f.cache.pool().check();
            ASSERT_TRUE(f.cache.resume(id));
            ASSERT_EQ(difference(digest_of(f.cache.pool(), id), before), "") << "at " << to;
            EXPECT_EQ(std::int64_t(f.cache.pool().blocks().native().in_use()), native);
            f.cache.pool().check();
        }
        for (int i = 0; i < 40; ++i) {
            const std::vector<Engine::Part> part{{{.sequence = id, .verify_rows = 4}, {1, 1, 9, 9}, 2, {}}};
            Outputs rows = f.engine.step(part);
            rows.resize(2);
            ASSERT_EQ(rows, other.decode(same, 1, 2)) << i;
            ASSERT_TRUE(f.cache.preempt(id));
            ASSERT_TRUE(f.cache.resume(id));
        }
        f.cache.pool().check();
        f.expect_map("decoded");
        expect_stored_once(f);
        const auto& blocks = f.cache.pool().find(id)->blocks;
        for (std::int32_t j = 0; j < f.cache.pool().find(id)->native_begin; ++j) { EXPECT_TRUE(f.cache.pool().blocks()[blocks[std::size_t(j)]].sealed) << j; }
    }
}

/// In the middle of a step there is no half state to save: it is refused by name, and goes after the step was dropped or had failed.
TEST(PressureCases, POOL_16_PreemptInsideAStepIsRefused)
{
    const CacheConfig c = little_room();
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    const SequenceId child = [&] {
        f.engine.prefill(id, 1, 205);
        return f.cache.fork(id).id;
    }();
    const SequenceDigest before = digest_of(f.cache.pool(), id);
    {
        const RowGroup group{.sequence = id, .prefill_tokens = 60};
        Step step = f.cache.begin_step(f.engine.queue(), {&group, 1});
        std::vector<float> q(60 * 6 * 32, 0.5F), k(60 * 2 * 32, 0.25F), v(k);
        f.cache.enqueue_attend(f.engine.queue(), step, 0, {.q = q.data(), .k = k.data(), .v = v.data()}); // tokens are in, the table is not published
        EXPECT_THROW(f.cache.preempt(id), InvalidArgument);
        EXPECT_THROW(f.cache.preempt(child), InvalidArgument);
    }
    EXPECT_EQ(difference(digest_of(f.cache.pool(), id), before), "");
    // A store that fails after a layer was written: the cursor is where it was, and the whole is stored again later.
    f.script.fail(StoreOperation::kWrite, [](const StorePiece& piece) { return piece.layer == 1; });
    EXPECT_THROW(f.engine.prefill(id, 1, 300), StoreError);
    f.script.repair();
    EXPECT_EQ(difference(digest_of(f.cache.pool(), id), before), "");
    ASSERT_TRUE(f.cache.preempt(id));
    f.engine.prefill(child, 1, 300); // the shared blocks are sealed by the fork meanwhile
    f.cache.pool().check();
    ASSERT_TRUE(f.cache.resume(id));
    EXPECT_EQ(f.cache.length(id), 205);
    f.engine.prefill(id, 1, 300);
    const Outputs expected = undisturbed(c, 300, 12);
    EXPECT_EQ(f.engine.decode(id, 1, 12), expected);
    EXPECT_EQ(f.engine.decode(child, 1, 12), expected);
    f.cache.pool().check();
    f.expect_map("decoded");
    expect_stored_once(f);
}

} // namespace
} // namespace oasis::test
