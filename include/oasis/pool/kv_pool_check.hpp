// SPDX-License-Identifier: Apache-2.0
//
// KVPool: books against tables, for tests. Included by kv_pool.hpp.
#pragma once

#include <oasis/pool/kv_pool.hpp>

#include <utility>

namespace oasis {

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::check()
{
    slots_.check();
    check_blocks();
    check_groups();
    std::unordered_map<std::int64_t, std::int32_t> logical;
    for_each_sequence([&](const Sequence& s) {
        for (std::int32_t unit = 0; unit < s.logical.units(); ++unit) {
            std::int32_t count = 0;
            for (std::size_t j = 0; j < s.blocks.size(); ++j) {
                const bool in = s.logical.contains(unit, static_cast<std::int32_t>(j));
                logical[std::int64_t{unit} * shape_.blocks + raw(s.blocks[j])] += in;
                count += in;
            }
            if (count != s.logical.size(unit)) {
                throw Error(detail::text("pool: the logical set ", unit, " of sequence ", raw(s.id), " has ", count, " blocks, booked ", s.logical.size(unit)));
            }
        }
    });
    std::int64_t total = 0;
    for (const auto& [unit, count] : logical) {
        total += count;
        if (slots_.logical_refs(unit) != count) { throw Error(detail::text("pool: unit ", unit, " is in ", count, " logical sets, booked ", slots_.logical_refs(unit))); }
    }
    const std::size_t draining = std::size_t(slots_.draining()) * shape_.unit_bytes; // beyond the budget until they are over
    if (total > reserved_slots_ || (shape_.config.fast_bytes != 0 && fast_bytes_in_use() > shape_.config.fast_bytes + draining)) {
        throw Error(detail::text("pool: logical sets hold ", total, " units of ", reserved_slots_, " reserved, fast memory ", fast_bytes_in_use(), " of ",
                                 shape_.config.fast_bytes, " bytes"));
    }
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::check_blocks()
{
    std::vector<std::int32_t> refs(std::size_t(shape_.blocks));
    std::vector<std::int32_t> native(std::size_t(shape_.blocks));
    for_each_sequence([&](const Sequence& s) {
        if (s.preempted) {
            for (const BlockId block : s.preempted->blocks) { ++refs[std::size_t(raw(block))]; }
        }
        for (std::size_t j = 0; j < s.blocks.size(); ++j) {
            ++refs[std::size_t(raw(s.blocks[j]))];
            native[std::size_t(raw(s.blocks[j]))] += static_cast<std::int32_t>(j) >= s.native_begin;
            if (static_cast<std::int32_t>(j) < (s.preempted ? s.preempted->native_begin : s.native_begin) && !blocks_[s.blocks[j]].sealed) {
                throw Error(detail::text("pool: sequence ", raw(s.id), " reads block ", j, " coded, but it is not sealed"));
            }
        }
    });
    std::vector<char> spare(refs.size());
    for (const BlockId id : blocks_.free_ids()) {
        if (refs[std::size_t(raw(id))] > 0 || blocks_[id].cached || spare[std::size_t(raw(id))]++ > 0) {
            throw Error(detail::text("pool: block ", raw(id), " is free twice, or held"));
        }
    }
    if (std::ssize(blocks_.free_ids()) + blocks_.live() + blocks_.cached() + blocks_.leaving() != shape_.blocks) {
        throw Error(detail::text("pool: ", blocks_.free_ids().size(), " blocks are free, ", blocks_.live(), " live, ", blocks_.cached(), " cached and ",
                                 blocks_.leaving(), " leaving of ", shape_.blocks));
    }
    std::size_t cells = 0;
    std::int64_t live = 0;
    for (std::size_t i = 0; i < refs.size(); ++i) {
        const auto& block = blocks_[BlockId{static_cast<std::int32_t>(i)}];
        cells += block.native != nullptr;
        live += refs[i] > 0;
        const bool has_cell = native[i] > 0;
        if (refs[i] != (block.cached ? 0 : block.refs) || native[i] != (refs[i] > 0 ? block.native_refs : 0) || has_cell != (block.native != nullptr)) {
            throw Error(detail::text("pool: block ", i, " is held ", refs[i], " times (native ", native[i], "), booked ", block.refs, " (native ", block.native_refs,
                                     ", cell ", block.native != nullptr, ")"));
        }
    }
    const std::size_t slow = std::size_t(live + blocks_.cached() + blocks_.leaving()) * shape_.slow_block_bytes();
    if (cells != blocks_.native().in_use() || live != blocks_.live() || slow != blocks_.store().bytes_used()) {
        throw Error(detail::text("pool: ", cells, " native cells of ", live, " live and ", blocks_.cached(), " cached blocks, booked ", blocks_.native().in_use(), " of ",
                                 blocks_.live(), "; the slow tier holds ", blocks_.store().bytes_used(), " bytes, expected ", slow));
    }
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::check_groups()
{
    std::unordered_map<std::int32_t, std::pair<std::int32_t, std::int32_t>> seen; // group: held, held in native form
    for_each_sequence([&](const Sequence& s) {
        if (std::int64_t{shape_.blocks_of(s.length)} > std::ssize(s.blocks) || std::int64_t{shape_.groups_of(s.length)} > std::ssize(s.groups)) {
            throw Error(detail::text("pool: sequence ", raw(s.id), " of ", s.length, " tokens has ", s.blocks.size(), " blocks and ", s.groups.size(), " groups"));
        }
        for (std::size_t g = 0; g < s.groups.size(); ++g) {
            if (s.groups[g] == GroupId::kNone && s.preempted) { continue; }
            auto& [held, native] = seen[raw(s.groups[g])];
            ++held;
            native += static_cast<std::int32_t>(g) >= s.native_group_begin;
            if (static_cast<std::int32_t>(g) < (s.preempted ? s.preempted->native_group_begin : s.native_group_begin) && shape_.summary.planes > 0 && !groups_[s.groups[g]].closed) {
                throw Error(detail::text("pool: sequence ", raw(s.id), " reads group ", g, " coded, but it is not closed"));
            }
        }
    });
    std::size_t natives = 0;
    for (const auto& [id, counts] : seen) {
        const auto& group = groups_[GroupId{id}];
        natives += counts.second > 0;
        if (group.refs != counts.first || group.native_refs != counts.second || (group.native != nullptr) != (counts.second > 0) || !group.coded) {
            throw Error(detail::text("pool: group ", id, " is held ", counts.first, " times (native ", counts.second, "), booked ", group.refs, " (native ",
                                     group.native_refs, ")"));
        }
    }
    if (groups_.live() != std::ssize(seen) || groups_.native_bytes() != natives * groups_.native_bytes_per_group() ||
        groups_.coded_bytes() != seen.size() * groups_.coded_bytes_per_group()) {
        throw Error(detail::text("pool: ", seen.size(), " groups, ", natives, " of them native, booked ", groups_.live(), " with ", groups_.native_bytes(), " and ",
                                 groups_.coded_bytes(), " bytes"));
    }
}

} // namespace oasis
