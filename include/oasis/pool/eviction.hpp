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
#include <vector>

namespace oasis {

/// Least recent access first; of slots last read at the same `now`, the lower one. Inserting, reading and erasing are
/// O(1): a list in order of access. The order within one `now` is made when a victim is first looked for there.
class LruEviction {
public:
    /// Keeps what slots below `slots` hold; the others are erased.
    void resize(std::size_t slots)
    {
        for (std::size_t i = slots; i < next_.size(); ++i) { on_erase(SlotId{static_cast<std::int32_t>(i)}); }
        next_.resize(slots, kAbsent);
        prev_.resize(slots, kAbsent);
        stamp_.resize(slots, 0);
        run_.reserve(slots);
    }

    void on_insert(SlotId slot, std::uint64_t now)
    {
        on_erase(slot);
        append(raw(slot), now);
    }

    /// A slot that is not there is left alone.
    void on_access(SlotId slot, std::uint64_t now)
    {
        if (!present(slot)) { return; }
        if (raw(slot) == tail_ && stamp_[std::size_t(tail_)] == now) { return; }
        on_insert(slot, now);
    }

    void on_erase(SlotId slot)
    {
        if (!present(slot)) { return; }
        unlink(raw(slot));
        next_[std::size_t(raw(slot))] = kAbsent;
    }

    /// Among the slots for which `may_take(slot)` holds. Slots that may not be taken are passed over, one call each.
    template <class MayTake> std::optional<SlotId> victim(MayTake&& may_take)
    {
        for (std::int32_t i = head_; i != kEnd;) {
            const std::uint64_t stamp = stamp_[std::size_t(i)];
            if (!sorted_any_ || stamp > sorted_through_) { i = sort_run(i); }
            for (; i != kEnd && stamp_[std::size_t(i)] == stamp; i = next_[std::size_t(i)]) {
                if (may_take(SlotId{i})) { return SlotId{i}; }
            }
        }
        return std::nullopt;
    }

    /// Bytes of the policy's own tables.
    std::size_t metadata_bytes() const noexcept
    {
        return (next_.capacity() + prev_.capacity() + run_.capacity()) * sizeof(std::int32_t) +
               stamp_.capacity() * sizeof(std::uint64_t);
    }

private:
    static constexpr std::int32_t kEnd = -1;
    static constexpr std::int32_t kAbsent = -2;

    bool present(SlotId slot) const
    {
        const std::int32_t i = raw(slot);
        detail::expects(i >= 0 && std::size_t(i) < next_.size(), "LruEviction: slot ", i, " is not one of ",
                        next_.size(), ".");
        return next_[std::size_t(i)] != kAbsent;
    }

    void append(std::int32_t i, std::uint64_t now)
    {
        // The list stays in order even if a caller's clock steps back.
        if (tail_ != kEnd) { now = std::max(now, stamp_[std::size_t(tail_)]); }
        if (sorted_any_ && now <= sorted_through_) {
            sorted_any_ = now > 0;
            sorted_through_ = now - 1;
        }
        stamp_[std::size_t(i)] = now;
        next_[std::size_t(i)] = kEnd;
        prev_[std::size_t(i)] = tail_;
        (tail_ == kEnd ? head_ : next_[std::size_t(tail_)]) = i;
        tail_ = i;
    }

    void unlink(std::int32_t i)
    {
        const std::int32_t before = prev_[std::size_t(i)];
        const std::int32_t after = next_[std::size_t(i)];
        (before == kEnd ? head_ : next_[std::size_t(before)]) = after;
        (after == kEnd ? tail_ : prev_[std::size_t(after)]) = before;
    }

    /// Puts the run of equal stamps that begins at `first` in slot order; returns its new first slot.
    std::int32_t sort_run(std::int32_t first)
    {
        const std::uint64_t stamp = stamp_[std::size_t(first)];
        const std::int32_t before = prev_[std::size_t(first)];
        run_.clear();
        std::int32_t after = first;
        for (; after != kEnd && stamp_[std::size_t(after)] == stamp; after = next_[std::size_t(after)]) {
            run_.push_back(after);
        }
        std::sort(run_.begin(), run_.end());
        std::int32_t last = before;
        for (const std::int32_t i : run_) {
            (last == kEnd ? head_ : next_[std::size_t(last)]) = i;
            prev_[std::size_t(i)] = last;
            last = i;
        }
        next_[std::size_t(last)] = after;
        (after == kEnd ? tail_ : prev_[std::size_t(after)]) = last;
        sorted_any_ = true;
        sorted_through_ = stamp;
        return run_.front();
    }

    std::vector<std::int32_t> next_;
    std::vector<std::int32_t> prev_;
    std::vector<std::uint64_t> stamp_;
    std::vector<std::int32_t> run_;
    std::int32_t head_ = kEnd;
    std::int32_t tail_ = kEnd;
    std::uint64_t sorted_through_ = 0; ///< with sorted_any_: runs up to this stamp are in slot order
    bool sorted_any_ = false;
};

/// Second chance: a hand goes round, clears the mark of slots read since it last passed and takes the first unmarked
/// one. One bit of history instead of an order: reads cost a store and nothing else.
class ClockEviction {
public:
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
