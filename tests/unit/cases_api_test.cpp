// SPDX-License-Identifier: Apache-2.0
//
// Cases of embedding: bad arguments, callbacks, forked processes, overlapping calls.

#include "cache_fixture.hpp"

#include <atomic>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>

#include <sys/wait.h>
#include <unistd.h>

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;
constexpr std::int32_t kMax32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();

/// `call` throws an `Error` whose text holds `value`.
void refused(const std::string& value, const std::function<void()>& call)
{
    try {
        call();
        ADD_FAILURE() << "taken: " << value;
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(value), std::string::npos) << "no " << value << " in: " << e.what();
    }
}

Outputs undisturbed(const CacheConfig& c, TokenIndex prompt, std::int32_t rows)
{
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, prompt);
    return engine.decode(id, 1, rows);
}

class ApiCases : public testing::Test {
protected:
    void expect_as_ever()
    {
        cache_.pool().check();
        EXPECT_EQ(engine_.decode(id_, 1, 3), undisturbed(cache_.config(), 300, 3));
    }

    KVCache<cpu::Backend, float> cache_{small_config()};
    Engine engine_{cache_};
    SequenceId id_ = [this] {
        const SequenceId id = cache_.create({}).id;
        engine_.prefill(id, 1, 300);
        return id;
    }();
};

TEST_F(ApiCases, API_01_SequencesAndMemory)
{
    const std::vector<TokenId> prompt(2049, 1);
    refused("2049", [&] { cache_.create({.prompt = prompt}); });
    for (const std::int32_t logical : {-16, 8, 240}) { refused(std::to_string(logical), [&] { cache_.create({.logical_resident = logical}); }); }
    refused("-2", [&] { cache_.create({.dense_below = -2}); });
    const CreateResult huge = cache_.create({.logical_resident = kMax32 / 16 * 16, .dense_below = kMax64}); // as much as there can be
    EXPECT_TRUE(huge);
    EXPECT_EQ(cache_.remove(huge.id), RemoveResult::kRemoved);
    for (const std::int64_t id : {-1L, 99L, std::numeric_limits<long>::min()}) {
        refused(std::to_string(id), [&] { cache_.fork(SequenceId{id}); });
        refused(std::to_string(id), [&] { cache_.truncate(SequenceId{id}, 0); });
        refused(std::to_string(id), [&] { static_cast<void>(cache_.length(SequenceId{id})); });
        refused(std::to_string(id), [&] { static_cast<void>(cache_.state(SequenceId{id})); });
        EXPECT_EQ(cache_.remove(SequenceId{id}), RemoveResult::kNotFound);
    }
    for (const TokenIndex length : {TokenIndex{-1}, TokenIndex{301}, kMax64}) { refused(std::to_string(length), [&] { cache_.truncate(id_, length); }); }
    EXPECT_GE(cache_.resize_fast(std::numeric_limits<std::size_t>::max()), cache_.stats().fast_bytes);
    EXPECT_GT(cache_.resize_fast(0), 0U);
    EXPECT_GT(cache_.resize_fast(1), 1U);
    expect_as_ever();
}

TEST_F(ApiCases, API_01_Steps)
{
    const auto begin = [&](RowGroup group) { static_cast<void>(cache_.begin_step(engine_.queue(), {&group, 1})); };
    refused("99", [&] { begin({.sequence = SequenceId{99}, .verify_rows = 1}); });
    refused("9", [&] { begin({.sequence = id_, .verify_rows = 9}); });
    refused("3 lookahead", [&] { begin({.sequence = id_, .verify_rows = 1, .lookahead_rows = 3}); });
    refused("-4", [&] { begin({.sequence = id_, .prefill_tokens = -4}); });
    refused("257", [&] { begin({.sequence = id_, .prefill_tokens = 257}); });
    refused("2048", [&] { begin({.sequence = id_, .prefill_tokens = kMax32}); });
    refused("mixes 5", [&] { begin({.sequence = id_, .verify_rows = 1, .prefill_tokens = 5}); });
    const RowGroup twice[] = {{.sequence = id_, .verify_rows = 1}, {.sequence = id_, .verify_rows = 1}};
    refused("groups 0 and 1", [&] { static_cast<void>(cache_.begin_step(engine_.queue(), twice)); });
    expect_as_ever();
}

