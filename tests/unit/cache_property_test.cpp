// SPDX-License-Identifier: Apache-2.0
//
// What outputs depend on under `exact`: with MayRule::kNone on the budgets, with kLogical on logical_resident too, and on nothing else. Each
// seed draws fast memory, prefetch caps, neighbours, orders of submission, threads and predictors that are wrong in different ways.

#include "cache_fixture.hpp"
#include "fault/wrong_predictor.hpp"

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;
constexpr TokenIndex kPrompt = 420;
constexpr int kRows = 24;

struct Guessing : DefaultPolicies<cpu::Backend, float> {
    using Lookahead = fault::WrongPredictor;
};

CacheConfig base(MayRule may)
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 192, .fetch = 112, .logical_resident = 192, .sink = 16, .recent = 32, .top_p = 1.0F};
    c.limits = {.max_sequences = 4, .max_rows = 128, .max_context = 640};
    c.may = may;
    return c;
}

Outputs plain(const CacheConfig& c)
{
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, kPrompt);
    return engine.decode(id, 1, kRows);
}

/// Beyond the wrong predictors, the library's own.
std::unique_ptr<AnyKVCache> cache_with(int predictor, const CacheConfig& c)
{
    if (predictor >= fault::kWrongs) { return make_cache(c); }
    PolicySet<Guessing> policies;
    policies.lookahead = std::make_unique<fault::WrongPredictor>(fault::Wrong(predictor));
    return std::make_unique<KVCache<cpu::Backend, float, Guessing>>(c, Callbacks{}, std::move(policies));
}

/// The stream's rows while everything that must not matter is drawn at random.
Outputs disturbed(CacheConfig c, std::uint32_t seed)
{
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t n) { return random() % n; };
    c.prefetch_cap = std::int32_t(below(4)) * c.block_tokens;
    const Footprint f = footprint(c);
    if (below(4) > 0) { c.fast_bytes = f.landing_bytes + 3 * f.fast_bytes_per_sequence + (2000 + below(2000)) * f.summary_bytes_per_token; }
    const auto cache = cache_with(int(below(fault::kWrongs + 1)), c);
    Engine engine(*cache, 1 + below(4));
    std::vector<SequenceId> ids;
    const std::uint32_t neighbours = below(3);
    const std::uint32_t own = below(neighbours + 1);
    for (std::uint32_t i = 0; i <= neighbours; ++i) { ids.push_back(cache->create({}).id); }
    for (std::uint32_t i = 0; i <= neighbours; ++i) { engine.prefill(ids[i], i == own ? 1 : 10 + i, i == own ? kPrompt : 200 + below(300), std::int32_t(20 + below(100))); }
    Outputs out;
    while (out.size() < std::size_t(kRows)) {
        std::vector<Engine::Part> parts;
        std::size_t own_row = 0;
        std::vector<std::uint32_t> order(neighbours + 1);
        for (std::uint32_t i = 0; i <= neighbours; ++i) { order[i] = i; }
        std::shuffle(order.begin(), order.end(), random);
        std::size_t row = 0;
        for (const std::uint32_t i : order) {
            if (i != own && below(3) == 0) { continue; }
            if (i == own) { own_row = row; }
            Engine::Part part{{.sequence = ids[i], .verify_rows = 1, .lookahead_rows = std::int32_t(below(3))}, {i == own ? 1U : 10 + i}, -1, {}};
            row += std::size_t(part.rows.rows());
            parts.push_back(std::move(part));
        }
        const Outputs rows = engine.step(parts);
        if (rows.empty()) {
            ADD_FAILURE() << "seed " << seed << ": refused by the " << name(engine.full->tier) << " tier";
            return out;
        }
        out.push_back(rows[own_row]);
        if (c.fast_bytes > 0 && below(6) == 0) { cache->resize_fast(c.fast_bytes + below(2) * f.fast_bytes_per_sequence); }
    }
    return out;
}

class CacheProperty : public testing::TestWithParam<MayRule> {};

TEST_P(CacheProperty, NothingButBudgetsChangesABit)
{
    for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
        CacheConfig c = base(GetParam());
        c.block_code = code;
        const Outputs expected = plain(c);
        for (std::uint32_t seed = 0; seed < 24; ++seed) { ASSERT_EQ(disturbed(c, seed), expected) << "seed " << seed; }
    }
}
INSTANTIATE_TEST_SUITE_P(Rules, CacheProperty, testing::Values(MayRule::kNone, MayRule::kLogical));

TEST(CacheProperties, LogicalResidentMattersOnlyToTheLogicalRule)
{
    for (const MayRule rule : {MayRule::kNone, MayRule::kLogical}) {
        CacheConfig c = base(rule);
        const Outputs small = plain(c);
        c.budgets.logical_resident = 320;
        EXPECT_EQ(plain(c) == small, rule == MayRule::kNone);
    }
}

TEST(CacheProperties, EveryBudgetMatters)
{
    const CacheConfig c = base(MayRule::kLogical);
    const Outputs expected = plain(c);
    for (const std::int32_t part : {0, 1, 2}) {
        CacheConfig other = c;
        if (part == 0) { other.budgets.fetch += 32; }
        if (part == 1) { other.budgets.attend -= 32; }
        if (part == 2) { other.budgets.sink += 16; }
        EXPECT_NE(plain(other), expected) << part;
    }
}

} // namespace
} // namespace oasis::test
