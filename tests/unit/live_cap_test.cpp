// SPDX-License-Identifier: Apache-2.0
//
// The live cap: a step plans no more guesses than the link brings while it runs, however many there are.

#include "background_fixture.hpp"

#include <thread>

namespace oasis::test {
namespace {

using std::chrono::microseconds;
constexpr int kSteps = 40;

struct Measured {
    double brought = 0;   ///< units, ahead
    double cancelled = 0; ///< units planned and not brought before nobody wanted them any more
    double seconds = 0;   ///< of all steps
};

/// Steps of an engine that works for `engine` in each, over a link that takes `read` for a unit.
Measured guessing_steps(bool live, microseconds read, microseconds engine)
{
    CacheConfig c = missing_config();
    c.transfer_threads = 1;
    c.prefetch_cap = 256;
    c.live_cap = live;
    const auto cache = cache_over<RandomGuesses>(c, slow_reads(read));
    Engine rows(*cache);
    const SequenceId id = cache->create({}).id;
    rows.prefill(id, 1, 1400);
    const auto d = std::size_t(c.shape.head_dim);
    std::vector<float> q(std::size_t(c.shape.q_heads) * d), k(std::size_t(c.shape.kv_heads) * d), v(k.size()), out(q.size());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) {
        const RowGroup row{.sequence = id, .verify_rows = 1};
        Step step = cache->begin_step(rows.queue(), std::span(&row, 1));
        for (LayerId layer = 0; layer < c.shape.layers; ++layer) {
            fill_vector(1, Kind::kQ, layer, 0, 1400 + i, q);
            fill_vector(1, Kind::kK, layer, 0, 1400 + i, k);
            fill_vector(1, Kind::kV, layer, 0, 1400 + i, v);
            cache->enqueue_attend(rows.queue(), step, layer, {.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()});
        }
        std::this_thread::sleep_for(engine); // guesses are brought under it
        const Accepted accepted{1, {}};
        cache->commit(rows.queue(), std::move(step), std::span(&accepted, 1));
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    cache->pool().check();
    const auto unit = double(cache->pool().shape().unit_bytes);
    const Counters counters = cache->stats().counters;
    return {double(counters.prefetched_bytes) / unit, double(counters.cancelled_copies), time.count()};
}

TEST(LiveCap, ASlowLinkIsGivenNoMoreThanItBrings)
{
    const Measured fixed = guessing_steps(false, microseconds(400), microseconds(2000));
    const Measured live = guessing_steps(true, microseconds(400), microseconds(2000));
    EXPECT_GT(live.brought, 0);
    EXPECT_LE(live.brought + live.cancelled, live.seconds / 400e-6) << "more than the link can carry";
    EXPECT_LT(live.brought + live.cancelled, 0.5 * (fixed.brought + fixed.cancelled)) << "the fixed cap plans " << fixed.brought << " + " << fixed.cancelled;
}

TEST(LiveCap, AFastLinkIsNotHeldBack)
{
    const Measured fixed = guessing_steps(false, microseconds(0), microseconds(2000));
    const Measured live = guessing_steps(true, microseconds(0), microseconds(2000));
    EXPECT_GT(fixed.brought, 0);
    EXPECT_GT(live.brought, 0.8 * fixed.brought);
}

} // namespace
} // namespace oasis::test
