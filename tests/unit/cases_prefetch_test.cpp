// SPDX-License-Identifier: Apache-2.0
//
// Cases of transfers in the background: what is demoted, cancelled, refused, failed, overtaken, cut.

#include "transfer_bench.hpp"

#include <algorithm>
#include <future>
#include <map>
#include <set>
#include <tuple>

namespace oasis::test {
namespace {

using Unit = std::tuple<BlockId, LayerId, std::int32_t>;

/// Fast memory with room to spare, transfers on threads: guesses fly while nobody waits for anything.
CacheConfig in_background()
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.limits = {.max_sequences = 4, .max_rows = 128, .max_context = 1024};
    c.fast_bytes = std::size_t{1} << 25;
    c.transfer_threads = 2;
    c.prefetch_cap = 64;
    return c;
}

/// One row, and a guess made from a stream of its own: the guess's blocks are others.
void guess(Engine& engine, SequenceId id, std::uint64_t stream, std::uint64_t guessed)
{
    engine.step({{{.sequence = id, .verify_rows = 1, .lookahead_rows = 1}, {stream, guessed}, -1, {}}});
}

/// Decodes with the store's reads stopped until guesses are under way. Only with `kResidentOnly`, which never waits.
void fill_the_queue(FaultyCache& f, SequenceId id)
{
    guess(f.engine, id, 1, 2); // the first sparse row fills its set
    f.quiesce();
    f.script.gate.close();
    for (std::uint64_t stream = 50; f.cache.pool().slots().counts().in_flight < 4; ++stream) {
        ASSERT_LT(stream, 90U) << "no guess flies";
        guess(f.engine, id, 1, stream);
    }
}

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

/// Six steps of which the third meets a fault. The row that stands is always the same; another one, of a stream of its own, makes the
/// transfers: as lookahead row a guess, as rejected draft demand.
constexpr std::uint64_t kFailingStep = 3;
Outputs six_steps(FaultyCache& f, SequenceId id, EventReason reason, const std::function<void()>& before_third, const std::function<void()>& after_third)
{
    const bool ahead = reason == EventReason::kPrefetch;
    Outputs out;
    for (std::uint64_t i = 1; i <= 6; ++i) {
        f.quiesce();
        if (i == kFailingStep) { before_third(); }
        const RowGroup rows{.sequence = id, .verify_rows = ahead ? 1 : 2, .lookahead_rows = ahead ? 1 : 0};
        out.push_back(f.engine.step({{rows, {1, 60 + i}, 1, {}}}).at(0));
        f.quiesce();
        if (i == kFailingStep) { after_third(); }
    }
    return out;
}

/// A piece that the third step brings for `reason` when nothing fails.
Event brought_in_step_three(const CacheConfig& c, EventReason reason)
{
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 500);
    std::size_t from = 0;
    std::vector<Event> events;
    six_steps(f, id, reason, [&] { from = f.log.events().size(); }, [&] { events = f.log.events(); });
    for (std::size_t i = from; i < events.size(); ++i) {
        if (events[i].kind == EventKind::kPromoted && events[i].reason == reason) { return events[i]; }
    }
    ADD_FAILURE() << "the third step brings nothing by " << name(reason);
    return {};
}

TEST(PrefetchCases, PREF_10_AFailedGuessIsToldAndChangesNothing)
{
    const CacheConfig c = in_background();
    const Event victim = brought_in_step_three(c, EventReason::kPrefetch);
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 500);
    const Outputs out = six_steps(
        f, id, EventReason::kPrefetch,
        [&] { f.script.fail(StoreOperation::kRead, [&](const StorePiece& p) { return p.block == victim.block && p.layer == victim.layer && p.set == victim.set; }); },
        [&] {
            EXPECT_EQ(f.cache.pool().slots().slot_of(f.cache.pool().slots().unit(victim.layer, victim.set, victim.block)), SlotId::kNone) << "not resident";
            f.script.repair();
        });
    EXPECT_EQ(out, undisturbed(c, 500, 6));
    EXPECT_EQ(f.cache.stats().counters.failed_copies, 1U);
    EXPECT_TRUE(f.failures.empty()) << "nothing was lost by it";
    EXPECT_FALSE(f.cache.state(id).lost());
    const auto refused = f.events_of(EventKind::kRefused);
    ASSERT_EQ(refused.size(), 1U);
    EXPECT_EQ(refused[0].reason, EventReason::kStoreFailed);
    EXPECT_TRUE(refused[0].block == victim.block && refused[0].layer == victim.layer && refused[0].set == victim.set && refused[0].tier == Tier::kSlow);
    f.expect_map("later steps");
    f.expect_bytes("later steps");
}

