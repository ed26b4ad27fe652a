// SPDX-License-Identifier: Apache-2.0
//
// Caches over a RAM store whose slowness and failures the test decides.
#pragma once

#include "cache_fixture.hpp"
#include "fault/failing_store.hpp"
#include "fault/wrong_predictor.hpp"

#include <oasis/tier/any_store.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

namespace oasis::test {

using Outputs = std::vector<std::vector<float>>;
using FloatCache = KVCache<cpu::Backend, float>;

inline StoreFactory failing_store(std::shared_ptr<fault::StoreFaults> faults)
{
    return [faults](const StoreOptions& options) { return erase_store(std::make_unique<fault::FailingStore<RamStore>>(options, faults)); };
}

/// Every read takes this long.
inline std::shared_ptr<fault::StoreFaults> slow_reads(std::chrono::microseconds time)
{
    auto faults = std::make_shared<fault::StoreFaults>();
    faults->delay = [time](fault::StoreOperation op, const StorePiece&) { return op == fault::StoreOperation::kRead ? time : std::chrono::microseconds(0); };
    return faults;
}

template <class Policies = DefaultPolicies<cpu::Backend, float>>
std::unique_ptr<KVCache<cpu::Backend, float, Policies>> cache_over(const CacheConfig& c, std::shared_ptr<fault::StoreFaults> faults, Callbacks callbacks = {})
{
    PolicySet<Policies> policies;
    policies.store_factory = failing_store(std::move(faults));
    return std::make_unique<KVCache<cpu::Backend, float, Policies>>(c, std::move(callbacks), std::move(policies));
}

/// Guesses are random blocks of the sequence: many, and of no use.
struct RandomGuesses : DefaultPolicies<cpu::Backend, float> {
    using Lookahead = fault::WrongPredictor;
};

/// Small budgets: most rows miss something.
inline CacheConfig missing_config()
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 128, .fetch = 112, .logical_resident = 128, .sink = 16, .recent = 32, .top_p = 1.0F};
    c.limits = {.max_sequences = 3, .max_rows = 128, .max_context = 1536};
    return c;
}

/// The stream's rows one by one, by a cache with all the memory it wants and nothing in the background.
inline Outputs undisturbed(CacheConfig c, std::uint64_t stream, TokenIndex prompt, int rows)
{
    c.transfer_threads = c.prefetch_cap = 0;
    c.fast_bytes = c.slow_bytes = 0;
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, stream, prompt);
    return engine.decode(id, stream, rows);
}

} // namespace oasis::test
