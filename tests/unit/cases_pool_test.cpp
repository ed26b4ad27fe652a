// SPDX-License-Identifier: Apache-2.0
//
// Cases of the pool at the level of slots and of the whole cache: admission, lengths, prefixes, fragmentation, edits.

#include "cache_fixture.hpp"

#include <oasis/core/validate.hpp>
#include <oasis/pool/slot_table.hpp>

#include <algorithm>
#include <string>

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;
using Table = SlotTable<LruEviction>;

constexpr std::int32_t kBlock = 16;

/// Outputs of a sequence that nobody disturbs: prompt, then decoded rows.
Outputs undisturbed(const CacheConfig& c, std::uint64_t stream, TokenIndex prompt, std::int32_t rows)
{
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    Outputs out = engine.prefill(id, stream, prompt);
    for (auto& row : engine.decode(id, stream, rows)) { out.push_back(std::move(row)); }
    return out;
}

TEST(PoolCases, POOL_04_NoVictimNamesThePinnedAndIsRecoverable)
{
    Table table({.unit_bytes = 128, .layers = 1, .sets = 1, .blocks = 8}, LruEviction{});
    table.set_capacity(4);
    std::vector<SlotId> slots;
    for (std::int64_t unit = 0; unit < 4; ++unit) {
        const SlotId slot = table.try_acquire(unit, 1).value();
        ASSERT_TRUE(table.land(slot, table.generation(slot)));
        table.pin(slot, 1);
        slots.push_back(slot);
    }
    EXPECT_FALSE(table.try_acquire(4, 2));
    EXPECT_EQ(table.no_victim().pinned, 4);
    EXPECT_EQ(table.no_victim().capacity, 4);
    table.check();
    table.unpin(slots[2]);
    const auto slot = table.try_acquire(4, 2);
    ASSERT_TRUE(slot);
    EXPECT_EQ(*slot, slots[2]);
    EXPECT_EQ(table.slot_of(2), SlotId::kNone);
    table.check();
}

TEST(PoolCases, POOL_04_AStepNeverNeedsMoreSlotsThanAdmissionPromised)
{
    // The least fast memory that is taken: logical sets and landing slots, all rows of a step at their worst.
    CacheConfig c = small_config();
    c.limits.max_sequences = 1;
    c.fast_bytes = footprint(c).fast_bytes_per_sequence + footprint(c).landing_bytes + (std::size_t{1} << 20);
    KVCache<cpu::Backend, float> cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 900);
    cache.resize_fast(1);
    for (std::uint64_t i = 0; i < 10; ++i) {
        Engine::Part part{{.sequence = id, .verify_rows = 8, .lookahead_rows = 2}, {}, 1, {}};
        for (std::uint64_t row = 0; row < 10; ++row) { part.streams.push_back(100 * i + row); }
        ASSERT_EQ(engine.step({part}).size(), 10U);
        cache.pool().check();
        const SlotCounts& counts = cache.pool().slots().counts();
        EXPECT_EQ(counts.pinned, 0);
        EXPECT_EQ(counts.in_flight, 0);
    }
}

class PoolPrefixCases : public testing::TestWithParam<TokenIndex> {};

