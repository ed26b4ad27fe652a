// SPDX-License-Identifier: Apache-2.0
//
// Slots: the fast tier's places for coded units. A unit is one (layer, set, block): a head-block, or in layer scope all heads of a block.
#pragma once

#include <oasis/concepts.hpp>
#include <oasis/core/error.hpp>
#include <oasis/core/telemetry.hpp>
#include <oasis/pool/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace oasis {

/// Why no slot could be had: every slot of the tier belongs to a logical set, is read now, or is the target of a transfer.
struct NoVictim {
    std::int64_t capacity = 0;
    std::int64_t pinned = 0;
    std::int64_t in_flight = 0;
    std::int64_t logical = 0; ///< resident, unpinned, held by a logical set
};

/// Which slots may be emptied for another unit: resident, not read now, in no logical set, and ...
enum class Victims : std::uint8_t {
    kAny,       ///< ... whatever was guessed of them
    kUnguarded, ///< ... not expected to be read in the next step
};

/// The by-value view kernels get: where a unit is, without the owner.
struct SlotTableRef {
    const std::int32_t* slot_plus_one = nullptr; ///< [layers, sets, blocks]; 0: not resident
    std::byte* base = nullptr;
    std::size_t unit_bytes = 0;
    std::int32_t sets = 0;
    std::int64_t blocks = 0;

    std::byte* find(LayerId layer, std::int32_t set, BlockId block) const noexcept
    {
        const std::int32_t slot = slot_plus_one[(std::int64_t{layer} * sets + set) * blocks + raw(block)];
        return slot ? base + static_cast<std::size_t>(slot - 1) * unit_bytes : nullptr;
    }
};

/// Invariants, after every operation: free + resident + pinned + in flight == capacity; a slot has one owner; `slot_of` and the
/// slots' owners agree; a slot that is pinned or in flight is never taken; one that a logical set holds is never a victim. A slot in flight
/// whose unit was dropped drains: it is nobody's until its transfer is over.
template <EvictionPolicy Eviction>
class SlotTable {
public:
    struct Options {
        std::size_t unit_bytes = 0;
        std::int32_t layers = 0;
        std::int32_t sets = 0;
        std::int64_t blocks = 0;
    };

    SlotTable(const Options& options, Eviction eviction)
        : options_(options), units_(std::int64_t{options.layers} * options.sets * options.blocks), eviction_(std::move(eviction)),
          memory_(static_cast<std::size_t>(units_) * options.unit_bytes), slot_of_(static_cast<std::size_t>(units_)),
          logical_refs_(static_cast<std::size_t>(units_))
    {
    }

    std::int64_t unit(LayerId layer, std::int32_t set, BlockId block) const noexcept
    {
        return (std::int64_t{layer} * options_.sets + set) * options_.blocks + raw(block);
    }
    SlotId slot_of(std::int64_t unit) const noexcept { return SlotId{slot_of_[index(unit)] - 1}; }
    std::byte* data(SlotId slot) const noexcept { return memory_.data() + static_cast<std::size_t>(raw(slot)) * options_.unit_bytes; }
    std::uint32_t generation(SlotId slot) const noexcept { return slots_[index(raw(slot))].generation; }
    bool landed(SlotId slot) const noexcept { return slots_[index(raw(slot))].state == State::kResident; }
    /// Its transfer was planned in an earlier step and is not over.
    bool flies_from_before(SlotId slot) const noexcept { return in_flight(slot) && slots_[index(raw(slot))].acquired < step_; }
    bool in_flight(SlotId slot) const noexcept { return slots_[index(raw(slot))].state == State::kInFlight; }
    std::size_t unit_bytes() const noexcept { return options_.unit_bytes; }
    /// Slot ids in use so far lie below this.
    std::size_t slots() const noexcept { return slots_.size(); }
    /// Slots in flight that nobody waits for.
    std::int64_t draining() const noexcept { return draining_; }
    std::int64_t max_slots() const noexcept { return units_; }
    SlotTableRef ref() const noexcept { return {slot_of_.data(), memory_.data(), options_.unit_bytes, options_.sets, options_.blocks}; }

