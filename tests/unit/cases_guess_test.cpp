// SPDX-License-Identifier: Apache-2.0
//
// Case LOOK-07: a prediction that is wrong. The predictor injects faults: random blocks, none, stale ones, ids of nobody and of another
// sequence, repeats.

#include "faulty_fixture.hpp"
#include "fault/wrong_predictor.hpp"

#include <cmath>
#include <variant>

namespace oasis::test {
namespace {

using fault::Wrong;

/// One of the predictors, chosen when the cache is made; 0 is the library's own.
class ChosenPredictor {
public:
    using Any = std::variant<LookaheadPredictor, fault::WrongPredictor<Wrong::kRandom>, fault::WrongPredictor<Wrong::kNothing>, fault::WrongPredictor<Wrong::kStale>,
                             fault::WrongPredictor<Wrong::kForeign>, fault::WrongPredictor<Wrong::kDuplicates>, fault::WrongPredictor<Wrong::kNeighbour>>;
    static constexpr int kKinds = int(std::variant_size_v<Any>);
    static constexpr int kForeign = 4;

    explicit ChosenPredictor(const LookaheadOptions& options) : ChosenPredictor(0, options) {}
    ChosenPredictor(int kind, const LookaheadOptions& options) : any_(make<0>(kind, options)) {}

    void observe_row(SequenceId sequence, LayerId layer, std::int32_t set, std::int32_t row, std::span<const std::int32_t> must, bool lookahead)
    {
        std::visit([&](auto& p) { p.observe_row(sequence, layer, set, row, must, lookahead); }, any_);
    }
    std::size_t predict(SequenceId sequence, LayerId layer, std::int32_t set, std::span<std::int32_t> out)
    {
        return std::visit([&](auto& p) -> std::size_t { return p.predict(sequence, layer, set, out); }, any_);
    }
    void accepted(SequenceId sequence, std::int32_t rows)
    {
        std::visit([&](auto& p) { p.accepted(sequence, rows); }, any_);
    }
    void copy(SequenceId from, SequenceId to)
    {
        std::visit([&](auto& p) { p.copy(from, to); }, any_);
    }
    void forget(SequenceId sequence)
    {
        std::visit([&](auto& p) { p.forget(sequence); }, any_);
    }

private:
    template <std::size_t i>
    static Any make(int kind, const LookaheadOptions& options)
    {
        if constexpr (i + 1 < std::variant_size_v<Any>) {
            if (kind != int(i)) { return make<i + 1>(kind, options); }
        }
        return Any(std::in_place_index<i>, options);
    }

    Any any_;
};

struct Guessing : DefaultPolicies<cpu::Backend, float> {
    using Lookahead = ChosenPredictor;
};
using GuessingCache = KVCache<cpu::Backend, float, Guessing>;

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
Course run(const CacheConfig& c, int predictor)
{
    StoreScript script;
    script.read_delay_us = c.transfer_threads > 0 ? 100 : 0;
    PolicySet<Guessing> policies;
    policies.lookahead = std::make_unique<ChosenPredictor>(
        predictor, LookaheadOptions{.layers = c.shape.layers, .sets = c.shape.kv_heads, .must_blocks = c.budgets.fetch / c.block_tokens, .source = c.lookahead});
    policies.store_factory = [&](const StoreOptions& options) { return erase_store(std::make_unique<fault::FailingStore<RamStore>>(options, script.faults)); };
    GuessingCache cache(c, {}, std::move(policies));
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

TEST(GuessCases, LOOK_07_ExactDoesNotDependOnTheGuess)
{
    for (const std::int32_t threads : {0, 2}) {
        const Course perfect = run(config(threads), 0);
        EXPECT_GT(perfect.counters.useful_prefetch_tokens, 0U);
        EXPECT_EQ(perfect.counters.foreign_predictions, 0U);
        for (int kind = 1; kind < ChosenPredictor::kKinds; ++kind) {
            const Course wrong = run(config(threads), kind);
            EXPECT_EQ(wrong.out, perfect.out) << "predictor " << kind << ", threads " << threads;
            EXPECT_EQ(wrong.counters.must_tokens, perfect.counters.must_tokens) << "predictor " << kind;
            EXPECT_EQ(wrong.counters.skipped_tokens, 0U) << "predictor " << kind;
            if (kind == ChosenPredictor::kForeign) {
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
        const Course exact = run(c, 0);
        c.miss = MissPolicy::kResidentOnly;
        for (int kind = 1; kind < ChosenPredictor::kKinds; ++kind) {
            const Course wrong = run(c, kind);
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
    const Course exact = run(c, 0);
    c.miss = MissPolicy::kBounded;
    c.miss_epsilon = 0.3F;
    std::uint64_t skipped = 0;
    for (int kind = 1; kind < ChosenPredictor::kKinds; ++kind) {
        const Course wrong = run(c, kind);
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