TEST_P(PoolPrefixCases, POOL_06_PrefixAroundOneBlock)
{
    const TokenIndex shared = GetParam();
    const CacheConfig c = small_config();
    KVCache<cpu::Backend, float> cache(c);
    Engine engine(cache);
    const std::vector<TokenId> prompt = tokens_of(1, shared);
    const SequenceId donor = cache.create({.prompt = prompt}).id;
    engine.prefill(donor, 1, shared, 100, prompt);
    std::vector<TokenId> longer = prompt;
    for (TokenId t = 0; t < 5; ++t) { longer.push_back(-7 - t); }
    const CreateResult made = cache.create({.prompt = longer});
    EXPECT_EQ(made.cached_tokens, shared / kBlock * kBlock);
    const Sequence& sequence = *cache.pool().find(made.id);
    EXPECT_EQ(sequence.blocks.size(), std::size_t(shared / kBlock)); // whole blocks, no copy: the next row opens a block at offset 0
    for (std::size_t j = 0; j < sequence.blocks.size(); ++j) { EXPECT_EQ(sequence.blocks[j], cache.pool().find(donor)->blocks[j]); }
    // The two go on differently; both as if the other were not there.
    engine.prefill(made.id, 1, shared);
    const Outputs second = engine.decode(made.id, 2, 40);
    const Outputs first = engine.decode(donor, 1, 40);
    cache.pool().check();
    const Outputs plain = undisturbed(c, 1, shared, 40);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), plain.begin() + shared));
    const auto other = make_cache(c);
    Engine alone(*other);
    const SequenceId id = other->create({}).id;
    alone.prefill(id, 1, shared);
    EXPECT_EQ(second, alone.decode(id, 2, 40));
}
INSTANTIATE_TEST_SUITE_P(Lengths, PoolPrefixCases, testing::Values(kBlock - 1, kBlock, kBlock + 1, 2 * kBlock));

TEST(PoolCases, POOL_07_LengthsAroundWholeBlocks)
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 128, .fetch = 112, .logical_resident = 128, .sink = 0, .recent = 48, .top_p = 1.0F};
    CacheConfig sparse = c;
    sparse.dense_below = 0; // the budget holds the whole context: scored, and equal to dense
    const std::int32_t fills[] = {0, 1, 15, 16, 1, 16, 1};
    const TokenIndex lengths[] = {0, 1, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock, 2 * kBlock + 1};
    for (std::size_t i = 0; i < std::size(lengths); ++i) {
        EXPECT_EQ(last_block_fill(lengths[i], kBlock), fills[i]);
        KVCache<cpu::Backend, float> cache(sparse);
        Engine engine(cache);
        const SequenceId id = cache.create({}).id;
        engine.prefill(id, 1, lengths[i]);
        EXPECT_EQ(cache.length(id), lengths[i]);
        EXPECT_EQ(cache.pool().find(id)->blocks.size(), std::size_t((lengths[i] + kBlock - 1) / kBlock));
        const Outputs rows = engine.decode(id, 1, 3);
        EXPECT_EQ(cache.stats().counters.score_passes, 6U);
        const Outputs dense = undisturbed(c, 1, lengths[i], 3);
        for (std::size_t r = 0; r < 3; ++r) { EXPECT_EQ(rows[r], dense[std::size_t(lengths[i]) + r]) << "length " << lengths[i] << " row " << r; }
    }
}

/// There is no call that removes a range in the middle or shifts positions, so none is needed: what the API has of edits, truncation
/// and fork, leaves the surviving tokens as if the rest had never been.
TEST(PoolCases, POOL_09_EditsThatExistKeepOutputs)
{
    CacheConfig c = small_config();
    c.may = MayRule::kNone; // outputs depend on the tokens alone, not on what was read before
    KVCache<cpu::Backend, float> cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 500);
    for (const TokenIndex cut : {499, 480, 385, 384, 383, 130, 17}) {
        engine.decode(id, 99, 3);
        cache.truncate(id, cut);
        const ForkResult fork = cache.fork(id);
        ASSERT_TRUE(fork);
        const Outputs plain = undisturbed(c, 1, cut, 2);
        const Outputs rows = engine.decode(fork.id, 1, 2);
        EXPECT_EQ(rows[0], plain[std::size_t(cut)]) << cut;
        EXPECT_EQ(rows[1], plain[std::size_t(cut) + 1]) << cut;
        EXPECT_EQ(cache.remove(fork.id), RemoveResult::kRemoved);
        cache.pool().check();
    }
}

