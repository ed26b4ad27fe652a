// SPDX-License-Identifier: Apache-2.0
//
// The example of README.md: compiled here, and the text there must be the same.
#include "toy_model.hpp"

#include <cstdio>

// [readme begins]
#include <oasis/make_cache.hpp>

/// Runs rows at the end of a sequence through every layer and keeps them; false when a tier is full.
bool run_rows(oasis::AnyKVCache& cache, oasis::Queue queue, const ToyModel& model, const oasis::RowGroup& rows)
{
    oasis::Step step = cache.begin_step(queue, {&rows, 1});
    if (!step) { return false; }
    for (oasis::LayerId layer = 0; layer < cache.config().shape.layers; ++layer) {
        auto [q, k, v, out] = model.layer(layer, cache.length(rows.sequence), step.rows());
        cache.enqueue_attend(queue, step, layer, {.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()});
    }
    const oasis::Accepted all{.rows = rows.prefill_tokens + rows.verify_rows};
    cache.commit(queue, std::move(step), {&all, 1});
    return true;
}

bool prefill_and_decode(const ToyModel& model, const oasis::ModelShape& shape)
{
    oasis::ThreadPool threads;
    const oasis::Queue queue(threads);
    const auto cache =
        oasis::make_cache({.shape = shape, .budgets = {.attend = 512, .fetch = 256, .logical_resident = 512}});
    const oasis::SequenceId id = cache->create({}).id;
    for (int chunk = 0; chunk < 10; ++chunk) {
        if (!run_rows(*cache, queue, model, {.sequence = id, .prefill_tokens = 200})) { return false; }
    }
    return run_rows(*cache, queue, model, {.sequence = id, .verify_rows = 1}); // reads at most 512 of 2,000 tokens
}
// [readme ends]

int main()
{
    const oasis::ModelShape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64};
    try {
        return prefill_and_decode(ToyModel(shape), shape) ? 0 : 1;
    } catch (const oasis::Error& error) {
        std::fprintf(stderr, "minimal: %s\n", error.what());
        return 1;
    }
}
