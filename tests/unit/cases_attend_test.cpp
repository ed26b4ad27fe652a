// SPDX-License-Identifier: Apache-2.0
//
// Cases of scoring and attention at the level of the whole cache, on memory that holds garbage before its first use.

#include "cache_fixture.hpp"
#include "oracle/attention.hpp"

#include <oasis/score/selection.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>

namespace {

/// What fresh cells are filled with, as floats; none: whatever malloc gives.
enum class Garbage { kNone, kNaN, kHuge } garbage = Garbage::kNone;

void spoil(void* p, std::size_t bytes)
{
    if (garbage == Garbage::kNone) { return; }
    const float x = garbage == Garbage::kNaN ? std::numeric_limits<float>::quiet_NaN() : 6e4F;
    for (std::size_t i = 0; i + sizeof(x) <= bytes; i += sizeof(x)) { std::memcpy(static_cast<char*>(p) + i, &x, sizeof(x)); }
}

} // namespace

void* operator new(std::size_t size, std::align_val_t alignment)
{
    const auto a = static_cast<std::size_t>(alignment);
    void* p = std::aligned_alloc(a, (size + a - 1) / a * a);
    if (!p) { throw std::bad_alloc(); }
    spoil(p, size);
    return p;
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept
{
    try {
        return operator new(size, alignment);
    } catch (...) {
        return nullptr;
    }
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;
using Cache = KVCache<cpu::Backend, float>;
constexpr std::int32_t kBlock = 16;

class GarbageGuard {
public:
    explicit GarbageGuard(Garbage g) { garbage = g; }
    ~GarbageGuard() { garbage = Garbage::kNone; }
};

/// A new cache whose slots are full of garbage too.
std::unique_ptr<Cache> spoilt_cache(const CacheConfig& c)
{
    auto cache = std::make_unique<Cache>(c);
    auto& slots = cache->pool().slots();
    spoil(slots.data(SlotId{0}), std::size_t(slots.counts().capacity) * slots.unit_bytes());
    return cache;
}

Outputs run(const CacheConfig& c, TokenIndex prompt, std::int32_t rows, std::uint64_t stream = 1, Counters* counters = nullptr)
{
    const auto cache = spoilt_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    Outputs out = engine.prefill(id, stream, prompt);
    for (auto& row : engine.decode(id, stream, rows)) { out.push_back(std::move(row)); }
    if (counters) { *counters = cache->stats().counters; }
    return out;
}

bool all_finite(const Outputs& rows)
{
    return std::all_of(rows.begin(), rows.end(), [](const auto& row) { return std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }); });
}

/// One layer of a step whose rows from `first_bad` on have K and V full of `bad`, Q as ever.
struct Inputs {
    std::vector<float> q, k, v, out, lse;
};
Inputs inputs(const ModelShape& s, std::uint64_t stream, LayerId layer, TokenIndex begin, std::int32_t rows, std::int32_t first_bad, float bad)
{
    const auto d = std::size_t(s.head_dim);
    Inputs in{std::vector<float>(std::size_t(rows * s.q_heads) * d), std::vector<float>(std::size_t(rows * s.kv_heads) * d), {}, {}, std::vector<float>(std::size_t(rows * s.q_heads))};
    in.v.resize(in.k.size());
    in.out.resize(in.q.size());
    for (std::int32_t r = 0; r < rows; ++r) {
        for (std::int32_t h = 0; h < s.q_heads; ++h) { fill_vector(stream, Kind::kQ, layer, h, begin + r, {in.q.data() + std::size_t(r * s.q_heads + h) * d, d}); }
        for (std::int32_t h = 0; h < s.kv_heads; ++h) {
            const std::size_t at = std::size_t(r * s.kv_heads + h) * d;
            fill_vector(stream, Kind::kK, layer, h, begin + r, {in.k.data() + at, d});
            fill_vector(stream, Kind::kV, layer, h, begin + r, {in.v.data() + at, d});
            if (r >= first_bad) {
                std::fill_n(in.k.data() + at, d, bad);
                std::fill_n(in.v.data() + at, d, bad);
            }
        }
    }
    return in;
}

