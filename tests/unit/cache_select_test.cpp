// SPDX-License-Identifier: Apache-2.0
//
// enqueue_select, for engines with their own attention; request_remove; window layers on long contexts.

#include "cache_fixture.hpp"
#include "oracle/attention.hpp"

#include <oasis/pool/head_block.hpp>

#include <cmath>
#include <cstring>
#include <thread>

namespace oasis::test {
namespace {

constexpr std::uint64_t kStream = 3;

/// Rows of one layer of a step, filled from the stream.
struct LayerRows {
    std::vector<float> q, k, v, out;
    LayerRows(const ModelShape& shape, LayerId layer, TokenIndex begin, std::int32_t rows)
        : q(std::size_t(rows * shape.q_heads * shape.head_dim)), k(std::size_t(rows * shape.kv_heads * shape.head_dim)), v(k.size()), out(q.size())
    {
        const auto d = std::size_t(shape.head_dim);
        for (std::int32_t r = 0; r < rows; ++r) {
            for (std::int32_t h = 0; h < shape.q_heads; ++h) {
                fill_vector(kStream, Kind::kQ, layer, h, begin + r, {q.data() + std::size_t(r * shape.q_heads + h) * d, d});
            }
            for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
                fill_vector(kStream, Kind::kK, layer, h, begin + r, {k.data() + std::size_t(r * shape.kv_heads + h) * d, d});
                fill_vector(kStream, Kind::kV, layer, h, begin + r, {v.data() + std::size_t(r * shape.kv_heads + h) * d, d});
            }
        }
    }
    AttendArgs args() { return {.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()}; }
};

/// What an engine's own kernel would do with the selection: attention in float64 over the listed bytes.
std::vector<double> attend_selected(const CacheConfig& c, const SelectedSlots& selected, std::int32_t row, std::int32_t q_head, const LayerRows& rows)
{
    const auto d = std::size_t(c.shape.head_dim);
    const std::size_t list = std::size_t(row * c.shape.kv_heads + q_head / c.shape.group());
    const HeadBlockLayout layout{c.dtype, c.block_code, c.block_tokens, c.shape.head_dim};
    std::vector<std::vector<double>> keys, values;
    for (std::int64_t i = selected.starts[list]; i < selected.starts[list + 1]; ++i) {
        const cpu::BlockRef& ref = selected.blocks[std::size_t(i)];
        for (std::int32_t t = ref.begin; t < ref.end; ++t) {
            std::vector<float> x(d);
            std::memcpy(x.data(), ref.data + std::size_t(t) * d * 4, d * 4);
            keys.emplace_back(x.begin(), x.end());
            std::memcpy(x.data(), ref.data + layout.native_v_offset() + std::size_t(t) * d * 4, d * 4);
            values.emplace_back(x.begin(), x.end());
        }
    }
    std::vector<double> q(d);
    for (std::size_t i = 0; i < d; ++i) { q[i] = double(rows.q[std::size_t(row * c.shape.q_heads + q_head) * d + i]) / std::sqrt(double(d)); }
    return oracle::attend(q, keys, values).out;
}

TEST(CacheSelect, OwnAttentionOverTheSelectionEqualsTheLibrarys)
{
    const CacheConfig c = small_config();
    const auto ours = make_cache(c);
    const auto theirs = make_cache(c);
    Engine a(*ours), b(*theirs);
    const SequenceId id = ours->create({}).id;
    ASSERT_EQ(theirs->create({}).id, id);
    a.prefill(id, kStream, 700);
    b.prefill(id, kStream, 700);
    for (int i = 0; i < 12; ++i) {
        const RowGroup group{.sequence = id, .verify_rows = 2};
        Step attended = ours->begin_step(a.queue(), {&group, 1});
        Step selected = theirs->begin_step(b.queue(), {&group, 1});
        for (LayerId layer = 0; layer < c.shape.layers; ++layer) {
            LayerRows rows(c.shape, layer, ours->length(id), 2);
            ours->enqueue_attend(a.queue(), attended, layer, rows.args());
            const SelectedSlots what = theirs->enqueue_select(b.queue(), selected, layer, {.q = rows.q.data(), .k = rows.k.data(), .v = rows.v.data()});
            ASSERT_EQ(what.starts.size(), std::size_t(2 * c.shape.kv_heads + 1));
            EXPECT_GT(theirs->stats().slots.pinned, 0);
            for (std::int32_t row = 0; row < 2; ++row) {
                for (std::int32_t head = 0; head < c.shape.q_heads; ++head) {
                    const auto own = attend_selected(c, what, row, head, rows);
                    for (std::size_t e = 0; e < own.size(); ++e) {
                        ASSERT_NEAR(own[e], rows.out[std::size_t(row * c.shape.q_heads + head) * own.size() + e], 1e-5) << i << " " << layer << " " << head;
                    }
                }
            }
        }
        const Accepted one{.rows = 1};
        ours->commit(a.queue(), std::move(attended), {&one, 1});
        theirs->commit(b.queue(), std::move(selected), {&one, 1});
        EXPECT_EQ(theirs->stats().slots.pinned, 0);
    }
    EXPECT_EQ(ours->stats().counters.fetched_tokens, theirs->stats().counters.fetched_tokens);
}

TEST(CacheSelect, PrefillGroupsAreRefusedAndTheStepGoesOn)
{
    const CacheConfig c = small_config();
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    const RowGroup group{.sequence = id, .prefill_tokens = 2};
    Step step = cache->begin_step(engine.queue(), {&group, 1});
    LayerRows rows(c.shape, 0, 0, 2);
    EXPECT_THROW(cache->enqueue_select(engine.queue(), step, 0, rows.args()), InvalidArgument);
    EXPECT_NO_THROW(cache->enqueue_attend(engine.queue(), step, 0, rows.args()));
}

TEST(CacheSelect, ADestroyedStepUnpins)
{
    const CacheConfig c = small_config();
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, kStream, 700);
    {
        const RowGroup group{.sequence = id, .verify_rows = 1};
        Step step = cache->begin_step(engine.queue(), {&group, 1});
        LayerRows rows(c.shape, 0, 700, 1);
        cache->enqueue_select(engine.queue(), step, 0, rows.args());
        EXPECT_GT(cache->stats().slots.pinned, 0);
    }
    EXPECT_EQ(cache->stats().slots.pinned, 0);
}

