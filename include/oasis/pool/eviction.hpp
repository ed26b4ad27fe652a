// SPDX-License-Identifier: Apache-2.0
//
// Which slot makes room. Both policies hold memory in proportion to the slots, never to the history.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace oasis {

/// Least recent access first; of slots last read at the same `now`, the lower one. A heap over the slots: inserting,
/// reading and erasing are O(log slots), so that a slot may also come in with an old `now`.
class LruEviction {
public:
    /// Keeps what slots below `slots` hold; the others are erased.
    void resize(std::size_t slots)
    {
        for (std::size_t i = slots; i < where_.size(); ++i) { on_erase(SlotId{static_cast<std::int32_t>(i)}); }
        where_.resize(slots, kAbsent);
        stamp_.resize(slots, 0);
        if (heap_.capacity() < slots) { // slots come one at a time
            heap_.reserve(std::max(slots, 2 * heap_.capacity()));
            frontier_.reserve(heap_.capacity());
        }
    }

    /// The slot holds a block that was last read at `now`.
    void on_insert(SlotId slot, std::uint64_t now)
    {
        const std::size_t i = index(slot);
        stamp_[i] = now;
        if (where_[i] == kAbsent) {
            where_[i] = static_cast<std::int32_t>(heap_.size());
            heap_.push_back(raw(slot));
        }
        settle(std::size_t(where_[i]));
    }

    /// A slot that is not there is left alone.
    void on_access(SlotId slot, std::uint64_t now)
    {
        if (where_[index(slot)] != kAbsent) { on_insert(slot, now); }
    }

    /// The slot is empty.
    void on_erase(SlotId slot)
    {
        const std::int32_t hole = std::exchange(where_[index(slot)], kAbsent);
        if (hole == kAbsent) { return; }
        const std::int32_t last = heap_.back();
        heap_.pop_back();
        if (last == raw(slot)) { return; }
        put(std::size_t(hole), last);
        settle(std::size_t(hole));
    }

    /// Among the slots for which `may_take(slot)` holds. Slots are asked about in order of age, each once.
    template <class MayTake> std::optional<SlotId> victim(MayTake&& may_take)
    {
        const auto younger = [this](std::int32_t a, std::int32_t b) {
            return older(heap_[std::size_t(b)], heap_[std::size_t(a)]);
        };
        frontier_.clear();
        if (!heap_.empty()) { frontier_.push_back(0); }
        while (!frontier_.empty()) {
            std::pop_heap(frontier_.begin(), frontier_.end(), younger);
            const std::int32_t at = frontier_.back();
            frontier_.pop_back();
            const SlotId slot{heap_[std::size_t(at)]};
            if (may_take(slot)) { return slot; }
            for (std::size_t child = 2 * std::size_t(at) + 1; child <= 2 * std::size_t(at) + 2; ++child) {
                if (child >= heap_.size()) { break; }
                frontier_.push_back(static_cast<std::int32_t>(child));
                std::push_heap(frontier_.begin(), frontier_.end(), younger);
            }
        }
        return std::nullopt;
    }

    /// Bytes of the policy's own tables.
    std::size_t metadata_bytes() const noexcept
    {
        return (where_.capacity() + heap_.capacity() + frontier_.capacity()) * sizeof(std::int32_t) +
               stamp_.capacity() * sizeof(std::uint64_t);
    }

private:
    static constexpr std::int32_t kAbsent = -1;

    std::size_t index(SlotId slot) const
    {
        const std::int32_t i = raw(slot);
        detail::expects(i >= 0 && std::size_t(i) < where_.size(), "LruEviction: slot ", i, " is not one of ",
                        where_.size(), ".");
        return std::size_t(i);
    }

    bool older(std::int32_t a, std::int32_t b) const noexcept
    {
        const std::uint64_t at = stamp_[std::size_t(a)];
        const std::uint64_t bt = stamp_[std::size_t(b)];
        return at != bt ? at < bt : a < b;
    }

    void put(std::size_t at, std::int32_t slot) noexcept
    {
        heap_[at] = slot;
        where_[std::size_t(slot)] = static_cast<std::int32_t>(at);
    }

    /// Moves the slot at `at` up or down to where its age belongs.
    void settle(std::size_t at) noexcept
    {
        const std::int32_t slot = heap_[at];
        while (at > 0 && older(slot, heap_[(at - 1) / 2])) {
            put(at, heap_[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
            if (child + 1 < heap_.size() && older(heap_[child + 1], heap_[child])) { ++child; }
            if (!older(heap_[child], slot)) { break; }
            put(at, heap_[child]);
            at = child;
        }
        put(at, slot);
    }

    std::vector<std::int32_t> where_;  ///< by slot: its place in the heap
    std::vector<std::uint64_t> stamp_; ///< by slot
    std::vector<std::int32_t> heap_;
    std::vector<std::int32_t> frontier_;
};

/// Second chance: a hand goes round, clears the mark of slots read since it last passed and takes the first unmarked
/// one. One bit of history instead of an order: reads cost a store and nothing else.
class ClockEviction {
public:
    /// See the concept `EvictionPolicy`.
    ///@{
    void resize(std::size_t slots)
    {
        state_.resize(slots, kAbsent);
        if (hand_ >= slots) { hand_ = 0; }
    }
    void on_insert(SlotId slot, std::uint64_t) { at(slot) = kMarked; }
    void on_access(SlotId slot, std::uint64_t)
    {
        if (at(slot) != kAbsent) { at(slot) = kMarked; }
    }
    void on_erase(SlotId slot) { at(slot) = kAbsent; }

    template <class MayTake> std::optional<SlotId> victim(MayTake&& may_take)
    {
        // Twice round: the first pass may only clear marks.
        for (std::size_t n = 2 * state_.size(); n > 0; --n) {
            const std::size_t i = hand_;
            hand_ = hand_ + 1 == state_.size() ? 0 : hand_ + 1;
            const SlotId slot{static_cast<std::int32_t>(i)};
            if (state_[i] == kAbsent || !may_take(slot)) { continue; }
            if (state_[i] == kPresent) { return slot; }
            state_[i] = kPresent;
        }
        return std::nullopt;
    }

    std::size_t metadata_bytes() const noexcept { return state_.capacity(); }
    ///@}

private:
    enum State : std::uint8_t { kAbsent, kPresent, kMarked };

    State& at(SlotId slot)
    {
        const std::int32_t i = raw(slot);
        detail::expects(i >= 0 && std::size_t(i) < state_.size(), "ClockEviction: slot ", i, " is not one of ",
                        state_.size(), ".");
        return state_[std::size_t(i)];
    }

    std::vector<State> state_;
    std::size_t hand_ = 0;
};

static_assert(check_eviction<LruEviction>() && check_eviction<ClockEviction>());

} // namespace oasis
