// SPDX-License-Identifier: Apache-2.0
//
// Cases of what a cache says of itself: hit counters, error texts, the event stream. The slow tier fails on request.

#include "cache_fixture.hpp"
#include "fault/failing_store.hpp"

#include <algorithm>
#include <set>
#include <string>

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;
using fault::StoreFaults;
using fault::StoreOperation;

struct Faulty : DefaultPolicies<cpu::Backend, float> {
    using Store = fault::FailingStore<RamStore>;
    using Telemetry = EventLog;
};
using Cache = KVCache<cpu::Backend, float, Faulty>;

std::vector<TokenId> tokens(TokenIndex n)
{
    std::vector<TokenId> all;
    for (TokenIndex p = 0; p < n; ++p) { all.push_back(static_cast<TokenId>(p)); }
    return all;
}

Outputs undisturbed(const CacheConfig& c, TokenIndex prompt, std::int32_t rows)
{
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, prompt);
    return engine.decode(id, 1, rows);
}

class ObserveCases : public testing::Test {
protected:
    ObserveCases() { StoreFaults::current() = faults_; }
    ~ObserveCases() override { StoreFaults::current() = std::make_shared<StoreFaults>(); }

    static CacheConfig config()
    {
        CacheConfig c = small_config();
        c.prefetch_cap = 32;
        return c;
    }
    /// The map that the events lead to is the one that the tables hold.
    void expect_map(Cache& cache, const std::string& after)
    {
        cache.pool().check();
        const PoolShape& shape = cache.pool().shape();
        const ResidencyMap map = cache.telemetry().replay(2, shape.sets);
        for (std::int32_t b = 0; b < shape.blocks; ++b) {
            const BlockId block{b};
            for (LayerId layer = 0; layer < 2; ++layer) {
                for (std::int32_t set = 0; set < shape.sets; ++set) {
                    const bool fast = cache.pool().slots().slot_of(cache.pool().slots().unit(layer, set, block)) != SlotId::kNone;
                    ASSERT_EQ(map.resident(Tier::kFast, block, layer, set), fast) << after << ": fast, block " << b << " layer " << layer << " set " << set;
                    ASSERT_EQ(map.resident(Tier::kSlow, block, layer, set), cache.pool().blocks()[block].sealed) << after << ": slow, block " << b;
                }
            }
        }
    }
    void fail(StoreOperation operation, std::function<bool(const StorePiece&)> which = [](const StorePiece&) { return true; })
    {
        faults_->when = [operation, which](StoreOperation op, const StorePiece& piece) { return op == operation && which(piece); };
    }

    std::shared_ptr<StoreFaults> faults_ = std::make_shared<StoreFaults>();
};

TEST_F(ObserveCases, OBS_02_HitsAreCountedOnceAndNeverTakenBack)
{
    Cache cache(config());
    Engine engine(cache);
    std::vector<Counters> seen;
    const auto note = [&] { seen.push_back(cache.stats().counters); };
    const std::vector<TokenId> prompt = tokens(1000);
    note();
    const SequenceId donor = cache.create({.prompt = prompt}).id;
    EXPECT_EQ(cache.stats().counters.prefix_query_tokens, 1000U);
    EXPECT_EQ(cache.stats().counters.prefix_hit_tokens, 0U);
    engine.prefill(donor, 1, 600, 100, {prompt.begin(), prompt.begin() + 600});
    note();
    const CreateResult second = cache.create({.prompt = prompt});
    EXPECT_EQ(second.cached_tokens, 592); // 600 in whole blocks
    EXPECT_EQ(cache.stats().counters.prefix_query_tokens, 2000U);
    EXPECT_EQ(cache.stats().counters.prefix_hit_tokens, 592U);
    note();
    cache.remove(donor);
    cache.remove(second.id);
    fail(StoreOperation::kRead); // what was found cannot be read: a miss, and no hit
    const CreateResult third = cache.create({.prompt = prompt});
    ASSERT_TRUE(third);
    EXPECT_EQ(cache.stats().counters.prefix_query_tokens, 3000U);
    EXPECT_EQ(cache.stats().counters.prefix_hit_tokens, 592U + std::uint64_t(third.cached_tokens));
    EXPECT_LT(third.cached_tokens, 592);
    faults_->when = nullptr;
    engine.prefill(third.id, 1, 1000, 100, prompt);
    engine.decode(third.id, 1, 5);
    note();
    {
        auto dropped = engine.step({{{.sequence = third.id, .verify_rows = 3}, {9}, -1, {}}}, false);
        note();
    }
    cache.truncate(third.id, 100);
    note();
    for (std::size_t i = 1; i < seen.size(); ++i) {
        const auto& a = seen[i - 1];
        const auto& b = seen[i];
        EXPECT_TRUE(a.steps <= b.steps && a.attended_tokens <= b.attended_tokens && a.must_tokens <= b.must_tokens && a.fetched_tokens <= b.fetched_tokens &&
                    a.fetched_bytes <= b.fetched_bytes && a.sealed_blocks <= b.sealed_blocks && a.prefix_hit_tokens <= b.prefix_hit_tokens &&
                    a.prefix_query_tokens <= b.prefix_query_tokens && a.initial_tokens <= b.initial_tokens && a.streamed_bytes <= b.streamed_bytes)
            << i;
    }
    const Counters& c = seen.back();
    EXPECT_EQ(c.must_tokens, c.resident_must_tokens + c.fetched_tokens + c.skipped_tokens);
    cache.pool().check();
}

