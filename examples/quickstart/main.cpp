// SPDX-License-Identifier: Apache-2.0
//
// A toy engine: everything an engine does with a cache, once. docs/guide.md explains it step by step; its code is the
// marked parts of this file.
#include "toy_model.hpp"

#include <oasis/make_cache.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

namespace {

// [layers begins]
/// The model's layers over the rows of an open step. `position` is that of the first row.
void run_layers(const ToyModel& model, oasis::AnyKVCache& cache, oasis::Queue queue, oasis::Step& step,
                oasis::TokenIndex position)
{
    for (oasis::LayerId layer = 0; layer < cache.config().shape.layers; ++layer) {
        ToyModel::Layer x = model.layer(layer, position, step.rows());
        cache.enqueue_attend(queue, step, layer,
                             {.q = x.q.data(), .k = x.k.data(), .v = x.v.data(), .out = x.out.data()});
    }
}
// [layers ends]

int run()
{
    // [config begins]
    oasis::CacheConfig config{
        .shape = {.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64},
        .budgets = {.attend = 512, .fetch = 256, .logical_resident = 512},
        .prefetch_cap = 64,
        .limits = {.max_sequences = 2, .max_rows = 256, .max_context = 4096},
    };
    // [config ends]

    // [memory begins]
    const oasis::Footprint need = oasis::footprint(config);
    const std::size_t summaries = need.summary_bytes_per_token * 4096;
    config.fast_bytes = need.landing_bytes + 2 * (need.fast_bytes_per_sequence + summaries);
    // [memory ends]

    // [callbacks begins]
    std::unique_ptr<oasis::AnyKVCache> cache;
    oasis::SequenceId parked = oasis::SequenceId::kNone;
    long moves = 0;
    oasis::Callbacks callbacks{
        .on_event = [&](const oasis::Event& event) { moves += event.kind == oasis::EventKind::kPromoted; },
        .on_pressure =
            [&](std::size_t bytes) {
                // What was freed; 0 when nothing can be.
                return cache->remove(parked) == oasis::RemoveResult::kRemoved ? bytes : 0;
            },
        .on_failure = [](oasis::SequenceId, std::string_view what) { std::cerr << what << '\n'; },
    };
    // [callbacks ends]

    // [make begins]
    oasis::ThreadPool threads(2);
    const oasis::Queue queue(threads);
    cache = oasis::make_cache(config, callbacks);
    // [make ends]
    const ToyModel model(config.shape);
    parked = cache->create({}).id;
    const oasis::SequenceId busy = cache->create({}).id;

    // [create begins]
    std::vector<oasis::TokenId> prompt(2000);
    std::iota(prompt.begin(), prompt.end(), 0);
    const oasis::CreateResult made = cache->create({.prompt = prompt}); // both places are taken: `parked` goes
    if (!made) {
        std::cerr << "the " << name(made.full->tier) << " tier is full\n";
        return 1;
    }
    const oasis::SequenceId id = made.id;
    // [create ends]

    // [prefill begins]
    for (oasis::TokenIndex at = made.cached_tokens; at < std::ssize(prompt); at = cache->length(id)) {
        const auto left = static_cast<std::int32_t>(std::ssize(prompt) - at);
        const std::int32_t count = std::min(config.limits.max_rows, left);
        const oasis::RowGroup rows{.sequence = id, .prefill_tokens = count};
        oasis::Step step = cache->begin_step(queue, {&rows, 1});
        if (!step) { return 1; }
        run_layers(model, *cache, queue, step, at);
        const std::span<const oasis::TokenId> tokens(prompt.data() + at, std::size_t(count));
        const oasis::Accepted all{.rows = count, .tokens = tokens};
        cache->commit(queue, std::move(step), {&all, 1});
    }
    // [prefill ends]

    for (int i = 0; i < 60; ++i) {
        // [decode begins]
        // The last token, one drafted token to verify, and one row that only looks ahead.
        const oasis::RowGroup rows{.sequence = id, .verify_rows = 2, .lookahead_rows = 1};
        oasis::Step step = cache->begin_step(queue, {&rows, 1});
        if (!step) { return 1; }
        run_layers(model, *cache, queue, step, cache->length(id));
        // [decode ends]

        // [commit begins]
        const bool draft_was_right = i % 3 != 0; // an engine compares the draft with what it sampled
        const oasis::Accepted accepted{.rows = draft_was_right ? 2 : 1};
        cache->commit(queue, std::move(step), {&accepted, 1});
        // [commit ends]
    }

    // [stats begins]
    const oasis::Stats stats = cache->stats();
    const oasis::Counters& c = stats.counters;
    const double sets = double(c.sparse_row_sets); // (row, layer, KV head) triples
    std::cout << "tokens of the context                  " << cache->length(id) << '\n'
              << "read per row and KV head               " << double(c.attended_tokens) / sets << '\n'
              << "fetched on demand                      " << double(c.fetched_tokens) / sets << '\n'
              << "fetched ahead                          " << double(c.prefetched_tokens) / sets << '\n'
              << "must tokens in fast memory at use, %   "
              << 100.0 * double(c.resident_must_tokens) / double(c.must_tokens) << '\n'
              << "blocks moved into fast memory          " << moves << '\n';
    // [stats ends]

    // [remove begins]
    cache->remove(id);
    cache->remove(busy);
    // [remove ends]
    return cache->stats().sequences == 0 && c.sparse_row_sets > 0 && moves > 0 ? 0 : 1;
}

} // namespace

int main()
{
    try {
        return run();
    } catch (const oasis::Error& error) {
        std::cerr << "quickstart: " << error.what() << '\n';
        return 1;
    }
}
