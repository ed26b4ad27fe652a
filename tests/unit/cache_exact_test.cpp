// SPDX-License-Identifier: Apache-2.0
//
// What `exact` promises: outputs depend on the streams and the budgets alone.

#include "cache_fixture.hpp"
#include "oracle/attention.hpp"

#include <cmath>

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;

Outputs run_plain(CacheConfig c, TokenIndex prompt, std::int32_t rows, std::size_t threads = 1, std::int32_t chunk = 100)
{
    const auto cache = make_cache(c);
    Engine engine(*cache, threads);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, prompt, chunk);
    return engine.decode(id, 1, rows);
}

double max_difference(const Outputs& a, const Outputs& b)
{
    EXPECT_EQ(a.size(), b.size());
    double worst = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        for (std::size_t j = 0; j < a[i].size(); ++j) { worst = std::max(worst, std::abs(double(a[i][j]) - double(b[i][j]))); }
    }
    return worst;
}

/// Dense attention of one row in float64 from the streams themselves.
std::vector<float> dense_row(const CacheConfig& c, std::uint64_t stream, TokenIndex position)
{
    std::vector<float> all;
    const auto d = std::size_t(c.shape.head_dim);
    for (LayerId layer = 0; layer < c.shape.layers; ++layer) {
        for (std::int32_t head = 0; head < c.shape.q_heads; ++head) {
            std::vector<float> x(d);
            std::vector<std::vector<double>> keys, values;
            for (TokenIndex p = 0; p <= position; ++p) {
                fill_vector(stream, Kind::kK, layer, head / c.shape.group(), p, x);
                keys.emplace_back(x.begin(), x.end());
                fill_vector(stream, Kind::kV, layer, head / c.shape.group(), p, x);
                values.emplace_back(x.begin(), x.end());
            }
            fill_vector(stream, Kind::kQ, layer, head, position, x);
            std::vector<double> q(x.begin(), x.end());
            for (double& e : q) { e /= std::sqrt(double(d)); }
            const auto result = oracle::attend(q, keys, values);
            for (const double e : result.out) { all.push_back(float(e)); }
        }
    }
    return all;
}

TEST(CacheExact, DenseContextEqualsTheOracle)
{
    const CacheConfig c = small_config();
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    const Outputs prefilled = engine.prefill(id, 1, 150, 64);
    const Outputs decoded = engine.decode(id, 1, 3);
    for (const TokenIndex p : {0, 1, 15, 16, 17, 63, 64, 149}) {
        EXPECT_LT(max_difference({prefilled[std::size_t(p)]}, {dense_row(c, 1, p)}), 1e-5) << p;
    }
    EXPECT_LT(max_difference({decoded[2]}, {dense_row(c, 1, 152)}), 1e-5);
}

TEST(CacheExact, BudgetOverContextEqualsDense)
{
    CacheConfig c = small_config();
    c.budgets.attend = c.budgets.fetch = c.budgets.logical_resident = 2048;
    c.dense_below = 0;
    const Outputs sparse = run_plain(c, 600, 4);
    for (int i = 0; i < 4; ++i) { EXPECT_LT(max_difference({sparse[std::size_t(i)]}, {dense_row(c, 1, 600 + i)}), 1e-5); }
}

TEST(CacheExact, PrefillLargerThanFastMemoryEqualsTheOracle)
{
    CacheConfig c = small_config();
    const Outputs rows = [&] {
        const auto cache = make_cache(c);
        Engine engine(*cache);
        return engine.prefill(cache->create({}).id, 1, 1500, 256);
    }();
    EXPECT_LT(max_difference({rows[1499]}, {dense_row(c, 1, 1499)}), 1e-5);
}

class CacheExactModes : public testing::TestWithParam<CacheConfig> {};