TEST_F(ApiCases, API_01_LayersAndCommits)
{
    const RowGroup group{.sequence = id_, .verify_rows = 2};
    std::vector<float> q(2 * 6 * 32), k(2 * 2 * 32), v(k.size()), out(q.size());
    const AttendArgs good{.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()};
    const auto args = [&](auto change) {
        AttendArgs a = good;
        change(a);
        return a;
    };
    const Accepted none{0, {}};
    {
        Step step = cache_.begin_step(engine_.queue(), {&group, 1});
        const auto attend = [&](LayerId layer, const AttendArgs& a) { cache_.enqueue_attend(engine_.queue(), step, layer, a); };
        refused("layer 1", [&] { attend(1, good); });
        refused("layer -1", [&] { attend(-1, good); });
        refused("null", [&] { attend(0, args([](AttendArgs& a) { a.q = {}; })); });
        refused("null", [&] { attend(0, args([](AttendArgs& a) { a.k = {}; })); });
        refused("null", [&] { attend(0, args([](AttendArgs& a) { a.v = {}; })); });
        refused("out is null", [&] { attend(0, args([](AttendArgs& a) { a.out = {}; })); });
        refused("f16", [&] { attend(0, args([](AttendArgs& a) { a.k.dtype = DType::kF16; })); });
        refused("bf16", [&] { attend(0, args([](AttendArgs& a) { a.out.dtype = DType::kBF16; })); });
        refused("window -7", [&] { attend(0, args([](AttendArgs& a) { a.window = -7; })); });
        refused("nan", [&] { attend(0, args([](AttendArgs& a) { a.scale = std::numeric_limits<float>::quiet_NaN(); })); });
        refused("layer 0 of 2", [&] { cache_.commit(engine_.queue(), std::move(step), {&none, 1}); });
        ASSERT_TRUE(step) << "a refused commit leaves the step as it was";
        attend(0, good);
        refused("layer 0, expected 1", [&] { attend(0, good); });
        attend(1, good);
        refused("layer 2", [&] { attend(2, good); });
        for (const std::int32_t rows : {-1, 3, kMax32}) {
            const Accepted bad{rows, {}};
            refused(std::to_string(rows) + " rows accepted", [&] { cache_.commit(engine_.queue(), std::move(step), {&bad, 1}); });
        }
        const TokenId token = 1;
        const Accepted short_of_tokens{2, {&token, 1}};
        refused("1 token ids for 2", [&] { cache_.commit(engine_.queue(), std::move(step), {&short_of_tokens, 1}); });
        refused("0 entries for 1", [&] { cache_.commit(engine_.queue(), std::move(step), {}); });
        refused("is open", [&] { cache_.create({}); });
        refused("is open", [&] { static_cast<void>(cache_.begin_step(engine_.queue(), {&group, 1})); });
        refused("in the open step", [&] { cache_.remove(id_); });
        EXPECT_EQ(cache_.commit(engine_.queue(), std::move(step), {&none, 1}).committed_rows, 0);
        refused("not this cache's open one", [&] { cache_.commit(engine_.queue(), std::move(step), {&none, 1}); }); // NOLINT: use after move is the point
    }
    expect_as_ever();
}

TEST(ApiConfigCases, API_01_HugeBudgetsTakeWhatTheContextNeeds)
{
    CacheConfig c = small_config();
    c.budgets.attend = c.budgets.fetch = c.budgets.logical_resident = kMax32 / 16 * 16;
    c.prefetch_cap = kMax32 / 16 * 16;
    c.dense_below = kMax64;
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, 300);
    EXPECT_EQ(engine.decode(id, 1, 2).size(), 2U);
    EXPECT_LT(cache->stats().fast_capacity, std::size_t{1} << 30);
    c = small_config();
    c.fast_bytes = 1;
    refused("fast_bytes 1 ", [&] { make_cache(c); });
    c = small_config();
    c.dtype = static_cast<DType>(9);
    refused("9", [&] { make_cache(c); });
}

