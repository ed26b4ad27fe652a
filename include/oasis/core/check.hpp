// SPDX-License-Identifier: Apache-2.0
//
// Sentences instead of concept traces: each `check_*<P>()` fails to compile with one line per thing that policy P
// lacks. Put `static_assert(oasis::check_eviction<Mine>());` after a policy of your own.
#pragma once

#include <oasis/concepts.hpp>
#include <oasis/core/options.hpp>

namespace oasis {
namespace detail {

/// What the pool passes to `victim`: a function object, not a plain function.
struct AnyMayTake {
    const void* state = nullptr;
    bool operator()(SlotId) const;
};

} // namespace detail

/// True, or a sentence from the compiler that says what a `SummaryPolicy` lacks.
template <class S> consteval bool check_summary()
{
    static_assert(
        requires(const S s) {
            { s.planes() } -> std::convertible_to<std::int32_t>;
        }, "SummaryPolicy: needs `planes() const`, the number of vectors a summary holds (0 to 2).");
    static_assert(
        requires(const S s) {
            { s.has_spread() } -> std::convertible_to<bool>;
        }, "SummaryPolicy: needs `has_spread() const`, true when a summary holds a scalar besides its planes.");
    static_assert(
        requires(const S s) {
            { s.is_upper_bound() } -> std::convertible_to<bool>;
        }, "SummaryPolicy: needs `is_upper_bound() const`, true when the estimate never lies below the block's largest "
           "logit.");
    static_assert(
        requires(const S s, KeyRows keys, SummaryRow row) { s.summarise(keys, row); },
        "SummaryPolicy: needs `summarise(KeyRows, SummaryRow) const`, which writes the planes and the spread of some "
        "keys.");
    static_assert(
        requires(const S s, const float* q, std::int32_t d, float scale, QueryWeights w) { s.weigh(q, d, scale, w); },
        "SummaryPolicy: needs `weigh(const float* q, int32_t head_dim, float scale, QueryWeights) const`.");
    return SummaryPolicy<S>;
}

/// True, or a sentence from the compiler that says what a `SelectionPolicy` lacks.
template <class S> consteval bool check_selection()
{
    static_assert(
        requires(const S s, const SelectionInput& in, SelectionOutput& out) { s.select(in, out); },
        "SelectionPolicy: needs `select(const SelectionInput&, SelectionOutput&) const`.");
    return SelectionPolicy<S>;
}

/// True, or a sentence from the compiler that says what an `EvictionPolicy` lacks.
template <class E> consteval bool check_eviction()
{
    static_assert(requires(E e) { e.resize(std::size_t{}); }, "EvictionPolicy: needs `resize(size_t slots)`.");
    static_assert(
        requires(E e, SlotId slot, std::uint64_t now) { e.on_insert(slot, now); },
        "EvictionPolicy: needs `on_insert(SlotId, uint64_t now)`, called when a block lands in a slot.");
    static_assert(
        requires(E e, SlotId slot, std::uint64_t now) { e.on_access(slot, now); },
        "EvictionPolicy: needs `on_access(SlotId, uint64_t now)`, called when a slot is read.");
    static_assert(
        requires(E e, SlotId slot) { e.on_erase(slot); },
        "EvictionPolicy: needs `on_erase(SlotId)`, called when a slot is emptied.");
    static_assert(
        requires(E e, bool (*may_take)(SlotId)) {
            { e.victim(may_take) } -> std::same_as<std::optional<SlotId>>;
        }, "EvictionPolicy: needs `victim(may_take)` that returns std::optional<SlotId>.");
    static_assert(
        requires(E e, detail::AnyMayTake may_take) { e.victim(may_take); },
        "EvictionPolicy: `victim` must take any callable `bool(SlotId)`: make it a template.");
    return EvictionPolicy<E>;
}

/// True, or a sentence from the compiler that says what a `SlowStore` lacks.
template <class S> consteval bool check_store()
{
    static_assert(
        requires(S s, BlockId block) {
            { s.reserve(block) } -> std::same_as<bool>;
        }, "SlowStore: needs `bool reserve(BlockId)`, false when the store is full.");
    static_assert(requires(S s, BlockId block) { s.release(block); }, "SlowStore: needs `release(BlockId)`.");
    static_assert(
        requires(S s, const StorePiece& piece) {
            { s.write(piece) } -> std::same_as<bool>;
        }, "SlowStore: needs `bool write(const StorePiece&)`, false when the piece is not stored.");
    static_assert(
        requires(S s, const StorePiece& piece) {
            { s.read(piece) } -> std::same_as<bool>;
        }, "SlowStore: needs `bool read(const StorePiece&)`, false when the piece is not delivered.");
    static_assert(
        requires(const S s) {
            { s.bytes_used() } -> std::convertible_to<std::size_t>;
        }, "SlowStore: needs `bytes_used() const`.");
    static_assert(
        requires(const S s) {
            { s.capacity_bytes() } -> std::convertible_to<std::size_t>;
        }, "SlowStore: needs `capacity_bytes() const`.");
    return SlowStore<S>;
}

/// A policy set may fix what happens on a miss: `static constexpr MissPolicy kMiss`.
template <class Policies> consteval bool check_miss()
{
    if constexpr (requires { Policies::kMiss; }) {
        static_assert(Policies::kMiss != MissPolicy::kBounded || requires { requires Policies::Scorer::kUpperBound; },
                      "kMiss is kBounded: the Scorer policy must be an upper bound, and say so by `static constexpr bool kUpperBound = "
                      "true` (MinMaxSummary does).");
    }
    return true;
}

/// True, or a sentence from the compiler that says what a `LookaheadPolicy` lacks.
template <class L> consteval bool check_lookahead()
{
    static_assert(
        requires(L l, SequenceId s, std::span<const std::int32_t> must) {
            l.observe_row(s, LayerId{}, std::int32_t{}, std::int32_t{}, must, true);
        }, "LookaheadPolicy: needs `observe_row(SequenceId, LayerId, int32_t set, int32_t row, std::span<const int32_t> "
           "must, bool lookahead)`.");
    static_assert(
        requires(L l, SequenceId s, std::span<std::int32_t> out) {
            { l.predict(s, LayerId{}, std::int32_t{}, out) } -> std::convertible_to<std::size_t>;
        }, "LookaheadPolicy: needs `size_t predict(SequenceId, LayerId, int32_t set, std::span<int32_t> out)`.");
    static_assert(
        requires(L l, SequenceId s) { l.accepted(s, std::int32_t{}); },
        "LookaheadPolicy: needs `accepted(SequenceId, int32_t rows)`, called at the commit.");
    static_assert(
        requires(L l, SequenceId s) { l.copy(s, s); },
        "LookaheadPolicy: needs `copy(SequenceId from, SequenceId to)`, called for a fork.");
    static_assert(requires(L l, SequenceId s) { l.forget(s); }, "LookaheadPolicy: needs `forget(SequenceId)`.");
    return LookaheadPolicy<L>;
}

/// True, or a sentence from the compiler that says what a `Telemetry` lacks.
template <class T> consteval bool check_telemetry()
{
    static_assert(
        requires {
            { T::enabled } -> std::convertible_to<bool>;
        }, "Telemetry: needs `static constexpr bool enabled`; false compiles every call away.");
    static_assert(
        requires(T t, const Event& event) { t.on_event(event); }, "Telemetry: needs `on_event(const Event&)`.");
    static_assert(
        requires(T t) { t.begin_span(Stage{}, LayerId{}); }, "Telemetry: needs `begin_span(Stage, LayerId)`.");
    static_assert(requires(T t) { t.end_span(Stage{}, LayerId{}); }, "Telemetry: needs `end_span(Stage, LayerId)`.");
    return Telemetry<T>;
}

} // namespace oasis
