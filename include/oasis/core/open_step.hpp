// SPDX-License-Identifier: Apache-2.0
//
// A step between begin and commit, as the backend's pipeline sees it.
#pragma once

#include <oasis/core/step.hpp>
#include <oasis/core/telemetry.hpp>
#include <oasis/pool/sequence.hpp>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace oasis {

struct StepGroup {
    Sequence* sequence = nullptr;
    RowGroup rows{};
    std::int32_t first_row = 0;  ///< of the step
    TokenIndex begin = 0;        ///< position of the group's first row

    TokenIndex end() const noexcept { return begin + rows.rows(); }
    bool is_prefill() const noexcept { return rows.prefill_tokens > 0; }
};

struct OpenStep {
    std::uint64_t serial = 0; ///< 0: no step is open
    std::vector<StepGroup> groups;
    std::int32_t rows = 0;
    LayerId next_layer = 0;
    std::vector<std::vector<LogicalUndo>> undo; ///< [rows]: what each verify row changed in logical sets
};

/// What the pipeline reports while it works; the cache hands it on when no lock is held.
struct Journal {
    Counters counters{};
    bool wants_events = false;
    std::vector<Event> events;
    std::vector<LayerStats> layers;         ///< of verify rows, by layer
    std::chrono::nanoseconds stall{0};      ///< of the step in progress: waiting for transfers with nothing else to do
    std::vector<std::pair<SequenceId, BlockId>> lost; ///< a block that no tier could deliver

    void event(const Event& e)
    {
        if (wants_events) { events.push_back(e); }
    }
};

} // namespace oasis
