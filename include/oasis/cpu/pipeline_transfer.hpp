// SPDX-License-Identifier: Apache-2.0
//
// Pipeline: what flies between the tiers. Guesses of the next step are planned here, transfers that are over are booked here.
#pragma once

#include <oasis/cpu/pipeline.hpp>

namespace oasis::cpu {

template <class Policies>
void Pipeline<Policies>::begin_step(std::uint64_t serial, Journal& journal)
{
    pool_.slots().begin_step(serial);
    engine_.begin_step(serial);
    journal.stall = std::chrono::nanoseconds{0};
    collect(journal);
    if (!config_.live_cap) { return; }
    const double bytes = engine_.rate().bytes_per_second() * step_seconds_ - demand_bytes_;
    live_pieces_ = static_cast<std::int64_t>(std::max(0.0, bytes) / static_cast<double>(shape_.unit_bytes));
}

template <class Policies>
void Pipeline<Policies>::measure_step(std::chrono::nanoseconds time, std::size_t fetched_bytes) noexcept
{
    constexpr double kWeight = 0.25; // of the latest step
    const auto smooth = [](double& mean, double value) { mean = mean == 0 ? value : mean + kWeight * (value - mean); };
    smooth(step_seconds_, std::chrono::duration<double>(time).count());
    smooth(demand_bytes_, static_cast<double>(fetched_bytes));
}

template <class Policies>
void Pipeline<Policies>::collect(Journal& journal)
{
    const std::int64_t draining = pool_.slots().draining();
    journal.counters.cancelled_copies += std::uint64_t(engine_.cancel_dropped());
    const std::span<const Settled> settled = engine_.settle();
    if (!settled.empty() && journal.wants_events) { pool_.drain_evictions(journal); } // of what the new ones replaced
    for (const Settled& s : settled) { report(s, journal); }
    if (pool_.slots().draining() < draining) { pool_.trim(); }
}

template <class Policies>
void Pipeline<Policies>::report(const Settled& settled, Journal& journal)
{
    const Transfer& t = settled.transfer;
    const CopyPiece& piece = t.piece;
    const bool ahead = t.kind == TransferKind::kPrefetch;
    Counters& c = journal.counters;
    switch (settled.outcome) {
    case TransferOutcome::kLanded:
        (ahead ? c.prefetched_bytes : c.fetched_bytes) += shape_.unit_bytes;
        if (ahead) {
            c.prefetched_tokens += std::uint64_t(config_.block_tokens);
            journal.layers[std::size_t(piece.layer)].prefetched_tokens += std::uint64_t(config_.block_tokens);
        }
        journal.event({EventKind::kPromoted, ahead ? EventReason::kPrefetch : EventReason::kDemand, Tier::kFast, piece.block, piece.layer, piece.set, shape_.unit_bytes});
        break;
    case TransferOutcome::kStale: ++c.stale_copies; break;
    case TransferOutcome::kFailed:
        ++c.failed_copies;
        journal.event({EventKind::kRefused, EventReason::kStoreFailed, Tier::kSlow, piece.block, piece.layer, piece.set, shape_.unit_bytes});
        if (t.wanted) { journal.lost.emplace_back(t.sequence, piece.block); }
        break;
    }
    if constexpr (Sink::enabled && TransferTelemetry<Sink>) {
        sink_.on_transfer({.demand = t.wanted,
                           .layer = piece.layer,
                           .set = piece.set,
                           .block = piece.block,
                           .bytes = shape_.unit_bytes,
                           .worker = t.worker,
                           .begin = t.begin,
                           .end = t.end,
                           .delivered = settled.outcome == TransferOutcome::kLanded});
    }
}

template <class Policies>
bool Pipeline<Policies>::drain(Journal& journal)
{
    if (pool_.slots().draining() == 0 && pool_.blocks().leaving() == 0) { return false; }
    collect(journal);
    if (pool_.slots().draining() == 0 && pool_.blocks().leaving() == 0) { return true; }
    const bool some = engine_.wait();
    collect(journal);
    return some;
}

/// The step has nothing to do but to wait. False when the time is over or nothing is under way.
template <class Policies>
bool Pipeline<Policies>::wait(Journal& journal, std::optional<Transfer::Clock::time_point> until)
{
    const auto begin = Transfer::Clock::now();
    const bool some = engine_.wait(until);
    journal.stall += Transfer::Clock::now() - begin;
    collect(journal);
    return some;
}

/// For what cannot begin before everything is there.
template <class Policies>
void Pipeline<Policies>::wait_for_all(const StepGroup& group, Journal& journal)
{
    const auto flying = [&](const Read& read) { return state_of(read) == ReadState::kFlying; };
    for (std::int32_t row = 0; row < group.rows.rows(); ++row) {
        for (auto& reads : rows_[std::size_t(row)].reads) {
            while (std::any_of(reads.begin(), reads.end(), flying) && wait(journal)) {}
            std::erase_if(reads, [&](const Read& read) { return state_of(read) != ReadState::kReady; });
        }
    }
}

/// Copies that layers from `layer` on may still plan, shared evenly.
template <class Policies>
std::int64_t Pipeline<Policies>::live_allowance(LayerId layer) const noexcept
{
    return config_.live_cap ? live_pieces_ / (model_.layers - layer) : std::numeric_limits<std::int64_t>::max();
}

/// What the predictor expects next and is in no logical set is kept, or brought, up to the cap. It enters a logical set when a row must read it.
template <class Policies>
void Pipeline<Policies>::prefetch(const StepGroup& group, LayerId layer, Journal& journal)
{
    const SpanGuard span(sink_, Stage::kPrefetch, layer);
    const Sequence& sequence = *group.sequence;
    const std::int32_t cap = shape_.blocks_of(config_.prefetch_cap);
    const std::int64_t allowed = live_allowance(layer);
    std::int64_t copies = 0;
    read_ids_.resize(std::size_t(2 * shape_.most_blocks(config_.budgets.fetch)));
    for (std::int32_t set = 0; set < shape_.sets; ++set) {
        const std::size_t guesses = lookahead_.predict(sequence.id, layer, set, read_ids_);
        std::int32_t kept = 0;
        for (std::size_t i = 0; i < guesses && kept < cap; ++i) {
            const std::int32_t block = read_ids_[i];
            if (block < 0 || block >= static_cast<std::int32_t>(sequence.blocks.size())) {
                ++journal.counters.foreign_predictions;
                continue;
            }
            const BlockId id = sequence.blocks[std::size_t(block)];
            if (!pool_.blocks()[id].sealed || pool_.blocks()[id].native || sequence.logical.contains(layer * shape_.sets + set, block)) { continue; }
            SlotId slot = pool_.slots().slot_of(unit_of(sequence, layer, set, block));
            if (slot == SlotId::kNone) {
                if (copies == allowed) { break; }
                slot = plan_copy(TransferKind::kPrefetch, sequence, layer, set, block, journal);
                if (slot == SlotId::kNone) { break; }
                ++copies;
            }
            pool_.slots().guard(slot, now_);
            ++kept;
        }
    }
    if (config_.live_cap) { live_pieces_ -= copies; }
}

} // namespace oasis::cpu