TEST(CacheRequests, RemovalFromAnotherThreadHappensAtTheNextStep)
{
    const auto cache = make_cache(small_config());
    Engine engine(*cache);
    const SequenceId keep = cache->create({}).id;
    const SequenceId gone = cache->create({}).id;
    engine.prefill(gone, 1, 100);
    std::thread([&] {
        cache->request_remove(gone);
        cache->request_remove(SequenceId{999});
    }).join();
    EXPECT_EQ(cache->stats().sequences, 2);
    engine.prefill(keep, 2, 50);
    EXPECT_EQ(cache->stats().sequences, 1);
    EXPECT_EQ(cache->remove(gone), RemoveResult::kNotFound);
}

/// A window that is dense by its size, on a context far longer than what may stay resident: old blocks make room for new ones.
TEST(CacheWindow, LongContextsKeepOnlyTheWindow)
{
    CacheConfig c = small_config();
    c.budgets.attend = c.budgets.logical_resident = 256;
    c.budgets.fetch = 128;
    c.shape.layers = 1;
    c.dense_below = 3000;
    c.limits = {.max_sequences = 1, .max_rows = 256, .max_context = 8192};
    auto cache = std::make_unique<KVCache<>>(c);
    InlineExecutor executor;
    const Queue queue(executor);
    const SequenceId id = cache->create({}).id;
    int step_count = 0;
    for (TokenIndex at = 0; at < 7000;) {
        const bool prefill = step_count++ % 4 != 3;
        const RowGroup group{.sequence = id, .verify_rows = prefill ? 0 : 8, .prefill_tokens = prefill ? 248 : 0};
        Step step = cache->begin_step(queue, {&group, 1});
        ASSERT_TRUE(step);
        for (LayerId layer = 0; layer < c.shape.layers; ++layer) {
            LayerRows rows(c.shape, layer, at, group.rows());
            AttendArgs args = rows.args();
            args.window = 2900;
            ASSERT_NO_THROW(cache->enqueue_attend(queue, step, layer, args)) << at;
        }
        const Accepted all{.rows = group.rows()};
        cache->commit(queue, std::move(step), {&all, 1});
        at = cache->length(id);
    }
    EXPECT_NO_THROW(cache->pool().check());
}

/// A block whose bound is infinite in one head may be what the row needs, whatever the other heads say.
TEST(CacheSelect, AnUnboundedBlockOfAnyHeadComesFirstInLayerScope)
{
    constexpr TokenIndex kPrompt = 640;
    constexpr TokenIndex kFar = 165;
    for (const GroupReduction reduction : {GroupReduction::kMean, GroupReduction::kMax, GroupReduction::kSoftmaxMax}) {
        CacheConfig c = small_config();
        c.shape.layers = 1;
        c.scope = SelectionScope::kLayer;
        c.reduction = reduction;
        c.summary = {SummaryKind::kMinMax, 16, SummaryCode::kF16};
        c.budgets = {.attend = 64, .fetch = 64, .logical_resident = 64, .sink = 0, .recent = 16, .top_p = 1.0F};
        c.dense_below = 0;
        const auto cache = make_cache(c);
        Engine engine(*cache);
        const SequenceId id = cache->create({}).id;
        const auto d = std::size_t(c.shape.head_dim);
        std::vector<float> expected;
        for (TokenIndex begin = 0; begin <= kPrompt; begin += 128) { // the last step is the decode row
            const std::int32_t rows = begin < kPrompt ? 128 : 1;
            LayerRows content(c.shape, 0, begin, rows);
            std::fill(content.q.begin(), content.q.end(), 0.0F);
            for (std::size_t i = 0; i < content.q.size(); i += d) { content.q[i] = 1.0F; }
            for (std::int32_t r = 0; r < rows; ++r) {
                float* const k = content.k.data() + std::size_t(r) * 2 * d;
                if ((begin + r) / 16 == kFar / 16) { k[0] = -50.0F; } // head 0 would have it last
                if (begin + r == kFar) {
                    k[d] = 1e6F; // beyond f16
                    expected.assign(content.v.begin() + (2 * r + 1) * std::ptrdiff_t(d), content.v.begin() + (2 * r + 2) * std::ptrdiff_t(d));
                }
            }
            const RowGroup group{.sequence = id, .verify_rows = rows == 1 ? 1 : 0, .prefill_tokens = rows == 1 ? 0 : rows};
            Step step = cache->begin_step(engine.queue(), {&group, 1});
            cache->enqueue_attend(engine.queue(), step, 0, content.args());
            const Accepted all{rows, {}};
            cache->commit(engine.queue(), std::move(step), {&all, 1});
            if (rows > 1) { continue; }
            for (std::size_t h = 3; h < 6; ++h) { // the query heads of head 1 attend to that token alone
                const std::vector<float> out(content.out.begin() + std::ptrdiff_t(h * d), content.out.begin() + std::ptrdiff_t((h + 1) * d));
                EXPECT_EQ(out, expected) << "head " << h << " reduction " << int(reduction);
            }
        }
    }
}

} // namespace
} // namespace oasis::test