TEST(PrefetchCases, PREF_10_AFailedDemandIsToldAndLaterStepsAreRight)
{
    const CacheConfig c = in_background();
    const Event victim = brought_in_step_three(c, EventReason::kDemand);
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 500);
    const SequenceId other = f.cache.create({}).id;
    f.engine.prefill(other, 1, 500);
    const Outputs out = six_steps(
        f, id, EventReason::kDemand,
        [&] { f.script.fail(StoreOperation::kRead, [&](const StorePiece& p) { return p.block == victim.block && p.layer == victim.layer && p.set == victim.set; }); },
        [&] {
            EXPECT_EQ(f.failures.size(), 1U) << "told with the step that met it";
            EXPECT_EQ(f.cache.pool().slots().slot_of(f.cache.pool().slots().unit(victim.layer, victim.set, victim.block)), SlotId::kNone) << "not resident";
            f.script.repair();
        });
    EXPECT_EQ(out, undisturbed(c, 500, 6)) << "the rejected row missed a block, no other did";
    ASSERT_EQ(f.failures.size(), 1U);
    EXPECT_EQ(f.failures[0].first, id);
    expect_fields(f.failures[0].second, {"slow tier", "read", "block " + std::to_string(raw(victim.block)), "sequence " + std::to_string(raw(id)), "bytes"});
    EXPECT_EQ(f.cache.stats().counters.failed_copies, 1U);
    EXPECT_EQ(f.events_of(EventKind::kRefused).size(), 1U);
    ASSERT_TRUE(f.cache.state(id).lost());
    EXPECT_FALSE(f.cache.state(other).lost());
    f.expect_map("later steps");
    f.expect_bytes("later steps");
    EXPECT_EQ(f.engine.decode(other, 1, 6), undisturbed(c, 500, 6)) << "others go on";
    f.cache.truncate(id, *f.cache.state(id).first_lost);
    f.engine.prefill(id, 1, 500);
    EXPECT_FALSE(f.cache.state(id).lost());
    EXPECT_EQ(f.engine.decode(id, 1, 6).size(), 6U);
    f.expect_bytes("computed again");
}

TEST(PrefetchCases, PREF_14_DemandOvertakesAThousandGuesses)
{
    constexpr std::int32_t kGuesses = 1000;
    for (const std::int32_t threads : {1, 2}) {
        TransferBench bench(kGuesses + 10, kGuesses + 10, threads, kGuesses + 10);
        bench.script.gate.close();
        for (std::int32_t b = 0; b < kGuesses; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kPrefetch, SequenceId{b % 2})); }
        bench.engine->start(Queue(bench.here));
        bench.script.gate.wait_begun(1);
        ASSERT_TRUE(bench.plan(kGuesses, TransferKind::kDemand, SequenceId{2}));
        bench.engine->start(Queue(bench.here));
        if (threads == 1) { bench.script.gate.let(1); } // the one unit in flight
        bench.script.gate.wait_begun(2);
        EXPECT_EQ(bench.script.gate.begun()[1], BlockId{kGuesses}) << "demand waits for the unit in flight at most; threads " << threads;
        // Guesses of a sequence that is cancelled, and of one that is removed, are dropped before they start.
        const std::int64_t of_one = bench.engine->cancel_sequence(SequenceId{1});
        EXPECT_EQ(of_one, kGuesses / 2);
        for (std::int32_t b = 0; b < kGuesses; b += 2) { bench.free(BlockId{b}); }
        EXPECT_EQ(bench.engine->cancel_dropped(), kGuesses / 2 - 1);
        bench.script.gate.open();
        const auto settled = bench.finish();
        EXPECT_EQ(bench.script.gate.begun().size(), 2U);
        EXPECT_TRUE(bench.resident(kGuesses));
        EXPECT_EQ(bench.slots.counts().in_flight, 0);
        bench.check();
    }
}

/// The same in time, on a link whose every unit takes 4 ms: the guesses alone are two seconds' worth.
TEST(PrefetchCases, PREF_14_DemandIsNotSlowedByGuesses)
{
    using Clock = std::chrono::steady_clock;
    constexpr std::int64_t kUnitUs = 4000;
    TransferBench bench(1010, 1010, 2, 1010);
    bench.script.read_delay_us = kUnitUs;
    std::int32_t next = 1000;
    const auto latency = [&] {
        const auto begin = Clock::now();
        bench.plan(next, TransferKind::kDemand, SequenceId{2});
        bench.engine->start(Queue(bench.here));
        while (!bench.resident(next)) {
            bench.engine->wait();
            bench.engine->settle();
        }
        ++next;
        return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    };
    const double unloaded = latency();
    for (std::int32_t b = 0; b < 1000; ++b) { ASSERT_TRUE(bench.plan(b, TransferKind::kPrefetch, SequenceId{1})); }
    bench.engine->start(Queue(bench.here));
    double best = latency();
    for (int i = 0; i < 4; ++i) { best = std::min(best, latency()); } // the machine is shared
    EXPECT_LE(best, 2 * unloaded + 2 * kUnitUs);
    EXPECT_GT(bench.engine->cancel_sequence(SequenceId{1}), 500) << "the guesses were still waiting";
}

