// SPDX-License-Identifier: Apache-2.0
//
// A summary policy of one's own beside the stock ones: how much of the true attention mass does each capture with the
// same budget?
#include "stream.hpp"

#include <oasis/cache.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace {

// [policy begins]
/// Summarises a sub-block by a box around its keys, drawn a quarter of the way in towards the mean. The stock min/max
/// box is not drawn in, the stock cuboid half of the way.
struct WideBox {
    std::int32_t planes() const { return 2; }
    bool has_spread() const { return false; }
    bool is_upper_bound() const { return false; } // a key may lie outside the box

    void summarise(oasis::KeyRows keys, oasis::SummaryRow row) const
    {
        for (std::int32_t i = 0; i < keys.head_dim; ++i) {
            float high = keys[0][i];
            float low = keys[0][i];
            float mean = 0;
            for (std::int32_t t = 0; t < keys.tokens; ++t) {
                high = std::max(high, keys[t][i]);
                low = std::min(low, keys[t][i]);
                mean += keys[t][i] / static_cast<float>(keys.tokens);
            }
            row.plane[0][i] = 0.75F * high + 0.25F * mean;
            row.plane[1][i] = 0.75F * low + 0.25F * mean;
        }
    }

    /// The corner of the box that lies farthest in the query's direction.
    void weigh(const float* q, std::int32_t head_dim, float scale, oasis::QueryWeights weights) const
    {
        for (std::int32_t i = 0; i < head_dim; ++i) {
            weights.plane[0][i] = std::max(0.0F, scale * q[i]);
            weights.plane[1][i] = std::min(0.0F, scale * q[i]);
        }
    }
};
static_assert(oasis::SummaryPolicy<WideBox>);

struct Mine : oasis::DefaultPolicies<oasis::cpu::Backend, float> {
    using Scorer = WideBox;
};
using MyCache = oasis::KVCache<oasis::cpu::Backend, float, Mine>;
// [policy ends]

/// Decodes `rows` rows of the stream after a prompt; returns the share of the true attention mass that they read.
double captured_mass(oasis::AnyKVCache& cache, const Stream& stream, std::int32_t prompt, std::int32_t rows)
{
    oasis::ThreadPool threads(2);
    const oasis::Queue queue(threads);
    const oasis::SequenceId id = cache.create({}).id;
    const auto step_of = [&](const oasis::RowGroup& group) {
        oasis::Step step = cache.begin_step(queue, {&group, 1});
        for (oasis::LayerId layer = 0; layer < cache.config().shape.layers; ++layer) {
            auto x = stream.layer(layer, cache.length(id), step.rows());
            cache.enqueue_attend(queue, step, layer,
                                 {.q = x.q.data(), .k = x.k.data(), .v = x.v.data(), .out = x.out.data()});
        }
        const oasis::Accepted all{.rows = group.prefill_tokens + group.verify_rows};
        cache.commit(queue, std::move(step), {&all, 1});
    };
    while (cache.length(id) < prompt) { step_of({.sequence = id, .prefill_tokens = 256}); }
    for (std::int32_t i = 0; i < rows; ++i) { step_of({.sequence = id, .verify_rows = 1}); }
    const oasis::Counters c = cache.stats().counters;
    return c.captured_mass / static_cast<double>(c.captured_heads);
}

int run()
{
    oasis::CacheConfig config{
        .shape = {.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 64},
        .summary = {.tokens = 8}, // coarse on purpose: at 2 tokens there is little to tell apart
        .budgets = {.attend = 256, .fetch = 256, .logical_resident = 256},
        .measure_mass = true,
        .limits = {.max_sequences = 1, .max_rows = 256, .max_context = 5000},
    };
    const Stream stream(config.shape);
    constexpr std::int32_t kPrompt = 4096;
    constexpr std::int32_t kRows = 48;

    std::printf("share of the attention mass read with %d of %d tokens, sub-blocks of %d tokens\n",
                config.budgets.attend, kPrompt, config.summary.tokens);
    double worst = 1;
    double best = 0;
    const std::pair<const char*, oasis::SummaryKind> stock[] = {
        {"stock, mean", oasis::SummaryKind::kMean},
        {"stock, spread", oasis::SummaryKind::kSpread},
        {"stock, cuboid", oasis::SummaryKind::kCuboid},
        {"stock, min/max", oasis::SummaryKind::kMinMax},
        {"stock, no summary (reads every key)", oasis::SummaryKind::kOracle},
    };
    for (const auto& [label, kind] : stock) {
        config.summary.kind = kind;
        oasis::KVCache<oasis::cpu::Backend, float> cache(config);
        const double mass = captured_mass(cache, stream, kPrompt, kRows);
        std::printf("  %-40s %.4f\n", label, mass);
        worst = std::min(worst, mass);
        best = std::max(best, mass);
    }
    config.summary.kind = oasis::SummaryKind::kSpread; // a question to the stock policy, which ours does not ask
    MyCache mine(config);
    const double mass = captured_mass(mine, stream, kPrompt, kRows);
    std::printf("  %-40s %.4f\n", "WideBox", mass);
    return mass >= worst && mass <= best + 1e-6 ? 0 : 1;
}

} // namespace

int main()
{
    try {
        return run();
    } catch (const oasis::Error& error) {
        std::fprintf(stderr, "custom_policy: %s\n", error.what());
        return 1;
    }
}