/// A decode step with `accept` good rows and the rest bad ones; returns the accepted rows' outputs.
Outputs draft_step(AnyKVCache& cache, Queue queue, SequenceId id, std::uint64_t stream, std::int32_t rows, std::int32_t accept, float bad)
{
    const RowGroup group{.sequence = id, .verify_rows = rows};
    const TokenIndex begin = cache.length(id);
    Step step = cache.begin_step(queue, {&group, 1});
    const ModelShape& s = cache.config().shape;
    Outputs out(static_cast<std::size_t>(accept));
    for (LayerId layer = 0; layer < s.layers; ++layer) {
        Inputs in = inputs(s, stream, layer, begin, rows, accept, bad);
        cache.enqueue_attend(queue, step, layer, {.q = in.q.data(), .k = in.k.data(), .v = in.v.data(), .out = in.out.data()});
        const auto n = std::ptrdiff_t(s.q_heads) * s.head_dim;
        for (std::size_t r = 0; r < out.size(); ++r) { out[r].insert(out[r].end(), in.out.begin() + std::ptrdiff_t(r) * n, in.out.begin() + std::ptrdiff_t(r + 1) * n); }
    }
    const Accepted accepted{accept, {}};
    cache.commit(queue, std::move(step), {&accepted, 1});
    return out;
}

/// Attention of every head over the listed blocks of a context in float64.
std::vector<float> over_blocks(const CacheConfig& c, std::uint64_t stream, TokenIndex position, const std::vector<std::int32_t>& blocks, LayerId swapped = -1)
{
    std::vector<float> all;
    const auto d = std::size_t(c.shape.head_dim);
    std::vector<float> x(d);
    for (LayerId layer = 0; layer < c.shape.layers; ++layer) {
        for (std::int32_t head = 0; head < c.shape.q_heads; ++head) {
            std::vector<oracle::Row> keys, values;
            for (const std::int32_t block : blocks) {
                for (TokenIndex p = block * kBlock; p < std::min<TokenIndex>((block + 1) * kBlock, position + 1); ++p) {
                    fill_vector(stream, Kind::kK, layer, head / c.shape.group(), p, x);
                    (layer == swapped ? values : keys).emplace_back(x.begin(), x.end());
                    fill_vector(stream, Kind::kV, layer, head / c.shape.group(), p, x);
                    (layer == swapped ? keys : values).emplace_back(x.begin(), x.end());
                }
            }
            fill_vector(stream, Kind::kQ, layer, head, position, x);
            oracle::Row q(x.begin(), x.end());
            for (double& e : q) { e /= std::sqrt(double(d)); }
            for (const double e : oracle::attend(q, keys, values).out) { all.push_back(float(e)); }
        }
    }
    return all;
}

double worst(const std::vector<float>& a, const std::vector<float>& b)
{
    double w = a.size() == b.size() ? 0 : 1e9;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) { w = std::max(w, std::abs(double(a[i]) - double(b[i]))); }
    return w;
}

TEST(ScoreCases, SCORE_01_BudgetAroundTheNumberOfBlocks)
{
    CacheConfig sparse = small_config();
    sparse.budgets = {.attend = 128, .fetch = 128, .logical_resident = 128, .sink = 16, .recent = 32, .top_p = 1.0F};
    sparse.dense_below = 0;
    CacheConfig dense = sparse;
    dense.dense_below = 2048;
    for (const TokenIndex blocks : {0, 1, 7, 8, 9}) { // the row opens one block more: k is 8
        Counters counters;
        const Outputs got = run(sparse, blocks * kBlock, 1, 1, &counters);
        const Outputs all = run(dense, blocks * kBlock, 1);
        const std::uint64_t tokens = std::min<std::uint64_t>(std::uint64_t(blocks) * kBlock + 1, 7 * kBlock + 1);
        EXPECT_EQ(counters.attended_tokens, 4 * tokens) << blocks;
        EXPECT_EQ(counters.score_passes, 2U);
        EXPECT_EQ(got.back() == all.back(), blocks < 8) << blocks;
    }
}