    /// A slot for a unit that has none, in flight until `land` or `abandon`: a free one, else a victim's, of those nobody expects first.
    std::optional<SlotId> try_acquire(std::int64_t unit, std::uint64_t now, Victims victims = Victims::kAny)
    {
        SlotId slot{};
        if (!free_.empty()) {
            slot = free_.back();
            free_.pop_back();
        } else if (const auto victim = take_victim(victims); victim) {
            slot = *victim;
        } else {
            return std::nullopt;
        }
        Slot& s = slots_[index(raw(slot))];
        s = {.unit = unit, .last_use = now, .guard = 0, .acquired = step_, .generation = s.generation + 1, .pins = 0, .state = State::kInFlight, .prefetched = false};
        slot_of_[index(unit)] = raw(slot) + 1;
        ++counts_.in_flight;
        recount();
        return slot;
    }

    /// The transfer into the slot is done. False when the generation is another's: the data is stale and must not be used.
    bool land(SlotId slot, std::uint32_t generation)
    {
        Slot& s = slots_[index(raw(slot))];
        if (s.state != State::kInFlight || s.generation != generation) { return false; }
        s.state = State::kResident;
        --counts_.in_flight;
        if (s.pins > 0) { ++counts_.pinned; }
        if (logical_refs_[index(s.unit)] == 0) { eviction_.on_insert(slot, s.last_use); }
        recount();
        return true;
    }

    /// The transfer failed or is not wanted: the slot is free again, whoever meant to read it.
    void abandon(SlotId slot)
    {
        Slot& s = slots_[index(raw(slot))];
        detail::expects(s.state == State::kInFlight, "slot table: abandon of slot ", raw(slot), " which is not in flight");
        --counts_.in_flight;
        empty(slot);
    }

    /// Takes the slot from the unit if it has one; one in flight drains until `reclaim`. Throws when it is pinned.
    bool drop(std::int64_t unit)
    {
        const SlotId slot = slot_of(unit);
        if (slot == SlotId::kNone) { return false; }
        Slot& s = slots_[index(raw(slot))];
        detail::expects(s.pins == 0, "slot table: drop of slot ", raw(slot), " with ", s.pins, " pins");
        if (s.state == State::kInFlight) {
            forget(slot);
            s.state = State::kDraining;
            ++draining_;
            return true;
        }
        if (logical_refs_[index(unit)] == 0) { eviction_.on_erase(slot); }
        empty(slot);
        return true;
    }

    /// The transfer into a draining slot is over: the slot is free. Nothing happens to one that does not drain.
    void reclaim(SlotId slot)
    {
        if (slots_[index(raw(slot))].state != State::kDraining) { return; }
        slots_[index(raw(slot))].state = State::kFree;
        --draining_;
        --counts_.in_flight;
        free_.push_back(slot);
        recount();
    }

    /// Steps are counted: a guard holds for the rest of its step and the whole next one.
    void begin_step(std::uint64_t serial) noexcept { step_ = serial; }
    /// The slot's unit is expected to be read in the next step.
    void guard(SlotId slot, std::uint64_t now)
    {
        Slot& s = slots_[index(raw(slot))];
        s.guard = step_ + 1;
        s.last_use = now;
        if (s.state == State::kResident && logical_refs_[index(s.unit)] == 0) { eviction_.on_access(slot, now); }
    }
    /// The unit came by prefetch; `take_prefetched` says so once, when it is first of use.
    void mark_prefetched(SlotId slot) noexcept { slots_[index(raw(slot))].prefetched = true; }
    bool take_prefetched(SlotId slot) noexcept { return std::exchange(slots_[index(raw(slot))].prefetched, false); }

