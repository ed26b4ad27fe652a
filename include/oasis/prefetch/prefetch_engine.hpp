// SPDX-License-Identifier: Apache-2.0
//
// PrefetchEngine: turns what a step misses, or a guess of the next one, into copies, and carries them out on threads of its own or on the
// step's executor. A stale, cancelled or failed transfer is never consumed: a copy counts only if its slot still has the generation it was
// planned for. One thread plans and settles; the threads of the queue touch nothing but the bytes of slots in flight.
#pragma once

#include <oasis/concepts.hpp>
#include <oasis/core/telemetry.hpp>
#include <oasis/cpu/executor.hpp>
#include <oasis/pool/slot_table.hpp>
#include <oasis/prefetch/transfer_queue.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace oasis {

/// How a transfer ended.
enum class TransferOutcome : std::uint8_t {
    kLanded, ///< the unit is in its slot
    kStale,  ///< nobody wanted it any more when it arrived
    kFailed, ///< the store did not deliver: the slot is free again
};

/// A transfer that is over.
struct Settled {
    Transfer transfer{};                                ///< what was to be moved
    TransferOutcome outcome = TransferOutcome::kLanded; ///< what became of it
};

/// What a link really does, from the transfers themselves: bytes over the time in which at least one ran. Old measurements fade.
class LinkRate {
public:
    /// A transfer that delivered `bytes`.
    void add(const Transfer& transfer, std::size_t bytes) noexcept
    {
        const auto from = std::max(transfer.begin, busy_until_);
        if (transfer.end > from) {
            seconds_ += std::chrono::duration<double>(transfer.end - from).count();
            busy_until_ = transfer.end;
        }
        bytes_ += static_cast<double>(bytes);
        if (seconds_ > kMemorySeconds) {
            seconds_ /= 2;
            bytes_ /= 2;
        }
    }
    /// 0 before the first transfer.
    double bytes_per_second() const noexcept { return seconds_ > 0 ? bytes_ / seconds_ : 0.0; }

private:
    static constexpr double kMemorySeconds = 0.5;
    Transfer::Clock::time_point busy_until_{};
    double bytes_ = 0;
    double seconds_ = 0;
};

/// Moves units from the slow tier into slots: demand before guesses, nothing that is stale or cancelled is consumed.
///
/// `Blocks` is a BlockPool: it keeps a block's place in the store for as long as a transfer of it is under way.
template <EvictionPolicy Eviction, class Blocks>
class PrefetchEngine {
public:
    /// `threads` 0: transfers are carried out by `start`, on the queue's executor.
    PrefetchEngine(SlotTable<Eviction>& slots, Blocks& blocks, std::int32_t threads = 0)
        : slots_(&slots), blocks_(&blocks),
          queue_(threads, [store = &blocks.store()](const Transfer& t) { return store->read({t.piece.block, t.piece.layer, t.piece.set, t.target}); })
    {
    }

    /// Whether there are threads for transfers.
    bool in_background() const noexcept { return queue_.threads() > 0; }

    /// Plans the copy of a unit that has no slot, to be started by `start`. Nothing when no slot can be had: see SlotTable::no_victim. Demand
    /// takes the slots of guesses if it must, and waits for transfers that nobody wants; a prefetch only takes what nobody is expected to read.
    /// `booked()` is called when transfers were booked meanwhile, before a slot of them is emptied again: for reports in the order of things.
    template <class Booked = void (*)()>
    std::optional<SlotId> plan(TransferKind kind, SequenceId sequence, BlockId block, LayerId layer, std::int32_t set, std::int64_t unit, std::uint64_t now,
                               Booked&& booked = [] {})
    {
        const bool prefetch = kind == TransferKind::kPrefetch;
        auto slot = slots_->try_acquire(unit, now, prefetch ? Victims::kUnguarded : Victims::kAny);
        while (!slot && !prefetch && give_way()) {
            if (!early_.empty()) { booked(); }
            slot = slots_->try_acquire(unit, now, Victims::kAny);
        }
        if (!slot) { return std::nullopt; }
        if (planned_at_.size() <= std::size_t(raw(*slot))) { planned_at_.resize(slots_->slots()); }
        planned_at_[std::size_t(raw(*slot))] = planned_.size();
        planned_.push_back({.piece = {block, layer, set, *slot, slots_->generation(*slot)}, .target = slots_->data(*slot), .kind = kind, .sequence = sequence, .serial = serial_});
        return slot;
    }

    /// What is planned and not yet started.
    std::span<const Transfer> planned() const noexcept { return planned_; }

    /// Starts what is planned: returns at once in the background, else when all is carried out. `settle` says what became of it.
    void start(Queue queue)
    {
        if (planned_.empty()) { return; }
        if (in_background()) {
            queue_.resize(slots_->slots());
            for (const Transfer& t : planned_) { blocks_->hold(t.piece.block); }
            queue_.push(planned_);
        } else {
            carry_out(queue);
        }
        planned_.clear();
    }

    /// Drops what is planned and not started; the slots are free again.
    void abandon_planned()
    {
        for (const Transfer& t : planned_) {
            if (slots_->generation(t.piece.slot) == t.piece.generation) { slots_->abandon(t.piece.slot); }
        }
        planned_.clear();
    }

    /// Books what is done, in slots and blocks, and returns it. The span is good until the next call.
    std::span<const Settled> settle()
    {
        if (in_background()) {
            queue_.take(done_);
            for (const Transfer& t : done_) { blocks_->let_go(t.piece.block); }
        }
        settled_.clear();
        settled_.swap(early_);
        for (const Transfer& t : done_) { settled_.push_back({t, book(t)}); }
        done_.clear();
        return settled_;
    }

