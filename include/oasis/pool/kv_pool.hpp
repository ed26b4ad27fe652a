// SPDX-License-Identifier: Apache-2.0
//
// KVPool: owns the tiers' memory, blocks, slots, block tables, reference counts, prefixes and the storage of summaries. It moves no K or V
// itself; where a copy is needed it says which (`Reopened`), and the cache makes it.
#pragma once

#include <oasis/core/open_step.hpp>
#include <oasis/pool/block_pool.hpp>
#include <oasis/pool/eviction.hpp>
#include <oasis/pool/group_pool.hpp>
#include <oasis/pool/pool_shape.hpp>
#include <oasis/pool/sequence.hpp>
#include <oasis/pool/slot_table.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace oasis {

/// Forms that must be made again from others after a truncation or at a shared prefix, in this order.
struct Reopened {
    /// A native block to be made from its coded form.
    struct Decode {
        BlockId from = BlockId::kNone; ///< sealed: its coded form is in the slow tier
        std::byte* to = nullptr;       ///< native cell to fill
    };
    std::vector<Decode> blocks;       ///< first
    std::vector<std::int32_t> groups; ///< group positions whose native form is to be rebuilt from keys
    std::vector<std::int32_t> close;  ///< group positions to be rebuilt and coded, in native form only meanwhile
};

/// Blocks, slots, block tables, shared prefixes and the memory of all tiers.
///
/// Invariants: a slot is never reused while a reader, writer or transfer of it is outstanding; free + resident + pinned + in flight ==
/// capacity after every operation; a block's forms live as long as somebody may read them; growth that does not fit is a value that
/// names the tier, and changes nothing.
template <EvictionPolicy Eviction, SlowStore Store, class Hasher = ChainHasher>
class KVPool {
public:
    /// Blocks by id.
    using Blocks = BlockPool<Store, Hasher>;

    /// Throws `InvalidArgument` when fast memory does not hold the landing slots of one step.
    KVPool(const PoolShape& shape, Eviction eviction, std::unique_ptr<Store> store)
        : shape_(shape), slots_({shape.unit_bytes, shape.config.shape.layers, shape.sets, shape.blocks}, std::move(eviction)),
          blocks_(shape.blocks, shape.native_cell_bytes, std::move(store)),
          groups_(shape.summary.native_bytes() * heads(), shape.summary.coded_bytes() * heads(), shape.config.block_code != BlockCode::kNative)
    {
        if (const auto full = make_room(0, 0, 0, 0); full) {
            throw InvalidArgument(detail::text("fast_bytes ", shape.config.fast_bytes, " is too small: the landing slots of one step take ",
                                               full->needed_bytes, " bytes"));
        }
    }

    /// The parts: sizes, slots of fast memory, blocks, summary groups.
    ///@{
    const PoolShape& shape() const noexcept { return shape_; }
    SlotTable<Eviction>& slots() noexcept { return slots_; }
    const SlotTable<Eviction>& slots() const noexcept { return slots_; }
    Blocks& blocks() noexcept { return blocks_; }
    const Blocks& blocks() const noexcept { return blocks_; }
    GroupPool& groups() noexcept { return groups_; }
    const GroupPool& groups() const noexcept { return groups_; }
    ///@}

    /// Null when there is no such sequence.
    ///@{
    Sequence* find(SequenceId id) noexcept
    {
        const auto found = sequences_.find(raw(id));
        return found == sequences_.end() ? nullptr : found->second.get();
    }
    const Sequence* find(SequenceId id) const noexcept { return const_cast<KVPool*>(this)->find(id); }
    ///@}
    /// Live ones, preempted ones included.
    std::int64_t sequences() const noexcept { return static_cast<std::int64_t>(sequences_.size()); }
    /// Of those, in fast memory.
    std::int64_t active() const noexcept { return sequences() - preempted_; }
    /// Calls `f` with each; in no order.
    template <class F>
    void for_each_sequence(F&& f)
    {
        for (auto& [id, sequence] : sequences_) { f(*sequence); }
    }

