// SPDX-License-Identifier: Apache-2.0
//
// Transfers in the background, seen from the cache: they change time and never a bit; late blocks are waited for while the rest is attended;
// guesses hide the link; a bounded miss stays within its bound.

#include "background_fixture.hpp"

#include <oasis/pool/block_pool.hpp>
#include <oasis/prefetch/prefetch_engine.hpp>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace oasis::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
constexpr TokenIndex kPrompt = 700;

/// Steps of 1 to 8 verify rows of which some stand, until `rows` stand. Rows after those that stand are of another stream.
Outputs drafted(AnyKVCache& cache, int rows, bool lookahead)
{
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, kPrompt);
    Outputs out;
    for (int i = 0; int(out.size()) < rows; ++i) {
        const std::int32_t verify = 1 + i % kMaxVerifyRows;
        const std::int32_t stand = std::min(1 + i * 5 % verify, rows - int(out.size()));
        Engine::Part part{{.sequence = id, .verify_rows = verify, .lookahead_rows = lookahead ? 1 + i % 2 : 0}, {}, stand, {}};
        for (std::int32_t r = 0; r < part.rows.rows(); ++r) { part.streams.push_back(r < stand ? 1U : 77U + unsigned(i)); }
        const Outputs step = engine.step({part});
        out.insert(out.end(), step.begin(), step.begin() + stand);
    }
    return out;
}

TEST(CacheBackground, ThreadsAndGuessesChangeNoBit)
{
    constexpr int kRows = 60;
    for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
        CacheConfig c = missing_config();
        c.block_code = code;
        const Outputs expected = undisturbed(c, 1, kPrompt, kRows);
        for (const std::int32_t threads : {0, 1, 4}) {
            for (const std::int32_t cap : {0, 64}) {
                c.transfer_threads = threads;
                c.prefetch_cap = cap;
                const auto cache = cache_over(c, slow_reads(microseconds(50)));
                EXPECT_EQ(drafted(*cache, kRows, cap > 0), expected) << threads << " threads, cap " << cap;
                cache->pool().check();
                const Stats stats = cache->stats();
                EXPECT_GT(stats.counters.fetched_tokens, 0U);
                if (cap > 0) { EXPECT_GT(stats.counters.prefetched_tokens, 0U); }
                if (threads > 0 && cap == 0) { EXPECT_GT(stats.stall.mean_us, 0); }
                if (threads == 0) { EXPECT_EQ(stats.stall.mean_us, 0); }
            }
        }
    }
}