class GarbageCases : public testing::TestWithParam<Garbage> {};

TEST_P(GarbageCases, SCORE_02_ATTN_01_UnusedPlacesOfTheLastBlock)
{
    for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
        for (const SummaryKind kind : {SummaryKind::kSpread, SummaryKind::kMinMax, SummaryKind::kCuboid, SummaryKind::kMean, SummaryKind::kOracle}) {
            CacheConfig c = small_config();
            c.budgets.attend = c.budgets.logical_resident = 192;
            c.block_code = code;
            c.summary = {kind, 4, SummaryCode::kInt8};
            c.dense_below = 0;
            c.measure_mass = true;
            for (const TokenIndex length : {0, 4, kBlock - 2, 3 * kBlock + 4, 400}) {
                const Outputs clean = run(c, length, 8);
                const GarbageGuard guard(GetParam());
                Counters counters;
                const Outputs got = run(c, length, 8, 1, &counters);
                EXPECT_TRUE(all_finite(got)) << length;
                EXPECT_EQ(got, clean) << "length " << length << " kind " << int(kind);
                EXPECT_TRUE(std::isfinite(counters.captured_mass));
            }
        }
    }
}

TEST_P(GarbageCases, SCORE_04_RejectedDraftsLeaveNothing)
{
    const float bad = GetParam() == Garbage::kNaN ? std::numeric_limits<float>::quiet_NaN() : 6e4F;
    for (const SummaryKind kind : {SummaryKind::kSpread, SummaryKind::kMinMax}) {
        CacheConfig c = small_config();
        c.summary = {kind, 8, SummaryCode::kInt4};
        const Outputs plain = run(c, 501, 60);
        const GarbageGuard guard(GetParam());
        const auto cache = spoilt_cache(c);
        Engine engine(*cache);
        const SequenceId id = cache->create({}).id;
        engine.prefill(id, 1, 501);
        std::size_t at = 501;
        for (std::int32_t i = 0; at < plain.size(); ++i) {
            const std::int32_t accept = i % 3 == 0 ? 0 : 1 + i % 2; // also nothing at all
            for (const auto& row : draft_step(*cache, engine.queue(), id, 1, accept + 4, accept, bad)) {
                if (at < plain.size()) { EXPECT_EQ(row, plain[at]) << "row " << at << " kind " << int(kind); }
                ++at;
            }
        }
        cache->pool().check();
    }
}
INSTANTIATE_TEST_SUITE_P(Fill, GarbageCases, testing::Values(Garbage::kNaN, Garbage::kHuge));

/// There are no padding rows: a step of no sequences is one, a group of no rows is refused, and neither disturbs others.
TEST(ScoreCases, SCORE_12_EmptyStepsAndGroups)
{
    const CacheConfig c = small_config();
    const Outputs plain = run(c, 300, 2);
    Cache cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    const SequenceId idle = cache.create({}).id;
    engine.prefill(id, 1, 300);
    EXPECT_TRUE(engine.step({}).empty());
    EXPECT_EQ(engine.decode(id, 1, 1)[0], plain[300]);
    for (const std::int32_t rows : {0, -1, std::numeric_limits<std::int32_t>::min()}) {
        const RowGroup groups[] = {{.sequence = id, .verify_rows = 1}, {.sequence = idle, .verify_rows = rows}};
        try {
            const Step step = cache.begin_step(engine.queue(), groups);
            ADD_FAILURE() << rows;
        } catch (const InvalidArgument& e) {
            EXPECT_NE(std::string(e.what()).find(std::to_string(rows)), std::string::npos) << e.what();
        }
    }
    EXPECT_EQ(engine.decode(id, 1, 1)[0], plain[301]);
    cache.pool().check();
}

