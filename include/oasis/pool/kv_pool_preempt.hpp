// SPDX-License-Identifier: Apache-2.0
//
// KVPool: sequences leave fast memory and come back without being computed again. Included by kv_pool.hpp.
#pragma once

#include <oasis/pool/kv_pool.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

namespace oasis {

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
template <class Cell>
void KVPool<Eviction, Store, Hasher>::for_each_cell(const Sequence& sequence, const Preempted& saved, Cell&& cell)
{
    for (auto j = std::size_t(saved.native_begin); j < sequence.blocks.size(); ++j) { cell(blocks_[sequence.blocks[j]].native, shape_.native_cell_bytes); }
    const std::size_t native_bytes = shape_.summary.native_bytes() * heads();
    for (std::size_t g = 0; g < sequence.groups.size(); ++g) {
        const auto& group = groups_[sequence.groups[g]];
        if (saved.groups[g].freed && saved.groups[g].closed) { cell(group.coded, groups_.coded_bytes_per_group()); }
        if (g < std::size_t(saved.native_group_begin)) { continue; }
        cell(group.native, native_bytes);
        if (shape_.config.block_code != BlockCode::kNative) { cell(group.sealed, native_bytes); }
    }
}

/// Blocks of the slow tier that hold `bytes`, unit by unit.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
std::optional<Full> KVPool<Eviction, Store, Hasher>::try_save(SequenceId id, const std::vector<std::byte>& bytes, std::vector<BlockId>& blocks)
{
    const std::size_t per_block = shape_.slow_block_bytes();
    const auto count = static_cast<std::int64_t>((bytes.size() + per_block - 1) / per_block);
    for (std::int64_t i = 0; i < count; ++i) {
        const auto block = blocks_.try_allocate(drop_slots(), false);
        if (!block) {
            drop_saved(blocks);
            return Full{Tier::kSlow, std::size_t(count) * per_block, std::size_t(i) * per_block};
        }
        blocks.push_back(*block);
    }
    std::vector<std::byte> piece(shape_.unit_bytes);
    for (std::size_t unit = 0; unit * shape_.unit_bytes < bytes.size(); ++unit) {
        const std::size_t from = unit * shape_.unit_bytes;
        std::memcpy(piece.data(), bytes.data() + from, std::min(shape_.unit_bytes, bytes.size() - from));
        const StorePiece place = saved_piece(blocks, unit, piece.data());
        if (blocks_.store().write(place)) { continue; }
        drop_saved(blocks);
        throw StoreError(detail::text("slow tier: write of ", shape_.unit_bytes, " bytes of preempted sequence ", raw(id), " (block ", raw(place.block), " layer ", place.layer, " set ",
                                      place.set, ") failed"));
    }
    return std::nullopt;
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
std::optional<Full> KVPool<Eviction, Store, Hasher>::try_preempt(Sequence& sequence)
{
    Preempted saved;
    saved.native_begin = sequence.native_begin;
    saved.native_group_begin = sequence.native_group_begin;
    for (const GroupId id : sequence.groups) { saved.groups.push_back({groups_[id].refs == 1, groups_[id].closed, groups_[id].last_block}); }
    std::vector<std::int32_t> logical;
    sequence.logical.save(logical);
    saved.logical_words = logical.size();
    std::vector<std::byte> bytes(logical.size() * sizeof(std::int32_t));
    std::memcpy(bytes.data(), logical.data(), bytes.size());
    for_each_cell(sequence, saved, [&](const std::byte* cell, std::size_t size) { bytes.insert(bytes.end(), cell, cell + size); });
    saved.bytes = bytes.size();
    if (const auto full = try_save(sequence.id, bytes, saved.blocks); full) { return full; }

    for (std::int32_t unit = 0; unit < shape_.units(); ++unit) { sequence.logical.clear_unit(unit, logical_observer(sequence)); }
    sequence.logical = LogicalSets();
    for (auto j = std::size_t(saved.native_begin); j < sequence.blocks.size(); ++j) { blocks_.release_native(sequence.blocks[j]); }
    for (std::size_t g = 0; g < sequence.groups.size(); ++g) {
        if (saved.groups[g].freed) {
            groups_.release(std::exchange(sequence.groups[g], GroupId::kNone));
        } else if (g >= std::size_t(saved.native_group_begin)) {
            groups_.release_native(sequence.groups[g]);
        }
    }
    sequence.native_begin = static_cast<std::int32_t>(sequence.blocks.size());
    sequence.native_group_begin = static_cast<std::int32_t>(sequence.groups.size());
    sequence.preempted = std::move(saved);
    reserved_slots_ -= sequence.reserved_slots;
    ++preempted_;
    make_room(0, 0, 0, 0);
    return std::nullopt;
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
std::optional<Full> KVPool<Eviction, Store, Hasher>::try_resume(Sequence& sequence)
{
    const Preempted& saved = *sequence.preempted;
    if (active() >= shape_.config.limits.max_sequences) { return Full{Tier::kFast, fast_per_sequence(sequence.reserved_slots), 0}; }
    const auto freed = static_cast<std::size_t>(std::count_if(saved.groups.begin(), saved.groups.end(), [](const auto& g) { return g.freed; }));
    const std::size_t native = (sequence.blocks.size() - std::size_t(saved.native_begin)) * shape_.native_cell_bytes +
                               (sequence.groups.size() - std::size_t(saved.native_group_begin)) * groups_.native_bytes_per_group();
    if (const auto full = make_room(1, sequence.reserved_slots, native, freed * groups_.coded_bytes_per_group()); full) { return full; }
    std::vector<std::byte> bytes((saved.bytes + shape_.unit_bytes - 1) / shape_.unit_bytes * shape_.unit_bytes);
    for (std::size_t unit = 0; unit * shape_.unit_bytes < bytes.size(); ++unit) {
        const StorePiece place = saved_piece(saved.blocks, unit, bytes.data() + unit * shape_.unit_bytes);
        if (blocks_.store().read(place)) { continue; }
        make_room(0, 0, 0, 0);
        throw StoreError(detail::text("slow tier: read of ", shape_.unit_bytes, " bytes of preempted sequence ", raw(sequence.id), " (block ", raw(place.block), " layer ",
                                      place.layer, " set ", place.set, ") failed"));
    }
    restore(sequence, bytes);
    return std::nullopt;
}

/// The sequence's forms from what `try_preempt` saved; a form that another sequence kept is shared again.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::restore(Sequence& sequence, const std::vector<std::byte>& bytes)
{
    const Preempted saved = std::move(*sequence.preempted);
    sequence.preempted.reset();
    for (auto j = std::size_t(saved.native_begin); j < sequence.blocks.size(); ++j) { blocks_.retain_native(sequence.blocks[j]); }
    std::vector<const std::byte*> kept; // summaries of coded keys that another sequence went on with
    for (std::size_t g = 0; g < sequence.groups.size(); ++g) {
        const bool native = g >= std::size_t(saved.native_group_begin);
        if (saved.groups[g].freed) {
            sequence.groups[g] = groups_.allocate(native);
        } else if (native) {
            if (groups_[sequence.groups[g]].sealed) { kept.push_back(groups_[sequence.groups[g]].sealed); }
            groups_.retain_native(sequence.groups[g]);
        }
    }
    const std::byte* from = bytes.data() + saved.logical_words * sizeof(std::int32_t);
    for_each_cell(sequence, saved, [&](std::byte* cell, std::size_t size) {
        // What is shared again gets the bytes it has.
        if (size > 0 && std::find(kept.begin(), kept.end(), cell) == kept.end()) { std::memcpy(cell, from, size); }
        from += size;
    });
    for (std::size_t g = 0; g < sequence.groups.size(); ++g) {
        if (!saved.groups[g].freed || !saved.groups[g].closed) { continue; }
        auto& group = groups_[sequence.groups[g]];
        group.closed = true;
        group.last_block = saved.groups[g].last_block;
        blocks_[group.last_block].group = raw(sequence.groups[g]);
    }
    sequence.native_begin = saved.native_begin;
    sequence.native_group_begin = saved.native_group_begin;
    std::vector<std::int32_t> logical(saved.logical_words);
    std::memcpy(logical.data(), bytes.data(), logical.size() * sizeof(std::int32_t));
    sequence.logical = LogicalSets(shape_.units(), shape_.blocks_per_sequence + 1);
    sequence.logical.restore(logical, logical_observer(sequence));
    reserved_slots_ += sequence.reserved_slots;
    --preempted_;
    drop_saved(saved.blocks);
    const auto keys = static_cast<std::int32_t>(sequence.keys.size());
    for (std::int32_t j = saved.native_begin; j < keys; ++j) { index_block(sequence, std::size_t(j)); }
}

} // namespace oasis