    void pin(SlotId slot, std::uint64_t now)
    {
        Slot& s = slots_[index(raw(slot))];
        if (s.pins++ == 0 && s.state == State::kResident) { ++counts_.pinned; } // one in flight counts as pinned once it has landed
        s.last_use = now;
        if (s.state == State::kResident && logical_refs_[index(s.unit)] == 0) { eviction_.on_access(slot, now); }
        recount();
    }
    void unpin(SlotId slot)
    {
        Slot& s = slots_[index(raw(slot))];
        detail::expects(s.pins > 0, "slot table: unpin of slot ", raw(slot), " which is not pinned");
        if (--s.pins == 0 && s.state == State::kResident) { --counts_.pinned; }
        recount();
    }

    /// One more, or one fewer, logical set holds the unit, resident or not.
    void add_logical(std::int64_t unit)
    {
        if (logical_refs_[index(unit)]++ != 0) { return; }
        if (const SlotId slot = slot_of(unit); slot != SlotId::kNone && landed(slot)) { eviction_.on_erase(slot); }
    }
    void remove_logical(std::int64_t unit)
    {
        detail::expects(logical_refs_[index(unit)] > 0, "slot table: unit ", unit, " is in no logical set");
        if (--logical_refs_[index(unit)] != 0) { return; }
        if (const SlotId slot = slot_of(unit); slot != SlotId::kNone && landed(slot)) { eviction_.on_insert(slot, slots_[index(raw(slot))].last_use); }
    }
    std::int32_t logical_refs(std::int64_t unit) const noexcept { return logical_refs_[index(unit)]; }

    /// Grows or shrinks; evicts on the way down. Returns the capacity reached, above `target` when no more victims can be had.
    std::int64_t set_capacity(std::int64_t target)
    {
        target = std::min(target, units_);
        while (counts_.capacity < target) {
            if (retired_.empty()) {
                retired_.push_back(SlotId{static_cast<std::int32_t>(slots_.size())});
                slots_.emplace_back();
                eviction_.resize(slots_.size());
            }
            slots_[index(raw(retired_.back()))].retired = false;
            free_.push_back(retired_.back());
            retired_.pop_back();
            ++counts_.capacity;
        }
        while (counts_.capacity > target) {
            SlotId slot{};
            if (!free_.empty()) {
                slot = free_.back();
                free_.pop_back();
            } else if (const auto victim = take_victim(Victims::kAny); victim) {
                slot = *victim;
            } else {
                break;
            }
            retired_.push_back(slot);
            slots_[index(raw(slot))].retired = true;
            release_memory(slot);
            --counts_.capacity;
        }
        recount();
        return counts_.capacity;
    }

    const SlotCounts& counts() const noexcept { return counts_; }
    NoVictim no_victim() const
    {
        NoVictim why{.capacity = counts_.capacity, .pinned = counts_.pinned, .in_flight = counts_.in_flight, .logical = 0};
        for (const Slot& s : slots_) { why.logical += s.state == State::kResident && s.pins == 0 && logical_refs_[index(s.unit)] > 0; }
        return why;
    }

    /// Units evicted since the last call, for events.
    std::vector<std::int64_t> take_evicted() { return std::exchange(evicted_, {}); }
    void record_evictions(bool on) { record_ = on; }

    /// Recomputes everything from the slots and throws `Error` when the tables disagree: for tests.
    void check() const;

private:
    enum class State : std::uint8_t { kFree, kInFlight, kDraining, kResident };
    struct Slot {
        std::int64_t unit = -1;
        std::uint64_t last_use = 0;
        std::uint64_t guard = 0;    ///< last step in which the unit is expected to be read
        std::uint64_t acquired = 0; ///< step in which the unit got the slot
        std::uint32_t generation = 0;
        std::int32_t pins = 0;
        State state = State::kFree;
        bool prefetched = false;
        bool retired = false; ///< beyond the capacity
    };

    /// Gives a retired slot's pages back; those that it shares with neighbours when all of these are retired.
    void release_memory(SlotId slot) noexcept
    {
        const std::size_t unit = options_.unit_bytes;
        const std::size_t page = ReservedRange::page_bytes();
        const auto unused = [&](std::size_t from, std::size_t to) {
            for (std::size_t i = from / unit; i < std::min((to + unit - 1) / unit, slots_.size()); ++i) {
                if (!slots_[i].retired) { return false; }
            }
            return true;
        };
        std::size_t begin = index(raw(slot)) * unit;
        std::size_t end = begin + unit;
        if (const std::size_t first = begin / page * page; unused(first, begin)) { begin = first; }
        if (const std::size_t last = (end + page - 1) / page * page; unused(end, last)) { end = last; }
        memory_.release(begin, end - begin);
    }