/// Reads do not end before work was done while they ran.
class Gate {
public:
    bool read_begins()
    {
        std::unique_lock lock(mutex_);
        ++waiting_;
        changed_.notify_all();
        const bool opened = changed_.wait_for(lock, milliseconds(500), [&] { return open_; });
        late_ = late_ || !opened;
        return opened;
    }
    /// Waits a little for a read to begin; true when one is being waited for.
    bool read_is_waiting()
    {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, milliseconds(30), [&] { return waiting_ > 0; });
    }
    void open()
    {
        const std::scoped_lock lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    bool was_opened()
    {
        const std::scoped_lock lock(mutex_);
        return open_;
    }
    bool late()
    {
        const std::scoped_lock lock(mutex_);
        return late_;
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int waiting_ = 0;
    bool open_ = false;
    bool late_ = false;
};

/// Opens the gate once it has carried out tasks while a read was waiting.
class OpeningExecutor final : public Executor {
public:
    explicit OpeningExecutor(Gate& gate) : gate_(gate) {}
    std::size_t concurrency() const noexcept override { return 1; }
    void parallel_for(std::size_t tasks, TaskRef task) override
    {
        const bool waiting = tasks > 0 && gate_.read_is_waiting();
        for (std::size_t i = 0; i < tasks; ++i) { task(i); }
        if (waiting) { gate_.open(); }
    }

private:
    Gate& gate_;
};

/// One decode row on the caller's executor: its outputs, and log-sum-exps.
struct Row {
    std::vector<float> out;
    std::vector<float> lse; ///< [layers, q_heads]
};
Row decode_row(AnyKVCache& cache, Executor& executor, SequenceId id, std::uint64_t stream)
{
    const ModelShape& shape = cache.config().shape;
    const auto d = std::size_t(shape.head_dim);
    const Queue queue(executor);
    const TokenIndex position = cache.length(id);
    const RowGroup group{.sequence = id, .verify_rows = 1};
    Step step = cache.begin_step(queue, {&group, 1});
    std::vector<float> q(std::size_t(shape.q_heads) * d), k(std::size_t(shape.kv_heads) * d), v(k.size()), o(q.size()), lse(std::size_t(shape.q_heads));
    Row row;
    for (LayerId layer = 0; layer < shape.layers; ++layer) {
        for (std::int32_t h = 0; h < shape.q_heads; ++h) { fill_vector(stream, Kind::kQ, layer, h, position, {q.data() + std::size_t(h) * d, d}); }
        for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
            fill_vector(stream, Kind::kK, layer, h, position, {k.data() + std::size_t(h) * d, d});
            fill_vector(stream, Kind::kV, layer, h, position, {v.data() + std::size_t(h) * d, d});
        }
        cache.enqueue_attend(queue, step, layer, {.q = q.data(), .k = k.data(), .v = v.data(), .out = o.data(), .lse = lse.data()});
        row.out.insert(row.out.end(), o.begin(), o.end());
        row.lse.insert(row.lse.end(), lse.begin(), lse.end());
    }
    const Accepted all{1, {}};
    cache.commit(queue, std::move(step), {&all, 1});
    return row;
}

TEST(CacheBackground, WhatIsThereIsAttendedWhileTheRestIsOnItsWay)
{
    CacheConfig c = missing_config();
    c.shape.layers = 1;
    c.transfer_threads = 2;
    c.budgets.attend = c.budgets.fetch = c.budgets.logical_resident = 640; // several chunks a head
    constexpr TokenIndex kLong = 1300;
    const Outputs expected = undisturbed(c, 1, kLong, 40);
    auto faults = std::make_shared<fault::StoreFaults>();
    std::atomic<Gate*> gate{nullptr};
    faults->delay = [&](fault::StoreOperation op, const StorePiece&) {
        Gate* closed = op == fault::StoreOperation::kRead ? gate.load() : nullptr;
        if (closed) { closed->read_begins(); }
        return microseconds(0);
    };
    const auto cache = cache_over(c, faults);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, kLong);
    engine.decode(id, 1, 1);
    bool overlapped = false; // a row whose every chunk lacks a block has nothing to attend to meanwhile
    for (std::size_t i = 1; i < expected.size() && !overlapped; ++i) {
        Gate closed;
        OpeningExecutor executor(closed);
        gate = &closed;
        EXPECT_EQ(decode_row(*cache, executor, id, 1).out, expected[i]) << i;
        gate = nullptr;
        overlapped = closed.was_opened() && !closed.late();
    }
    EXPECT_TRUE(overlapped) << "nothing was attended to while a block was on its way";
    EXPECT_GT(cache->stats().stall.mean_us, 0);
}

/// Mean stall of a step, with the time of a model's other work between steps.
double stall_of(CacheConfig c, bool lookahead)
{
    const auto cache = cache_over(c, slow_reads(milliseconds(2)));
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, kPrompt);
    for (int i = 0; i < 12; ++i) {
        engine.step({{{.sequence = id, .verify_rows = 1, .lookahead_rows = lookahead ? 1 : 0}, {1}, 1, {}}});
        std::this_thread::sleep_for(milliseconds(25));
    }
    return cache->stats().stall.p50_us;
}

TEST(CacheBackground, ARightGuessHidesTheLink)
{
    CacheConfig c = missing_config();
    c.transfer_threads = 4;
    const double without = stall_of(c, false);
    c.prefetch_cap = 112;
    const double with = stall_of(c, true);
    EXPECT_GT(without, 2000);
    EXPECT_LT(with, without / 2);
}

