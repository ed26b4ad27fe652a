// SPDX-License-Identifier: Apache-2.0
#include <oasis/pool/prefix_index.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace oasis {
namespace {

using Tokens = std::vector<TokenId>;

struct OneBucket {
    Hash128 operator()(Hash128, std::span<const TokenId>, std::uint64_t) const noexcept { return {1, 1}; }
};

Tokens run(TokenId first, int n = 16)
{
    Tokens tokens;
    for (int i = 0; i < n; ++i) { tokens.push_back(first + i); }
    return tokens;
}

TEST(ChainHash, DependsOnEverything)
{
    const Tokens a = run(0);
    const Hash128 h = chain_hash({}, a, 0);
    EXPECT_EQ(h, chain_hash({}, a, 0));
    EXPECT_NE(h, chain_hash({}, a, 1)) << "salt";
    EXPECT_NE(h, chain_hash({}, run(1), 0)) << "tokens";
    EXPECT_NE(h, chain_hash({1, 0}, a, 0)) << "parent, low half";
    EXPECT_NE(h, chain_hash({0, 1}, a, 0)) << "parent, high half";
    EXPECT_NE(chain_hash({}, Tokens(15, 0), 0), chain_hash({}, Tokens(16, 0), 0)) << "length";
    Tokens swapped = a;
    std::swap(swapped[3], swapped[4]);
    EXPECT_NE(h, chain_hash({}, swapped, 0)) << "order";
}

TEST(ChainHash, EveryBitOfATokenMovesBothHalves)
{
    const Tokens a = run(100);
    const Hash128 h = chain_hash({}, a, 0);
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    for (std::size_t i = 0; i < a.size(); ++i) {
        for (int bit = 0; bit < 32; ++bit) {
            Tokens b = a;
            b[i] = std::bit_cast<TokenId>(std::bit_cast<std::uint32_t>(b[i]) ^ (1U << bit));
            const Hash128 g = chain_hash({}, b, 0);
            EXPECT_GT(std::popcount(g.low ^ h.low), 10);
            EXPECT_GT(std::popcount(g.high ^ h.high), 10);
            seen.insert({g.low, g.high});
        }
    }
    EXPECT_EQ(seen.size(), a.size() * 32);
}

TEST(PrefixIndex, FindsAChainOfBlocks)
{
    PrefixIndex<> index;
    const Hash128 k0 = index.key({}, run(0), 0);
    const Hash128 k1 = index.key(k0, run(16), 0);
    EXPECT_TRUE(index.insert(k0, BlockId::kNone, run(0), BlockId{10}));
    EXPECT_TRUE(index.insert(k1, BlockId{10}, run(16), BlockId{11}));
    EXPECT_EQ(index.find(k0, BlockId::kNone, run(0)), BlockId{10});
    EXPECT_EQ(index.find(k1, BlockId{10}, run(16)), BlockId{11});
    EXPECT_EQ(index.find(k1, BlockId{11}, run(16)), std::nullopt) << "another block before it";
    EXPECT_EQ(index.size(), 2U);
    index.erase(BlockId{11});
    EXPECT_EQ(index.find(k1, BlockId{10}, run(16)), std::nullopt);
    EXPECT_EQ(index.size(), 1U);
    index.erase(BlockId{11});
    EXPECT_EQ(index.size(), 1U);
}

TEST(PrefixIndex, KeepsTheFirstOfTwoEqualBlocksAndServesSuccessorsOfBoth)
{
    PrefixIndex<> index;
    const Hash128 k0 = index.key({}, run(0), 0);
    const Hash128 k1 = index.key(k0, run(16), 0);
    EXPECT_TRUE(index.insert(k0, BlockId::kNone, run(0), BlockId{1}));
    EXPECT_FALSE(index.insert(k0, BlockId::kNone, run(0), BlockId{2}));
    EXPECT_EQ(index.find(k0, BlockId::kNone, run(0)), BlockId{1});
    EXPECT_FALSE(index.contains(BlockId{2}));
    EXPECT_TRUE(index.insert(k1, BlockId{2}, run(16), BlockId{3}));
    EXPECT_EQ(index.find(k1, BlockId{1}, run(16)), BlockId{3});
    index.erase(BlockId{2});
    EXPECT_EQ(index.find(k0, BlockId::kNone, run(0)), BlockId{1});
    EXPECT_EQ(index.size(), 2U);
}

TEST(PrefixIndex, SuccessorsOfWhatIsNotThereAreNotTaken)
{
    PrefixIndex<> index;
    const Hash128 k0 = index.key({}, run(0), 0);
    EXPECT_FALSE(index.insert(index.key(k0, run(16), 0), BlockId{4}, run(16), BlockId{5}));
    EXPECT_EQ(index.size(), 0U);
    EXPECT_TRUE(index.insert(k0, BlockId::kNone, run(0), BlockId{5})) << "a block that was not taken may come again";
    EXPECT_FALSE(index.insert(k0, BlockId::kNone, run(0), BlockId{5})) << "the same again changes nothing";
    EXPECT_EQ(index.size(), 1U);
    EXPECT_THROW(index.insert(index.key({}, run(7), 0), BlockId::kNone, run(7), BlockId{5}), InvalidArgument);
    EXPECT_THROW(index.insert(k0, BlockId::kNone, run(0), BlockId::kNone), InvalidArgument);
}

TEST(PrefixIndexCases, POOL_12_CollidingHashesAreMisses)
{
    PrefixIndex<OneBucket> index;
    const Hash128 key = index.key({}, run(0), 0);
    EXPECT_TRUE(index.insert(key, BlockId::kNone, run(0), BlockId{1}));
    EXPECT_EQ(index.find(key, BlockId::kNone, run(500)), std::nullopt) << "other tokens";
    EXPECT_EQ(index.find(key, BlockId::kNone, run(0, 15)), std::nullopt) << "fewer tokens";
    EXPECT_EQ(index.find(key, BlockId{1}, run(0)), std::nullopt) << "another block before it";
    EXPECT_EQ(index.find(key, BlockId::kNone, run(0), 9), std::nullopt) << "another salt";
    EXPECT_TRUE(index.insert(key, BlockId::kNone, run(500), BlockId{2}));
    EXPECT_TRUE(index.insert(key, BlockId::kNone, run(0), BlockId{3}, 9));
    EXPECT_TRUE(index.insert(key, BlockId{2}, run(0), BlockId{4}));
    EXPECT_EQ(index.find(key, BlockId::kNone, run(0)), BlockId{1});
    EXPECT_EQ(index.find(key, BlockId::kNone, run(500)), BlockId{2});
    EXPECT_EQ(index.find(key, BlockId::kNone, run(0), 9), BlockId{3});
    EXPECT_EQ(index.find(key, BlockId{2}, run(0)), BlockId{4});
    index.erase(BlockId{1});
    EXPECT_EQ(index.find(key, BlockId::kNone, run(0)), std::nullopt);
    EXPECT_EQ(index.find(key, BlockId::kNone, run(500)), BlockId{2});
}

TEST(PrefixIndexCases, POOL_12_AnIdThatIsUsedAgainIsAnotherPredecessor)
{
    PrefixIndex<OneBucket> index;
    const Hash128 key = index.key({}, run(0), 0);
    ASSERT_TRUE(index.insert(key, BlockId::kNone, run(0), BlockId{1}));
    ASSERT_TRUE(index.insert(key, BlockId{1}, run(16), BlockId{2}));
    index.erase(BlockId{1});
    EXPECT_EQ(index.find(key, BlockId{1}, run(16)), std::nullopt);
    ASSERT_TRUE(index.insert(key, BlockId::kNone, run(900), BlockId{1}));
    EXPECT_EQ(index.find(key, BlockId{1}, run(16)), std::nullopt) << "block 2 follows other tokens";
}

} // namespace
} // namespace oasis
