// SPDX-License-Identifier: Apache-2.0
//
// Cases of what a guess is made from: what comes back from the slow tier guesses as it did.

#include "faulty_fixture.hpp"
#include "sequence_digest.hpp"

#include <span>
#include <string>

namespace oasis::test {
namespace {

constexpr std::int32_t kBlock = 16;

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
