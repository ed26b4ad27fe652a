// SPDX-License-Identifier: Apache-2.0
//
// Blocks: global, reference counted. A block's native form lives while some sequence has it in its recent window; its coded form is
// written to the slow tier once, when it leaves the window (sealing). Sealed blocks of removed sequences stay findable by prefix until
// their place is needed.
#pragma once

#include <oasis/concepts.hpp>
#include <oasis/core/error.hpp>
#include <oasis/pool/memory.hpp>
#include <oasis/pool/prefix_index.hpp>

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace oasis {

template <SlowStore Store, class Hasher = ChainHasher>
class BlockPool {
public:
    struct Block {
        std::int32_t refs = 0;        ///< sequences that hold it
        std::int32_t native_refs = 0; ///< of those, with the block in their native window
        std::byte* native = nullptr;  ///< [layers, kv_heads] native head-blocks
        bool sealed = false;          ///< the slow tier has all layers
        LayerId coded_layers = 0;     ///< until it is sealed: layers below were written through by the step in progress
        bool cached = false;          ///< in no sequence, kept for its prefix
        std::list<BlockId>::iterator cached_at{};
        std::int32_t group = -1;      ///< summary group that was made with it
        std::int32_t transfers = 0;   ///< copies of it that are under way
        bool leaving = false;         ///< freed, but for the transfers
    };

    BlockPool(std::int64_t blocks, std::size_t native_cell_bytes, std::unique_ptr<Store> store)
        : blocks_(static_cast<std::size_t>(blocks)), native_(native_cell_bytes), store_(std::move(store))
    {
        free_.reserve(blocks_.size());
        for (std::int64_t i = blocks; i-- > 0;) { free_.push_back(BlockId{static_cast<std::int32_t>(i)}); }
    }

    BlockPool(const BlockPool&) = delete;
    BlockPool& operator=(const BlockPool&) = delete;
    ~BlockPool()
    {
        for (Block& block : blocks_) {
            if (block.native) { native_.give(block.native); }
        }
    }

    Block& operator[](BlockId id) noexcept { return blocks_[static_cast<std::size_t>(raw(id))]; }
    const Block& operator[](BlockId id) const noexcept { return blocks_[static_cast<std::size_t>(raw(id))]; }

    /// A new block held once, with native storage unless it is not wanted, or nothing when the slow tier is full. `on_drop(block)` hears of a cached block that made room.
    template <class OnDrop>
    std::optional<BlockId> try_allocate(OnDrop&& on_drop, bool native = true)
    {
        while (free_.empty() && !cached_.empty()) { drop_cached(cached_.front(), on_drop); }
        if (free_.empty()) { return std::nullopt; }
        std::byte* const cell = native ? native_.take() : nullptr;
        const BlockId id = free_.back();
        free_.pop_back(); // before cached blocks are dropped, which become free
        bool reserved = false;
        try {
            for (reserved = store_->reserve(id); !reserved && !cached_.empty(); reserved = store_->reserve(id)) {
                drop_cached(cached_.front(), on_drop);
            }
        } catch (...) {
            take_back(id, cell);
            throw;
        }
        if (!reserved) {
            take_back(id, cell);
            return std::nullopt;
        }
        (*this)[id] = {.refs = 1, .native_refs = native ? 1 : 0, .native = cell};
        ++live_;
        return id;
    }

    /// One more sequence holds the block; a cached one comes back to life.
    void retain(BlockId id)
    {
        Block& block = (*this)[id];
        if (block.cached) {
            cached_.erase(block.cached_at);
            block.cached = false;
        }
        if (block.refs++ == 0) { ++live_; }
    }
    /// One fewer. The last one frees the block, unless it is sealed and findable: then it is kept, least recently released first to go.
    template <class OnDrop>
    void release(BlockId id, OnDrop&& on_drop)
    {
        Block& block = (*this)[id];
        detail::expects(block.refs > 0, "block pool: release of block ", raw(id), " which nobody holds");
        if (--block.refs > 0) { return; }
        --live_;
        if (block.sealed && index_.contains(id)) {
            block.cached = true;
            block.cached_at = cached_.insert(cached_.end(), id);
            return;
        }
        free_block(id, on_drop);
    }
    void retain_native(BlockId id)
    {
        Block& block = (*this)[id];
        if (block.native_refs == 0) { block.native = native_.take(); }
        ++block.native_refs;
    }
    void release_native(BlockId id)
    {
        Block& block = (*this)[id];
        detail::expects(block.native_refs > 0, "block pool: block ", raw(id), " has no native form to release");
        if (--block.native_refs > 0) { return; }
        native_.give(std::exchange(block.native, nullptr));
        if (!block.sealed) { index_.erase(id); } // whoever holds it has its bytes elsewhere: nobody else could read it
    }
    /// The block is to be written again by its only owner: its coded form is void.
    template <class OnDrop>
    void unseal(BlockId id, OnDrop&& on_drop)
    {
        index_.erase(id);
        (*this)[id].sealed = false;
        on_drop(id);
    }
    template <class OnDrop>
    void drop_all_cached(OnDrop&& on_drop)
    {
        while (!cached_.empty()) { drop_cached(cached_.front(), on_drop); }
    }

    /// A transfer of the block begins, or ends: its place in the store is kept meanwhile, whoever frees it.
    void hold(BlockId id) noexcept { ++(*this)[id].transfers; }
    void let_go(BlockId id)
    {
        Block& block = (*this)[id];
        if (--block.transfers > 0 || !block.leaving) { return; }
        block.leaving = false;
        --leaving_;
        store_->release(id);
        free_.push_back(id);
    }
    std::int32_t transfers(BlockId id) const noexcept { return (*this)[id].transfers; }
    /// Blocks that are free once their transfers are over.
    std::int64_t leaving() const noexcept { return leaving_; }

    PrefixIndex<Hasher>& index() noexcept { return index_; }
    Store& store() noexcept { return *store_; }
    const Store& store() const noexcept { return *store_; }
    CellPool& native() noexcept { return native_; }
    const CellPool& native() const noexcept { return native_; }
    std::int64_t live() const noexcept { return live_; }
    std::int64_t cached() const noexcept { return static_cast<std::int64_t>(cached_.size()); }
    std::int64_t capacity() const noexcept { return static_cast<std::int64_t>(blocks_.size()); }
    std::span<const BlockId> free_ids() const noexcept { return free_; }
    /// Blocks that can still be allocated, cached ones included.
    std::int64_t available() const noexcept { return static_cast<std::int64_t>(free_.size() + cached_.size()); }

private:
    void take_back(BlockId id, std::byte* cell) noexcept
    {
        free_.push_back(id);
        if (cell) { native_.give(cell); }
    }
    template <class OnDrop>
    void drop_cached(BlockId id, OnDrop&& on_drop)
    {
        Block& block = (*this)[id];
        cached_.erase(block.cached_at);
        block.cached = false;
        free_block(id, on_drop);
    }
    template <class OnDrop>
    void free_block(BlockId id, OnDrop&& on_drop)
    {
        on_drop(id);
        index_.erase(id);
        Block& block = (*this)[id];
        if (block.native) { native_.give(std::exchange(block.native, nullptr)); }
        block.sealed = false;
        if (block.transfers > 0) {
            block.leaving = true;
            ++leaving_;
            return;
        }
        store_->release(id);
        free_.push_back(id);
    }

    std::vector<Block> blocks_;
    std::vector<BlockId> free_;
    std::list<BlockId> cached_;
    CellPool native_;
    std::unique_ptr<Store> store_;
    PrefixIndex<Hasher> index_;
    std::int64_t live_ = 0;
    std::int64_t leaving_ = 0;
};

} // namespace oasis