void expect_fields(const std::string& text, const std::vector<std::string>& fields)
{
    for (const std::string& field : fields) { EXPECT_NE(text.find(field), std::string::npos) << "no '" << field << "' in: " << text; }
}

TEST_F(ObserveCases, OBS_05_AFailedWriteSaysWhatAndWhere)
{
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Cache cache(config());
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 100);
    fail(StoreOperation::kWrite, [](const StorePiece& piece) { return piece.layer == 1 && piece.set == 1; });
    try {
        engine.prefill(id, 1, 200);
        ADD_FAILURE() << "the store refused and nobody said so";
    } catch (const StoreError& e) {
        const std::string bytes = std::to_string(cache.pool().shape().unit_bytes) + " bytes";
        expect_fields(e.what(), {"slow tier", "write", "block ", "layer 1", "set 1", "sequence 0", bytes});
    }
    const std::string printed = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    EXPECT_EQ(printed, "");
    cache.drop_cached_prefixes(); // delivers what the rollback left
    expect_map(cache, "failed write"); // nothing stored that is not whole
    EXPECT_EQ(cache.length(id), 100);
    faults_->when = nullptr;
    engine.prefill(id, 1, 300);
    EXPECT_EQ(engine.decode(id, 1, 5), undisturbed(config(), 300, 5)) << "nothing was lost";
    expect_map(cache, "second attempt");
}

TEST_F(ObserveCases, OBS_05_AFailedReadLosesTheSequenceFromThereOn)
{
    std::vector<std::string> failures;
    Callbacks callbacks;
    callbacks.on_failure = [&](SequenceId id, std::string_view what) {
        EXPECT_EQ(id, SequenceId{0});
        failures.emplace_back(what);
    };
    CacheConfig c = config();
    c.budgets.attend = c.budgets.logical_resident = 192;
    c.dense_below = 0;
    Cache cache(c, callbacks);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    const SequenceId other = cache.create({}).id;
    engine.prefill(id, 1, 700);
    engine.prefill(other, 1, 700);
    engine.decode(id, 1, 1);
    const BlockId lost = cache.pool().find(id)->blocks[20];
    fail(StoreOperation::kRead, [&](const StorePiece& piece) { return piece.block == lost; });
    for (std::uint64_t i = 0; i < 60 && failures.empty(); ++i) {
        EXPECT_EQ(engine.step({{{.sequence = id, .verify_rows = 4}, {30 + i}, 1, {}}}).size(), 4U) << "a failed transfer is a miss, never an end";
    }
    ASSERT_FALSE(failures.empty());
    expect_fields(failures[0], {"slow tier", "read", "block " + std::to_string(raw(lost)), "sequence 0", std::to_string(cache.pool().shape().unit_bytes) + " bytes"});
    ASSERT_TRUE(cache.state(id).lost());
    EXPECT_EQ(*cache.state(id).first_lost, 20 * 16);
    EXPECT_FALSE(cache.state(other).lost());
    cache.truncate(id, *cache.state(id).first_lost);
    EXPECT_FALSE(cache.state(id).lost());
    faults_->when = nullptr;
    engine.prefill(id, 1, 700);
    c.dense_below = 0;
    EXPECT_EQ(engine.decode(other, 1, 5), undisturbed(c, 700, 5)) << "others go on";
    expect_map(cache, "lost and computed again");
}

