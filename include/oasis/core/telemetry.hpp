// SPDX-License-Identifier: Apache-2.0
//
// What a cache tells the outside: counters, residency events, spans. Sinks live in telemetry_sinks.hpp.
#pragma once

#include <oasis/core/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace oasis {

/// Cumulative counters of a cache; all monotonic. Token counts are per (layer, selection set) unless said otherwise.
struct Counters {
    std::uint64_t steps = 0;               ///< opened
    std::uint64_t sparse_row_sets = 0;     ///< (row, layer, set) triples that went through selection: the denominator of the next ones
    std::uint64_t dense_row_sets = 0;      ///< the same for dense rows (no score pass)
    std::uint64_t attended_tokens = 0;     ///< tokens read by sparse rows, summed over row sets
    std::uint64_t must_tokens = 0;         ///< tokens of the must sets of sparse rows
    std::uint64_t resident_must_tokens = 0;///< of those, in fast memory at use
    std::uint64_t fetched_tokens = 0;      ///< fetched on demand for sparse rows (the initial fill of a logical set not counted)
    std::uint64_t initial_tokens = 0;      ///< fetched to fill a logical set at a sequence's first sparse row
    std::uint64_t prefetched_tokens = 0;   ///< brought in by lookahead
    std::uint64_t skipped_tokens = 0;      ///< must tokens not read because of the miss policy
    std::uint64_t fetched_bytes = 0;       ///< bytes copied slow -> fast on demand
    std::uint64_t prefetched_bytes = 0;    ///< bytes copied slow -> fast ahead of need
    std::uint64_t streamed_bytes = 0;      ///< bytes of slow blocks that dense attention streamed through
    std::uint64_t sealed_blocks = 0;       ///< blocks coded for good
    std::uint64_t sealed_bytes = 0;        ///< bytes written through to the slow tier
    std::uint64_t score_passes = 0;        ///< score passes launched (layer granularity)
    std::uint64_t prefix_query_tokens = 0; ///< prompt tokens looked up in the prefix index
    std::uint64_t prefix_hit_tokens = 0;   ///< of those, found
    std::uint64_t stale_copies = 0;        ///< transfers whose generation no longer matched: never consumed
    std::uint64_t foreign_predictions = 0; ///< predicted blocks that are not the sequence's: ignored
    double captured_mass = 0;              ///< with measure_mass: sum over (row, layer, query head) of the true mass read
    std::uint64_t captured_heads = 0;      ///< the number of terms of that sum
    std::uint64_t late_tokens = 0;         ///< must tokens in flight as prefetch when they were needed: waited for, not counted resident
    std::uint64_t useful_prefetch_tokens = 0; ///< prefetched tokens that a must set then needed
    std::uint64_t cancelled_copies = 0;    ///< transfers called off before their bytes arrived
    std::uint64_t failed_copies = 0;       ///< transfers that the store did not deliver: misses, never data
    double skipped_mass = 0;               ///< under `bounded`: sum of the upper bounds of the softmax mass that was not read
    std::uint64_t skipped_blocks = 0;      ///< under `bounded`: must blocks that were not read
    std::uint64_t preempted_sequences = 0; ///< times a sequence left fast memory as a whole
    std::uint64_t resumed_sequences = 0;   ///< times one came back
};

/// The same for one layer, and how well its next sets were guessed. Residency at use (`resident_must_tokens / must_tokens`),
/// agreement and captured mass answer different questions and stay apart.
struct LayerStats {
    /// As in `Counters`.
    ///@{
    std::uint64_t must_tokens = 0;
    std::uint64_t resident_must_tokens = 0;
    std::uint64_t fetched_tokens = 0;
    std::uint64_t prefetched_tokens = 0;
    double captured_mass = 0;
    std::uint64_t captured_heads = 0;
    ///@}
    double agreement = 0;              ///< mean share of the next row's must blocks that were guessed
    std::uint64_t agreement_terms = 0; ///< guesses that mean is over
};

/// Time that decode steps waited for demand transfers, over the latest of them (see StallMeter).
struct StallStats {
    std::uint64_t steps = 0; ///< that the other numbers are over
    double p50_us = 0;       ///< per step, nearest rank
    double p99_us = 0;       ///< the same
    double mean_us = 0;      ///< per step
    double share = 0;        ///< of the steps' whole time
};

