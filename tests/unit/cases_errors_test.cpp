// SPDX-License-Identifier: Apache-2.0
//
// Cases of what an error says: the operation, the tier, the block or sequence, the size. The slow tier fails on request.

#include "faulty_fixture.hpp"

#include <oasis/prefetch/transfer_queue.hpp>

#include <algorithm>
#include <functional>
#include <string>

namespace oasis::test {
namespace {

CacheConfig config()
{
    CacheConfig c = small_config();
    c.prefetch_cap = 32;
    return c;
}

TEST(ObserveCases, OBS_05_AFailedWriteSaysWhatAndWhere)
{
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    FaultyCache f(config());
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 100);
    f.script.fail(StoreOperation::kWrite, [](const StorePiece& piece) { return piece.layer == 1 && piece.set == 1; });
    try {
        f.engine.prefill(id, 1, 200);
        ADD_FAILURE() << "the store refused and nobody said so";
    } catch (const StoreError& e) {
        const std::string bytes = std::to_string(f.cache.pool().shape().unit_bytes) + " bytes";
        expect_fields(e.what(), {"slow tier", "write", "block ", "layer 1", "set 1", "sequence 0", bytes});
    }
    const std::string printed = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    EXPECT_EQ(printed, "");
    f.cache.drop_cached_prefixes(); // delivers what the rollback left
    f.expect_map("failed write"); // nothing stored that is not whole
    EXPECT_EQ(f.cache.length(id), 100);
    f.script.repair();
    f.engine.prefill(id, 1, 300);
    EXPECT_EQ(f.engine.decode(id, 1, 5), undisturbed(config(), 300, 5)) << "nothing was lost";
    f.expect_map("second attempt");
}

TEST(ObserveCases, OBS_05_AFailedReadLosesTheSequenceFromThereOn)
{
    CacheConfig c = config();
    c.budgets.attend = c.budgets.logical_resident = 192;
    c.dense_below = 0;
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    const SequenceId other = f.cache.create({}).id;
    f.engine.prefill(id, 1, 700);
    f.engine.prefill(other, 1, 700);
    f.engine.decode(id, 1, 1);
    const BlockId lost = f.cache.pool().find(id)->blocks[20];
    f.script.fail(StoreOperation::kRead, [&](const StorePiece& piece) { return piece.block == lost; });
    for (std::uint64_t i = 0; i < 60 && f.failures.empty(); ++i) {
        EXPECT_EQ(f.engine.step({{{.sequence = id, .verify_rows = 4}, {30 + i}, 1, {}}}).size(), 4U) << "a failed transfer is a miss, never an end";
    }
    ASSERT_FALSE(f.failures.empty());
    EXPECT_EQ(f.failures[0].first, id);
    expect_fields(f.failures[0].second, {"slow tier", "read", "block " + std::to_string(raw(lost)), "sequence 0", std::to_string(f.cache.pool().shape().unit_bytes) + " bytes"});
    ASSERT_TRUE(f.cache.state(id).lost());
    EXPECT_EQ(*f.cache.state(id).first_lost, 20 * 16);
    EXPECT_FALSE(f.cache.state(other).lost());
    f.cache.truncate(id, *f.cache.state(id).first_lost);
    EXPECT_FALSE(f.cache.state(id).lost());
    f.script.repair();
    f.engine.prefill(id, 1, 700);
    c.dense_below = 0;
    EXPECT_EQ(f.engine.decode(other, 1, 5), undisturbed(c, 700, 5)) << "others go on";
    f.expect_map("lost and computed again");
}

TEST(ObserveCases, OBS_05_PrefillAndTruncationOverABlockThatIsGone)
{
    FaultyCache f(config());
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 700);
    f.script.fail(StoreOperation::kRead);
    try {
        f.engine.prefill(id, 1, 800);
        ADD_FAILURE() << "prefill without its context";
    } catch (const StoreError& e) {
        expect_fields(e.what(), {"slow tier", "read", "block ", "layer 0", "set ", "sequence 0", "bytes"});
    }
    EXPECT_TRUE(f.cache.state(id).lost());
    EXPECT_EQ(f.cache.length(id), 700);
    f.cache.truncate(id, 600); // reads back the window, which fails as well
    ASSERT_TRUE(f.cache.state(id).lost());
    EXPECT_LT(*f.cache.state(id).first_lost, 600);
    f.script.repair();
    f.cache.truncate(id, *f.cache.state(id).first_lost / 128 * 128);
    EXPECT_FALSE(f.cache.state(id).lost());
    f.engine.prefill(id, 1, 700);
    EXPECT_EQ(f.engine.decode(id, 1, 3), undisturbed(config(), 700, 3));
    f.expect_map("computed again");
}

