// SPDX-License-Identifier: Apache-2.0
//
// Logical residency: per (layer, set) of one sequence, the blocks that count as resident. A function of the scores alone: what spare
// memory, neighbours, caps or timing do never changes it. Rows are applied in order and can be undone in reverse.
#pragma once

#include <oasis/core/types.hpp>
#include <oasis/pool/memory.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace oasis {

/// One change of a logical set, to undo it. `block < 0`: the unit was filled for the first time in this row.
struct LogicalUndo {
    std::int32_t unit = 0; ///< layer * sets + set
    std::int32_t block = 0;
    std::int32_t old_stamp = 0;
};

/// Stamps are 1 + the position of the row that last read the block; 0: not in the set. Victims are the least recently read; of equal
/// stamps the higher block position goes first, as everywhere ties go to the lower position.
///
/// The observer `changed(unit, block, in)` hears every block that enters or leaves a set.
class LogicalSets {
public:
    LogicalSets() = default;
    LogicalSets(std::int32_t units, std::int32_t blocks) : blocks_(blocks), stamps_(std::size_t(units) * std::size_t(blocks)), units_(std::size_t(units)) {}

    bool contains(std::int32_t unit, std::int32_t block) const noexcept { return stamp(unit, block) != 0; }
    std::int32_t size(std::int32_t unit) const noexcept { return units_[std::size_t(unit)].count; }
    /// False until the sequence's first sparse row of this unit; before that the set is whatever the dense phase left resident.
    bool filled(std::int32_t unit) const noexcept { return units_[std::size_t(unit)].filled; }
    std::int32_t units() const noexcept { return static_cast<std::int32_t>(units_.size()); }

    /// Dense phase: the block may stay. No undo: the set is replaced at the first sparse row.
    template <class Changed>
    void insert_dense(std::int32_t unit, std::int32_t block, Changed&& changed)
    {
        if (contains(unit, block)) { return; }
        set(unit, block, 1, changed);
    }

    /// First sparse row: the set becomes `ranked` (block positions). Members that the row will read are stamped by `apply_row` afterwards.
    template <class Changed>
    void fill(std::int32_t unit, std::span<const std::int32_t> ranked, TokenIndex position, Changed&& changed, std::vector<LogicalUndo>& undo)
    {
        clear_unit(unit, changed);
        undo.push_back({unit, -1, 0});
        for (const std::int32_t block : ranked) { set(unit, block, static_cast<std::int32_t>(position), changed); }
        units_[std::size_t(unit)].filled = true;
    }

    /// One sparse row at `position` read `read` (ascending; must blocks enter the set if they are not in it). Then the set is cut to `capacity`.
    template <class Changed>
    void apply_row(std::int32_t unit, std::span<const std::int32_t> read, TokenIndex position, std::int32_t capacity, Changed&& changed,
                   std::vector<LogicalUndo>& undo)
    {
        const auto now = static_cast<std::int32_t>(position) + 1;
        for (const std::int32_t block : read) {
            undo.push_back({unit, block, stamp(unit, block)});
            set(unit, block, now, changed);
        }
        trim(unit, capacity, changed, undo);
    }

    /// Undoes one row's changes, the last first.
    template <class Changed>
    void undo_row(std::vector<LogicalUndo>& undo, Changed&& changed)
    {
        for (auto entry = undo.rbegin(); entry != undo.rend(); ++entry) {
            if (entry->block < 0) {
                clear_unit(entry->unit, changed);
            } else {
                set(entry->unit, entry->block, entry->old_stamp, changed);
            }
        }
        undo.clear();
    }

    /// Forgets block positions >= first.
    template <class Changed>
    void drop_from(std::int32_t first, Changed&& changed)
    {
        for (std::int32_t unit = 0; unit < units(); ++unit) {
            for (std::int32_t block = first; block < highest(unit); ++block) { set(unit, block, 0, changed); }
            units_[std::size_t(unit)].highest = std::min(highest(unit), first);
        }
    }

    /// Forgets block positions < first of one unit: a window has passed them.
    template <class Changed>
    void drop_below(std::int32_t unit, std::int32_t first, Changed&& changed)
    {
        Unit& u = units_[std::size_t(unit)];
        for (; u.lowest < std::min(first, u.highest); ++u.lowest) { set(unit, u.lowest, 0, changed); }
    }