    /// An empty sequence, admitted with all it may need, or the tier that has no room.
    std::optional<Full> try_create(const SequenceOptions& options, Sequence*& made)
    {
        const std::int32_t logical = shape_.most_blocks(options.logical_resident > 0 ? options.logical_resident : shape_.config.budgets.logical_resident);
        const std::int64_t dense_below = shape_.dense_below(options.dense_below);
        const std::int64_t reserve = shape_.reserved_slots(logical, dense_below);
        if (active() >= shape_.config.limits.max_sequences) { return Full{Tier::kFast, fast_per_sequence(reserve), 0}; }
        if (const auto full = make_room(1, reserve, 0, 0); full) { return full; }
        auto sequence = std::make_unique<Sequence>();
        sequence->id = SequenceId{next_sequence_++};
        sequence->logical = LogicalSets(shape_.units(), shape_.blocks_per_sequence + 1);
        sequence->logical_blocks = logical;
        sequence->dense_below = dense_below;
        sequence->reserved_slots = reserve;
        sequence->salt = options.salt;
        sequence->blocks.reserve(std::size_t(shape_.blocks_per_sequence) + 1);
        reserved_slots_ += reserve;
        made = sequence.get();
        sequences_.emplace(raw(sequence->id), std::move(sequence));
        return std::nullopt;
    }

    /// Takes the longest chain of whole blocks that another sequence has for `prompt`, short of its last token. Native forms that the next
    /// row needs and nobody holds are listed in `reopened`.
    TokenIndex share_prefix(Sequence& sequence, std::span<const TokenId> prompt, Reopened& reopened);

    /// Copy-on-write: everything whole is shared, the open block and group are copied.
    std::optional<Full> try_fork(const Sequence& parent, Sequence*& child);

    /// Blocks and groups for positions below `tokens`; nothing is changed when a tier is full.
    std::optional<Full> try_grow(Sequence& sequence, TokenIndex tokens);

    /// Gives back blocks and groups beyond `tokens` and forgets them logically. `length` is not touched.
    void shrink(Sequence& sequence, TokenIndex tokens);

    /// Forgets positions >= length, which may be deep in what is sealed, shared or coded.
    void truncate(Sequence& sequence, TokenIndex length, Reopened& reopened);

    /// Gives back the native forms that no row at or after the sequence's length reads.
    void advance(Sequence& sequence);

    /// The group at `position` is complete and coded: those that share its last block may share it.
    void close_group(Sequence& sequence, std::int32_t position)
    {
        const BlockId last = sequence.blocks[std::size_t((position + 1) * shape_.group_blocks - 1)];
        const GroupId group = sequence.groups[std::size_t(position)];
        groups_[group].closed = true;
        groups_[group].last_block = last;
        blocks_[last].group = raw(group);
    }

    /// A step coded `block`. If it stands it is sealed (true when it was not before); if not, what the step put into slots is void.
    bool settle_sealed(Sequence& sequence, std::int32_t position, bool stands);

    /// Makes the whole blocks of `tokens` findable.
    void index_blocks(Sequence& sequence);

    /// `failed` (or what the last block is a copy of) could not be read back for this sequence.
    void lose(Sequence& sequence, BlockId failed)
    {
        const auto found = std::find(sequence.blocks.begin(), sequence.blocks.end(), failed);
        const auto last = static_cast<std::ptrdiff_t>(sequence.blocks.size()) - 1;
        const TokenIndex position = std::min(last, found - sequence.blocks.begin()) * shape_.config.block_tokens;
        sequence.first_lost = std::min(position, sequence.first_lost.value_or(position));
    }

    /// No tier can deliver the block: the sequences that hold it are lost from there on, and nobody finds it by prefix.
    void mark_lost(BlockId block);

    /// Forgets blocks that no sequence holds.
    void drop_cached_prefixes() { blocks_.drop_all_cached(drop_slots()); }

    /// Whether evictions and drops are kept for `drain_events`.
    void record_events(bool on)
    {
        record_ = on;
        slots_.record_evictions(on);
    }
    /// Evictions and drops since the last call, or evictions alone.
    ///@{
    void drain_events(Journal& journal);
    void drain_evictions(Journal& journal);
    ///@}

    /// Everything of the sequence that is in fast memory alone goes to the slow tier, and its place is given back: native blocks, summaries,
    /// logical sets with their stamps. Nothing is changed when the slow tier has no room; throws `StoreError` when it fails, and then neither.
    std::optional<Full> try_preempt(Sequence& sequence);
    /// The sequence is as if it had never been preempted, or the tier that has no room for it. Throws `StoreError`, with nothing changed, when the
    /// slow tier does not deliver.
    std::optional<Full> try_resume(Sequence& sequence);