/// A layer that fails after it took hold of slots: they are let go, the step cannot be gone on with, the sequence can.
TEST(ObserveCases, OBS_05_AFailedLayerHoldsNothing)
{
    CacheConfig c = config();
    c.measure_mass = true; // reads every key, resident or not
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 700);
    f.script.fail(StoreOperation::kRead, [](const StorePiece& piece) { return piece.layer == 1 && piece.set == 1; });
    const RowGroup group{.sequence = id, .verify_rows = 1};
    std::vector<float> q(6 * 32, 1), k(2 * 32, 1), v(2 * 32, 1), out(6 * 32);
    const AttendArgs args{.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()};
    {
        Step step = f.cache.begin_step(f.engine.queue(), {&group, 1});
        f.cache.enqueue_attend(f.engine.queue(), step, 0, args);
        EXPECT_THROW(f.cache.enqueue_attend(f.engine.queue(), step, 1, args), StoreError);
        EXPECT_EQ(f.cache.pool().slots().counts().pinned, 0);
        EXPECT_EQ(f.cache.pool().slots().counts().in_flight, 0);
        EXPECT_THROW(f.cache.enqueue_attend(f.engine.queue(), step, 1, args), InvalidArgument);
        const Accepted accepted{1, {}};
        EXPECT_THROW(f.cache.commit(f.engine.queue(), std::move(step), {&accepted, 1}), InvalidArgument);
    }
    f.script.repair();
    f.cache.pool().check();
    EXPECT_EQ(f.cache.length(id), 700);
}

TEST(ObserveCases, OBS_05_FullTiersNameTheTierAndTheSize)
{
    CacheConfig c = config();
    c.slow_bytes = 20 * 16 * footprint(c).slow_bytes_per_token;
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    EXPECT_EQ(f.engine.prefill(id, 1, 400).size(), 300U);
    ASSERT_TRUE(f.engine.full);
    EXPECT_EQ(f.engine.full->tier, Tier::kSlow);
    EXPECT_GT(f.engine.full->needed_bytes, f.engine.full->available_bytes);
    const auto events = f.log.events();
    const auto refusal = std::find_if(events.begin(), events.end(), [](const Event& e) { return e.kind == EventKind::kRefused; });
    ASSERT_NE(refusal, events.end());
    EXPECT_EQ(refusal->tier, Tier::kSlow);
    EXPECT_EQ(refusal->bytes, f.engine.full->needed_bytes);
    // Truncating inside a shared block needs one more block.
    f.engine.prefill(id, 1, 320);
    const SequenceId child = f.cache.fork(id).id;
    ASSERT_NE(child, SequenceId::kNone);
    try {
        f.cache.truncate(child, 310);
        ADD_FAILURE() << "there is no block for the copy";
    } catch (const Error& e) {
        expect_fields(e.what(), {"truncate", "slow tier", "block ", "sequence 1", "bytes", "304 tokens"});
    }
    EXPECT_EQ(f.cache.length(child), 320) << "nothing has changed";
    f.cache.pool().check();
    f.cache.truncate(child, 304);
    f.cache.remove(id);
    EXPECT_EQ(f.engine.decode(child, 1, 3), undisturbed(config(), 304, 3));
    f.cache.pool().check();
}

/// What left fast memory and comes back: where it was, where it was to go, and how much of it.
TEST(ObserveCases, OBS_05_PreemptAndResumeSayWhatAndWhere)
{
    FaultyCache f(config());
    const SequenceId first = f.cache.create({}).id;
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(first, 2, 20);
    f.engine.prefill(id, 1, 300);
    const std::string bytes = std::to_string(f.cache.pool().shape().unit_bytes) + " bytes";
    const std::size_t slow = f.cache.stats().slow_bytes;
    f.script.fail(StoreOperation::kWrite);
    try {
        f.cache.preempt(id);
        ADD_FAILURE() << "the store refused and nobody said so";
    } catch (const StoreError& e) {
        expect_fields(e.what(), {"slow tier", "write", "preempted sequence 1", "block ", "layer 0", "set 0", bytes});
    }
    EXPECT_FALSE(f.cache.state(id).preempted);
    f.script.repair();
    f.cache.drop_cached_prefixes();
    EXPECT_EQ(f.cache.stats().slow_bytes, slow) << "nothing of it is left";
    ASSERT_TRUE(f.cache.preempt(id));
    f.script.fail(StoreOperation::kRead);
    try {
        f.cache.resume(id);
        ADD_FAILURE() << "the store did not deliver and nobody said so";
    } catch (const StoreError& e) {
        expect_fields(e.what(), {"slow tier", "read", "preempted sequence 1", "block ", "layer 0", "set 0", bytes});
    }
    EXPECT_TRUE(f.cache.state(id).preempted);
    f.script.repair();
    ASSERT_TRUE(f.cache.resume(id));
    EXPECT_EQ(f.engine.decode(id, 1, 5), undisturbed(config(), 300, 5));
    f.expect_map("resumed");
}