TEST(ScoreCases, SCORE_18_SinkAndRecentAreReadWhateverTheirScore)
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 64, .fetch = 64, .logical_resident = 64, .sink = 16, .recent = 32, .top_p = 1.0F}; // sink 1, recent up to 3
    Cache cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 600);
    for (TokenIndex p = 600; p < 640; ++p) {
        const auto row = engine.decode(id, 1, 1)[0];
        const auto recent = static_cast<std::int32_t>((p + 1 - 32) / kBlock);
        const auto last = static_cast<std::int32_t>(p / kBlock);
        if (last - recent < 2) { continue; } // one place is left for the best of the others
        EXPECT_LT(worst(row, over_blocks(c, 1, p, {0, recent, recent + 1, recent + 2})), 1e-5) << p;
    }
    c.budgets.fetch = 48;
    try {
        make_cache(c);
        ADD_FAILURE() << "a budget below the forced blocks was taken";
    } catch (const InvalidArgument& e) {
        EXPECT_NE(std::string(e.what()).find("budgets.fetch is 48"), std::string::npos) << e.what();
    }
}

TEST(AttendCases, ATTN_02_FirstRowsAndNeighboursOfEmptySequences)
{
    const CacheConfig c = small_config();
    Cache cache(c);
    Engine engine(cache);
    const SequenceId old = cache.create({}).id;
    engine.prefill(old, 1, 400);
    const SequenceId empty = cache.create({}).id;
    const RowGroup groups[] = {{.sequence = empty, .verify_rows = 1}, {.sequence = old, .verify_rows = 1}};
    Step step = cache.begin_step(engine.queue(), groups);
    const Outputs plain = run(c, 400, 1);
    const auto n = std::size_t(c.shape.q_heads) * std::size_t(c.shape.head_dim);
    for (LayerId layer = 0; layer < c.shape.layers; ++layer) {
        Inputs in = inputs(c.shape, 2, layer, 0, 1, 1, 0);
        const Inputs other = inputs(c.shape, 1, layer, 400, 1, 1, 0);
        in.q.insert(in.q.end(), other.q.begin(), other.q.end());
        in.k.insert(in.k.end(), other.k.begin(), other.k.end());
        in.v.insert(in.v.end(), other.v.begin(), other.v.end());
        std::vector<float> out(2 * n), lse(2 * std::size_t(c.shape.q_heads));
        cache.enqueue_attend(engine.queue(), step, layer, {.q = in.q.data(), .k = in.k.data(), .v = in.v.data(), .out = out.data(), .lse = lse.data()});
        EXPECT_TRUE(std::equal(out.begin() + std::ptrdiff_t(n), out.end(), plain.back().begin() + std::ptrdiff_t(std::size_t(layer) * n)));
        for (std::int32_t head = 0; head < c.shape.q_heads; ++head) { // a row that sees itself alone returns its own V
            const auto* v = in.v.data() + std::size_t(head / c.shape.group() * c.shape.head_dim);
            EXPECT_TRUE(std::equal(v, v + c.shape.head_dim, out.data() + std::size_t(head * c.shape.head_dim)));
            EXPECT_TRUE(std::isfinite(lse[std::size_t(head)]));
        }
    }
    const Accepted accepted[] = {{1, {}}, {1, {}}};
    cache.commit(engine.queue(), std::move(step), accepted);
}

