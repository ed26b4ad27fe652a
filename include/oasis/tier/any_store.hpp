// SPDX-License-Identifier: Apache-2.0
//
// `AnyStore`: the store policy that takes whatever slow tier it is given, for one virtual call per piece.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/error.hpp>
#include <oasis/tier/ram_store.hpp>
#include <oasis/tier/slow_tier.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace oasis {

/// Any store as a `SlowTier`. Counters and reasons that the store does not have read as 0 and empty.
template <SlowStore Store> class StoreAdapter final : public SlowTier {
public:
    /// Takes the store over.
    explicit StoreAdapter(std::unique_ptr<Store> store) : store_(std::move(store))
    {
        detail::expects(store_ != nullptr, "StoreAdapter: the store is null.");
    }

    bool reserve(BlockId block) override { return store_->reserve(block); }
    void release(BlockId block) override { store_->release(block); }
    bool write(const StorePiece& piece) override { return store_->write(piece); }
    bool read(const StorePiece& piece) override { return store_->read(piece); }
    std::size_t bytes_used() const override { return const_store().bytes_used(); }
    std::size_t capacity_bytes() const override { return const_store().capacity_bytes(); }
    std::uint64_t bytes_read() const override
    {
        if constexpr (requires(const Store& s) { std::uint64_t{s.bytes_read()}; }) {
            return const_store().bytes_read();
        } else {
            return 0;
        }
    }
    std::uint64_t bytes_written() const override
    {
        if constexpr (requires(const Store& s) { std::uint64_t{s.bytes_written()}; }) {
            return const_store().bytes_written();
        } else {
            return 0;
        }
    }
    std::string last_error() const override
    {
        if constexpr (requires(const Store& s) { std::string{s.last_error()}; }) {
            return const_store().last_error();
        } else {
            return {};
        }
    }

    /// The store itself.
    Store& store() noexcept { return *store_; }

private:
    const Store& const_store() const noexcept { return *store_; }

    std::unique_ptr<Store> store_;
};

/// `erase_store(std::make_unique<FileStore>(...))`: what a `StoreFactory` returns.
template <SlowStore Store> std::unique_ptr<SlowTier> erase_store(std::unique_ptr<Store> store)
{
    return std::make_unique<StoreAdapter<Store>>(std::move(store));
}

/// Owns a slow tier and is a `SlowStore` itself. From `StoreOptions` it holds a `RamStore`.
class AnyStore {
public:
    /// Memory of these sizes, or the tier that is given.
    ///@{
    explicit AnyStore(const StoreOptions& options) : AnyStore(erase_store(std::make_unique<RamStore>(options))) {}
    explicit AnyStore(std::unique_ptr<SlowTier> tier) : tier_(std::move(tier))
    {
        detail::expects(tier_ != nullptr, "AnyStore: the slow tier is null.");
    }
    ///@}

    /// See `SlowTier`.
    ///@{
    bool reserve(BlockId block) { return tier_->reserve(block); }
    void release(BlockId block) { tier_->release(block); }
    bool write(const StorePiece& piece) { return tier_->write(piece); }
    bool read(const StorePiece& piece) { return tier_->read(piece); }
    std::size_t bytes_used() const { return tier().bytes_used(); }
    std::size_t capacity_bytes() const { return tier().capacity_bytes(); }
    std::uint64_t bytes_read() const { return tier().bytes_read(); }
    std::uint64_t bytes_written() const { return tier().bytes_written(); }
    std::string last_error() const { return tier().last_error(); }
    ///@}

    /// The tier itself.
    ///@{
    SlowTier& tier() noexcept { return *tier_; }
    const SlowTier& tier() const noexcept { return *tier_; }
    ///@}

private:
    std::unique_ptr<SlowTier> tier_;
};

static_assert(check_store<AnyStore>());

} // namespace oasis