CacheConfig bounded_config()
{
    CacheConfig c = missing_config();
    c.summary = {SummaryKind::kMinMax, 2, SummaryCode::kInt4};
    c.transfer_threads = 1;
    return c;
}

TEST(CacheBackground, ABoundedMissStaysWithinItsBound)
{
    constexpr float kEpsilon = 0.03F;
    constexpr TokenIndex kLong = 1300;
    CacheConfig c = bounded_config();
    c.budgets.attend = c.budgets.fetch = c.budgets.logical_resident = 640; // several chunks a head: a bound is compared with what was read
    c.summary = {SummaryKind::kMinMax, 1, SummaryCode::kInt8}; // bounds so near the truth that some miss is negligible and some is not
    const auto exact = cache_over(c, slow_reads(microseconds(0)));
    c.miss = MissPolicy::kBounded;
    c.miss_epsilon = kEpsilon;
    const auto bounded = cache_over(c, slow_reads(milliseconds(1)));
    InlineExecutor here;
    SequenceId ids[2];
    for (int i = 0; i < 2; ++i) {
        AnyKVCache& cache = i == 0 ? *exact : *bounded;
        Engine engine(cache);
        ids[i] = cache.create({}).id;
        engine.prefill(ids[i], 1, kLong);
    }
    double most = 0;
    for (int row = 0; row < 40; ++row) {
        const Counters before = bounded->stats().counters;
        const Row all = decode_row(*exact, here, ids[0], 1);
        const Row some = decode_row(*bounded, here, ids[1], 1);
        const Counters after = bounded->stats().counters;
        double missing = 0; // true mass that was not read: the worst head of each KV head
        for (std::size_t head = 0; head < all.lse.size(); head += 3) {
            double worst = 0;
            for (std::size_t g = head; g < head + 3; ++g) { worst = std::max(worst, -std::expm1(double(some.lse[g]) - double(all.lse[g]))); }
            missing += worst;
        }
        most = std::max(most, missing);
        EXPECT_LE(missing, after.skipped_mass - before.skipped_mass + 1e-5) << row;
        EXPECT_LE(missing, double(kEpsilon) * double(after.skipped_blocks - before.skipped_blocks) + 1e-5) << row;
    }
    const Counters c2 = bounded->stats().counters;
    EXPECT_GT(c2.skipped_blocks, 0U);
    EXPECT_GT(most, 0.0);
    EXPECT_LE(c2.skipped_mass, double(kEpsilon) * double(c2.skipped_blocks));
    EXPECT_GT(c2.fetched_tokens, c2.skipped_tokens) << "nothing was waited for";
    bounded->pool().check();
}

TEST(CacheBackground, ADeadlineBoundsTheWait)
{
    CacheConfig c = bounded_config();
    c.miss = MissPolicy::kBounded;
    c.miss_epsilon = 0;
    c.miss_deadline_us = 2000;
    auto faults = std::make_shared<fault::StoreFaults>();
    std::atomic<bool> stuck{false};
    faults->delay = [&](fault::StoreOperation op, const StorePiece&) { return op == fault::StoreOperation::kRead && stuck ? milliseconds(300) : milliseconds(0); };
    const auto cache = cache_over(c, faults);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, kPrompt);
    engine.decode(id, 1, 1);
    stuck = true;
    for (int i = 0; i < 6; ++i) { engine.decode(id, 1, 1); }
    stuck = false;
    const Stats stats = cache->stats();
    EXPECT_GT(stats.counters.skipped_blocks, 0U);
    EXPECT_LT(stats.stall.p99_us, 150e3) << "longer than both layers' deadlines by far";
    cache->pool().check();
    engine.decode(id, 1, 20);
    cache->pool().check();
}

