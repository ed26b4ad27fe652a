// SPDX-License-Identifier: Apache-2.0
//
// KVPool: how sequences grow, shrink, fork and share. Included by kv_pool.hpp.
#pragma once

#include <oasis/pool/kv_pool.hpp>

#include <algorithm>
#include <cstring>

namespace oasis {

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
std::optional<Full> KVPool<Eviction, Store, Hasher>::try_grow(Sequence& sequence, TokenIndex tokens)
{
    const auto have_blocks = static_cast<std::int32_t>(sequence.blocks.size());
    const auto have_groups = static_cast<std::int32_t>(sequence.groups.size());
    const std::int32_t more_blocks = std::max(0, shape_.blocks_of(tokens) - have_blocks);
    const std::int32_t more_groups = std::max(0, shape_.groups_of(tokens) - have_groups);
    if (more_blocks == 0 && more_groups == 0) { return std::nullopt; }
    if (blocks_.available() < more_blocks) {
        return Full{Tier::kSlow, std::size_t(more_blocks) * shape_.slow_block_bytes(), std::size_t(blocks_.available()) * shape_.slow_block_bytes()};
    }
    const std::size_t native = std::size_t(more_blocks) * shape_.native_cell_bytes + std::size_t(more_groups) * groups_.native_bytes_per_group();
    if (const auto full = make_room(0, 0, native, std::size_t(more_groups) * groups_.coded_bytes_per_group()); full) { return full; }
    const auto ready = [](auto& list, std::int32_t more) { // what is allocated below must not be lost to a full list
        const std::size_t size = list.size() + std::size_t(more);
        if (list.capacity() < size) { list.reserve(std::max(size, 2 * list.capacity())); }
    };
    ready(sequence.blocks, more_blocks);
    ready(sequence.groups, more_groups);
    const TokenIndex before = std::int64_t{have_blocks} * shape_.config.block_tokens;
    try {
        for (std::int32_t i = 0; i < more_blocks; ++i) {
            const auto block = blocks_.try_allocate(drop_slots());
            if (!block) {
                shrink(sequence, before);
                return Full{Tier::kSlow, std::size_t(more_blocks) * shape_.slow_block_bytes(), std::size_t(i) * shape_.slow_block_bytes()};
            }
            sequence.blocks.push_back(*block);
        }
        for (std::int32_t i = 0; i < more_groups; ++i) { sequence.groups.push_back(groups_.allocate()); }
    } catch (...) {
        shrink(sequence, before);
        throw;
    }
    return std::nullopt;
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::shrink(Sequence& sequence, TokenIndex tokens)
{
    const std::int32_t keep = shape_.blocks_of(tokens);
    const std::int32_t keep_groups = shape_.groups_of(tokens);
    if (std::size_t(keep) < sequence.blocks.size()) { sequence.logical.drop_from(keep, logical_observer(sequence)); }
    while (sequence.blocks.size() > std::size_t(keep)) {
        const BlockId block = sequence.blocks.back();
        if (static_cast<std::int32_t>(sequence.blocks.size()) > sequence.native_begin) { blocks_.release_native(block); }
        sequence.blocks.pop_back();
        blocks_.release(block, drop_slots());
    }
    while (sequence.groups.size() > std::size_t(keep_groups)) {
        const GroupId group = sequence.groups.back();
        if (static_cast<std::int32_t>(sequence.groups.size()) > sequence.native_group_begin) { groups_.release_native(group); }
        sequence.groups.pop_back();
        if (group != GroupId::kNone) { groups_.release(group); } // saved with a preempted sequence
    }
    sequence.native_begin = std::min(sequence.native_begin, keep);
    sequence.native_group_begin = std::min(sequence.native_group_begin, keep_groups);
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::advance(Sequence& sequence)
{
    const std::int32_t first = std::min(shape_.first_native_block(sequence.length), static_cast<std::int32_t>(sequence.blocks.size()));
    for (; sequence.native_begin < first; ++sequence.native_begin) { blocks_.release_native(sequence.blocks[std::size_t(sequence.native_begin)]); }
    const std::int32_t first_group = std::min(shape_.first_native_group(sequence.length), static_cast<std::int32_t>(sequence.groups.size()));
    for (; sequence.native_group_begin < first_group; ++sequence.native_group_begin) {
        groups_.release_native(sequence.groups[std::size_t(sequence.native_group_begin)]);
    }
}

/// Extends the native windows down to the given positions.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::hold_native(Sequence& sequence, std::int32_t first_block, std::int32_t first_group, Reopened& reopened)
{
    while (sequence.native_begin > first_block) {
        const BlockId block = sequence.blocks[std::size_t(--sequence.native_begin)];
        const bool decode = blocks_[block].native == nullptr;
        blocks_.retain_native(block);
        if (decode) { reopened.blocks.push_back({block, blocks_[block].native}); }
    }
    while (sequence.native_group_begin > first_group) {
        const GroupId group = sequence.groups[std::size_t(--sequence.native_group_begin)];
        if (groups_[group].native == nullptr) { reopened.groups.push_back(sequence.native_group_begin); }
        groups_.retain_native(group);
    }
}

/// The last block is to be written to: a sealed or shared one becomes the sequence's own, native one.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::own_last_block(Sequence& sequence, std::optional<BlockId> own, Reopened& reopened)
{
    const BlockId old = sequence.blocks.back();
    sequence.logical.drop_from(static_cast<std::int32_t>(sequence.blocks.size()) - 1, logical_observer(sequence)); // whoever shares it
    if (!blocks_[old].sealed && blocks_[old].refs == 1) { // as open as ever, but no longer the tokens it is found by
        blocks_.index().erase(old);
        return;
    }
    if (blocks_[old].refs == 1) { // sealed, and nobody else's: open it again in place; the slow bytes stay readable until it is sealed anew
        blocks_.unseal(old, drop_slots());
        return;
    }
    if (!own) { own = blocks_.try_allocate(drop_slots()); } // the cut has freed one
    if (!own) { throw Error(detail::text("slow tier: full, no block to copy shared block ", raw(old), " of sequence ", raw(sequence.id), " to")); }
    const auto decode = std::find_if(reopened.blocks.begin(), reopened.blocks.end(), [&](const auto& d) { return d.from == old; });
    if (decode != reopened.blocks.end()) {
        decode->to = blocks_[*own].native;
    } else {
        std::memcpy(blocks_[*own].native, blocks_[old].native, shape_.native_cell_bytes);
    }
    blocks_.release_native(old);
    sequence.blocks.back() = *own;
    blocks_.release(old, drop_slots());
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::own_last_group(Sequence& sequence, Reopened& reopened)
{
    const auto position = static_cast<std::int32_t>(sequence.groups.size()) - 1;
    const GroupId old = sequence.groups.back();
    if (!groups_[old].closed && groups_[old].refs == 1) { return; }
    if (groups_[old].refs == 1) {
        groups_[old].closed = false;
        return;
    }
    const GroupId own = groups_.allocate();
    if (std::find(reopened.groups.begin(), reopened.groups.end(), position) == reopened.groups.end()) { groups_.copy_native(old, own); }
    groups_.release_native(old);
    groups_.release(old);
    sequence.groups.back() = own;
}

/// A truncation inside a shared block needs a block for the copy. Returns it, or none where none is needed or the truncation itself
/// frees one; throws, with nothing changed, where there is none to be had.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
std::optional<BlockId> KVPool<Eviction, Store, Hasher>::take_block_for_copy(const Sequence& sequence, TokenIndex length)
{
    const auto keep = std::size_t(shape_.blocks_of(length));
    if (length % shape_.config.block_tokens == 0 || blocks_[sequence.blocks[keep - 1]].refs == 1) { return std::nullopt; }
    if (const auto own = blocks_.try_allocate(drop_slots()); own) { return own; }
    const bool frees = std::any_of(sequence.blocks.begin() + static_cast<std::ptrdiff_t>(keep), sequence.blocks.end(),
                                   [&](BlockId block) { return blocks_[block].refs == 1 && blocks_[block].transfers == 0; });
    if (!frees) {
        throw Error(detail::text("truncate: slow tier: full, no block (", shape_.slow_block_bytes(), " bytes) to copy shared block ",
                                 raw(sequence.blocks[keep - 1]), " of sequence ", raw(sequence.id), " to; remove a sequence or truncate to ",
                                 std::int64_t(keep - 1) * shape_.config.block_tokens, " tokens"));
    }
    return std::nullopt;
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::truncate(Sequence& sequence, TokenIndex length, Reopened& reopened)
{
    const std::optional<BlockId> copy = take_block_for_copy(sequence, length);
    shrink(sequence, length);
    sequence.length = length;
    hold_native(sequence, shape_.first_native_block(length), shape_.first_native_group(length), reopened);
    if (length % shape_.config.block_tokens != 0) { own_last_block(sequence, copy, reopened); }
    if (length % shape_.group_tokens() != 0) { own_last_group(sequence, reopened); }
    if (sequence.tokens.size() > std::size_t(length)) { sequence.tokens.resize(std::size_t(length)); }
    sequence.keys.resize(std::min<std::size_t>(sequence.keys.size(), std::size_t(length / shape_.config.block_tokens)));
    if (sequence.first_lost && *sequence.first_lost >= length) { sequence.first_lost.reset(); }
    if (length <= sequence.dense_below) { // dense rows follow: what was chosen sparsely is chosen anew later
        for (std::int32_t unit = 0; unit < shape_.units(); ++unit) {
            if (sequence.logical.filled(unit)) { sequence.logical.clear_unit(unit, logical_observer(sequence)); }
        }
    }
    make_room(0, 0, 0, 0);
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
TokenIndex KVPool<Eviction, Store, Hasher>::share_prefix(Sequence& sequence, std::span<const TokenId> prompt, Reopened& reopened)
{
    const auto block_tokens = std::size_t(shape_.config.block_tokens);
    const std::size_t most = prompt.empty() ? 0 : (prompt.size() - 1) / block_tokens;
    BlockId parent = BlockId::kNone;
    Hash128 chain{};
    while (sequence.blocks.size() < most) {
        const auto tokens = prompt.subspan(sequence.blocks.size() * block_tokens, block_tokens);
        chain = blocks_.index().key(chain, tokens, sequence.salt);
        const auto found = blocks_.index().find(chain, parent, tokens, sequence.salt);
        if (!found) { break; }
        parent = *found;
        blocks_.retain(parent);
        sequence.blocks.push_back(parent);
        sequence.keys.push_back(chain);
    }
    // Blocks of several donors: one that is not sealed yet must lie in the new sequence's own window, or nobody would seal it for it.
    const auto unsealed = std::find_if(sequence.blocks.begin(), sequence.blocks.end(), [&](BlockId block) { return !blocks_[block].sealed; });
    const auto first_unsealed = static_cast<std::int32_t>(unsealed - sequence.blocks.begin());
    auto shared = static_cast<std::int32_t>(sequence.blocks.size());
    while (shared > first_unsealed && shape_.first_native_block(std::int64_t{shared} * shape_.config.block_tokens) > first_unsealed) { --shared; }
    if (make_room(0, 0, std::size_t(shape_.groups_of(shape_.config.budgets.recent) + 2) * groups_.native_bytes_per_group(),
                  std::size_t(shape_.groups_of(std::int64_t{shared} * shape_.config.block_tokens)) * groups_.coded_bytes_per_group())) {
        shared = 0; // no fast memory for the summaries: everything is computed anew
    }
    while (sequence.blocks.size() > std::size_t(shared)) {
        blocks_.release(sequence.blocks.back(), drop_slots());
        sequence.blocks.pop_back();
        sequence.keys.pop_back();
    }
    sequence.length = std::int64_t{shared} * shape_.config.block_tokens;
    sequence.tokens.assign(prompt.begin(), prompt.begin() + sequence.length);
    sequence.native_begin = shared;
    share_groups(sequence, reopened);
    hold_native(sequence, std::min(shared, shape_.first_native_block(sequence.length)), sequence.native_group_begin, reopened);
    return sequence.length;
}

/// A closed group is shared whole when all its blocks are. Others are rebuilt from the keys, and coded again where the next row reads them so.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::share_groups(Sequence& sequence, Reopened& reopened)
{
    const std::int32_t count = shape_.groups_of(sequence.length);
    const std::int32_t first_native = std::min(count, shape_.first_native_group(sequence.length));
    for (std::int32_t g = 0; g < count; ++g) {
        const std::size_t last = std::size_t(g + 1) * std::size_t(shape_.group_blocks) - 1;
        const BlockId last_block = last < sequence.blocks.size() ? sequence.blocks[last] : BlockId::kNone;
        const std::int32_t made = last_block == BlockId::kNone ? -1 : blocks_[last_block].group;
        if (groups_.shareable(made, last_block)) {
            sequence.groups.push_back(GroupId{made});
            groups_.retain(GroupId{made});
            if (g >= first_native) {
                if (groups_[GroupId{made}].native == nullptr) { reopened.groups.push_back(g); }
                groups_.retain_native(GroupId{made});
            }
        } else {
            sequence.groups.push_back(groups_.allocate(g >= first_native));
            (g < first_native ? reopened.close : reopened.groups).push_back(g);
        }
    }
    sequence.native_group_begin = first_native;
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
std::optional<Full> KVPool<Eviction, Store, Hasher>::try_fork(const Sequence& parent, Sequence*& child)
{
    SequenceOptions options{};
    options.salt = parent.salt;
    options.logical_resident = parent.logical_blocks * shape_.config.block_tokens;
    options.dense_below = parent.dense_below;
    Sequence* made = nullptr;
    if (const auto full = try_create(options, made); full) { return full; }
    const auto whole = static_cast<std::int32_t>(parent.length / shape_.config.block_tokens);
    const auto whole_groups = static_cast<std::int32_t>(parent.length / shape_.group_tokens());
    for (std::int32_t j = 0; j < whole; ++j) {
        made->blocks.push_back(parent.blocks[std::size_t(j)]);
        blocks_.retain(made->blocks.back());
        if (j >= parent.native_begin) { blocks_.retain_native(made->blocks.back()); }
    }
    for (std::int32_t g = 0; g < whole_groups; ++g) {
        made->groups.push_back(parent.groups[std::size_t(g)]);
        groups_.retain(made->groups.back());
        if (g >= parent.native_group_begin) { groups_.retain_native(made->groups.back()); }
    }
    made->native_begin = std::min(whole, parent.native_begin);
    made->native_group_begin = std::min(whole_groups, parent.native_group_begin);
    if (const auto full = try_grow(*made, parent.length); full) {
        remove(made->id);
        return full;
    }
    if (std::size_t(whole) < made->blocks.size()) {
        std::memcpy(blocks_[made->blocks.back()].native, blocks_[parent.blocks[std::size_t(whole)]].native, shape_.native_cell_bytes);
    }
    if (std::size_t(whole_groups) < made->groups.size()) {
        groups_.copy_native(parent.groups[std::size_t(whole_groups)], made->groups.back());
    }
    made->length = parent.length;
    made->tokens = parent.tokens;
    made->keys = parent.keys;
    made->first_lost = parent.first_lost;
    made->logical.copy_from(parent.logical, logical_observer(*made));
    child = made;
    return std::nullopt;
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
bool KVPool<Eviction, Store, Hasher>::settle_sealed(Sequence& sequence, std::int32_t position, bool stands)
{
    const BlockId id = sequence.blocks[std::size_t(position)];
    if (blocks_[id].sealed) { return false; }
    blocks_[id].coded_layers = 0;
    if (stands) { return blocks_[id].sealed = true; }
    for (std::int32_t unit = 0; unit < shape_.units(); ++unit) { slots_.drop(std::int64_t{unit} * shape_.blocks + raw(id)); }
    if (record_) { unsealed_.push_back(id); }
    return false;
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::index_blocks(Sequence& sequence)
{
    const auto block_tokens = std::size_t(shape_.config.block_tokens);
    while ((sequence.keys.size() + 1) * block_tokens <= sequence.tokens.size()) {
        const std::size_t j = sequence.keys.size();
        const auto tokens = std::span<const TokenId>(sequence.tokens).subspan(j * block_tokens, block_tokens);
        sequence.keys.push_back(blocks_.index().key(j == 0 ? Hash128{} : sequence.keys.back(), tokens, sequence.salt));
        index_block(sequence, j);
    }
}

/// Makes block position `j`, whose key is known, findable.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::index_block(Sequence& sequence, std::size_t j)
{
    const auto block_tokens = std::size_t(shape_.config.block_tokens);
    if (blocks_.index().contains(sequence.blocks[j])) { return; }
    const auto tokens = std::span<const TokenId>(sequence.tokens).subspan(j * block_tokens, block_tokens);
    blocks_.index().insert(sequence.keys[j], j == 0 ? BlockId::kNone : sequence.blocks[j - 1], tokens, sequence.blocks[j], sequence.salt);
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::mark_lost(BlockId block)
{
    blocks_.index().erase(block);
    for_each_sequence([&](Sequence& sequence) {
        const auto found = std::find(sequence.blocks.begin(), sequence.blocks.end(), block);
        if (found == sequence.blocks.end()) { return; }
        const TokenIndex position = (found - sequence.blocks.begin()) * shape_.config.block_tokens;
        sequence.first_lost = sequence.first_lost ? std::min(*sequence.first_lost, position) : position;
    });
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::drain_events(Journal& journal)
{
    if (!record_) { return; }
    drain_evictions(journal);
    for (const BlockId block : unsealed_) {
        journal.event({EventKind::kDropped, EventReason::kTruncated, Tier::kSlow, block, -1, -1, 0});
        journal.event({EventKind::kDropped, EventReason::kTruncated, Tier::kFast, block, -1, -1, 0});
    }
    unsealed_.clear();
    for (const BlockId block : dropped_) {
        journal.event({EventKind::kDropped, EventReason::kRemoved, Tier::kFast, block, -1, -1, 0});
        journal.event({EventKind::kDropped, EventReason::kRemoved, Tier::kSlow, block, -1, -1, 0});
    }
    dropped_.clear();
}

template <EvictionPolicy Eviction, SlowStore Store, class Hasher>
void KVPool<Eviction, Store, Hasher>::drain_evictions(Journal& journal)
{
    for (const std::int64_t unit : slots_.take_evicted()) {
        const std::int64_t layer_set = unit / shape_.blocks;
        journal.event({EventKind::kEvicted, EventReason::kPressure, Tier::kFast, BlockId{static_cast<std::int32_t>(unit % shape_.blocks)},
                       static_cast<LayerId>(layer_set / shape_.sets), static_cast<std::int32_t>(layer_set % shape_.sets), shape_.unit_bytes});
    }
}

} // namespace oasis
