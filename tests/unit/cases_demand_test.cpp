// SPDX-License-Identifier: Apache-2.0
//
// Cases of transfers that fail, that demand overtakes, and that are cut.

#include "background_cases.hpp"
#include "transfer_bench.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <tuple>

namespace oasis::test {
namespace {

using Unit = std::tuple<BlockId, LayerId, std::int32_t>;

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
