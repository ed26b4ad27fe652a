// SPDX-License-Identifier: Apache-2.0
//
// Every public concept, one paragraph each: the file to read first. Each has a contract suite in tests/contracts that
// users can run on their own policy, and a `check_*` that prints a sentence when a type does not fit.
#pragma once

#include <oasis/core/telemetry.hpp>
#include <oasis/core/types.hpp>
#include <oasis/core/views.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

namespace oasis {

/// The element type of q, k, v and native blocks: float, f16 or bf16.
template <class E>
concept KVElement = std::same_as<E, float> || std::same_as<E, f16> || std::same_as<E, bf16>;

/// How sub-blocks are summarised and how a query weighs a summary. The estimate must be linear in the summary:
/// log mass ~ sum over planes of weight . plane + spread_weight * spread + log n. The library stores, codes and multiplies;
/// the policy says what a plane holds (`summarise`, a pure function of the keys) and what a query makes of it (`weigh`, a pure
/// function of one query head, `scale` the attention's). `is_upper_bound()` promises estimate >= log of the block's largest
/// exponential, in every code (planes are then rounded outwards: plane 0 up, plane 1 down).
template <class S>
concept SummaryPolicy = requires(const S s, KeyRows keys, SummaryRow row, const float* q, std::int32_t head_dim, float scale, QueryWeights w) {
    { s.planes() } -> std::convertible_to<std::int32_t>;
    { s.has_spread() } -> std::convertible_to<bool>;
    { s.is_upper_bound() } -> std::convertible_to<bool>;
    { s.summarise(keys, row) };
    { s.weigh(q, head_dim, scale, w) };
};

/// Chooses the must and may sets of one (row, set) from its scores. Same input, same sets; ties go to the lower position;
/// forced blocks are always chosen and count in both budgets.
template <class S>
concept SelectionPolicy = requires(const S s, const SelectionInput& in, SelectionOutput& out) {
    { s.select(in, out) };
};

/// Orders the slots that hold blocks of no logical set, when one must make room. `now` grows from step to step. The pool
/// calls `on_insert` when a block lands, `on_access` when it is read, `on_erase` when the slot is emptied; `victim` returns
/// a slot for which `may_take(slot)` holds, or nothing.
template <class E>
concept EvictionPolicy = requires(E e, SlotId slot, std::uint64_t now, bool (*may_take)(SlotId)) {
    { e.resize(std::size_t{}) };
    { e.on_insert(slot, now) };
    { e.on_access(slot, now) };
    { e.on_erase(slot) };
    { e.victim(may_take) } -> std::same_as<std::optional<SlotId>>;
};

/// A slow tier that takes and gives coded units. `reserve` and `release` come from the thread that drives the cache, `write` from the
/// threads of its queue, `read` from all of these and from several transfer threads, at the same time; reads of one unit may overlap, but nothing
/// does while the unit is written or its block released. `write` and `read` return false when the store failed (the piece is then not stored, or not
/// delivered: a failed transfer is a miss, never data). `reserve(block)` gets room for all layers of a block or returns false when full.
template <class S>
concept SlowStore = requires(S s, const S c, BlockId block, const StorePiece& piece) {
    { s.reserve(block) } -> std::same_as<bool>;
    { s.release(block) };
    { s.write(piece) } -> std::same_as<bool>;
    { s.read(piece) } -> std::same_as<bool>;
    { c.bytes_used() } -> std::convertible_to<std::size_t>;
    { c.capacity_bytes() } -> std::convertible_to<std::size_t>;
};

/// Guesses the next step's must set of a (sequence, layer, set). `observe_row` gets the must set of every row of a step in position order,
/// `row` counted from the step's first, lookahead rows after the verify rows; `predict` then writes block positions, best first where it has an
/// order, and returns their number. `accepted` says at the commit how many verify rows stand (0: the step never was), `copy` that a fork goes on
/// as its parent. A guess changes time, never results.
template <class L>
concept LookaheadPolicy = requires(L l, SequenceId sequence, LayerId layer, std::int32_t set, std::int32_t row, std::span<const std::int32_t> must,
                                   bool lookahead, std::span<std::int32_t> out) {
    { l.observe_row(sequence, layer, set, row, must, lookahead) };
    { l.predict(sequence, layer, set, out) } -> std::convertible_to<std::size_t>;
    { l.accepted(sequence, row) };
    { l.copy(sequence, sequence) };
    { l.forget(sequence) };
};

/// A sink of counters, events and spans. `enabled` false compiles everything away.
template <class T>
concept Telemetry = requires(T t, const Event& event, Stage stage, LayerId layer) {
    { T::enabled } -> std::convertible_to<bool>;
    { t.on_event(event) };
    { t.begin_span(stage, layer) };
    { t.end_span(stage, layer) };
};

} // namespace oasis
