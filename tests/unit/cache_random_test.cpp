// SPDX-License-Identifier: Apache-2.0
//
// Random schedules against the model of random_world.hpp. OASIS_LONG_TESTS=1 runs more seeds and longer schedules.

#include "random_world.hpp"

#include <cstdlib>

namespace oasis::test {
namespace {

bool long_tests()
{
    const char* value = std::getenv("OASIS_LONG_TESTS");
    return value != nullptr && std::string(value) == "1";
}

/// One of the many configurations; equal seeds give equal ones.
WorldOptions world_of(std::uint64_t seed)
{
    std::mt19937_64 random(seed * 7919 + 1);
    const auto below = [&](std::uint64_t n) { return std::int32_t(random() % n); };
    const auto pick = [&]<class T>(std::initializer_list<T> of) { return of.begin()[below(of.size())]; };
    WorldOptions o;
    CacheConfig& c = o.config;
    const bool per_head = below(3) > 0;
    c.shape = {.layers = 2, .q_heads = per_head ? 4 : 6, .kv_heads = 2, .head_dim = 32};
    c.block_tokens = pick({16, 16, 32});
    c.block_code = pick({BlockCode::kNative, BlockCode::kNative, BlockCode::kInt8});
    c.summary = {pick({SummaryKind::kSpread, SummaryKind::kSpread, SummaryKind::kCuboid, SummaryKind::kMinMax, SummaryKind::kMean, SummaryKind::kOracle}),
                 pick({1, 2, 2, 4, 8, 16}), pick({SummaryCode::kF32, SummaryCode::kF16, SummaryCode::kInt8, SummaryCode::kInt4})};
    c.reduction = pick({GroupReduction::kSoftmaxMax, GroupReduction::kMax, GroupReduction::kMean});
    c.scope = per_head ? SelectionScope::kKvHead : SelectionScope::kLayer;
    c.may = pick({MayRule::kNone, MayRule::kLogical, MayRule::kLogical});
    const std::int32_t b = c.block_tokens;
    c.budgets = {.attend = 0, .fetch = 0, .logical_resident = 0, .sink = pick({0, 16, 20}), .recent = pick({16, 24, 40}), .top_p = pick({1.0F, 1.0F, 0.8F})};
    c.budgets.fetch = std::int32_t(forced_blocks(c.budgets, b) + 1 + below(2)) * b;
    c.budgets.attend = c.budgets.fetch + below(3) * b;
    c.budgets.logical_resident = c.budgets.attend + below(3) * b;
    c.dense_below = pick({-1, -1, 0, 90, 1000});
    c.prefetch_cap = pick({0, b, 3 * b});
    if (below(4) == 0) { c.dense_layers = {1}; }
    c.limits = {.max_sequences = 4, .max_rows = 96, .max_context = 448};
    o.windows = {pick({0, 0, 0, 100}), pick({0, 0, 37, 200})};
    o.threads = std::size_t(1 + below(3));
    if (c.block_code == BlockCode::kInt8) { // what is decoded again is not what was coded, so either neighbours or deep truncations
        c.share_prefixes = false;
        o.forks = below(2) == 0;
        o.deep_truncates = !o.forks;
    }
    if (below(3) > 0) { // short of memory
        const Footprint f = footprint(c);
        c.fast_bytes = f.landing_bytes + std::size_t(2 + below(3)) * f.fast_bytes_per_sequence + std::size_t(200 + below(400)) * f.summary_bytes_per_token;
        o.pressure = below(2) == 0;
    }
    if (below(3) == 0) { c.slow_bytes = std::size_t(700 + below(700)) * footprint(c).slow_bytes_per_token; }
    return o;
}

/// The same with transfers in the background, over a store that is slow and fails, and all that an engine may do meanwhile.
WorldOptions background_world_of(std::uint64_t seed)
{
    WorldOptions o = world_of(seed + 1000);
    std::mt19937_64 random(seed * 104729 + 3);
    const auto below = [&](std::uint64_t n) { return std::int32_t(random() % n); };
    const auto pick = [&]<class T>(std::initializer_list<T> of) { return of.begin()[below(of.size())]; };
    CacheConfig& c = o.config;
    constexpr std::int32_t kThreads[] = {1, 2, 4, 2, 1, 4, 2, 0};
    c.transfer_threads = kThreads[seed % 8];
    const std::int32_t b = c.block_tokens;
    c.budgets.sink = pick({0, 16});
    c.budgets.recent = pick({16, 24});
    c.budgets.fetch = std::int32_t(forced_blocks(c.budgets, b) + 2 + below(3)) * b;
    c.budgets.attend = c.budgets.fetch + below(3) * b;
    c.budgets.logical_resident = c.budgets.attend;
    c.dense_below = pick({-1, -1, 0, 200});
    c.prefetch_cap = pick({1, 1, 3}) * b;
    c.live_cap = below(4) == 0;
    c.lookahead = pick({LookaheadSource::kRows, LookaheadSource::kRows, LookaheadSource::kSame, LookaheadSource::kNone});
    c.limits = {.max_sequences = 3, .max_rows = 96, .max_context = 576};
    if (c.fast_bytes > 0) { // the caps take landing slots too
        const Footprint f = footprint(c);
        c.fast_bytes = f.landing_bytes + std::size_t(2 + below(2)) * f.fast_bytes_per_sequence + std::size_t(2000 + below(1000)) * f.summary_bytes_per_token;
    }
    if (below(3) > 0) { c.slow_bytes = std::size_t(1700 + below(1400)) * footprint(c).slow_bytes_per_token; }
    if (seed % 8 == 5) { // time decides what is read, so that only the books can be compared
        c.miss = pick({MissPolicy::kBounded, MissPolicy::kResidentOnly});
        c.summary.kind = SummaryKind::kMinMax;
        c.miss_epsilon = 0.05F;
        c.miss_deadline_us = pick({0, 100});
        o.compare = false;
    }
    o.long_lived = o.slow_store = o.preempts = o.outsiders = o.write_failures = true;
    // With int8 what is cut deeply is read back coded, and a neighbour's native form would show.
    o.read_failures = c.block_code == BlockCode::kNative || !o.forks;
    return o;
}

class CacheRandom : public testing::TestWithParam<int> {};

TEST_P(CacheRandom, OutputsAndBooksHold)
{
    const auto seed = std::uint64_t(GetParam());
    World world(world_of(seed), seed);
    world.run(long_tests() ? 4000 : 700);
    EXPECT_GT(world.rows_compared(), 100);
}
INSTANTIATE_TEST_SUITE_P(Seeds, CacheRandom, testing::Range(0, long_tests() ? 200 : 16));

class CacheRandomBackground : public testing::TestWithParam<int> {};

TEST_P(CacheRandomBackground, OutputsAndBooksHold)
{
    const auto seed = std::uint64_t(GetParam());
    const WorldOptions options = background_world_of(seed);
    World world(options, seed);
    world.run_steps(long_tests() ? 4000 : 625);
    if (options.compare) { EXPECT_GT(world.rows_compared(), 100); }
    EXPECT_GT(world.resumed(), 0);
    EXPECT_GT(world.store_errors(), 0);
}
INSTANTIATE_TEST_SUITE_P(Seeds, CacheRandomBackground, testing::Range(0, long_tests() ? 160 : 16));

} // namespace
} // namespace oasis::test