    /// Blocks until a transfer is done or `until`; false when none is under way or the time is over.
    bool wait(std::optional<Transfer::Clock::time_point> until = std::nullopt) { return in_background() && queue_.wait(until); }

    /// A row waits for what flies to `slot`.
    void promote(SlotId slot)
    {
        if (in_background() && queue_.promote(slot)) { return; }
        const std::size_t at = std::size_t(raw(slot)) < planned_at_.size() ? planned_at_[std::size_t(raw(slot))] : planned_.size();
        if (at < planned_.size() && planned_[at].piece.slot == slot) { planned_[at].wanted = true; }
    }
    /// No row waits for it any more.
    void demote(SlotId slot)
    {
        if (in_background()) { queue_.demote(slot); }
    }

    /// From now on plans belong to step `serial`.
    void begin_step(std::uint64_t serial) noexcept { serial_ = serial; }

    /// The deadline of a guess is the layer it was made for: what earlier steps planned for it and has not begun is given up.
    std::int64_t cancel_overdue(SequenceId sequence, LayerId layer)
    {
        return cancel([&](const Transfer& t) {
            return t.kind == TransferKind::kPrefetch && !t.wanted && t.sequence == sequence && t.piece.layer == layer && t.serial < serial_;
        });
    }
    /// Guesses for a sequence that have not begun.
    std::int64_t cancel_sequence(SequenceId sequence)
    {
        return cancel([&](const Transfer& t) { return t.kind != TransferKind::kDemand && !t.wanted && t.sequence == sequence; });
    }
    /// Transfers into slots whose unit was dropped, as far as they have not begun.
    std::int64_t cancel_dropped()
    {
        if (slots_->draining() == 0) { return 0; }
        return cancel([&](const Transfer& t) { return slots_->generation(t.piece.slot) != t.piece.generation; });
    }

    /// Returns when no transfer of `block` is under way: it is about to be written.
    void finish_block(BlockId block)
    {
        if (blocks_->transfers(block) == 0) { return; }
        cancel([&](const Transfer& t) { return t.piece.block == block && slots_->generation(t.piece.slot) != t.piece.generation; });
        while (blocks_->transfers(block) > 0 && wait()) { settle_early(); }
    }
    /// Gives up guesses that have not begun and waits for all that has.
    void finish_all()
    {
        cancel([](const Transfer& t) { return !t.wanted; });
        while (wait()) { settle_early(); }
    }

    /// Transfers that are begun or planned in the background.
    std::int64_t outstanding() const { return in_background() ? queue_.outstanding() : 0; }
    /// What the link was seen to do.
    const LinkRate& rate() const noexcept { return rate_; }

private:
    void carry_out(Queue queue)
    {
        constexpr std::size_t kPiecesPerTask = 16;
        queue.executor().parallel_for((planned_.size() + kPiecesPerTask - 1) / kPiecesPerTask, [&](std::size_t task) {
            const std::size_t end = std::min(planned_.size(), (task + 1) * kPiecesPerTask);
            for (std::size_t i = task * kPiecesPerTask; i < end; ++i) {
                Transfer& t = planned_[i];
                if (slots_->generation(t.piece.slot) != t.piece.generation) { continue; } // another's by now: not even written to
                t.begin = Transfer::Clock::now();
                t.delivered = blocks_->store().read({t.piece.block, t.piece.layer, t.piece.set, t.target});
                t.end = Transfer::Clock::now();
            }
        });
        for (const Transfer& t : planned_) {
            done_.push_back(t);
            done_.back().wanted |= t.kind == TransferKind::kDemand;
        }
    }

    TransferOutcome book(const Transfer& t)
    {
        if (slots_->generation(t.piece.slot) != t.piece.generation) {
            slots_->reclaim(t.piece.slot);
            return TransferOutcome::kStale;
        }
        if (!t.delivered) {
            slots_->abandon(t.piece.slot);
            return TransferOutcome::kFailed;
        }
        slots_->land(t.piece.slot, t.piece.generation);
        if (t.kind == TransferKind::kPrefetch) { slots_->mark_prefetched(t.piece.slot); }
        rate_.add(t, slots_->unit_bytes());
        return TransferOutcome::kLanded;
    }

    template <class Unwanted>
    std::int64_t cancel(Unwanted&& unwanted, std::int64_t most = INT64_MAX)
    {
        if (!in_background()) { return 0; }
        return queue_.cancel(unwanted, [&](const Transfer& t) {
            if (slots_->generation(t.piece.slot) == t.piece.generation) {
                slots_->abandon(t.piece.slot);
            } else {
                slots_->reclaim(t.piece.slot);
            }
            blocks_->let_go(t.piece.block);
        }, most);
    }

    /// Frees or is about to free a slot for demand; false when nothing can be done.
    bool give_way()
    {
        if (cancel([](const Transfer& t) { return !t.wanted; }, 1) > 0) { return true; }
        if (!wait()) { return false; }
        settle_early();
        return true;
    }
    /// Books what is done; `settle` reports it later.
    void settle_early()
    {
        const auto settled = settle();
        early_.insert(early_.end(), settled.begin(), settled.end());
    }

    SlotTable<Eviction>* slots_;
    Blocks* blocks_;
    std::uint64_t serial_ = 0;
    std::vector<Transfer> planned_;
    std::vector<std::size_t> planned_at_; ///< by slot: where it was planned last
    std::vector<Transfer> done_;
    std::vector<Settled> settled_;
    std::vector<Settled> early_;
    LinkRate rate_;
    TransferQueue queue_; ///< last: its threads end first
};

} // namespace oasis
