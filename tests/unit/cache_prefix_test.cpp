// SPDX-License-Identifier: Apache-2.0
//
// Sequences that begin with the same prompt: what is found, and that outputs are those of a sequence that computed everything itself.

#include "cache_fixture.hpp"

#include <algorithm>
#include <cmath>

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;
constexpr std::uint64_t kStream = 3;

std::vector<TokenId> prompt_of(TokenIndex n)
{
    std::vector<TokenId> tokens;
    for (TokenIndex p = 0; p < n; ++p) { tokens.push_back(static_cast<TokenId>(1000 + p * 7 % 911)); }
    return tokens;
}

/// The last rows of the prompt from `begin` on, then some decoded rows.
Outputs rest(Engine& engine, AnyKVCache& cache, SequenceId id, TokenIndex length)
{
    Outputs out = engine.prefill(id, kStream, length, 37, prompt_of(length));
    for (auto& row : engine.decode(id, kStream, 12)) { out.push_back(std::move(row)); }
    EXPECT_EQ(cache.length(id), length + 12);
    return out;
}

Outputs unshared(CacheConfig c, TokenIndex length)
{
    c.share_prefixes = false;
    const auto cache = make_cache(c);
    Engine engine(*cache);
    return rest(engine, *cache, cache->create({}).id, length);
}

double worst_difference(const Outputs& a, const Outputs& b)
{
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        for (std::size_t j = 0; j < a[i].size(); ++j) { worst = std::max(worst, std::abs(double(a[i][j]) - double(b[i][j]))); }
    }
    return worst;
}

enum class Donor { kAlive, kRemoved, kTruncated, kUnsealed, kForked };

CacheConfig config(BlockCode code = BlockCode::kNative)
{
    CacheConfig c = small_config();
    c.limits = {.max_sequences = 4, .max_rows = 256, .max_context = 512};
    c.block_code = code;
    return c;
}

/// Prepares a donor; returns how many tokens of the long prompt can be found afterwards.
TokenIndex prepare(Donor donor, AnyKVCache& cache, Engine& engine)
{
    const std::vector<TokenId> all = prompt_of(420);
    const SequenceId id = cache.create({.prompt = all}).id;
    const TokenIndex computed = donor == Donor::kUnsealed ? 45 : 420; // 45: all of it within the recent window
    engine.prefill(id, kStream, computed, 100, {all.begin(), all.begin() + computed});
    switch (donor) {
    case Donor::kAlive: break;
    case Donor::kUnsealed: return 32;
    case Donor::kRemoved: {
        cache.remove(id);
        return 368; // what the donor had sealed: all that lies 48 tokens back from position 420
    }
    case Donor::kTruncated: {
        cache.truncate(id, 200);
        engine.decode(id, 77, 30); // goes on with something else in the place of the prompt
        return 192;
    }
    case Donor::kForked: {
        const SequenceId child = cache.fork(id).id;
        engine.decode(child, 78, 5);
        cache.remove(id);
        break;
    }
    }
    return 416;
}


class CachePrefix : public testing::TestWithParam<Donor> {};

TEST_P(CachePrefix, OutputsEqualAnUnsharedRunBitForBit)
{
    const CacheConfig c = config();
    for (const TokenIndex length : {1, 15, 16, 17, 32, 33, 48, 49, 127, 128, 129, 144, 145, 192, 193, 208, 256, 257, 300, 385, 420}) {
        KVCache<cpu::Backend, float> cache(c);
        Engine engine(cache);
        const TokenIndex there = prepare(GetParam(), cache, engine);
        const std::vector<TokenId> prompt = prompt_of(length);
        const CreateResult made = cache.create({.prompt = prompt});
        EXPECT_EQ(made.cached_tokens, std::min(there, (length - 1) / 16 * 16)) << length;
        EXPECT_EQ(cache.length(made.id), made.cached_tokens);
        cache.pool().check();
        const Outputs got = rest(engine, cache, made.id, length);
        cache.pool().check();
        const Outputs expected = unshared(c, length);
        ASSERT_EQ(got.size() + std::size_t(made.cached_tokens), expected.size());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + made.cached_tokens)) << "prompt of " << length;
    }
}

