// SPDX-License-Identifier: Apache-2.0
//
// Cases of drafts and of what a guess is made from: rejected rows leave no trace, what comes back from the slow tier guesses as it did.

#include "faulty_fixture.hpp"
#include "sequence_digest.hpp"

#include <oasis/core/validate.hpp>

#include <cmath>
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

CacheConfig little_room()
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.limits = {.max_sequences = 12, .max_rows = 128, .max_context = 1024};
    c.prefetch_cap = 32;
    return c;
}

struct Quality {
    double agreed = 0; ///< sum over guesses
    double guesses = 0;
    double must = 0;
    double resident = 0;
    Outputs out{};
};

Quality quality(const AnyKVCache& cache)
{
    Quality q;
    for (const LayerStats& l : cache.layer_stats()) {
        q.agreed += l.agreement * double(l.agreement_terms);
        q.guesses += double(l.agreement_terms);
    }
    q.must = double(cache.stats().counters.must_tokens);
    q.resident = double(cache.stats().counters.resident_must_tokens);
    return q;
}

constexpr std::uint64_t kPrompts = 24;
constexpr TokenIndex kPromptTokens = 304;
constexpr std::int32_t kDecoded = 16;

void unrelated_work(AnyKVCache& cache, Engine& engine)
{
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 500, 600);
    engine.decode(id, 500, 20);
    cache.remove(id);
}

/// All prompts one after another, with or without an absence from fast memory in between.
Quality all_prompts(AnyKVCache& cache, Engine& engine, bool preempt, std::int64_t expected_cached)
{
    Quality all;
    for (std::uint64_t prompt = 1; prompt <= kPrompts; ++prompt) {
        const std::vector<TokenId> tokens = tokens_of(prompt, kPromptTokens);
        const CreateResult made = cache.create({.prompt = tokens});
        EXPECT_EQ(made.cached_tokens, expected_cached) << "prompt " << prompt;
        engine.prefill(made.id, prompt, kPromptTokens, 128, tokens);
        for (std::int32_t row = 0; row < kDecoded; ++row) {
            if (preempt && row == kDecoded / 2) {
                EXPECT_TRUE(cache.preempt(made.id));
                if (prompt % 8 == 0) { unrelated_work(cache, engine); }
                EXPECT_TRUE(cache.resume(made.id));
            }
            const Quality before = quality(cache);
            all.out.push_back(engine.decode(made.id, prompt, 1).at(0));
            const Quality after = quality(cache);
            all.agreed += after.agreed - before.agreed;
            all.guesses += after.guesses - before.guesses;
            all.must += after.must - before.must;
            all.resident += after.resident - before.resident;
        }
        cache.remove(made.id);
    }
    return all;
}

TEST(LookaheadCases, LOOK_05_GuessesAreAsGoodAfterALoadBack)
{
    const CacheConfig c = little_room();
    StockCache cache(c);
    Engine engine(cache);
    const Quality first = all_prompts(cache, engine, false, 0);
    EXPECT_GT(first.agreed / first.guesses, 0.3);
    EXPECT_LT(first.agreed / first.guesses, 0.99) << "a guess that is always right shows nothing";
    EXPECT_LT(first.resident / first.must, 0.99);
    unrelated_work(cache, engine);
    constexpr std::int64_t kCached = (kPromptTokens - 1) / kBlock * kBlock;
    for (const bool preempt : {false, true}) {
        const Quality again = all_prompts(cache, engine, preempt, kCached);
        EXPECT_EQ(again.guesses, first.guesses) << "preempted " << preempt;
        EXPECT_NEAR(again.agreed / again.guesses, first.agreed / first.guesses, 0.02) << "preempted " << preempt;
        EXPECT_NEAR(again.resident / again.must, first.resident / first.must, 0.02) << "preempted " << preempt;
        EXPECT_EQ(again.out, first.out) << "preempted " << preempt;
    }
    cache.pool().check();
}