TEST(ApiCallbackCases, API_03_CallbacksMayRemoveAndAsk)
{
    AnyKVCache* self = nullptr;
    SequenceId victim{}, second{};
    bool armed = false;
    int removed = 0;
    std::string refusals;
    int calls = 0;
    bool inside = false;
    ThreadPool pool(1);
    const auto thread = std::this_thread::get_id();
    const auto try_everything = [&] {
        EXPECT_EQ(std::this_thread::get_id(), thread);
        if (!self) { return; }
        ++calls;
        static_cast<void>(self->stats());
        const auto refuses = [&](auto call) {
            try {
                call();
                ADD_FAILURE() << "a call from a callback was taken";
            } catch (const InvalidArgument& e) {
                refusals += e.what();
            }
        };
        refuses([&] { self->create({}); });
        refuses([&] { self->fork(victim); });
        refuses([&] { self->truncate(victim, 0); });
        refuses([&] { self->resize_fast(0); });
        refuses([&] { static_cast<void>(self->begin_step(Queue(pool), {})); });
        refuses([&] { self->commit(Queue(pool), Step::refused({}), {}); });
    };
    EventLog log;
    Callbacks callbacks;
    callbacks.on_event = [&](const Event& event) {
        EXPECT_FALSE(inside) << "an event in the middle of another's delivery";
        inside = true;
        log.on_event(event);
        try_everything();
        if (armed && event.kind == EventKind::kPromoted) { removed += self->remove(second) == RemoveResult::kRemoved; } // causes events of its own
        inside = false;
    };
    int pressure = 0;
    callbacks.on_pressure = [&](std::size_t bytes) -> std::size_t {
        EXPECT_GT(bytes, 0U);
        ++pressure;
        try_everything();
        self->drop_cached_prefixes();
        return self->remove(victim) == RemoveResult::kRemoved ? bytes : 0;
    };
    CacheConfig c = small_config();
    c.limits.max_sequences = 2;
    const auto cache = make_cache(c, callbacks);
    Engine engine(*cache);
    victim = cache->create({}).id;
    const SequenceId id = cache->create({}).id;
    engine.prefill(victim, 2, 400);
    self = cache.get();
    second = cache->create({}).id;
    EXPECT_NE(second, SequenceId::kNone) << "there was room once the victim was gone";
    engine.prefill(second, 3, 200);
    EXPECT_EQ(pressure, 1);
    EXPECT_FALSE(cache->create({})) << "on_pressure said that it cannot";
    armed = true;
    EXPECT_EQ(engine.prefill(id, 1, 300).size(), 300U);
    EXPECT_EQ(removed, 1);
    EXPECT_EQ(engine.decode(id, 1, 3), undisturbed(small_config(), 300, 3));
    EXPECT_GT(calls, 10);
    for (const char* call : {"create:", "fork:", "truncate:", "resize_fast:", "begin_step:", "commit:"}) { EXPECT_NE(refusals.find(call), std::string::npos) << call; }
    self = nullptr;
    static_cast<void>(log.replay(2, 2)); // the order is causal
}

TEST(ApiCallbackCases, API_03_AnExceptionOfACallbackPassesThroughAndLosesNoEvent)
{
    int seen = 0;
    bool armed = false;
    EventLog log;
    Callbacks callbacks;
    callbacks.on_event = [&](const Event& event) {
        ++seen;
        log.on_event(event);
        if (std::exchange(armed, false)) { throw std::runtime_error("mine"); }
    };
    const auto cache = make_cache(small_config(), callbacks);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, 48);
    armed = true;
    EXPECT_THROW(engine.prefill(id, 1, 148), std::runtime_error);
    const auto left = std::size_t(300 - cache->length(id));
    EXPECT_EQ(engine.prefill(id, 1, 300).size(), left);
    EXPECT_EQ(engine.decode(id, 1, 3), undisturbed(small_config(), 300, 3));
    static_cast<void>(log.replay(2, 2)); // complete and in order
    EXPECT_GT(seen, 2);
}

TEST(ApiForkCases, API_05_AForkedProcessGetsASentence)
{
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts threads; builds without it run this";
#endif
    auto pool = std::make_unique<ThreadPool>(3);
    KVCache<cpu::Backend, float> cache(small_config());
    Engine engine(cache, 2);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 300);
    const Outputs plain = undisturbed(small_config(), 300, 4);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        ::alarm(20); // a hang ends by signal
        bool right = false;
        {
            auto mine = std::make_unique<ThreadPool>(2);
            try {
                pool->parallel_for(8, [](std::size_t) {});
            } catch (const Error& e) {
                right = std::string(e.what()).find("fork") != std::string::npos;
            }
            std::atomic<int> ran = 0;
            mine->parallel_for(8, [&](std::size_t) { ++ran; });
            right = right && ran == 8;
        }
        pool.reset(); // must neither hang nor join what is not there
        ::_exit(right ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    std::atomic<int> ran = 0;
    pool->parallel_for(8, [&](std::size_t) { ++ran; });
    EXPECT_EQ(ran, 8);
    EXPECT_EQ(engine.decode(id, 1, 4), plain) << "the parent goes on";
}