TEST(PrefetchCases, PREF_14_GuessesOfACancelledSequenceNeverStart)
{
    CacheConfig c = in_background();
    c.miss = MissPolicy::kResidentOnly;
    for (const bool remove : {false, true}) {
        FaultyCache f(c);
        const SequenceId a = f.cache.create({}).id;
        const SequenceId b = f.cache.create({}).id;
        f.engine.prefill(b, 3, 500);
        f.engine.prefill(a, 1, 500);
        fill_the_queue(f, a);
        f.script.gate.wait_held(1);
        const std::size_t begun = f.script.gate.begun().size();
        const std::int64_t flying = f.cache.pool().slots().counts().in_flight;
        if (remove) {
            f.cache.request_remove(a);
        } else {
            f.cache.request_cancel(a);
        }
        EXPECT_TRUE(f.cache.begin_step(f.engine.queue(), {})); // requests are carried out at the next step
        EXPECT_LE(f.cache.pool().slots().counts().in_flight, 2) << "the threads' own";
        EXPECT_GE(std::int64_t(f.cache.stats().counters.cancelled_copies), flying - 2);
        f.script.gate.open();
        f.quiesce();
        EXPECT_LE(f.script.gate.begun().size(), begun + 1);
        f.expect_map("cancelled");
        f.expect_bytes("cancelled");
        EXPECT_EQ(f.cache.stats().sequences, remove ? 1 : 2);
    }
}

/// Eight blocks of budget, three of them forced, rows that want others: must sets stand whole, the guesses alone are cut.
TEST(PrefetchCases, PREF_16_AUnionLargerThanTheBudget)
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 128, .fetch = 128, .logical_resident = 128, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.limits = {.max_sequences = 1, .max_rows = 128, .max_context = 1024};
    c.prefetch_cap = 32; // two blocks
    const Outputs expected = undisturbed(c, 600, 30);
    for (const std::int32_t threads : {0, 2}) {
        c.transfer_threads = threads;
        c.fast_bytes = std::size_t{1} << 24;
        FaultyCache f(c);
        const SequenceId id = f.cache.create({}).id;
        f.engine.prefill(id, 1, 600);
        f.cache.resize_fast(f.cache.resize_fast(1) + 512 * footprint(c).summary_bytes_per_token); // as little as is ever taken
        std::size_t largest = 0;
        for (std::uint64_t i = 0; i < 30; ++i) {
            f.quiesce();
            const std::size_t from = f.log.events().size();
            const Outputs rows = f.engine.step({{{.sequence = id, .verify_rows = 4, .lookahead_rows = 2}, {1, 70 + i, 130 + i, 190 + i, 250 + i, 310 + i}, 1, {}}});
            ASSERT_EQ(rows.size(), 6U);
            EXPECT_EQ(rows[0], expected[i]) << "row " << i;
            f.quiesce();
            f.cache.pool().check();
            std::map<Unit, int> loads;
            std::map<std::pair<LayerId, std::int32_t>, std::set<BlockId>> guesses;
            const auto events = f.log.events();
            for (std::size_t e = from; e < events.size(); ++e) {
                if (events[e].kind != EventKind::kPromoted || events[e].reason == EventReason::kSeal) { continue; }
                ++loads[{events[e].block, events[e].layer, events[e].set}];
                if (events[e].reason == EventReason::kPrefetch) { guesses[{events[e].layer, events[e].set}].insert(events[e].block); }
            }
            for (const auto& [unit, times] : loads) { EXPECT_EQ(times, 1) << "block " << raw(std::get<0>(unit)) << " came more than once in step " << i; }
            for (const auto& [set, blocks] : guesses) { EXPECT_LE(blocks.size(), 2U) << "the cap"; }
            largest = std::max(largest, loads.size());
        }
        EXPECT_GT(largest, std::size_t(4 * 8)) << "the unions were larger than the budget of the four sets";
        EXPECT_EQ(f.cache.stats().counters.skipped_tokens, 0U);
    }
}

} // namespace
} // namespace oasis::test