    /// False when there is no such sequence.
    bool remove(SequenceId id)
    {
        Sequence* sequence = find(id);
        if (!sequence) { return false; }
        if (sequence->preempted) {
            drop_saved(sequence->preempted->blocks);
            --preempted_;
        } else {
            reserved_slots_ -= sequence->reserved_slots;
        }
        shrink(*sequence, 0);
        sequences_.erase(raw(id));
        make_room(0, 0, 0, 0);
        return true;
    }

    /// Sets how much fast memory there is; returns what was reached. 0: as much as is needed.
    std::size_t resize_fast(std::size_t bytes)
    {
        if (bytes == 0) {
            shape_.config.fast_bytes = 0;
            make_room(0, 0, 0, 0);
            return fast_capacity();
        }
        const std::size_t least = other_bytes(0, 0, 0) + std::size_t(reserved_slots_ + shape_.landing_slots) * shape_.unit_bytes;
        shape_.config.fast_bytes = std::max(bytes, least);
        make_room(0, 0, 0, 0);
        return shape_.config.fast_bytes;
    }

    /// Slots that drained may be more than the budget allows.
    void trim() { make_room(0, 0, 0, 0); }

    /// Hears of every block that enters or leaves a logical set of the sequence.
    auto logical_observer(const Sequence& sequence)
    {
        return [this, &sequence](std::int32_t unit, std::int32_t position, bool in) {
            const std::int64_t key = std::int64_t{unit} * shape_.blocks + raw(sequence.blocks[std::size_t(position)]);
            if (in) {
                slots_.add_logical(key);
            } else {
                slots_.remove_logical(key);
            }
        };
    }

    /// Where a head's part lies: of a native block, of a group in native form, in the form it is coded from, and coded.
    ///@{
    std::byte* native(BlockId block, LayerId layer, std::int32_t head) noexcept
    {
        return blocks_[block].native + head_index(layer, head) * shape_.head_block.native_bytes();
    }
    std::byte* native_group(GroupId group, LayerId layer, std::int32_t head) noexcept { return cell(groups_[group].native, layer, head, shape_.summary.native_bytes()); }
    std::byte* sealed_group(GroupId group, LayerId layer, std::int32_t head) noexcept { return cell(groups_[group].sealed, layer, head, shape_.summary.native_bytes()); }
    std::byte* coded_group(GroupId group, LayerId layer, std::int32_t head) noexcept { return cell(groups_[group].coded, layer, head, shape_.summary.coded_bytes()); }
    ///@}

    /// Native blocks, summaries and slots that are not free.
    std::size_t fast_bytes_in_use() const noexcept
    {
        return blocks_.native().bytes_in_use() + groups_.native_bytes() + groups_.coded_bytes() +
               std::size_t(slots_.counts().capacity - slots_.counts().free) * shape_.unit_bytes;
    }
    /// What was given, or what is held when fast memory grows as needed.
    std::size_t fast_capacity() const noexcept
    {
        return shape_.config.fast_bytes ? shape_.config.fast_bytes
                                        : other_bytes(0, 0, 0) + std::size_t(slots_.counts().capacity) * shape_.unit_bytes;
    }

    /// Throws `Error` when the books and the tables disagree: for tests.
    void check();

private:
    std::size_t heads() const noexcept { return std::size_t(shape_.config.shape.layers) * std::size_t(shape_.config.shape.kv_heads); }
    std::size_t head_index(LayerId layer, std::int32_t head) const noexcept { return std::size_t(layer) * std::size_t(shape_.config.shape.kv_heads) + std::size_t(head); }
    std::byte* cell(std::byte* base, LayerId layer, std::int32_t head, std::size_t bytes) const noexcept
    {
        return base ? base + head_index(layer, head) * bytes : nullptr;
    }

    auto drop_slots()
    {
        return [this](BlockId block) {
            if (record_) { dropped_.push_back(block); }
            for (std::int32_t unit = 0; unit < shape_.units(); ++unit) { slots_.drop(std::int64_t{unit} * shape_.blocks + raw(block)); }
        };
    }

