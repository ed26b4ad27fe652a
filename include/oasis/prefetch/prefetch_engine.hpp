// SPDX-License-Identifier: Apache-2.0
//
// PrefetchEngine: turns what a step misses, or a guess of the next one, into a copy plan and carries it out. A stale, cancelled or failed
// transfer is never consumed: a piece counts only if its slot still has the generation the plan was made with.
#pragma once

#include <oasis/concepts.hpp>
#include <oasis/core/telemetry.hpp>
#include <oasis/cpu/executor.hpp>
#include <oasis/pool/slot_table.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace oasis {

/// What became of one plan.
struct TransferResult {
    std::int64_t landed = 0;
    std::int64_t stale = 0;              ///< the slot changed hands meanwhile
    std::vector<CopyPiece> failed;       ///< the store did not deliver: the slots are free again
    std::size_t bytes = 0;
};

/// Synchronous: `run` returns when every piece has landed or failed. Pieces are carried out in the order they were planned, in
/// parallel on the queue's executor.
template <EvictionPolicy Eviction, SlowStore Store>
class PrefetchEngine {
public:
    PrefetchEngine(SlotTable<Eviction>& slots, Store& store) : slots_(&slots), store_(&store) {}

    /// Plans the copy of a unit that has no slot. Nothing when no slot can be had: see SlotTable::no_victim.
    std::optional<SlotId> plan(BlockId block, LayerId layer, std::int32_t set, std::int64_t unit, std::uint64_t now)
    {
        const auto slot = slots_->try_acquire(unit, now);
        if (slot) { pieces_.push_back({block, layer, set, *slot, slots_->generation(*slot)}); }
        return slot;
    }

    /// What is planned and not yet run, as kernels would read it.
    CopyPlan plan() noexcept
    {
        return {pieces_.data(), static_cast<std::int32_t>(pieces_.size()), static_cast<std::int32_t>(pieces_.capacity())};
    }

    TransferResult run(Queue queue)
    {
        TransferResult result;
        if (pieces_.empty()) { return result; }
        delivered_.assign(pieces_.size(), 0);
        constexpr std::size_t kPiecesPerTask = 16;
        queue.executor().parallel_for((pieces_.size() + kPiecesPerTask - 1) / kPiecesPerTask, [&](std::size_t task) {
            const std::size_t end = std::min(pieces_.size(), (task + 1) * kPiecesPerTask);
            for (std::size_t i = task * kPiecesPerTask; i < end; ++i) {
                const CopyPiece& piece = pieces_[i];
                if (slots_->generation(piece.slot) != piece.generation) { continue; } // another's by now: not even written to
                delivered_[i] = store_->read({piece.block, piece.layer, piece.set, slots_->data(piece.slot)});
            }
        });
        for (std::size_t i = 0; i < pieces_.size(); ++i) { settle(pieces_[i], delivered_[i] != 0, result); }
        pieces_.clear();
        return result;
    }

    /// Drops what is planned and not run; the slots are free again.
    void cancel()
    {
        for (const CopyPiece& piece : pieces_) {
            if (slots_->generation(piece.slot) == piece.generation) { slots_->abandon(piece.slot); }
        }
        pieces_.clear();
    }

private:
    void settle(const CopyPiece& piece, bool delivered, TransferResult& result)
    {
        if (slots_->generation(piece.slot) != piece.generation) {
            ++result.stale;
        } else if (!delivered) {
            slots_->abandon(piece.slot);
            result.failed.push_back(piece);
        } else if (slots_->land(piece.slot, piece.generation)) {
            ++result.landed;
            result.bytes += slots_->unit_bytes();
        }
    }

    SlotTable<Eviction>* slots_;
    Store* store_;
    std::vector<CopyPiece> pieces_;
    std::vector<std::uint8_t> delivered_;
};

} // namespace oasis