TEST(ObserveCases, OBS_05_PreemptAndResumeNameTheTierThatIsFull)
{
    CacheConfig c = config();
    c.slow_bytes = 20 * 16 * footprint(c).slow_bytes_per_token;
    c.limits.max_sequences = 1;
    FaultyCache f(c);
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 320);
    const PreemptResult refused = f.cache.preempt(id);
    ASSERT_TRUE(refused.full);
    EXPECT_EQ(refused.full->tier, Tier::kSlow);
    EXPECT_GT(refused.full->needed_bytes, refused.full->available_bytes);
    EXPECT_FALSE(f.cache.state(id).preempted);
    f.cache.truncate(id, 100);
    ASSERT_TRUE(f.cache.preempt(id));
    const SequenceId other = f.cache.create({}).id;
    ASSERT_NE(other, SequenceId::kNone);
    const PreemptResult waits = f.cache.resume(id); // there is room for one sequence alone
    ASSERT_TRUE(waits.full);
    EXPECT_EQ(waits.full->tier, Tier::kFast);
    EXPECT_GT(waits.full->needed_bytes, waits.full->available_bytes);
    f.cache.remove(other);
    EXPECT_TRUE(f.cache.resume(id));
    f.cache.pool().check();
}

template <class Exception>
void expect_error(const std::function<void()>& call, const std::vector<std::string>& fields)
{
    try {
        call();
        ADD_FAILURE() << "nothing was thrown; expected " << fields.front();
    } catch (const Exception& e) {
        expect_fields(e.what(), fields);
    }
}

TEST(ObserveCases, OBS_05_CallsThatDoNotFitNameTheSequence)
{
    FaultyCache f(config());
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 50);
    expect_error<InvalidArgument>([&] { f.cache.resume(id); }, {"resume", "sequence 0", "not preempted"});
    ASSERT_TRUE(f.cache.preempt(id));
    expect_error<InvalidArgument>([&] { f.cache.preempt(id); }, {"preempt", "sequence 0", "resume it first"});
    expect_error<InvalidArgument>([&] { f.cache.fork(id); }, {"fork", "sequence 0", "resume it first"});
    expect_error<InvalidArgument>([&] { f.cache.truncate(id, 3); }, {"truncate", "sequence 0", "resume it first"});
    expect_error<InvalidArgument>([&] { f.engine.decode(id, 1, 1); }, {"begin_step", "sequence 0", "resume it first"});
    expect_error<InvalidArgument>([&] { f.cache.preempt(SequenceId{99}); }, {"preempt", "no sequence 99"});
    expect_error<InvalidArgument>([&] { f.cache.resume(SequenceId{98}); }, {"resume", "no sequence 98"});
    EXPECT_EQ(f.cache.length(id), 50);
    EXPECT_TRUE(f.cache.resume(id));
    Step step = f.cache.begin_step(f.engine.queue(), {});
    expect_error<InvalidArgument>([&] { f.cache.preempt(id); }, {"preempt", "step ", "is open"});
    expect_error<InvalidArgument>([&] { f.cache.resume(id); }, {"resume", "step ", "is open"});
}

TEST(ObserveCases, OBS_05_OptionsOfTransfersAndMissesNameTheValue)
{
    const auto refuse = [](const std::function<void(CacheConfig&)>& change, const std::vector<std::string>& fields) {
        CacheConfig c = config();
        change(c);
        expect_error<InvalidArgument>([&] { make_cache(c); }, fields);
    };
    refuse([](CacheConfig& c) { c.miss = MissPolicy::kBounded; }, {"miss", "kBounded", "upper bound", "minmax"});
    refuse([](CacheConfig& c) { c.miss_epsilon = 2; }, {"miss_epsilon", "2", "from 0 to 1"});
    refuse([](CacheConfig& c) { c.miss_deadline_us = -7; }, {"miss_deadline_us", "-7"});
    refuse([](CacheConfig& c) { c.transfer_threads = 300; }, {"transfer_threads", "300", "256"});
    refuse([](CacheConfig& c) { c.prefetch_cap = 17; }, {"prefetch_cap", "17", "block_tokens", "16"});
    refuse([](CacheConfig& c) { c.lookahead = LookaheadSource{9}; }, {"lookahead", "9"});
    CacheConfig bounded = config();
    bounded.miss = MissPolicy::kBounded;
    bounded.summary.kind = SummaryKind::kMinMax;
    EXPECT_NO_THROW(make_cache(bounded));
}

TEST(ObserveCases, OBS_05_ATransferTwiceNamesTheSlot)
{
    TransferQueue queue(0, [](const Transfer&) { return true; });
    queue.resize(8);
    const Transfer transfer{.piece = {BlockId{3}, 0, 0, SlotId{5}, 1}};
    queue.push({&transfer, 1});
    expect_error<InvalidArgument>([&] { queue.push({&transfer, 1}); }, {"TransferQueue::push", "slot 5", "has a transfer already"});
    EXPECT_EQ(queue.outstanding(), 1);
}

} // namespace
} // namespace oasis::test