TEST_F(ObserveCases, OBS_05_PrefillAndTruncationOverABlockThatIsGone)
{
    Cache cache(config());
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 700);
    fail(StoreOperation::kRead);
    try {
        engine.prefill(id, 1, 800);
        ADD_FAILURE() << "prefill without its context";
    } catch (const StoreError& e) {
        expect_fields(e.what(), {"slow tier", "read", "block ", "layer 0", "set ", "sequence 0", "bytes"});
    }
    EXPECT_TRUE(cache.state(id).lost());
    EXPECT_EQ(cache.length(id), 700);
    cache.truncate(id, 600); // reads back the window, which fails as well
    ASSERT_TRUE(cache.state(id).lost());
    EXPECT_LT(*cache.state(id).first_lost, 600);
    faults_->when = nullptr;
    cache.truncate(id, *cache.state(id).first_lost / 128 * 128);
    EXPECT_FALSE(cache.state(id).lost());
    engine.prefill(id, 1, 700);
    EXPECT_EQ(engine.decode(id, 1, 3), undisturbed(config(), 700, 3));
    expect_map(cache, "computed again");
}

/// A layer that fails after it took hold of slots: they are let go, the step cannot be gone on with, the sequence can.
TEST_F(ObserveCases, OBS_05_AFailedLayerHoldsNothing)
{
    CacheConfig c = config();
    c.measure_mass = true; // reads every key, resident or not
    Cache cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 700);
    fail(StoreOperation::kRead, [](const StorePiece& piece) { return piece.layer == 1 && piece.set == 1; });
    const RowGroup group{.sequence = id, .verify_rows = 1};
    std::vector<float> q(6 * 32, 1), k(2 * 32, 1), v(2 * 32, 1), out(6 * 32);
    const AttendArgs args{.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()};
    {
        Step step = cache.begin_step(engine.queue(), {&group, 1});
        cache.enqueue_attend(engine.queue(), step, 0, args);
        EXPECT_THROW(cache.enqueue_attend(engine.queue(), step, 1, args), StoreError);
        EXPECT_EQ(cache.pool().slots().counts().pinned, 0);
        EXPECT_EQ(cache.pool().slots().counts().in_flight, 0);
        EXPECT_THROW(cache.enqueue_attend(engine.queue(), step, 1, args), InvalidArgument);
        const Accepted accepted{1, {}};
        EXPECT_THROW(cache.commit(engine.queue(), std::move(step), {&accepted, 1}), InvalidArgument);
    }
    faults_->when = nullptr;
    cache.pool().check();
    EXPECT_EQ(cache.length(id), 700);
}

TEST_F(ObserveCases, OBS_05_FullTiersNameTheTierAndTheSize)
{
    CacheConfig c = config();
    const Footprint f = footprint(c);
    c.slow_bytes = 20 * 16 * f.slow_bytes_per_token;
    Cache cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    EXPECT_EQ(engine.prefill(id, 1, 400).size(), 300U);
    ASSERT_TRUE(engine.full);
    EXPECT_EQ(engine.full->tier, Tier::kSlow);
    EXPECT_GT(engine.full->needed_bytes, engine.full->available_bytes);
    const auto events = cache.telemetry().events();
    const auto refusal = std::find_if(events.begin(), events.end(), [](const Event& e) { return e.kind == EventKind::kRefused; });
    ASSERT_NE(refusal, events.end());
    EXPECT_EQ(refusal->tier, Tier::kSlow);
    EXPECT_EQ(refusal->bytes, engine.full->needed_bytes);
    // Truncating inside a shared block needs one more block.
    engine.prefill(id, 1, 320);
    const SequenceId child = cache.fork(id).id;
    ASSERT_NE(child, SequenceId::kNone);
    try {
        cache.truncate(child, 310);
        ADD_FAILURE() << "there is no block for the copy";
    } catch (const Error& e) {
        expect_fields(e.what(), {"truncate", "slow tier", "block ", "sequence 1", "bytes", "304 tokens"});
    }
    EXPECT_EQ(cache.length(child), 320) << "nothing has changed";
    cache.pool().check();
    cache.truncate(child, 304);
    cache.remove(id);
    EXPECT_EQ(engine.decode(child, 1, 3), undisturbed(config(), 304, 3));
    cache.pool().check();
}

