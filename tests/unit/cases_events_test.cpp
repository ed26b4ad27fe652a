// SPDX-License-Identifier: Apache-2.0
//
// Cases of the event stream: replayed it gives the residency map, whatever failed on the way.

#include "faulty_fixture.hpp"

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>

namespace oasis::test {
namespace {

CacheConfig config()
{
    CacheConfig c = small_config();
    c.prefetch_cap = 32;
    return c;
}

/// Demote, promote, evict, fail a store, roll back, fork, truncate, remove: after each the replayed events equal the tables.
class ObserveEvents : public testing::TestWithParam<BlockCode> {};

TEST_P(ObserveEvents, OBS_06_ReplayEqualsTheTables)
{
    CacheConfig c = config();
    c.block_code = GetParam();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F}; // little room: much comes and goes
    FaultyCache f(c);
    const std::vector<TokenId> prompt = tokens_of(1, 700);
    const SequenceId a = f.cache.create({.prompt = prompt}).id;
    f.engine.prefill(a, 1, 700, 130, prompt);
    f.expect_map("prefill");
    for (std::uint64_t i = 0; i < 25; ++i) { f.engine.step({{{.sequence = a, .verify_rows = 3, .lookahead_rows = 1}, {1 + i % 4}, std::int32_t(i % 4), {}}}); }
    f.expect_map("drafts");
    f.cache.resize_fast(0);
    f.expect_map("less fast memory");
    for (std::uint64_t i = 0; i < 60; ++i) { f.engine.decode(a, 40 + i, 1); }
    f.expect_map("evictions");
    f.cache.resize_fast(std::size_t{1} << 26);
    f.expect_map("more fast memory");
    const CreateResult shared = f.cache.create({.prompt = prompt});
    EXPECT_GT(shared.cached_tokens, 600);
    f.expect_map("shared prefix");
    f.engine.decode(shared.id, 2, 10);
    const SequenceId child = f.cache.fork(a).id;
    f.engine.prefill(child, 5, f.cache.length(child) + 150);
    f.expect_map("fork");
    f.engine.step({{{.sequence = a, .verify_rows = 4}, {7}, -1, {}}, {{.sequence = child, .prefill_tokens = 120}, {7}, -1, {}}}, false);
    f.cache.drop_cached_prefixes(); // delivers what the rollback left
    f.expect_map("rollback");
    f.engine.step({{{.sequence = child, .prefill_tokens = 120}, {7}, 70, {}}});
    f.expect_map("prefill accepted in part");
    f.script.fail(StoreOperation::kWrite, [](const StorePiece& piece) { return piece.layer == 1; });
    EXPECT_THROW(f.engine.prefill(child, 5, f.cache.length(child) + 100), StoreError);
    f.script.repair();
    f.cache.drop_cached_prefixes();
    f.expect_map("failed store");
    f.engine.prefill(child, 5, f.cache.length(child) + 100);
    f.expect_map("store after failure");
    for (const TokenIndex length : {690, 500, 333, 64}) {
        f.cache.truncate(a, length);
        f.expect_map("truncate");
        f.engine.prefill(a, 6, length + 60);
        f.expect_map("prefill after truncate");
    }
    f.cache.remove(shared.id);
    f.expect_map("remove");
    f.cache.remove(child);
    f.expect_map("remove");
    f.cache.drop_cached_prefixes();
    f.cache.remove(a);
    f.cache.drop_cached_prefixes();
    f.expect_map("all gone");
    std::set<EventKind> kinds;
    for (const Event& e : f.log.events()) { kinds.insert(e.kind); }
    EXPECT_EQ(kinds.size(), 5U);
    EXPECT_EQ(f.log.replay(2, 2), ResidencyMap(2, 2));
}

TEST_P(ObserveEvents, OBS_06_NothingIsStoredThatFailed)
{
    CacheConfig c = config();
    c.block_code = GetParam();
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    f.script.fail(StoreOperation::kWrite);
    EXPECT_THROW(f.engine.prefill(id, 1, 200), StoreError);
    f.script.repair();
    f.cache.drop_cached_prefixes();
    for (const Event& e : f.log.events()) { EXPECT_NE(e.kind, EventKind::kStored); }
    f.expect_map("failed store");
}
constexpr std::size_t kRoom = std::size_t{1} << 22;

/// Transfers on threads: much comes and goes while steps run.
CacheConfig in_background(BlockCode code)
{
    CacheConfig c = small_config();
    c.block_code = code;
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.limits = {.max_sequences = 3, .max_rows = 128, .max_context = 640};
    c.transfer_threads = 2;
    c.prefetch_cap = 64;
    c.fast_bytes = kRoom;
    return c;
}

/// One random operation; refusals and the store's failures are part of it.
const char* operate(FaultyCache& f, std::vector<SequenceId>& live, std::mt19937& random, std::size_t room)
{
    const auto below = [&](std::size_t n) { return std::size_t(random()) % n; };
    const std::size_t dice = below(100);
    if (live.empty() || (live.size() < 3 && dice < 30)) {
        const std::uint64_t stream = 1 + below(6);
        const std::vector<TokenId> prompt = tokens_of(stream, 400);
        const CreateResult made = f.cache.create({.prompt = prompt});
        if (!made) { return "refused create"; }
        live.push_back(made.id);
        f.engine.prefill(made.id, stream, TokenIndex(150 + below(250)), 90, prompt);
        return "create";
    }
    const std::size_t at = below(live.size());
    const SequenceId id = live[at];
    if (dice < 3 || f.cache.state(id).lost() || f.cache.length(id) > 500) {
        f.cache.remove(id);
        live.erase(live.begin() + std::ptrdiff_t(at));
        return "remove";
    }
    if (f.cache.state(id).preempted) {
        return f.cache.resume(id) ? "resume" : "refused resume";
    }
    if (dice < 8) { return f.cache.preempt(id) ? "preempt" : "refused preempt"; }
    if (dice < 11) {
        if (const ForkResult child = f.cache.fork(id); child) { live.push_back(child.id); }
        return "fork";
    }
    if (dice < 16) {
        const auto length = std::size_t(f.cache.length(id));
        f.cache.truncate(id, TokenIndex(length - below(below(5) == 0 ? length : std::min<std::size_t>(length, 60))));
        return "truncate";
    }
    if (dice < 20) {
        f.cache.resize_fast(below(2) == 0 ? 0 : room);
        return "resize";
    }
    if (dice < 24) {
        f.cache.request_cancel(id);
        return "request_cancel";
    }
    if (dice < 27) {
        f.cache.drop_cached_prefixes();
        return "drop_cached_prefixes";
    }
    if (dice >= 92) { // a step that is dropped: decode rows, or a chunk that had been coded
        const RowGroup chunk{.sequence = id, .prefill_tokens = std::int32_t(30 + below(90))};
        f.engine.step({{dice < 96 ? chunk : RowGroup{.sequence = id, .verify_rows = 3}, {1 + below(200)}, -1, {}}}, false);
        f.cache.drop_cached_prefixes(); // delivers what the rollback left
        return "dropped step";
    }
    const std::size_t steps = 1 + below(3);
    for (std::size_t i = 0; i < steps; ++i) {
        const auto rows = std::int32_t(1 + below(kMaxVerifyRows));
        f.engine.step({{{.sequence = id, .verify_rows = rows, .lookahead_rows = std::int32_t(below(3))}, {1 + below(200), 1 + below(200), 300 + below(200), 600 + below(200), 900 + below(200)},
                        std::int32_t(below(std::size_t(rows) + 1)), {}}});
    }
    return "step";
}

TEST_P(ObserveEvents, OBS_06_ReplayEqualsTheTablesWhileTransfersFly)
{
    std::map<std::pair<EventKind, EventReason>, int> seen;
    for (const std::int32_t threads : {2, 16}) {
        std::mt19937 random(static_cast<std::uint32_t>(threads));
        CacheConfig c = in_background(GetParam());
        c.transfer_threads = threads;
        const std::size_t room = threads == 2 ? c.fast_bytes : 0; // without room demand takes the places of guesses that fly
        FaultyCache f(c, {}, 2);
        std::atomic<std::uint32_t> calls{0};
        f.script.read_delay_us = threads == 2 ? 50 : 1000;
        f.script.set_rule([&](StoreOperation op, const StorePiece&) {
            const std::uint32_t call = ++calls;
            return op == StoreOperation::kRead ? call % 101 == 0 : op == StoreOperation::kWrite && call % 997 == 0;
        });
        std::vector<SequenceId> live;
        for (int i = 0; i < 250; ++i) {
            std::string what;
            try {
                what = operate(f, live, random, room);
            } catch (const StoreError& e) {
                what = e.what();
                f.cache.drop_cached_prefixes(); // delivers what the rollback left
            }
            f.expect_map(std::to_string(threads) + " threads, operation " + std::to_string(i) + ": " + what);
            if (testing::Test::HasFailure()) { return; }
        }
        for (const Event& e : f.log.events()) { ++seen[{e.kind, e.reason}]; }
        f.script.repair();
        for (const SequenceId id : live) { f.cache.remove(id); }
        f.quiesce();
        f.cache.drop_cached_prefixes();
        f.expect_map("all gone");
        EXPECT_EQ(f.log.replay(2, 2), ResidencyMap(2, 2));
        f.quiesce();
        EXPECT_EQ(f.cache.pool().slots().counts().free, f.cache.pool().slots().counts().capacity);
    }
    for (const auto& kind : {std::pair{EventKind::kPromoted, EventReason::kDemand}, {EventKind::kPromoted, EventReason::kPrefetch}, {EventKind::kPromoted, EventReason::kSeal},
                             {EventKind::kStored, EventReason::kSeal}, {EventKind::kEvicted, EventReason::kPressure}, {EventKind::kDropped, EventReason::kRemoved},
                             {EventKind::kDropped, EventReason::kTruncated}, {EventKind::kRefused, EventReason::kStoreFailed}}) {
        EXPECT_GT(seen[kind], 0) << name(kind.first) << " " << name(kind.second);
    }
}

/// While a copy flies nothing is told of it; when it has landed that is told, and when it fails, that.
TEST_P(ObserveEvents, OBS_06_APromotionIsToldWhenItHasLanded)
{
    for (const bool fails : {false, true}) {
        CacheConfig c = in_background(GetParam());
        c.miss = MissPolicy::kResidentOnly; // waits for nothing
        FaultyCache f(c);
        const SequenceId id = f.cache.create({}).id;
        f.engine.prefill(id, 1, 500);
        f.engine.decode(id, 1, 1);
        f.quiesce();
        f.script.gate.close();
        const auto told = [&](EventKind kind) { return std::int64_t(f.events_of(kind).size()); };
        const std::int64_t promoted = told(EventKind::kPromoted);
        for (std::uint64_t stream = 50; f.cache.pool().slots().counts().in_flight < 4; ++stream) {
            ASSERT_LT(stream, 70U) << "no guess flies";
            f.engine.step({{{.sequence = id, .verify_rows = 1, .lookahead_rows = 1}, {1, stream}, -1, {}}});
            f.expect_map("in flight");
        }
        const auto of_transfers = [&] {
            std::int64_t count = 0;
            for (const Event& e : f.events_of(EventKind::kPromoted)) { count += e.reason == EventReason::kPrefetch || e.reason == EventReason::kDemand; }
            return count;
        };
        const std::int64_t before = of_transfers();
        EXPECT_LE(promoted, told(EventKind::kPromoted));
        EXPECT_EQ(told(EventKind::kRefused), 0);
        const std::int64_t flying = f.cache.pool().slots().counts().in_flight;
        if (fails) { f.script.fail(StoreOperation::kRead); }
        f.script.gate.open();
        f.quiesce();
        EXPECT_EQ(of_transfers() - before, fails ? 0 : flying);
        EXPECT_EQ(told(EventKind::kRefused), fails ? flying : 0);
        for (const Event& e : f.events_of(EventKind::kRefused)) {
            EXPECT_TRUE(e.reason == EventReason::kStoreFailed && e.tier == Tier::kSlow && e.layer >= 0 && e.set >= 0 && e.bytes == f.cache.pool().shape().unit_bytes);
        }
        f.expect_map("landed");
        f.expect_bytes("landed");
    }
}

INSTANTIATE_TEST_SUITE_P(Codes, ObserveEvents, testing::Values(BlockCode::kNative, BlockCode::kInt8));

} // namespace
} // namespace oasis::test