TEST_P(CacheExactModes, RowsPerStepAndRejectionsChangeNothing)
{
    const CacheConfig c = GetParam();
    const Outputs plain = run_plain(c, 700, 60);
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, 700, 173);
    std::mt19937 random(7);
    Outputs drafted;
    while (drafted.size() < 60) {
        const auto verify = std::int32_t(1 + random() % kMaxVerifyRows);
        const auto lookahead = std::int32_t(random() % (kMaxLookaheadRows + 1));
        const auto right = std::int32_t(1 + random() % std::uint32_t(verify)); // this many rows hold the true content
        Engine::Part part{{.sequence = id, .verify_rows = verify, .lookahead_rows = lookahead}, {}, right, {}};
        for (std::int32_t i = 0; i < verify + lookahead; ++i) { part.streams.push_back(i < right ? 1U : 99U + random() % 5U); }
        const bool drop = random() % 5 == 0;
        const Outputs rows = engine.step({part}, !drop);
        if (!drop) { drafted.insert(drafted.end(), rows.begin(), rows.begin() + right); }
    }
    drafted.resize(60);
    EXPECT_EQ(drafted, plain);
}

TEST_P(CacheExactModes, FastMemoryThreadsAndNeighboursChangeNothing)
{
    CacheConfig c = GetParam();
    const Outputs plain = run_plain(c, 700, 40);
    const Footprint f = footprint(c);
    c.fast_bytes = 3 * f.fast_bytes_per_sequence + f.landing_bytes + (std::size_t{12} << 20);
    const auto cache = make_cache(c);
    Engine engine(*cache, 3);
    const SequenceId id = cache->create({}).id;
    const SequenceId other = cache->create({}).id;
    engine.prefill(other, 5, 900, 256);
    engine.prefill(id, 1, 700, 37);
    Outputs rows;
    for (int i = 0; i < 40; ++i) {
        const auto both = engine.step({{{.sequence = other, .verify_rows = 1}, {5}, -1, {}}, {{.sequence = id, .verify_rows = 1}, {1}, -1, {}}});
        ASSERT_EQ(both.size(), 2U);
        rows.push_back(both[1]);
        if (i == 10) { cache->resize_fast(c.fast_bytes * 2); }
        if (i == 20) { cache->resize_fast(0); }
    }
    EXPECT_EQ(rows, plain);
}

TEST_P(CacheExactModes, ForksGoOnAsTheirParent)
{
    const CacheConfig c = GetParam();
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, 1, 701, 128);
    engine.decode(id, 1, 5);
    const SequenceId child = cache->fork(id).id;
    const Outputs stray = engine.decode(child, 77, 30);
    const SequenceId second = cache->fork(id).id;
    const Outputs parent = engine.decode(id, 1, 20);
    EXPECT_EQ(engine.decode(second, 1, 20), parent);
    EXPECT_EQ(cache->remove(child), RemoveResult::kRemoved);
    EXPECT_EQ(cache->remove(id), RemoveResult::kRemoved);
    Outputs more = engine.decode(second, 1, 20);
    const Outputs plain = run_plain(c, 701, 45);
    for (std::size_t i = 0; i < 20; ++i) { EXPECT_EQ(more[i], plain[25 + i]) << i; }
}

std::vector<CacheConfig> modes()
{
    std::vector<CacheConfig> all;
    all.push_back(small_config());
    for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
        for (const SelectionScope scope : {SelectionScope::kKvHead, SelectionScope::kLayer}) {
            CacheConfig c = small_config();
            c.block_code = code;
            c.scope = scope;
            c.prefetch_cap = 64;
            c.summary = code == BlockCode::kInt8 ? SummaryOptions{SummaryKind::kCuboid, 4, SummaryCode::kInt8} : c.summary;
            all.push_back(c);
        }
    }
    CacheConfig c = small_config();
    c.may = MayRule::kNone;
    c.dtype = DType::kBF16;
    c.block_tokens = 32;
    c.summary = {SummaryKind::kMinMax, 32, SummaryCode::kF16};
    c.budgets.fetch = 192;
    c.reduction = GroupReduction::kMax;
    all.push_back(c);
    c = small_config();
    c.summary.kind = SummaryKind::kOracle;
    c.measure_mass = true;
    all.push_back(c);
    c = small_config();
    c.dense_layers = {1};
    all.push_back(c);
    return all;
}
INSTANTIATE_TEST_SUITE_P(Modes, CacheExactModes, testing::ValuesIn(modes()));

} // namespace
} // namespace oasis::test