    std::size_t fast_per_sequence(std::int64_t reserve) const noexcept
    {
        return std::size_t(reserve) * shape_.unit_bytes + shape_.window_bytes(groups_.native_bytes_per_group());
    }
    /// Fast memory that is not slots: native windows (at least what live sequences may need) and coded summaries.
    std::size_t other_bytes(std::int64_t more_sequences, std::size_t more_native, std::size_t more_coded) const noexcept
    {
        return native_bytes(more_sequences, more_native) + groups_.coded_bytes() + more_coded;
    }
    std::size_t native_bytes(std::int64_t more_sequences, std::size_t more_native) const noexcept
    {
        const std::size_t windows = std::size_t(active() + more_sequences) * shape_.window_bytes(groups_.native_bytes_per_group());
        return std::max(windows, blocks_.native().bytes_in_use() + groups_.native_bytes() + more_native);
    }
    /// Unused cells are kept as far as native windows, or what is about to be taken, will need them.
    void trim_cells(std::int64_t more_sequences, std::size_t more_native) noexcept
    {
        const std::size_t unused = native_bytes(more_sequences, more_native) - blocks_.native().bytes_in_use() - groups_.native_bytes();
        groups_.trim(unused - blocks_.native().trim(unused));
    }
    /// Gives the slots what the rest leaves, evicting if need be; or says what is missing and changes nothing.
    std::optional<Full> make_room(std::int64_t more_sequences, std::int64_t more_slots, std::size_t more_native, std::size_t more_coded)
    {
        const std::int64_t least = reserved_slots_ + more_slots + shape_.landing_slots;
        if (shape_.config.fast_bytes == 0) {
            slots_.set_capacity(least);
            trim_cells(more_sequences, more_native);
            return std::nullopt;
        }
        const std::size_t other = other_bytes(more_sequences, more_native, more_coded);
        const std::size_t needed = other + std::size_t(least) * shape_.unit_bytes;
        if (needed > shape_.config.fast_bytes) {
            const std::size_t now = other_bytes(0, 0, 0) + std::size_t(reserved_slots_ + shape_.landing_slots) * shape_.unit_bytes;
            return Full{Tier::kFast, needed - std::min(now, needed), shape_.config.fast_bytes - std::min(now, shape_.config.fast_bytes)};
        }
        trim_cells(more_sequences, more_native);
        slots_.set_capacity(static_cast<std::int64_t>((shape_.config.fast_bytes - other) / shape_.unit_bytes));
        return std::nullopt;
    }

    void check_blocks();
    void check_groups();
    void hold_native(Sequence& sequence, std::int32_t first_block, std::int32_t first_group, Reopened& reopened);
    void share_groups(Sequence& sequence, Reopened& reopened);
    std::optional<BlockId> take_block_for_copy(const Sequence& sequence, TokenIndex length);
    void own_last_block(Sequence& sequence, std::optional<BlockId> own, Reopened& reopened);
    void own_last_group(Sequence& sequence, Reopened& reopened);
    /// Calls `cell(bytes, size)` for every cell of native blocks and of groups that must be kept for `sequence`, in one order.
    template <class Cell>
    void for_each_cell(const Sequence& sequence, const Preempted& saved, Cell&& cell);
    std::optional<Full> try_save(SequenceId id, const std::vector<std::byte>& bytes, std::vector<BlockId>& blocks);
    void restore(Sequence& sequence, const std::vector<std::byte>& bytes);
    void index_block(Sequence& sequence, std::size_t j);
    StorePiece saved_piece(const std::vector<BlockId>& blocks, std::size_t unit, std::byte* data) const noexcept
    {
        const auto units = std::size_t(shape_.units());
        const auto at = static_cast<std::int32_t>(unit % units);
        return {blocks[unit / units], at / shape_.sets, at % shape_.sets, data};
    }
    void drop_saved(const std::vector<BlockId>& blocks)
    {
        for (const BlockId block : blocks) { blocks_.release(block, [](BlockId) {}); }
    }

    PoolShape shape_;
    SlotTable<Eviction> slots_;
    Blocks blocks_;
    GroupPool groups_;
    std::unordered_map<std::int64_t, std::unique_ptr<Sequence>> sequences_;
    std::int64_t next_sequence_ = 0;
    std::int64_t reserved_slots_ = 0;
    std::int64_t preempted_ = 0;
    bool record_ = false;
    std::vector<BlockId> dropped_;
    std::vector<BlockId> unsealed_;
};

} // namespace oasis

#include <oasis/pool/kv_pool_check.hpp>
#include <oasis/pool/kv_pool_growth.hpp>
#include <oasis/pool/kv_pool_preempt.hpp>