/// A prefix comes back with its summaries: rebuilt from the keys, equal to those it had.
TEST(LookaheadCases, LOOK_06_SummariesComeBackWithTheirKeys)
{
    for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
        CacheConfig c = little_room();
        c.block_code = code;
        c.limits.max_sequences = 2;
        FaultyCache f(c);
        const std::vector<TokenId> all = tokens_of(1, 22 * kBlock);
        const std::span<const TokenId> prompt(all.data(), 20 * kBlock + 1);
        const SequenceId donor = f.cache.create({.prompt = all}).id;
        f.engine.prefill(donor, 1, 22 * kBlock, 90, all);
        const BlockId gone = f.cache.pool().find(donor)->blocks[12];
        f.cache.remove(donor);
        EXPECT_EQ(f.cache.pool().groups().live(), 0) << "summaries went with the sequence";
        StockCache fresh(c);
        Engine engine(fresh);
        const SequenceId id = fresh.create({}).id;
        engine.prefill(id, 1, 20 * kBlock);
        const SequenceDigest expected = digest_of(fresh.pool(), id);
        const CreateResult made = f.cache.create({.prompt = prompt});
        EXPECT_EQ(made.cached_tokens, 20 * kBlock);
        const SequenceDigest found = digest_of(f.cache.pool(), made.id);
        EXPECT_GT(expected.coded.size(), 0U);
        EXPECT_TRUE(found.coded == expected.coded);
        if (code == BlockCode::kNative) { EXPECT_TRUE(found.summaries == expected.summaries); } // else the open group is made from decoded keys
        f.cache.remove(made.id);
        // One block of twenty is not delivered: what is usable ends before it.
        f.script.fail(StoreOperation::kRead, [&](const StorePiece& piece) { return piece.block == gone && piece.layer == 1 && piece.set == 1; });
        const CreateResult part = f.cache.create({.prompt = prompt});
        ASSERT_TRUE(part);
        EXPECT_EQ(part.cached_tokens, 12 * kBlock);
        ASSERT_EQ(f.failures.size(), 1U);
        expect_fields(f.failures[0].second, {"slow tier", "read", "block " + std::to_string(raw(gone))});
        f.script.repair();
        f.engine.prefill(part.id, 1, 20 * kBlock);
        EXPECT_FALSE(f.cache.state(part.id).lost());
        EXPECT_EQ(f.engine.decode(part.id, 1, 20), engine.decode(id, 1, 20));
        f.cache.pool().check();
    }
}

/// The same for what a preempted sequence left in the slow tier: all of it, or it stays away.
TEST(LookaheadCases, LOOK_06_APreemptedSequenceComesBackWholeOrNotAtAll)
{
    FaultyCache f(little_room());
    const SequenceId id = f.cache.create({}).id;
    f.engine.prefill(id, 1, 20 * kBlock + 3);
    f.engine.decode(id, 1, 5);
    const SequenceDigest before = digest_of(f.cache.pool(), id);
    ASSERT_TRUE(f.cache.preempt(id));
    const std::vector<BlockId> saved = f.cache.pool().find(id)->preempted->blocks;
    ASSERT_FALSE(saved.empty());
    for (const BlockId block : {saved.front(), saved.back()}) {
        f.script.fail(StoreOperation::kRead, [block](const StorePiece& piece) { return piece.block == block; });
        EXPECT_THROW(f.cache.resume(id), StoreError);
        EXPECT_TRUE(f.cache.state(id).preempted);
        f.cache.pool().check();
    }
    f.script.repair();
    ASSERT_TRUE(f.cache.resume(id));
    EXPECT_EQ(difference(digest_of(f.cache.pool(), id), before), "");
    EXPECT_EQ(f.cache.stats().counters.resumed_sequences, 1U);
    f.cache.pool().check();
}

/// Whatever is written can be found and is read again: every draft mode, code and number of readers.
TEST(LookaheadCases, LOOK_09_NoTierIsWrittenAndNeverRead)
{
    for (const bool drafts : {false, true}) {
        for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
            for (const int readers : {1, 2}) {
                const std::string what = std::string(drafts ? "drafts " : "no drafts ") + (code == BlockCode::kInt8 ? "int8 " : "f16 ") + std::to_string(readers) + " readers";
                CacheConfig c = little_room();
                c.dtype = DType::kF16;
                c.block_code = code;
                const auto cache = make_cache(c);
                Engine engine(*cache);
                const std::vector<TokenId> tokens = tokens_of(1, 400);
                const SequenceId writer = cache->create({.prompt = tokens}).id;
                engine.prefill(writer, 1, 330, 100, tokens);
                while (cache->length(writer) < 400) { // the writer decodes the rest
                    const auto at = std::size_t(cache->length(writer));
                    Engine::Part part{{.sequence = writer, .verify_rows = drafts ? 4 : 1, .lookahead_rows = drafts ? 1 : 0}, {1}, drafts ? 2 : 1, {}};
                    part.tokens.assign(tokens.begin() + std::ptrdiff_t(at), tokens.begin() + std::ptrdiff_t(at) + part.accept);
                    engine.step({part});
                }
                cache->remove(writer);
                unrelated_work(*cache, engine);
                const Stats written = cache->stats();
                EXPECT_GT(written.slow_bytes_written, 0U) << what;
                // All but the blocks of the recent window were sealed, and are what an equal prompt finds.
                constexpr std::uint64_t kEvicted = (400 - kBlock) / kBlock;
                for (int reader = 0; reader < readers; ++reader) {
                    const Stats before = cache->stats();
                    const CreateResult made = cache->create({.prompt = tokens});
                    EXPECT_EQ(std::uint64_t(made.cached_tokens), kEvicted * kBlock) << what;
                    engine.prefill(made.id, 1, 400, 100, tokens);
                    engine.decode(made.id, 1, 4);
                    const Stats after = cache->stats();
                    EXPECT_EQ(after.counters.prefix_hit_tokens - before.counters.prefix_hit_tokens, kEvicted * kBlock) << what << ", reader " << reader;
                    EXPECT_GT(after.slow_bytes_read, before.slow_bytes_read) << what << ", reader " << reader;
                }
            }
        }
    }
}

} // namespace
} // namespace oasis::test