TEST(CacheBackground, BoundedRefusesSummariesThatAreNoUpperBounds)
{
    CacheConfig c = missing_config();
    c.miss = MissPolicy::kBounded;
    for (const SummaryKind kind : {SummaryKind::kSpread, SummaryKind::kMean, SummaryKind::kCuboid}) {
        c.summary.kind = kind;
        try {
            make_cache(c);
            ADD_FAILURE() << "made with summaries of kind " << +std::uint8_t(kind);
        } catch (const InvalidArgument& e) {
            EXPECT_NE(std::string(e.what()).find("upper bound"), std::string::npos) << e.what();
        }
    }
    c.summary.kind = SummaryKind::kMinMax;
    EXPECT_NO_THROW(make_cache(c));
}

TEST(CacheBackground, DestroyedWhileTransfersAreUnderWay)
{
    CacheConfig c = missing_config();
    c.prefetch_cap = 112;
    for (const std::int32_t threads : {1, 2, 4}) {
        c.transfer_threads = threads;
        auto faults = slow_reads(milliseconds(3));
        auto cache = cache_over(c, faults);
        Engine engine(*cache);
        const SequenceId id = cache->create({}).id;
        engine.prefill(id, 1, 400);
        for (int i = 0; i < 40 && cache->stats().slots.in_flight == 0; ++i) {
            engine.step({{{.sequence = id, .verify_rows = 1, .lookahead_rows = 2}, {1, 50U + unsigned(i), 90U + unsigned(i)}, 1, {}}});
        }
        EXPECT_GT(cache->stats().slots.in_flight, 0);
        cache.reset();
        const std::uint64_t reads = faults->reads;
        std::this_thread::sleep_for(milliseconds(8));
        EXPECT_EQ(faults->reads, reads) << "a thread outlived its cache";
    }
}

TEST(CacheBackground, AChildProcessDestroysItsCopy)
{
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not follow a fork with threads; builds without it run this";
#endif
    CacheConfig c = missing_config();
    c.transfer_threads = 2;
    c.prefetch_cap = 112;
    auto cache = cache_over(c, slow_reads(milliseconds(3)));
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, 400);
    for (int i = 0; i < 6; ++i) { engine.step({{{.sequence = id, .verify_rows = 1, .lookahead_rows = 2}, {1, 50U + unsigned(i), 90U + unsigned(i)}, 1, {}}}); }
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        ::alarm(20); // a child that hangs dies
        cache.reset();
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    EXPECT_EQ(engine.decode(id, 1, 4).size(), 4U); // the parent goes on
}

/// A guess that has failed, but was not booked yet, is asked for by a row: its failure is the row's, or the row would go without the block.
TEST(CacheBackground, AFailedGuessThatARowAsksForIsReportedAsWanted)
{
    constexpr std::size_t kUnit = 256;
    auto faults = std::make_shared<fault::StoreFaults>();
    faults->fail_read_at = 1;
    using Store = fault::FailingStore<>;
    BlockPool<Store> blocks{2, kUnit, std::make_unique<Store>(StoreOptions{kUnit, 1, 1, 2 * kUnit}, faults)};
    const auto block = blocks.try_allocate([](BlockId) {});
    ASSERT_TRUE(block);
    SlotTable<LruEviction> slots{{kUnit, 1, 1, 2}, LruEviction{}};
    slots.set_capacity(2);
    PrefetchEngine<LruEviction, BlockPool<Store>> engine(slots, blocks, 1);
    const auto slot = engine.plan(TransferKind::kPrefetch, SequenceId{0}, *block, 0, 0, slots.unit(0, 0, *block), 1);
    ASSERT_TRUE(slot);
    InlineExecutor here;
    engine.start(Queue(here));
    while (engine.outstanding() > 0) { std::this_thread::yield(); }
    ASSERT_TRUE(slots.in_flight(*slot));
    engine.promote(*slot);
    const auto settled = engine.settle();
    ASSERT_EQ(settled.size(), 1U);
    EXPECT_EQ(settled[0].outcome, TransferOutcome::kFailed);
    EXPECT_TRUE(settled[0].transfer.wanted);
}

} // namespace
} // namespace oasis::test