/// Demote, promote, evict, fail a store, roll back, fork, truncate, remove: after each the replayed events equal the tables.
class ObserveEvents : public ObserveCases, public testing::WithParamInterface<BlockCode> {};

TEST_P(ObserveEvents, OBS_06_ReplayEqualsTheTables)
{
    CacheConfig c = config();
    c.block_code = GetParam();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F}; // little room: much comes and goes
    Cache cache(c);
    Engine engine(cache);
    const std::vector<TokenId> prompt = tokens(700);
    const SequenceId a = cache.create({.prompt = prompt}).id;
    engine.prefill(a, 1, 700, 130, prompt);
    expect_map(cache, "prefill");
    for (std::uint64_t i = 0; i < 25; ++i) { engine.step({{{.sequence = a, .verify_rows = 3, .lookahead_rows = 1}, {1 + i % 4}, std::int32_t(i % 4), {}}}); }
    expect_map(cache, "drafts");
    cache.resize_fast(0);
    expect_map(cache, "less fast memory");
    for (std::uint64_t i = 0; i < 60; ++i) { engine.decode(a, 40 + i, 1); }
    expect_map(cache, "evictions");
    cache.resize_fast(std::size_t{1} << 26);
    expect_map(cache, "more fast memory");
    const CreateResult shared = cache.create({.prompt = prompt});
    EXPECT_GT(shared.cached_tokens, 600);
    expect_map(cache, "shared prefix");
    engine.decode(shared.id, 2, 10);
    const SequenceId child = cache.fork(a).id;
    engine.prefill(child, 5, cache.length(child) + 150);
    expect_map(cache, "fork");
    engine.step({{{.sequence = a, .verify_rows = 4}, {7}, -1, {}}, {{.sequence = child, .prefill_tokens = 120}, {7}, -1, {}}}, false);
    cache.drop_cached_prefixes(); // delivers what the rollback left
    expect_map(cache, "rollback");
    engine.step({{{.sequence = child, .prefill_tokens = 120}, {7}, 70, {}}});
    expect_map(cache, "prefill accepted in part");
    fail(StoreOperation::kWrite, [](const StorePiece& piece) { return piece.layer == 1; });
    EXPECT_THROW(engine.prefill(child, 5, cache.length(child) + 100), StoreError);
    faults_->when = nullptr;
    cache.drop_cached_prefixes();
    expect_map(cache, "failed store");
    engine.prefill(child, 5, cache.length(child) + 100);
    expect_map(cache, "store after failure");
    for (const TokenIndex length : {690, 500, 333, 64}) {
        cache.truncate(a, length);
        expect_map(cache, "truncate");
        engine.prefill(a, 6, length + 60);
        expect_map(cache, "prefill after truncate");
    }
    cache.remove(shared.id);
    expect_map(cache, "remove");
    cache.remove(child);
    expect_map(cache, "remove");
    cache.drop_cached_prefixes();
    cache.remove(a);
    cache.drop_cached_prefixes();
    expect_map(cache, "all gone");
    std::set<EventKind> kinds;
    for (const Event& e : cache.telemetry().events()) { kinds.insert(e.kind); }
    EXPECT_EQ(kinds.size(), 5U);
    EXPECT_EQ(cache.telemetry().replay(2, 2), ResidencyMap(2, 2));
}

TEST_P(ObserveEvents, OBS_06_NothingIsStoredThatFailed)
{
    CacheConfig c = config();
    c.block_code = GetParam();
    Cache cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    fail(StoreOperation::kWrite);
    EXPECT_THROW(engine.prefill(id, 1, 200), StoreError);
    faults_->when = nullptr;
    cache.drop_cached_prefixes();
    for (const Event& e : cache.telemetry().events()) { EXPECT_NE(e.kind, EventKind::kStored); }
    expect_map(cache, "failed store");
}
INSTANTIATE_TEST_SUITE_P(Codes, ObserveEvents, testing::Values(BlockCode::kNative, BlockCode::kInt8));

} // namespace
} // namespace oasis::test
