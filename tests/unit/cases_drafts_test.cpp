// SPDX-License-Identifier: Apache-2.0
//
// Cases of drafts: rejected rows leave no trace, trees are refused, forks are what an engine has instead.

#include "faulty_fixture.hpp"
#include "sequence_digest.hpp"

#include <oasis/core/validate.hpp>

#include <set>

namespace oasis::test {
namespace {

constexpr std::int32_t kBlock = 16;

/// What must not depend on rows that were rejected.
struct FreeCounts {
    std::int64_t blocks = 0;
    std::int64_t groups = 0;
    std::size_t native = 0;
    std::size_t slow_bytes = 0;
    std::int64_t slots = 0;
    friend bool operator==(const FreeCounts&, const FreeCounts&) = default;
};
FreeCounts free_counts(StockCache& cache)
{
    auto& pool = cache.pool();
    return {pool.blocks().available(), pool.groups().live(), pool.blocks().native().in_use(), pool.blocks().store().bytes_used(), pool.slots().counts().capacity};
}

class DraftCases : public testing::TestWithParam<std::int32_t> {};

TEST_P(DraftCases, LOOK_01_RejectedDraftsLeaveNoTrace)
{
    const std::int32_t drafts = GetParam();
    CacheConfig c = small_config();
    c.block_code = drafts % 2 == 0 ? BlockCode::kInt8 : BlockCode::kNative;
    c.limits.max_sequences = 1;
    CacheConfig with_drafts = c;
    with_drafts.prefetch_cap = 32;
    for (const std::int32_t accepted : std::set<std::int32_t>{0, 1, drafts - 1, drafts}) {
        StockCache drafted(with_drafts);
        StockCache plain(c);
        Engine engine(drafted);
        Engine other(plain);
        const SequenceId id = drafted.create({}).id;
        ASSERT_EQ(plain.create({}).id, id);
        engine.prefill(id, 1, 270);
        other.prefill(id, 1, 270);
        const std::int64_t slots = drafted.pool().slots().counts().capacity;
        for (std::uint64_t step = 0; step < 200; ++step) {
            Engine::Part part{{.sequence = id, .verify_rows = drafts + 1, .lookahead_rows = std::int32_t(step % 3)}, {}, accepted + 1, {}};
            for (std::int32_t row = 0; row < part.rows.rows(); ++row) { part.streams.push_back(row <= accepted ? 1 : 1000 + step * 16 + std::uint64_t(row)); }
            Outputs rows = engine.step({part});
            ASSERT_EQ(rows.size(), std::size_t(part.rows.rows()));
            rows.resize(std::size_t(accepted) + 1);
            ASSERT_EQ(rows, other.decode(id, 1, accepted + 1)) << accepted << " of " << drafts << " accepted, step " << step;
            ASSERT_EQ(difference(digest_of(drafted.pool(), id), digest_of(plain.pool(), id)), "") << accepted << " of " << drafts << " accepted, step " << step;
            FreeCounts expected = free_counts(plain);
            expected.slots = slots;
            ASSERT_EQ(free_counts(drafted), expected) << accepted << " of " << drafts << " accepted, step " << step;
        }
        drafted.pool().check();
        EXPECT_EQ(drafted.length(id), 270 + 200 * (accepted + 1));
    }
}
INSTANTIATE_TEST_SUITE_P(Lengths, DraftCases, testing::Values(1, 2, 4, 7));

/// Two tokens before the end of a block (and, at 126, of a summary group): five rows cross it, one stands.
TEST(LookaheadCases, LOOK_02_RollbackAcrossABlockBoundary)
{
    for (const auto& [start, rounds] : {std::pair{14, 10'000}, {78, 500}, {126, 500}}) {
        CacheConfig c = small_config();
        c.shape = {.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 32};
        c.limits = {.max_sequences = 1, .max_rows = 128, .max_context = 256};
        StockCache cache(c);
        Engine engine(cache);
        const SequenceId id = cache.create({}).id;
        engine.prefill(id, 1, start);
        const std::size_t blocks = cache.pool().find(id)->blocks.size();
        engine.decode(id, 1, 1);
        const FreeCounts before = free_counts(cache); // of one token more, without drafts
        cache.truncate(id, start);
        for (int i = 0; i < rounds; ++i) {
            ASSERT_EQ(engine.step({{{.sequence = id, .verify_rows = 5}, {std::uint64_t(i) + 2}, 1, {}}}).size(), 5U);
            ASSERT_EQ(cache.length(id), start + 1);
            ASSERT_EQ(cache.pool().find(id)->blocks.size(), blocks);
            ASSERT_EQ(last_block_fill(cache.length(id), kBlock), kBlock - 1);
            ASSERT_EQ(free_counts(cache), before) << "round " << i;
            cache.truncate(id, start);
        }
        cache.pool().check();
        EXPECT_EQ(engine.decode(id, 1, 5), undisturbed(c, start, 5));
    }
}

TEST(LookaheadCases, LOOK_04_TreesAreRefusedWithASentence)
{
    StockCache cache(small_config());
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 69);
    const SequenceDigest before = digest_of(cache.pool(), id);
    try {
        engine.step({{{.sequence = id, .verify_rows = 9}, {1}, -1, {}}}); // more rows than a chain of drafts has
        ADD_FAILURE() << "nine rows";
    } catch (const InvalidArgument& e) {
        expect_fields(e.what(), {"begin_step", "9 verify rows", "1 to 8", "tree drafts are not supported"});
    }
    const RowGroup branch{.sequence = id, .verify_rows = 2};
    try {
        engine.step({{branch, {1}, -1, {}}, {branch, {2}, -1, {}}, {branch, {3}, -1, {}}}); // siblings as groups
        ADD_FAILURE() << "three branches of one sequence";
    } catch (const InvalidArgument& e) {
        expect_fields(e.what(), {"begin_step", "sequence 0", "groups 0 and 1"});
    }
    EXPECT_EQ(difference(digest_of(cache.pool(), id), before), "");
    cache.pool().check();
}

/// What an engine has instead of a tree: three forks of a partly filled block, two steps each, the parents permuted.
TEST(LookaheadCases, LOOK_04_BranchesAsForksSeeTheirAncestorsAlone)
{
    const CacheConfig c = small_config();
    StockCache cache(c);
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    constexpr TokenIndex kLength = 19 * kBlock + 5;
    engine.prefill(id, 1, kLength);
    const std::int64_t free = cache.pool().blocks().available();
    std::vector<SequenceId> branches;
    for (int i = 0; i < 3; ++i) { branches.push_back(cache.fork(id).id); }
    std::set<BlockId> tails;
    for (const SequenceId branch : branches) { tails.insert(cache.pool().find(branch)->blocks.back()); }
    tails.insert(cache.pool().find(id)->blocks.back());
    EXPECT_EQ(tails.size(), 4U) << "the tail block is copied, not aliased";
    std::vector<Outputs> out(3);
    for (const std::vector<std::size_t>& order : {std::vector<std::size_t>{0, 1, 2}, {2, 0, 1}}) {
        std::vector<Engine::Part> parts;
        for (const std::size_t b : order) { parts.push_back({{.sequence = branches[b], .verify_rows = 1}, {10 + b}, -1, {}}); }
        const Outputs rows = engine.step(parts);
        for (std::size_t i = 0; i < order.size(); ++i) { out[order[i]].push_back(rows[i]); }
    }
    for (std::size_t b = 0; b < 3; ++b) {
        const auto alone = make_cache(c);
        Engine only(*alone);
        const SequenceId same = alone->create({}).id;
        only.prefill(same, 1, kLength);
        EXPECT_EQ(out[b], only.decode(same, 10 + b, 2)) << "branch " << b;
    }
    for (const SequenceId branch : branches) { cache.remove(branch); }
    EXPECT_EQ(cache.pool().blocks().available(), free);
    cache.pool().check();
    EXPECT_EQ(engine.decode(id, 1, 4), undisturbed(c, kLength, 4));
}

} // namespace
} // namespace oasis::test
