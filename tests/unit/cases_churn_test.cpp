// SPDX-License-Identifier: Apache-2.0
//
// POOL-12 and POOL-15 below the cache: hashes that all collide, and memory that follows the capacity and not the history.

#include <oasis/core/validate.hpp>
#include <oasis/pool/kv_pool.hpp>
#include <oasis/score/block_scorer.hpp>
#include <oasis/tier/ram_store.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <fstream>
#include <malloc.h>
#include <memory>
#include <random>
#include <unistd.h>
#include <vector>

namespace oasis {
namespace {

struct OneBucketHasher {
    Hash128 operator()(Hash128, std::span<const TokenId>, std::uint64_t) const noexcept { return {1, 2}; }
};

using OneBucketPool = KVPool<LruEviction, RamStore, OneBucketHasher>;

CacheConfig config_of_the_pool()
{
    CacheConfig c;
    c.shape = {.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 32};
    c.budgets = {.attend = 128, .fetch = 128, .logical_resident = 128, .sink = 16, .recent = 64, .top_p = 1.0F}; // the window holds all that is not sealed
    c.limits = {.max_sequences = 8, .max_rows = 64, .max_context = 256};
    return c;
}

OneBucketPool make_pool(const CacheConfig& c)
{
    const BlockScorer<StockSummary> scorer(StockSummary(c.summary.kind), c.summary, c.shape.head_dim, c.block_tokens);
    const PoolShape shape(c, scorer.layout());
    return OneBucketPool(shape, LruEviction{}, std::make_unique<RamStore>(StoreOptions{shape.unit_bytes, 1, 1, 64 * shape.slow_block_bytes()}));
}

/// A sequence whose tokens are all committed and findable.
Sequence& computed(OneBucketPool& pool, const std::vector<TokenId>& tokens, std::uint64_t salt = 0)
{
    Sequence* s = nullptr;
    EXPECT_FALSE(pool.try_create({.prompt = {}, .salt = salt}, s));
    EXPECT_FALSE(pool.try_grow(*s, TokenIndex(tokens.size())));
    s->length = TokenIndex(tokens.size());
    s->tokens = tokens;
    pool.index_blocks(*s);
    return *s;
}

TokenIndex found(OneBucketPool& pool, const std::vector<TokenId>& prompt, std::uint64_t salt = 0)
{
    Sequence* s = nullptr;
    EXPECT_FALSE(pool.try_create({.prompt = prompt, .salt = salt}, s));
    Reopened reopened;
    const TokenIndex cached = pool.share_prefix(*s, prompt, reopened);
    pool.check();
    pool.remove(s->id);
    pool.check();
    return cached;
}

TEST(PoolCases, POOL_12_CollidingHashesShareNothing)
{
    const CacheConfig c = config_of_the_pool();
    OneBucketPool pool = make_pool(c);
    const std::vector<TokenId> a(49, 1), b(49, 2);
    std::vector<TokenId> a_then_b(a.begin(), a.begin() + 16);
    a_then_b.resize(49, 2);
    Sequence& first = computed(pool, a);
    EXPECT_EQ(found(pool, a), 48);
    EXPECT_EQ(found(pool, b), 0);
    EXPECT_EQ(found(pool, a_then_b), 16);
    EXPECT_EQ(found(pool, a, 5), 0) << "another salt";
    Sequence& second = computed(pool, b);
    EXPECT_EQ(found(pool, b), 48);
    EXPECT_EQ(found(pool, a), 48);
    EXPECT_NE(first.blocks[0], second.blocks[0]);
    pool.remove(first.id);
    EXPECT_EQ(found(pool, a), 0) << "never sealed: gone with its sequence";
    EXPECT_EQ(found(pool, b), 48);
}

std::size_t resident_bytes()
{
    ::malloc_trim(0);
    std::size_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// Runs `churn` once to warm up and three times more; what is resident then is what was resident before, within 2 %.
template <class F>
void expect_steady(F&& churn)
{
    churn();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer keeps freed memory; builds without one run this";
#endif
    const std::size_t before = resident_bytes();
    for (int i = 0; i < 3; ++i) { churn(); }
    EXPECT_LE(double(resident_bytes()), 1.02 * double(before) + 64 * 1024);
}

TEST(PoolCases, POOL_15_SlotsAfterAMillionCycles)
{
    constexpr std::int64_t kUnits = 4096;
    SlotTable<LruEviction> table({.unit_bytes = 128, .layers = 1, .sets = 1, .blocks = kUnits}, LruEviction{});
    table.set_capacity(1024);
    std::mt19937_64 random(5);
    std::uint64_t now = 0;
    expect_steady([&] {
        for (int i = 0; i < 250'000; ++i) {
            const auto unit = std::int64_t(random() % kUnits);
            if (const SlotId slot = table.slot_of(unit); slot != SlotId::kNone) {
                if (random() % 4 == 0) { table.drop(unit); }
                continue;
            }
            const auto slot = table.try_acquire(unit, ++now);
            ASSERT_TRUE(slot);
            if (random() % 16 == 0) {
                table.abandon(*slot);
            } else {
                ASSERT_TRUE(table.land(*slot, table.generation(*slot)));
            }
        }
    });
    table.check();
}

TEST(PoolCases, POOL_15_BlocksAndGroupsAfterAMillionCycles)
{
    constexpr std::size_t kCell = 1024;
    BlockPool<RamStore> blocks(512, kCell, std::make_unique<RamStore>(StoreOptions{256, 1, 1, 512 * 256}));
    GroupPool groups(kCell, kCell / 4, true);
    std::deque<std::vector<BlockId>> held;
    std::deque<GroupId> groups_held;
    std::mt19937_64 random(6);
    const auto nothing = [](BlockId) {};
    expect_steady([&] {
        for (int i = 0; i < 60'000; ++i) {
            std::vector<BlockId> some(1 + random() % 8);
            for (BlockId& block : some) {
                while (blocks.available() == 0) {
                    const std::size_t victim = random() % 100 == 0 ? 0 : held.size() - 1; // the oldest are held for long
                    for (const BlockId old : held[victim]) {
                        blocks.release_native(old);
                        blocks.release(old, nothing);
                    }
                    held.erase(held.begin() + std::ptrdiff_t(victim));
                }
                block = blocks.try_allocate(nothing).value();
            }
            held.push_back(std::move(some));
            groups_held.push_back(groups.allocate());
            if (groups_held.size() > 200) {
                const std::size_t victim = random() % groups_held.size();
                groups.release(groups_held[victim]);
                groups_held.erase(groups_held.begin() + std::ptrdiff_t(victim));
            }
        }
    });
    std::size_t count = 0;
    for (const auto& some : held) { count += some.size(); }
    EXPECT_EQ(blocks.live(), std::int64_t(count));
    EXPECT_EQ(blocks.native().in_use(), count);
    EXPECT_EQ(groups.live(), std::int64_t(groups_held.size()));
    EXPECT_EQ(groups.coded_bytes(), groups_held.size() * kCell / 4);
}

} // namespace
} // namespace oasis