    template <class Changed>
    void clear_unit(std::int32_t unit, Changed&& changed)
    {
        for (std::int32_t block = 0; block < highest(unit); ++block) { set(unit, block, 0, changed); }
        units_[std::size_t(unit)] = {};
    }

    /// A fork continues as its parent would.
    template <class Changed>
    void copy_from(const LogicalSets& other, Changed&& changed)
    {
        for (std::int32_t unit = 0; unit < other.units(); ++unit) {
            for (std::int32_t block = 0; block < other.highest(unit); ++block) { set(unit, block, other.stamp(unit, block), changed); }
            units_[std::size_t(unit)].filled = other.filled(unit);
        }
    }

    /// Everything about the sets, to make them again: 8 bytes a member.
    void save(std::vector<std::int32_t>& out) const
    {
        for (std::int32_t unit = 0; unit < units(); ++unit) {
            const Unit& u = units_[std::size_t(unit)];
            out.push_back(u.count);
            out.push_back(u.lowest);
            out.push_back(u.filled);
            for (std::int32_t block = 0; block < u.highest; ++block) {
                if (const std::int32_t s = stamp(unit, block); s != 0) { out.insert(out.end(), {block, s}); }
            }
        }
    }
    /// What `save` wrote, into sets that are empty. Returns how much of `in` it took.
    template <class Changed>
    std::size_t restore(std::span<const std::int32_t> in, Changed&& changed)
    {
        std::size_t at = 0;
        for (std::int32_t unit = 0; unit < units(); ++unit) {
            const std::int32_t count = in[at];
            const std::int32_t lowest = in[at + 1];
            const bool filled = in[at + 2] != 0;
            at += 3;
            for (std::int32_t i = 0; i < count; ++i, at += 2) { set(unit, in[at], in[at + 1], changed); }
            units_[std::size_t(unit)].lowest = lowest;
            units_[std::size_t(unit)].filled = filled;
        }
        return at;
    }

private:
    struct Unit {
        std::int32_t count = 0;
        std::int32_t lowest = 0;  ///< members lie here or above
        std::int32_t highest = 0; ///< members lie below
        bool filled = false;
    };

    std::int32_t stamp(std::int32_t unit, std::int32_t block) const noexcept
    {
        return stamps_[std::size_t(unit) * std::size_t(blocks_) + std::size_t(block)];
    }
    std::int32_t highest(std::int32_t unit) const noexcept { return units_[std::size_t(unit)].highest; }

    template <class Changed>
    void set(std::int32_t unit, std::int32_t block, std::int32_t stamp, Changed&& changed)
    {
        std::int32_t& old = stamps_[std::size_t(unit) * std::size_t(blocks_) + std::size_t(block)];
        Unit& u = units_[std::size_t(unit)];
        if (old == 0 && stamp != 0) {
            ++u.count;
            u.lowest = std::min(u.lowest, block);
            u.highest = std::max(u.highest, block + 1);
            changed(unit, block, true);
        } else if (old != 0 && stamp == 0) {
            --u.count;
            changed(unit, block, false);
        }
        old = stamp;
    }

    template <class Changed>
    void trim(std::int32_t unit, std::int32_t capacity, Changed&& changed, std::vector<LogicalUndo>& undo)
    {
        std::int32_t excess = size(unit) - capacity;
        if (excess <= 0) { return; }
        victims_.clear();
        for (std::int32_t block = 0; block < highest(unit); ++block) {
            if (const std::int32_t s = stamp(unit, block); s != 0) { victims_.push_back((std::int64_t{s} << 32) | std::uint32_t(INT32_MAX - block)); }
        }
        std::nth_element(victims_.begin(), victims_.begin() + (excess - 1), victims_.end());
        for (std::int32_t i = 0; i < excess; ++i) {
            const auto block = static_cast<std::int32_t>(INT32_MAX - static_cast<std::int32_t>(victims_[std::size_t(i)] & 0x7FFFFFFF));
            undo.push_back({unit, block, stamp(unit, block)});
            set(unit, block, 0, changed);
        }
    }

    std::int32_t blocks_ = 0;
    ZeroedArray<std::int32_t> stamps_; ///< [units, blocks]
    std::vector<Unit> units_;
    std::vector<std::int64_t> victims_; ///< scratch: stamp in the high half, position reversed in the low
};

} // namespace oasis