TEST(ApiCases06, API_06_NamedFieldsAndTypesThatDoNotMix)
{
    static_assert(!std::is_convertible_v<int, SequenceId> && !std::is_convertible_v<SequenceId, int>);
    static_assert(!std::is_convertible_v<SequenceId, BlockId> && !std::is_convertible_v<BlockId, SlotId> && !std::is_convertible_v<SlotId, int>);
    static_assert(!std::is_convertible_v<Executor*, Queue> && !std::is_constructible_v<Queue, std::nullptr_t> && !std::is_default_constructible_v<Queue>);
    static_assert(std::is_aggregate_v<CacheConfig> && std::is_aggregate_v<AttendArgs> && std::is_aggregate_v<RowGroup> && std::is_aggregate_v<SequenceOptions>);
    static_assert(std::is_aggregate_v<Budgets> && std::is_aggregate_v<Limits> && std::is_aggregate_v<Accepted> && std::is_aggregate_v<Callbacks>);
    static_assert(!std::is_copy_constructible_v<Step> && std::is_nothrow_move_constructible_v<Step>);
    const CacheConfig c{.shape = {.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 32}, .budgets = {.attend = 512, .fetch = 512, .logical_resident = 512}};
    const RowGroup group{.sequence = SequenceId{3}, .verify_rows = 2, .lookahead_rows = 1};
    EXPECT_EQ(group.rows(), 3);
    EXPECT_EQ(c.shape.group(), 2);
}

/// Stops in the middle of a call until it is told to go on.
class GateExecutor final : public Executor {
public:
    std::size_t concurrency() const noexcept override { return 1; }
    void parallel_for(std::size_t tasks, TaskRef task) override
    {
        entered = true;
        while (!open) { std::this_thread::yield(); }
        for (std::size_t i = 0; i < tasks; ++i) { task(i); }
    }
    std::atomic<bool> entered = false;
    std::atomic<bool> open = false;
};

TEST(ApiThreadCases, API_07_OverlappingCallsAreRefused)
{
    KVCache<cpu::Backend, float> cache(small_config());
    const SequenceId id = cache.create({}).id;
    const SequenceId other = cache.create({}).id;
    GateExecutor gate;
    std::thread driver([&] {
        const RowGroup group{.sequence = id, .verify_rows = 1};
        std::vector<float> q(6 * 32, 1), k(2 * 32, 1), v(2 * 32, 1), out(6 * 32);
        Step step = cache.begin_step(Queue(gate), {&group, 1});
        for (LayerId layer = 0; layer < 2; ++layer) { cache.enqueue_attend(Queue(gate), step, layer, {.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()}); }
        const Accepted accepted{1, {}};
        cache.commit(Queue(gate), std::move(step), {&accepted, 1});
    });
    while (!gate.entered) { std::this_thread::yield(); }
    refused("in progress", [&] { cache.create({}); });
    refused("in progress", [&] { cache.fork(other); });
    refused("in progress", [&] { cache.truncate(other, 0); });
    refused("in progress", [&] { cache.remove(other); });
    refused("in progress", [&] { cache.resize_fast(0); });
    refused("in progress", [&] { static_cast<void>(cache.begin_step(Queue(gate), {})); });
    EXPECT_EQ(cache.stats().sequences, 2);
    gate.open = true;
    driver.join();
    EXPECT_EQ(cache.length(id), 1);
    EXPECT_EQ(cache.remove(other), RemoveResult::kRemoved);
    cache.pool().check();
}

TEST(ApiThreadCases, API_07_CachesOfDifferentTypesAreIndependent)
{
    std::vector<CacheConfig> configs(3, small_config());
    configs[1].dtype = DType::kBF16;
    configs[2].dtype = DType::kF16;
    configs[2].block_code = BlockCode::kInt8;
    std::vector<Outputs> alone, together(configs.size());
    for (const CacheConfig& c : configs) { alone.push_back(undisturbed(c, 400, 10)); }
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < configs.size(); ++i) {
        threads.emplace_back([&, i] { together[i] = undisturbed(configs[i], 400, 10); });
    }
    for (auto& thread : threads) { thread.join(); }
    EXPECT_EQ(together, alone);
}

} // namespace
} // namespace oasis::test