/// With int8 blocks a shared window that no donor holds natively any more is read back from its code, and summaries come from
/// the coded keys: close, not equal.
TEST_P(CachePrefix, CodedBlocksAreClose)
{
    const CacheConfig c = config(BlockCode::kInt8);
    for (const TokenIndex length : {33, 129, 200, 240}) {
        KVCache<cpu::Backend, float> cache(c);
        Engine engine(cache);
        prepare(GetParam(), cache, engine);
        const std::vector<TokenId> prompt = prompt_of(length);
        const CreateResult made = cache.create({.prompt = prompt});
        EXPECT_GT(made.cached_tokens, 0);
        const Outputs got = rest(engine, cache, made.id, length);
        const Outputs expected = unshared(c, length);
        const Outputs tail(expected.begin() + made.cached_tokens, expected.end());
        ASSERT_EQ(got.size(), tail.size());
        EXPECT_LT(worst_difference(got, tail), 1e-2) << length;
        cache.pool().check();
    }
}
INSTANTIATE_TEST_SUITE_P(Donors, CachePrefix, testing::Values(Donor::kAlive, Donor::kRemoved, Donor::kTruncated, Donor::kUnsealed, Donor::kForked));

TEST(CachePrefix, SaltsAndOtherTokensShareNothingMore)
{
    KVCache<cpu::Backend, float> cache(config());
    Engine engine(cache);
    prepare(Donor::kAlive, cache, engine);
    std::vector<TokenId> prompt = prompt_of(300);
    EXPECT_EQ(cache.create({.prompt = prompt, .salt = 1}).cached_tokens, 0);
    prompt[100] = 5;
    const CreateResult made = cache.create({.prompt = prompt});
    EXPECT_EQ(made.cached_tokens, 96);
    cache.remove(made.id);
    prompt[0] = 5;
    EXPECT_EQ(cache.create({.prompt = prompt}).cached_tokens, 0);
}

TEST(CachePrefix, SwitchedOffSharesNothing)
{
    CacheConfig c = config();
    c.share_prefixes = false;
    const auto cache = make_cache(c);
    Engine engine(*cache);
    prepare(Donor::kAlive, *cache, engine);
    const std::vector<TokenId> prompt = prompt_of(300);
    EXPECT_EQ(cache->create({.prompt = prompt}).cached_tokens, 0);
}

/// Two donors computed the same beginning side by side. The chain found is the first one's blocks, then the second one's; the first one's
/// last blocks are not sealed, and lie outside a long newcomer's window: it must not depend on them.
TEST(CachePrefix, AChainOverTwoDonorsNeverLeavesUnsealedBlocksBehind)
{
    const CacheConfig c = config();
    for (const TokenIndex first_length : {64, 96, 112}) {
        KVCache<cpu::Backend, float> cache(c);
        Engine engine(cache);
        const std::vector<TokenId> all = prompt_of(400);
        const SequenceId a = cache.create({}).id;
        const SequenceId b = cache.create({}).id;
        engine.prefill(a, kStream, first_length, 100, {all.begin(), all.begin() + first_length});
        engine.prefill(b, kStream, 400, 100, all);
        const CreateResult made = cache.create({.prompt = all});
        EXPECT_GT(made.cached_tokens, 0);
        cache.pool().check();
        cache.remove(a);
        cache.remove(b);
        const Outputs got = rest(engine, cache, made.id, 400);
        const Outputs expected = unshared(c, 400);
        EXPECT_FALSE(cache.state(made.id).lost());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + made.cached_tokens)) << first_length;
    }
}

/// A truncation inside a findable block that is still open for others' tokens takes it out of the index.
TEST(CachePrefix, TruncatedBlocksAreNotFoundByWhatTheyHeld)
{
    KVCache<cpu::Backend, float> cache(config());
    Engine engine(cache);
    const std::vector<TokenId> all = prompt_of(64);
    const SequenceId id = cache.create({.prompt = all}).id;
    engine.prefill(id, kStream, 64, 100, all);
    cache.truncate(id, 40); // in the window: nothing of it is sealed
    std::vector<TokenId> other(all.begin(), all.begin() + 40);
    other.resize(64, 4);
    engine.prefill(id, 9, 64, 100, other);
    std::vector<TokenId> longer = all;
    longer.push_back(1);
    EXPECT_EQ(cache.create({.prompt = longer}).cached_tokens, 32);
    other.push_back(1);
    EXPECT_EQ(cache.create({.prompt = other}).cached_tokens, 64);
}

} // namespace
} // namespace oasis::test
