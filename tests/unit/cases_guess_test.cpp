// SPDX-License-Identifier: Apache-2.0
//
// Case LOOK-07: a prediction that is wrong. The predictor injects faults: random blocks, none, stale ones, ids of nobody and of another
// sequence, repeats.

#include "faulty_fixture.hpp"
#include "fault/wrong_predictor.hpp"

#include <cmath>

namespace oasis::test {
namespace {

using fault::Wrong;

struct Guessing : DefaultPolicies<cpu::Backend, float> {
    using Lookahead = fault::WrongPredictor;
};

CacheConfig config(std::int32_t threads)
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.limits = {.max_sequences = 2, .max_rows = 128, .max_context = 640};
    c.transfer_threads = threads;
    c.prefetch_cap = 64;
    return c;
}

struct Course {
    Outputs out{};
    Counters counters{};
};

/// A sequence and a longer neighbour, 24 steps each with a lookahead row; reads from the store take their time.
template <class Policies>
Course run_with(const CacheConfig& c, PolicySet<Policies> policies)
{
    StoreScript script;
    script.read_delay_us = c.transfer_threads > 0 ? 100 : 0;
    policies.store_factory = [&](const StoreOptions& options) { return erase_store(std::make_unique<fault::FailingStore<RamStore>>(options, script.faults)); };
    KVCache<cpu::Backend, float, Policies> cache(c, {}, std::move(policies));
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    const SequenceId neighbour = cache.create({}).id;
    engine.prefill(id, 1, c.limits.max_context - 240);
    engine.prefill(neighbour, 2, c.limits.max_context - 40);
    Course result;
    for (int i = 0; i < 24; ++i) {
        const Outputs rows = engine.step({{{.sequence = id, .verify_rows = 1, .lookahead_rows = 1}, {1}, -1, {}}, {{.sequence = neighbour, .verify_rows = 1}, {2}, -1, {}}});
        result.out.push_back(rows.at(0));
    }
    cache.pool().check();
    result.counters = cache.stats().counters;
    return result;
}

Course run(const CacheConfig& c) { return run_with(c, PolicySet<DefaultPolicies<cpu::Backend, float>>{}); }
Course run(const CacheConfig& c, Wrong kind)
{
    PolicySet<Guessing> policies;
    policies.lookahead = std::make_unique<fault::WrongPredictor>(kind);
    return run_with(c, std::move(policies));
}

TEST(GuessCases, LOOK_07_ExactDoesNotDependOnTheGuess)
{
    for (const std::int32_t threads : {0, 2}) {
        const Course perfect = run(config(threads));
        EXPECT_GT(perfect.counters.useful_prefetch_tokens, 0U);
        EXPECT_EQ(perfect.counters.foreign_predictions, 0U);
        for (int kind = 0; kind < fault::kWrongs; ++kind) {
            const Course wrong = run(config(threads), Wrong(kind));
            EXPECT_EQ(wrong.out, perfect.out) << "predictor " << kind << ", threads " << threads;
            EXPECT_EQ(wrong.counters.must_tokens, perfect.counters.must_tokens) << "predictor " << kind;
            EXPECT_EQ(wrong.counters.skipped_tokens, 0U) << "predictor " << kind;
            if (Wrong(kind) == Wrong::kForeign) {
                EXPECT_GT(wrong.counters.foreign_predictions, 0U);
                EXPECT_EQ(wrong.counters.prefetched_bytes, 0U) << "foreign ids are ignored";
            }
        }
    }
}

/// Resident blocks alone are read; what is missing is counted, all of it.
TEST(GuessCases, LOOK_07_ResidentOnlyReportsWhatIsMissing)
{
    for (const std::int32_t threads : {0, 2}) {
        CacheConfig c = config(threads);
        const Course exact = run(c);
        c.miss = MissPolicy::kResidentOnly;
        for (int kind = 0; kind < fault::kWrongs; ++kind) {
            const Course wrong = run(c, Wrong(kind));
            EXPECT_GT(wrong.counters.skipped_tokens, 0U) << "predictor " << kind;
            EXPECT_EQ(wrong.counters.must_tokens, wrong.counters.resident_must_tokens + wrong.counters.skipped_tokens) << "predictor " << kind;
            EXPECT_EQ(wrong.counters.fetched_tokens + wrong.counters.late_tokens, 0U) << "predictor " << kind;
            EXPECT_EQ(wrong.counters.must_tokens, exact.counters.must_tokens) << "predictor " << kind;
            for (const auto& row : wrong.out) { EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })); }
        }
    }
}

/// The declared bound holds: an output moves by no more than twice the mass that was not read (|v| <= 1).
TEST(GuessCases, LOOK_07_BoundedStaysWithinItsBound)
{
    CacheConfig c = config(2);
    c.budgets = {.attend = 512, .fetch = 256, .logical_resident = 512, .sink = 16, .recent = 16, .top_p = 1.0F}; // several chunks: some are there
    c.dense_below = 0;
    c.limits.max_context = 1280;
    c.summary = {.kind = SummaryKind::kMinMax, .tokens = 1, .code = SummaryCode::kF32}; // of single tokens, bounds are close
    const Course exact = run(c);
    c.miss = MissPolicy::kBounded;
    c.miss_epsilon = 0.3F;
    std::uint64_t skipped = 0;
    for (int kind = 0; kind < fault::kWrongs; ++kind) {
        const Course wrong = run(c, Wrong(kind));
        double worst = 0;
        for (std::size_t row = 0; row < wrong.out.size(); ++row) {
            for (std::size_t i = 0; i < wrong.out[row].size(); ++i) { worst = std::max(worst, double(std::abs(wrong.out[row][i] - exact.out[row][i]))); }
        }
        EXPECT_LE(worst, 2 * wrong.counters.skipped_mass + 1e-5) << "predictor " << kind;
        EXPECT_LE(wrong.counters.skipped_mass, double(wrong.counters.skipped_blocks) * 0.3) << "predictor " << kind;
        EXPECT_EQ(wrong.counters.skipped_blocks > 0, wrong.counters.skipped_tokens > 0) << "predictor " << kind;
        skipped += wrong.counters.skipped_blocks;
    }
    EXPECT_GT(skipped, 0U);
}

} // namespace
} // namespace oasis::test