/// A set cannot hold a block twice: what the selection hands on is ascending, in range and padded.
TEST(AttendCases, ATTN_09_SelectionsAreAscendingWithoutRepeats)
{
    std::mt19937 random(9);
    for (int round = 0; round < 300; ++round) {
        const auto n = std::int32_t(1 + random() % 90);
        const auto first = std::int32_t(random() % 5);
        std::vector<float> scores(std::size_t(n), 0);
        for (float& s : scores) { s = random() % 8 == 0 ? std::numeric_limits<float>::quiet_NaN() : float(random() % 3); }
        std::vector<std::int32_t> ids(40, 77), ranked(50, 77);
        std::vector<std::uint8_t> must(40);
        SelectionOutput out{.ids = ids, .must = must, .ranked = ranked};
        TopKSelection{}.select({.scores = scores, .first = first, .sink_end = first + 2, .recent_begin = first + n - 3, .must_blocks = 10, .may_blocks = 40, .rank_blocks = 50}, out);
        for (std::int32_t i = 0; i < 40; ++i) {
            if (i >= out.count) {
                EXPECT_EQ(ids[std::size_t(i)], -1);
            } else {
                EXPECT_GE(ids[std::size_t(i)], i == 0 ? first : ids[std::size_t(i) - 1] + 1);
                EXPECT_LT(ids[std::size_t(i)], first + n);
            }
        }
    }
}

TEST(AttendCases, ATTN_10_TheComparisonSeesSwappedKeysAndValues)
{
    CacheConfig c = small_config();
    c.budgets.attend = c.budgets.fetch = c.budgets.logical_resident = 640;
    c.dense_below = 0;
    const Outputs got = run(c, 500, 1);
    std::vector<std::int32_t> all(500 / kBlock + 1);
    for (std::size_t i = 0; i < all.size(); ++i) { all[i] = std::int32_t(i); }
    EXPECT_LT(worst(got.back(), over_blocks(c, 1, 500, all)), 1e-5);
    for (LayerId layer = 0; layer < c.shape.layers; ++layer) { EXPECT_GT(worst(got.back(), over_blocks(c, 1, 500, all, layer)), 1e-2); }
}

TEST(AttendCases, ATTN_15_NeighboursContentsDoNotMatter)
{
    const CacheConfig c = small_config();
    const auto batch = [&](std::uint64_t neighbour, bool poison) {
        Cache cache(c);
        Engine engine(cache);
        const SequenceId id = cache.create({}).id;
        const SequenceId other = cache.create({}).id;
        engine.prefill(other, neighbour, 500);
        engine.prefill(id, 1, 500);
        Outputs rows;
        for (int i = 0; i < 20; ++i) {
            if (poison) { draft_step(cache, engine.queue(), other, 1, 1, 1, std::numeric_limits<float>::quiet_NaN()); }
            const auto both = engine.step({{{.sequence = other, .verify_rows = 2}, {neighbour}, -1, {}}, {{.sequence = id, .verify_rows = 1}, {1}, -1, {}}});
            rows.push_back(both[2]);
        }
        return rows;
    };
    const Outputs first = batch(2, false);
    EXPECT_EQ(batch(3, false), first);
    EXPECT_EQ(batch(2, true), first);
    const Outputs alone = run(c, 500, 20);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), alone.begin() + 500)) << "even alone the bits are the same";
}

TEST(AttendCases, ATTN_16_DenseUpToTheThresholdBitForBit)
{
    CacheConfig c = small_config();
    c.may = MayRule::kNone;
    CacheConfig dense = c, sparse = c;
    dense.dense_below = 2048;
    sparse.dense_below = 0;
    const Outputs all = run(dense, 200, 100);
    const Outputs chosen = run(sparse, 200, 100);
    Cache cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 200);
    for (std::size_t p = 200; p < 300; ++p) {
        const auto row = engine.decode(id, 1, 1)[0];
        const std::size_t context = p + 1;
        EXPECT_EQ(row, context <= 256 ? all[p] : chosen[p]) << "context " << context;
        EXPECT_EQ(cache.stats().counters.score_passes, context <= 256 ? 0 : 2 * (context - 256));
    }
    EXPECT_NE(chosen[299], all[299]);
}

} // namespace
} // namespace oasis::test
