// SPDX-License-Identifier: Apache-2.0
//
// A slow store that fails on request, to see that a failed transfer is a miss and never data.
#pragma once

#include <oasis/tier/ram_store.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

namespace oasis::fault {

enum class StoreOperation : std::uint8_t { kReserve, kWrite, kRead };

/// What fails. Shared, so that a test can hold it while a cache owns the store. Counts are of calls since the plan was
/// made, from 1; 0 never fails. The functions are called by several threads at once, and must not be replaced while the
/// store is in use; the numbers may be.
struct StoreFaults {
    std::atomic<std::uint64_t> fail_reserve_at{0};
    std::atomic<std::uint64_t> fail_write_at{0};
    std::atomic<std::uint64_t> fail_read_at{0};
    /// Fails every call for which it holds; the piece of a reserve has its block alone.
    std::function<bool(StoreOperation, const StorePiece&)> when{};
    /// How long a call takes before it does, or fails to do, anything.
    std::function<std::chrono::microseconds(StoreOperation, const StorePiece&)> delay{};

    std::atomic<std::uint64_t> reserves{0};
    std::atomic<std::uint64_t> writes{0};
    std::atomic<std::uint64_t> reads{0};
    std::atomic<std::uint64_t> failures{0};

    /// What stores made without a plan of their own use: the way in when a cache makes its store itself.
    static std::shared_ptr<StoreFaults>& current()
    {
        static auto plan = std::make_shared<StoreFaults>();
        return plan;
    }
};

/// A failed read leaves garbage in the target, as a torn transfer would. As safe for threads as the inner store.
template <class Inner = RamStore> class FailingStore {
public:
    explicit FailingStore(const StoreOptions& options, std::shared_ptr<StoreFaults> faults = StoreFaults::current())
        : FailingStore(std::make_unique<Inner>(options), options.unit_bytes, std::move(faults))
    {
    }
    FailingStore(std::unique_ptr<Inner> inner, std::size_t unit_bytes,
                 std::shared_ptr<StoreFaults> faults = StoreFaults::current())
        : inner_(std::move(inner)), unit_bytes_(unit_bytes), faults_(std::move(faults))
    {
    }

    bool reserve(BlockId block)
    {
        if (fails(StoreOperation::kReserve, {block, 0, 0, nullptr}, ++faults_->reserves, faults_->fail_reserve_at)) {
            return false;
        }
        return inner_->reserve(block);
    }
    void release(BlockId block) { inner_->release(block); }
    bool write(const StorePiece& piece)
    {
        if (fails(StoreOperation::kWrite, piece, ++faults_->writes, faults_->fail_write_at)) { return false; }
        return inner_->write(piece);
    }
    bool read(const StorePiece& piece)
    {
        if (fails(StoreOperation::kRead, piece, ++faults_->reads, faults_->fail_read_at)) {
            std::memset(piece.data, 0x7F, unit_bytes_);
            return false;
        }
        return inner_->read(piece);
    }
    std::size_t bytes_used() const { return inner_->bytes_used(); }
    std::size_t capacity_bytes() const { return inner_->capacity_bytes(); }
    std::uint64_t bytes_read() const requires requires(const Inner& i) { i.bytes_read(); }
    {
        return std::as_const(*inner_).bytes_read();
    }
    std::uint64_t bytes_written() const requires requires(const Inner& i) { i.bytes_written(); }
    {
        return std::as_const(*inner_).bytes_written();
    }

    StoreFaults& faults() noexcept { return *faults_; }
    Inner& inner() noexcept { return *inner_; }

private:
    bool fails(StoreOperation operation, const StorePiece& piece, std::uint64_t count, std::uint64_t at)
    {
        if (faults_->delay) {
            const std::chrono::microseconds delay = faults_->delay(operation, piece);
            if (delay.count() > 0) { std::this_thread::sleep_for(delay); }
        }
        const bool failed = count == at || (faults_->when && faults_->when(operation, piece));
        faults_->failures += failed ? 1 : 0;
        return failed;
    }

    std::unique_ptr<Inner> inner_;
    std::size_t unit_bytes_;
    std::shared_ptr<StoreFaults> faults_;
};

static_assert(check_store<FailingStore<RamStore>>());

} // namespace oasis::fault