/// Where the memory is now. free + resident + pinned + in_flight == capacity, in slots, after every operation.
struct SlotCounts {
    std::int64_t capacity = 0;  ///< slots there are
    std::int64_t free = 0;      ///< hold nothing
    std::int64_t resident = 0;  ///< hold a block and may be victims or belong to a logical set
    std::int64_t pinned = 0;    ///< read by the step in progress
    std::int64_t in_flight = 0; ///< target of a transfer
    /// Field by field.
    friend constexpr bool operator==(const SlotCounts&, const SlotCounts&) = default;
};

/// All a cache says of itself at one moment.
struct Stats {
    Counters counters{};                  ///< since the cache was made
    SlotCounts slots{};                   ///< of fast memory
    std::size_t fast_bytes = 0;           ///< in use: resident slots, native blocks, summaries
    std::size_t fast_capacity = 0;        ///< what fast_bytes may reach
    std::size_t native_bytes = 0;         ///< native blocks (the recent windows)
    std::size_t summary_bytes = 0;        ///< summary groups, open and closed
    std::size_t slow_bytes = 0;           ///< coded blocks in the slow tier
    std::size_t slow_capacity = 0;        ///< of the slow tier
    std::uint64_t slow_bytes_read = 0;    ///< as the store counts them; 0 where it does not
    std::uint64_t slow_bytes_written = 0; ///< the same
    std::int64_t sequences = 0;           ///< live ones
    std::int64_t blocks = 0;              ///< live blocks over all sequences, a shared one counted once
    StallStats stall{};                   ///< of the latest decode steps
};

/// What became of a unit in a tier.
enum class EventKind : std::uint8_t { kStored, kPromoted, kEvicted, kDropped, kRefused };
/// Why it did.
enum class EventReason : std::uint8_t { kSeal, kDemand, kPrefetch, kPressure, kRemoved, kTruncated, kStoreFailed };

/// One change of where a head-block is. Replaying the stream gives the residency map.
struct Event {
    EventKind kind{};               ///< what happened
    EventReason reason{};           ///< why
    Tier tier{};                    ///< where
    BlockId block = BlockId::kNone; ///< of which block
    LayerId layer = -1;             ///< -1: all layers
    std::int32_t set = -1;          ///< KV head, or 0 in layer scope; -1: all
    std::size_t bytes = 0;          ///< that moved
};

/// The word for it in logs and traces.
///@{
constexpr std::string_view name(EventKind kind) noexcept
{
    constexpr std::string_view names[] = {"stored", "promoted", "evicted", "dropped", "refused"};
    return names[static_cast<int>(kind)];
}

constexpr std::string_view name(EventReason reason) noexcept
{
    constexpr std::string_view names[] = {"seal", "demand", "prefetch", "pressure", "removed", "truncated", "store_failed"};
    return names[static_cast<int>(reason)];
}
///@}

/// Stages of a step, for spans.
enum class Stage : std::uint8_t { kAppend, kScore, kSelect, kResolve, kFetch, kAttend, kPrefill, kSeal, kPrefetch };

/// The word for it in traces.
constexpr std::string_view name(Stage stage) noexcept
{
    constexpr std::string_view names[] = {"append", "score", "select", "resolve", "fetch", "attend", "prefill", "seal", "prefetch"};
    return names[static_cast<int>(stage)];
}

/// One unit's way from the slow tier to fast memory. `worker` numbers the threads that move demand, and apart from them
/// those that prefetch, from 0; -1 is the thread that drives the cache.
struct TransferSpan {
    bool demand = false;                           ///< a step needs it; else it is moved ahead of need
    LayerId layer = -1;                            ///< of the unit
    std::int32_t set = -1;                         ///< KV head, or 0 in layer scope
    BlockId block = BlockId::kNone;                ///< of the unit
    std::size_t bytes = 0;                         ///< of the unit
    std::int32_t worker = 0;                       ///< who moved it
    std::chrono::steady_clock::time_point begin{}; ///< when the worker took it up
    std::chrono::steady_clock::time_point end{};   ///< when it was there, or given up
    bool delivered = false;                        ///< false: it failed, or was cancelled or stale
};

/// A sink that wants transfers too. Workers call `on_transfer`, several at once.
template <class T>
concept TransferTelemetry = requires(T t, const TransferSpan& transfer) { t.on_transfer(transfer); };

} // namespace oasis