/// There is no wildcard: ids that name no sequence are an outcome, not an error.
TEST(PoolCases, POOL_10_RemoveOfIdsThatAreNotThere)
{
    KVCache<cpu::Backend, float> cache(small_config());
    Engine engine(cache);
    const SequenceId a = cache.create({}).id;
    const SequenceId b = cache.create({}).id;
    engine.prefill(a, 1, 300);
    engine.prefill(b, 2, 300);
    for (const std::int64_t id : {-1L, -2L, 2L, 1L << 62}) { EXPECT_EQ(cache.remove(SequenceId{id}), RemoveResult::kNotFound); }
    EXPECT_EQ(cache.stats().sequences, 2);
    EXPECT_EQ(cache.remove(a), RemoveResult::kRemoved);
    EXPECT_EQ(cache.remove(a), RemoveResult::kNotFound);
    EXPECT_EQ(cache.remove(b), RemoveResult::kRemoved);
    EXPECT_EQ(cache.pool().blocks().available(), cache.pool().blocks().capacity());
    EXPECT_EQ(cache.pool().slots().counts().free, cache.pool().slots().counts().capacity);
    EXPECT_EQ(cache.pool().blocks().native().in_use(), 0U);
    EXPECT_EQ(cache.pool().groups().live(), 0);
    EXPECT_EQ(cache.stats().slow_bytes, 0U);
}

TEST(PoolCases, POOL_14_FreeBlocksNeedNotBeAdjacent)
{
    CacheConfig c = small_config();
    c.limits = {.max_sequences = 64, .max_rows = 256, .max_context = 512};
    const Outputs plain = undisturbed(c, 7, 30 * kBlock, 5);
    c.slow_bytes = 64 * footprint(c).slow_bytes_per_token * kBlock;
    KVCache<cpu::Backend, float> cache(c);
    Engine engine(cache);
    std::vector<SequenceId> ids;
    for (std::uint64_t i = 0; i < 64; ++i) {
        ids.push_back(cache.create({}).id);
        ASSERT_EQ(engine.prefill(ids.back(), i, kBlock).size(), std::size_t(kBlock));
    }
    EXPECT_EQ(cache.pool().blocks().available(), 0);
    for (std::size_t i = 0; i < 64; i += 2) { cache.remove(ids[i]); }
    const SequenceId big = cache.create({}).id;
    Outputs rows = engine.prefill(big, 7, 30 * kBlock);
    ASSERT_EQ(rows.size(), std::size_t(30 * kBlock));
    for (auto& row : engine.decode(big, 7, 5)) { rows.push_back(std::move(row)); }
    EXPECT_EQ(rows, plain);
    cache.pool().check();
}

class PoolAdmissionCases : public testing::TestWithParam<std::int32_t> {};

TEST_P(PoolAdmissionCases, POOL_18_AdmissionCountsWhatCanBeReclaimed)
{
    CacheConfig c = small_config();
    c.prefetch_cap = GetParam(); // drafts off and on: their reserve is once per cache, in the landing slots
    c.limits.max_sequences = 12;
    const Footprint f = footprint(c);
    constexpr std::size_t kAdmitted = 6;
    c.fast_bytes = f.landing_bytes + kAdmitted * (f.fast_bytes_per_sequence + 800 * f.summary_bytes_per_token) + f.fast_bytes_per_sequence / 2;
    KVCache<cpu::Backend, float> cache(c);
    Engine engine(cache);
    // Spare memory is full of clean blocks of a sequence that read here and there.
    const SequenceId idle = cache.create({}).id;
    engine.prefill(idle, 1, 800);
    for (std::uint64_t i = 0; i < 40; ++i) { engine.decode(idle, 1 + i % 5, 1); }
    std::size_t admitted = 1;
    for (;; ++admitted) {
        const CreateResult made = cache.create({});
        cache.pool().check();
        if (!made) {
            EXPECT_EQ(made.full->tier, Tier::kFast);
            EXPECT_GT(made.full->needed_bytes, made.full->available_bytes);
            break;
        }
        ASSERT_EQ(engine.prefill(made.id, admitted, 300).size(), 300U);
        ASSERT_EQ(engine.decode(made.id, admitted, 2).size(), 2U);
    }
    EXPECT_GE(admitted, kAdmitted - 1);
    EXPECT_LE(admitted, kAdmitted + 1);
}
INSTANTIATE_TEST_SUITE_P(Drafts, PoolAdmissionCases, testing::Values(0, 64));

} // namespace
} // namespace oasis::test