    static std::size_t index(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

    std::optional<SlotId> take_victim(Victims victims)
    {
        const auto find = [this](bool guarded_too) {
            return eviction_.victim([this, guarded_too](SlotId slot) {
                const Slot& s = slots_[index(raw(slot))];
                return s.state == State::kResident && s.pins == 0 && logical_refs_[index(s.unit)] == 0 && (guarded_too || s.guard < step_);
            });
        };
        auto victim = find(false);
        if (!victim && victims == Victims::kAny) { victim = find(true); }
        if (!victim) { return std::nullopt; }
        eviction_.on_erase(*victim);
        if (record_) { evicted_.push_back(slots_[index(raw(*victim))].unit); }
        forget(*victim);
        return victim;
    }
    void forget(SlotId slot)
    {
        Slot& s = slots_[index(raw(slot))];
        slot_of_[index(s.unit)] = 0;
        s.unit = -1;
        s.pins = 0;
        s.prefetched = false;
        s.state = State::kFree;
        ++s.generation;
    }
    void empty(SlotId slot)
    {
        forget(slot);
        free_.push_back(slot);
        recount();
    }
    void recount() noexcept
    {
        counts_.free = static_cast<std::int64_t>(free_.size());
        counts_.resident = counts_.capacity - counts_.free - counts_.pinned - counts_.in_flight;
    }

    Options options_;
    std::int64_t units_;
    Eviction eviction_;
    ReservedRange memory_;
    ZeroedArray<std::int32_t> slot_of_;       ///< [layers, sets, blocks] slot + 1
    ZeroedArray<std::uint16_t> logical_refs_; ///< [layers, sets, blocks]
    std::vector<Slot> slots_;
    std::vector<SlotId> free_;
    std::vector<SlotId> retired_;
    std::vector<std::int64_t> evicted_;
    SlotCounts counts_;
    std::int64_t draining_ = 0;
    std::uint64_t step_ = 0;
    bool record_ = false;
};

template <EvictionPolicy Eviction>
void SlotTable<Eviction>::check() const
{
    SlotCounts seen{.capacity = counts_.capacity, .free = 0, .resident = 0, .pinned = 0, .in_flight = 0};
    std::vector<char> spare(slots_.size(), 0);
    for (const auto* list : {&free_, &retired_}) {
        for (const SlotId slot : *list) {
            if (spare[index(raw(slot))]++) { throw Error(detail::text("slot table: slot ", raw(slot), " is free twice")); }
        }
    }
    seen.free = static_cast<std::int64_t>(free_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& s = slots_[i];
        if ((s.state == State::kFree) != (spare[i] != 0)) { throw Error(detail::text("slot table: slot ", i, " is neither free nor owned")); }
        if (s.state == State::kFree) { continue; }
        if (s.state == State::kDraining) {
            ++seen.in_flight;
            continue;
        }
        if (slot_of_[index(s.unit)] != static_cast<std::int32_t>(i) + 1) { throw Error(detail::text("slot table: unit ", s.unit, " does not know its slot ", i)); }
        if (s.state == State::kInFlight) {
            ++seen.in_flight;
        } else if (s.pins > 0) {
            ++seen.pinned;
        } else {
            ++seen.resident;
        }
    }
    if (seen != counts_ || seen.free + seen.resident + seen.pinned + seen.in_flight != seen.capacity) {
        throw Error(detail::text("slot table: counted free ", seen.free, " resident ", seen.resident, " pinned ", seen.pinned, " in flight ", seen.in_flight,
                                 " of ", seen.capacity, ", booked ", counts_.free, " ", counts_.resident, " ", counts_.pinned, " ", counts_.in_flight));
    }
}

} // namespace oasis
