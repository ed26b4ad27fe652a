// SPDX-License-Identifier: Apache-2.0
//
// Summary groups: reference counted like blocks. The native form lives while some sequence reads it; the coded form is made once.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/pool/memory.hpp>
#include <oasis/pool/sequence.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace oasis {

class GroupPool {
public:
    struct Group {
        std::int32_t refs = 0;
        std::int32_t native_refs = 0;
        std::byte* native = nullptr;  ///< [layers, kv_heads] native group cells, summaries of the native keys
        std::byte* sealed = nullptr;  ///< the same of the coded keys, when the block code is not native: what the coded form is made from
        std::byte* coded = nullptr;   ///< [layers, kv_heads] coded group cells
        bool closed = false;          ///< `coded` is complete
        BlockId last_block = BlockId::kNone; ///< of the sequence that closed it: names all the tokens up to the group's end
    };

    GroupPool(std::size_t native_cell_bytes, std::size_t coded_cell_bytes, bool stage_sealed)
        : native_(native_cell_bytes), coded_(coded_cell_bytes), stage_sealed_(stage_sealed)
    {
    }

    GroupPool(const GroupPool&) = delete;
    GroupPool& operator=(const GroupPool&) = delete;
    ~GroupPool()
    {
        for (Group& group : groups_) {
            drop_native(group);
            if (group.coded) { coded_.give(group.coded); }
        }
    }

    Group& operator[](GroupId id) noexcept { return groups_[static_cast<std::size_t>(raw(id))]; }
    const Group& operator[](GroupId id) const noexcept { return groups_[static_cast<std::size_t>(raw(id))]; }

    /// A new open group, held once; in native form unless it is only to be coded.
    GroupId allocate(bool native = true)
    {
        if (free_.empty()) {
            if (free_.capacity() <= groups_.size()) { free_.reserve(2 * groups_.size() + 16); } // so that `release` never allocates
            groups_.emplace_back();
            free_.push_back(GroupId{static_cast<std::int32_t>(groups_.size() - 1)});
        }
        const GroupId id = free_.back();
        Group group{.refs = 1, .native_refs = 0, .native = nullptr, .sealed = nullptr, .coded = coded_.take(), .closed = false, .last_block = BlockId::kNone};
        try {
            if (native) { take_native(group); }
        } catch (...) {
            coded_.give(group.coded);
            throw;
        }
        free_.pop_back();
        (*this)[id] = group;
        return id;
    }
    void retain(GroupId id) { ++(*this)[id].refs; }
    void release(GroupId id)
    {
        Group& group = (*this)[id];
        detail::expects(group.refs > 0, "group pool: release of group ", raw(id), " which nobody holds");
        if (--group.refs > 0) { return; }
        drop_native(group);
        coded_.give(std::exchange(group.coded, nullptr));
        group.native_refs = 0;
        group.closed = false;
        free_.push_back(id);
    }
    void retain_native(GroupId id)
    {
        Group& group = (*this)[id];
        if (group.native_refs > 0) {
            ++group.native_refs;
        } else {
            take_native(group);
        }
    }
    void release_native(GroupId id)
    {
        Group& group = (*this)[id];
        detail::expects(group.native_refs > 0, "group pool: group ", raw(id), " has no native form to release");
        if (--group.native_refs == 0) { drop_native(group); }
    }

    void copy_native(GroupId from, GroupId to)
    {
        std::memcpy((*this)[to].native, (*this)[from].native, native_.cell_bytes());
        if (stage_sealed_) { std::memcpy((*this)[to].sealed, (*this)[from].sealed, native_.cell_bytes()); }
    }

    /// Whether a group id remembered by a block still is the closed group that ends with it.
    bool shareable(std::int32_t id, BlockId last) const noexcept
    {
        return id >= 0 && groups_[std::size_t(id)].refs > 0 && groups_[std::size_t(id)].closed && groups_[std::size_t(id)].last_block == last;
    }

    /// Gives unused cells back to the system, but for so many bytes in native form; returns how many it kept.
    std::size_t trim(std::size_t keep_native) noexcept
    {
        coded_.trim();
        return native_.trim(keep_native);
    }
    std::size_t native_bytes() const noexcept { return native_.bytes_in_use(); }
    std::size_t coded_bytes() const noexcept { return coded_.bytes_in_use(); }
    std::size_t bytes_per_group() const noexcept { return native_.cell_bytes() * (stage_sealed_ ? 2 : 1) + coded_.cell_bytes(); }
    std::size_t native_bytes_per_group() const noexcept { return native_.cell_bytes() * (stage_sealed_ ? 2 : 1); }
    std::size_t coded_bytes_per_group() const noexcept { return coded_.cell_bytes(); }
    std::int64_t live() const noexcept { return static_cast<std::int64_t>(groups_.size() - free_.size()); }

private:
    void take_native(Group& group)
    {
        group.native = native_.take();
        if (stage_sealed_) {
            try {
                group.sealed = native_.take();
            } catch (...) {
                native_.give(std::exchange(group.native, nullptr));
                throw;
            }
        }
        group.native_refs = 1;
    }
    void drop_native(Group& group)
    {
        if (group.native) { native_.give(std::exchange(group.native, nullptr)); }
        if (group.sealed) { native_.give(std::exchange(group.sealed, nullptr)); }
    }

    CellPool native_;
    CellPool coded_;
    bool stage_sealed_;
    std::vector<Group> groups_;
    std::vector<GroupId> free_;
};

} // namespace oasis
