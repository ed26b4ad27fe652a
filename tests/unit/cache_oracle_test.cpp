// SPDX-License-Identifier: Apache-2.0
//
// The sparse decode step of the whole cache against a float64 model of it that shares no code with the library.

#include "cache_fixture.hpp"
#include "oracle/step.hpp"

#include <cmath>
#include <iostream>
#include <random>
#include <string>

namespace oasis::test {
namespace {

using oracle::Row;

oracle::StepShape step_shape(const CacheConfig& c)
{
    oracle::StepShape s;
    s.summary = {static_cast<oracle::Kind>(c.summary.kind),      static_cast<oracle::Code>(c.summary.code), std::size_t(c.summary.tokens),
                 std::size_t(c.block_tokens), std::size_t(c.shape.head_dim), c.budgets.recent};
    s.q_heads = std::size_t(c.shape.q_heads);
    s.kv_heads = std::size_t(c.shape.kv_heads);
    s.reduction = static_cast<oracle::Reduction>(c.reduction);
    s.one_set = c.scope == SelectionScope::kLayer;
    s.may_logical = c.may == MayRule::kLogical;
    s.int8 = c.block_code == BlockCode::kInt8;
    s.fetch = c.budgets.fetch;
    s.attend = c.budgets.attend;
    s.logical = c.budgets.logical_resident;
    s.sink = c.budgets.sink;
    s.dense_below = c.dense_below < 0 ? c.budgets.attend : c.dense_below;
    return s;
}

/// Heads of one kind at a position, as the toy engine makes them.
std::vector<Row> vectors(const CacheConfig& c, std::uint64_t stream, Kind kind, LayerId layer, TokenIndex position)
{
    std::vector<Row> heads;
    std::vector<float> x(std::size_t(c.shape.head_dim));
    for (std::int32_t h = 0; h < (kind == Kind::kQ ? c.shape.q_heads : c.shape.kv_heads); ++h) {
        fill_vector(stream, kind, layer, h, position, x);
        heads.emplace_back(x.begin(), x.end());
    }
    return heads;
}

CacheConfig random_config(std::mt19937& random)
{
    const auto one_of = [&](auto... values) {
        const std::common_type_t<decltype(values)...> all[] = {values...};
        return all[random() % sizeof...(values)];
    };
    CacheConfig c = small_config();
    const std::int32_t kv = one_of(1, 2, 3);
    c.shape = {.layers = 1, .q_heads = kv * one_of(1, 2, 3), .kv_heads = kv, .head_dim = one_of(32, 48, 64)};
    c.block_tokens = one_of(16, 32);
    c.block_code = one_of(BlockCode::kNative, BlockCode::kNative, BlockCode::kInt8);
    c.summary.kind = one_of(SummaryKind::kSpread, SummaryKind::kSpread, SummaryKind::kCuboid, SummaryKind::kMinMax, SummaryKind::kMean);
    c.summary.code = one_of(SummaryCode::kF32, SummaryCode::kF16, SummaryCode::kInt8, SummaryCode::kInt4, SummaryCode::kInt4);
    c.summary.tokens = one_of(2, 2, 4, 8, 16);
    c.reduction = one_of(GroupReduction::kSoftmaxMax, GroupReduction::kMax, GroupReduction::kMean);
    c.scope = one_of(SelectionScope::kKvHead, SelectionScope::kKvHead, SelectionScope::kLayer);
    c.may = one_of(MayRule::kLogical, MayRule::kLogical, MayRule::kNone);
    c.budgets.recent = one_of(16, 40, 48, 64);
    c.budgets.sink = one_of(0, 16, 32);
    c.budgets.fetch = one_of(160, 192);
    c.budgets.attend = c.budgets.fetch + one_of(0, 64, 96);
    c.budgets.logical_resident = c.budgets.attend + one_of(0, 64);
    c.dense_below = one_of(-1, 0, 500);
    c.prefetch_cap = one_of(0, 64);
    return c;
}

struct Tally {
    std::int64_t compared = 0;
    std::int64_t skipped = 0;
    std::int64_t sparse = 0;
};

void expect_close(const std::vector<float>& got, const std::vector<Row>& expected, double tolerance, const std::string& where)
{
    std::size_t i = 0;
    double worst = 0;
    for (const Row& head : expected) {
        for (const double x : head) { worst = std::max(worst, std::abs(x - double(got[i++]))); }
    }
    EXPECT_EQ(i, got.size()) << where;
    EXPECT_LT(worst, tolerance) << where;
}

void compare(const CacheConfig& c, std::uint64_t stream, std::int32_t prompt, std::int32_t rows, Tally& tally)
{
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, stream, prompt, 90);
    oracle::StepModel model(step_shape(c));
    for (TokenIndex p = 0; p < prompt; ++p) { model.append(vectors(c, stream, Kind::kK, 0, p), vectors(c, stream, Kind::kV, 0, p)); }
    const double tolerance = c.block_code == BlockCode::kInt8 ? 2e-3 : 1e-5; // a code on the edge between two falls either way
    for (std::int32_t i = 0; i < rows; ++i) {
        const TokenIndex p = prompt + i;
        model.append(vectors(c, stream, Kind::kK, 0, p), vectors(c, stream, Kind::kV, 0, p));
        const oracle::StepRow expected = model.decode(vectors(c, stream, Kind::kQ, 0, p));
        const Counters before = cache->stats().counters;
        const auto out = engine.decode(id, stream, 1);
        const Counters after = cache->stats().counters;
        if (expected.closest < 1e-4) { // two blocks so close that either may be chosen: what follows depends on which
            tally.skipped += rows - i;
            return;
        }
        const std::string where = "row " + std::to_string(i) + " of stream " + std::to_string(stream);
        expect_close(out[0], expected.out, tolerance, where);
        ++tally.compared;
        EXPECT_EQ(after.attended_tokens - before.attended_tokens, expected.attended) << where;
        EXPECT_EQ(after.must_tokens - before.must_tokens, expected.must) << where;
        EXPECT_EQ(after.must_tokens - before.must_tokens,
                  after.resident_must_tokens - before.resident_must_tokens + after.fetched_tokens - before.fetched_tokens)
            << where;
        EXPECT_LE(after.fetched_tokens - before.fetched_tokens, expected.logical_misses) << where;
        EXPECT_EQ(after.sparse_row_sets - before.sparse_row_sets, expected.dense ? 0U : expected.read.size()) << where;
        tally.sparse += !expected.dense;
        if (testing::Test::HasFailure()) { return; }
    }
}

TEST(CacheOracle, DefaultsOverALongRun)
{
    CacheConfig c = small_config();
    c.shape.layers = 1;
    Tally tally;
    compare(c, 11, 240, 150, tally); // dense at first, sparse from 257 tokens on
    EXPECT_GT(tally.sparse, 50);
}

TEST(CacheOracle, RandomConfigurations)
{
    std::mt19937 random(2024);
    Tally tally;
    for (std::uint64_t round = 0; round < 40; ++round) {
        const CacheConfig c = random_config(random);
        const auto prompt = std::int32_t(100 + random() % 450);
        SCOPED_TRACE("round " + std::to_string(round) + ": block " + std::to_string(c.block_tokens) + " code " + std::to_string(int(c.block_code)) + " summary " +
                     std::to_string(int(c.summary.kind)) + "/" + std::to_string(int(c.summary.code)) + "/" + std::to_string(c.summary.tokens) + " reduction " +
                     std::to_string(int(c.reduction)) + " scope " + std::to_string(int(c.scope)) + " may " + std::to_string(int(c.may)) + " prompt " +
                     std::to_string(prompt));
        compare(c, 500 + round, prompt, 40, tally);
        if (HasFailure()) { return; }
    }
    EXPECT_GT(tally.sparse, 700);
    EXPECT_LT(tally.skipped, tally.compared / 4) << tally.skipped << " rows skipped, " << tally.compared << " compared";
}

} // namespace
} // namespace oasis::test
