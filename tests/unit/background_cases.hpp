// SPDX-License-Identifier: Apache-2.0
//
// What the cases of transfers in the background share.
#pragma once

#include "faulty_fixture.hpp"

namespace oasis::test {

/// Fast memory with room to spare, transfers on threads: guesses fly while nobody waits for anything.
inline CacheConfig in_background()
{
    CacheConfig c = small_config();
    c.budgets = {.attend = 96, .fetch = 64, .logical_resident = 96, .sink = 16, .recent = 16, .top_p = 1.0F};
    c.limits = {.max_sequences = 4, .max_rows = 128, .max_context = 1024};
    c.fast_bytes = std::size_t{1} << 25;
    c.transfer_threads = 2;
    c.prefetch_cap = 64;
    return c;
}

/// One row, and a guess made from a stream of its own: the guess's blocks are others.
inline void guess(Engine& engine, SequenceId id, std::uint64_t stream, std::uint64_t guessed)
{
    engine.step({{{.sequence = id, .verify_rows = 1, .lookahead_rows = 1}, {stream, guessed}, -1, {}}});
}

/// Decodes with the store's reads stopped until guesses are under way. Only with `kResidentOnly`, which never waits.
inline void fill_the_queue(FaultyCache& f, SequenceId id)
{
    guess(f.engine, id, 1, 2); // the first sparse row fills its set
    f.quiesce();
    f.script.gate.close();
    for (std::uint64_t stream = 50; f.cache.pool().slots().counts().in_flight < 4; ++stream) {
        ASSERT_LT(stream, 90U) << "no guess flies";
        guess(f.engine, id, 1, stream);
    }
}

} // namespace oasis::test
