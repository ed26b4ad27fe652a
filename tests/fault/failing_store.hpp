// SPDX-License-Identifier: Apache-2.0
//
// A slow store that fails on request, to see that a failed transfer is a miss and never data.
#pragma once

#include <oasis/tier/ram_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

namespace oasis::fault {

enum class StoreOperation : std::uint8_t { kReserve, kWrite, kRead };

/// What fails. Shared, so that a test can hold it while a cache owns the store. Counts are of calls since the plan was
/// made, from 1; 0 never fails.
struct StoreFaults {
    std::uint64_t fail_reserve_at = 0;
    std::uint64_t fail_write_at = 0;
    std::uint64_t fail_read_at = 0;
    /// Fails every call for which it holds; the piece of a reserve has its block alone.
    std::function<bool(StoreOperation, const StorePiece&)> when;

    std::uint64_t reserves = 0;
    std::uint64_t writes = 0;
    std::uint64_t reads = 0;
    std::uint64_t failures = 0;

    /// What stores made without a plan of their own use: the way in when a cache makes its store itself.
    static std::shared_ptr<StoreFaults>& current()
    {
        static auto plan = std::make_shared<StoreFaults>();
        return plan;
    }
};

/// A failed read leaves garbage in the target, as a torn transfer would.
template <class Inner = RamStore> class FailingStore {
public:
    explicit FailingStore(const StoreOptions& options, std::shared_ptr<StoreFaults> faults = StoreFaults::current())
        : inner_(options), unit_bytes_(options.unit_bytes), faults_(std::move(faults))
    {
    }

    bool reserve(BlockId block)
    {
        if (fails(StoreOperation::kReserve, {block, 0, 0, nullptr}, ++faults_->reserves, faults_->fail_reserve_at)) {
            return false;
        }
        return inner_.reserve(block);
    }
    void release(BlockId block) { inner_.release(block); }
    bool write(const StorePiece& piece)
    {
        if (fails(StoreOperation::kWrite, piece, ++faults_->writes, faults_->fail_write_at)) { return false; }
        return inner_.write(piece);
    }
    bool read(const StorePiece& piece)
    {
        if (fails(StoreOperation::kRead, piece, ++faults_->reads, faults_->fail_read_at)) {
            std::memset(piece.data, 0x7F, unit_bytes_);
            return false;
        }
        return inner_.read(piece);
    }
    std::size_t bytes_used() const noexcept { return inner_.bytes_used(); }
    std::size_t capacity_bytes() const noexcept { return inner_.capacity_bytes(); }

    StoreFaults& faults() noexcept { return *faults_; }
    Inner& inner() noexcept { return inner_; }

private:
    bool fails(StoreOperation operation, const StorePiece& piece, std::uint64_t count, std::uint64_t at)
    {
        const bool failed = count == at || (faults_->when && faults_->when(operation, piece));
        faults_->failures += failed ? 1 : 0;
        return failed;
    }

    Inner inner_;
    std::size_t unit_bytes_;
    std::shared_ptr<StoreFaults> faults_;
};

static_assert(check_store<FailingStore<RamStore>>());

} // namespace oasis::fault
