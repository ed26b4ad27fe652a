// SPDX-License-Identifier: Apache-2.0
//
// Cases of what a cache counts: hits once and for the right tier, whatever fails or is called off.

#include "faulty_fixture.hpp"

#include <atomic>
#include <cstdint>
#include <iterator>

namespace oasis::test {
namespace {

CacheConfig config()
{
    CacheConfig c = small_config();
    c.prefetch_cap = 32;
    return c;
}

void expect_monotonic(const Counters& before, const Counters& after)
{
    constexpr std::uint64_t Counters::*kAll[] = {
        &Counters::steps,           &Counters::sparse_row_sets,     &Counters::dense_row_sets,      &Counters::attended_tokens,   &Counters::must_tokens,
        &Counters::resident_must_tokens, &Counters::fetched_tokens, &Counters::initial_tokens,      &Counters::prefetched_tokens, &Counters::skipped_tokens,
        &Counters::fetched_bytes,   &Counters::prefetched_bytes,    &Counters::streamed_bytes,      &Counters::sealed_blocks,     &Counters::sealed_bytes,
        &Counters::score_passes,    &Counters::prefix_query_tokens, &Counters::prefix_hit_tokens,   &Counters::stale_copies,      &Counters::foreign_predictions,
        &Counters::captured_heads,  &Counters::late_tokens,         &Counters::useful_prefetch_tokens, &Counters::cancelled_copies, &Counters::failed_copies,
        &Counters::skipped_blocks,  &Counters::preempted_sequences, &Counters::resumed_sequences};
    for (std::size_t i = 0; i < std::size(kAll); ++i) { EXPECT_LE(before.*kAll[i], after.*kAll[i]) << "counter " << i; }
    EXPECT_LE(before.captured_mass, after.captured_mass);
    EXPECT_LE(before.skipped_mass, after.skipped_mass);
}

TEST(ObserveCases, OBS_02_HitsAreCountedOnceAndNeverTakenBack)
{
    FaultyCache f(config());
    std::vector<Counters> seen;
    const auto note = [&] { seen.push_back(f.cache.stats().counters); };
    const std::vector<TokenId> prompt = tokens_of(1, 1000);
    note();
    const SequenceId donor = f.cache.create({.prompt = prompt}).id;
    EXPECT_EQ(f.cache.stats().counters.prefix_query_tokens, 1000U);
    EXPECT_EQ(f.cache.stats().counters.prefix_hit_tokens, 0U);
    f.engine.prefill(donor, 1, 600, 100, {prompt.begin(), prompt.begin() + 600});
    note();
    const CreateResult second = f.cache.create({.prompt = prompt});
    EXPECT_EQ(second.cached_tokens, 592); // 600 in whole blocks
    EXPECT_EQ(f.cache.stats().counters.prefix_query_tokens, 2000U);
    EXPECT_EQ(f.cache.stats().counters.prefix_hit_tokens, 592U);
    note();
    f.cache.remove(donor);
    f.cache.remove(second.id);
    f.script.fail(StoreOperation::kRead); // what was found cannot be read: a miss, and no hit
    const CreateResult third = f.cache.create({.prompt = prompt});
    ASSERT_TRUE(third);
    EXPECT_EQ(f.cache.stats().counters.prefix_query_tokens, 3000U);
    EXPECT_EQ(f.cache.stats().counters.prefix_hit_tokens, 592U + std::uint64_t(third.cached_tokens));
    EXPECT_LT(third.cached_tokens, 592);
    f.script.repair();
    f.engine.prefill(third.id, 1, 1000, 100, prompt);
    f.engine.decode(third.id, 1, 5);
    note();
    {
        auto dropped = f.engine.step({{{.sequence = third.id, .verify_rows = 3}, {9}, -1, {}}}, false);
        note();
    }
    f.cache.truncate(third.id, 100);
    note();
    for (std::size_t i = 1; i < seen.size(); ++i) { expect_monotonic(seen[i - 1], seen[i]); }
    const Counters& c = seen.back();
    EXPECT_EQ(c.must_tokens, c.resident_must_tokens + c.fetched_tokens + c.skipped_tokens);
    f.cache.pool().check();
}

/// Copies that fail, are called off, or come too late: each is counted once, as what became of it, and what arrived is what was read.
TEST(ObserveCases, OBS_02_FailedAndCancelledCopiesAreNobodysHits)
{
    CacheConfig c = config();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.prefetch_cap = 64;
    c.transfer_threads = 2;
    c.fast_bytes = std::size_t{1} << 25;
    FaultyCache f(c);
    SequenceId ids[] = {f.cache.create({}).id, f.cache.create({}).id};
    for (const SequenceId id : ids) {
        f.engine.prefill(id, 1, 500);
        f.engine.decode(id, 1, 1);
    }
    f.quiesce();
    const Stats before = f.cache.stats();
    const std::uint64_t reads = f.script.faults->reads;
    const std::uint64_t failures = f.script.faults->failures;
    const std::size_t first_event = f.log.events().size();
    f.script.read_delay_us = 2000;
    std::atomic<int> count{0};
    f.script.set_rule([&](StoreOperation op, const StorePiece&) { return op == StoreOperation::kRead && ++count % 7 == 0; });
    Counters last = before.counters;
    for (std::uint64_t i = 0; i < 40; ++i) {
        SequenceId& id = ids[i % 2];
        ASSERT_EQ(f.engine.step({{{.sequence = id, .verify_rows = 2, .lookahead_rows = 1}, {1, 60 + i, 160 + i}, 1, {}}}).size(), 3U);
        if (i % 5 == 0) { f.cache.request_cancel(id); }
        if (i % 9 == 4) { // removed while its guesses fly; what comes is nobody's
            f.cache.remove(id);
            id = f.cache.create({}).id;
            f.take_in(id, 1, 500);
        }
        const Counters now = f.cache.stats().counters;
        expect_monotonic(last, now);
        EXPECT_EQ(now.must_tokens, now.resident_must_tokens + now.fetched_tokens + now.late_tokens + now.skipped_tokens) << "the sum of sources";
        last = now;
    }
    f.script.repair();
    f.quiesce();
    const Stats after = f.cache.stats();
    const std::uint64_t unit = f.cache.pool().shape().unit_bytes;
    const auto grown = [&](std::uint64_t Counters::*counter) { return after.counters.*counter - before.counters.*counter; };
    const std::uint64_t landed = (grown(&Counters::fetched_bytes) + grown(&Counters::prefetched_bytes)) / unit;
    const std::uint64_t failed = grown(&Counters::failed_copies);
    EXPECT_EQ(f.script.faults->reads - reads, landed + failed + grown(&Counters::stale_copies)) << "every copy that began";
    const std::uint64_t refusals = f.script.faults->failures - failures; // of the store; some were of copies that nobody wanted any more
    EXPECT_EQ(after.slow_bytes_read - before.slow_bytes_read, (f.script.faults->reads - reads - refusals) * unit) << "as the store counts them";
    EXPECT_TRUE(failed <= refusals && refusals <= failed + grown(&Counters::stale_copies));
    EXPECT_EQ(grown(&Counters::prefetched_tokens), grown(&Counters::prefetched_bytes) / unit * 16);
    EXPECT_LE(grown(&Counters::useful_prefetch_tokens), grown(&Counters::prefetched_tokens));
    EXPECT_GT(failed, 0U);
    EXPECT_GT(grown(&Counters::stale_copies), 0U);
    EXPECT_GT(grown(&Counters::cancelled_copies), 0U);
    std::uint64_t promoted = 0;
    std::uint64_t refused = 0;
    const auto events = f.log.events();
    for (std::size_t i = first_event; i < events.size(); ++i) {
        promoted += events[i].kind == EventKind::kPromoted && events[i].reason != EventReason::kSeal;
        refused += events[i].kind == EventKind::kRefused && events[i].reason == EventReason::kStoreFailed;
    }
    EXPECT_EQ(promoted, landed);
    EXPECT_EQ(refused, failed);
    f.expect_bytes("all over");
}

} // namespace
} // namespace oasis::test
