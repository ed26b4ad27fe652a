// SPDX-License-Identifier: Apache-2.0
//
// A slow tier that is really slow: any store behind a link of a given rate and latency.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/error.hpp>
#include <oasis/tier/link_clock.hpp>
#include <oasis/tier/ram_store.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace oasis {

/// The link that is imitated.
struct ThrottleOptions {
    double bytes_per_second = 0.0;       ///< of all threads together
    std::chrono::nanoseconds latency{0}; ///< between a piece's leaving the link and its arrival
    bool throttle_writes = false;        ///< writes take turns with reads on the same link
};

/// A store behind a link of a given rate and latency, for studies.
///
/// A read sleeps until its piece has crossed the link (see `LinkClock`), then copies it: what arrives late is written
/// late. A read that the inner store refuses has taken the link's time all the same. `bytes_read` and `bytes_written`
/// count what was delivered and stored, in here. Threads: as the inner store.
///
/// Precision: no piece is early; a piece or a run of pieces is late by what the system takes to wake a thread, 50 to
/// 100 us on a virtual machine. The rate holds all the same, for pieces of any size.
template <SlowStore Inner = RamStore> class ThrottledStore {
public:
    /// Around a store whose units have `unit_bytes`.
    ThrottledStore(std::unique_ptr<Inner> inner, std::size_t unit_bytes, const ThrottleOptions& options)
        : inner_(std::move(inner)),
          unit_bytes_(unit_bytes),
          throttle_writes_(options.throttle_writes),
          link_(options.bytes_per_second, options.latency)
    {
        detail::expects(inner_ != nullptr, "ThrottledStore: the inner store is null.");
        detail::expects(unit_bytes >= 1, "ThrottledStore: unit_bytes is 0.");
    }
    /// Makes the inner store from the same options.
    ThrottledStore(const StoreOptions& store,
                   const ThrottleOptions& options) requires std::constructible_from<Inner, const StoreOptions&>
        : ThrottledStore(std::make_unique<Inner>(store), store.unit_bytes, options)
    {
    }

    /// See the concept `SlowStore`.
    ///@{
    bool reserve(BlockId block) { return inner_->reserve(block); }
    void release(BlockId block) { inner_->release(block); }

    bool write(const StorePiece& piece)
    {
        const auto pass = [&] { return inner_->write(piece); };
        if (!(throttle_writes_ ? over_the_link(pass) : pass())) { return false; }
        bytes_written_.fetch_add(unit_bytes_, std::memory_order_relaxed);
        return true;
    }

    bool read(const StorePiece& piece)
    {
        if (!over_the_link([&] { return inner_->read(piece); })) { return false; }
        bytes_read_.fetch_add(unit_bytes_, std::memory_order_relaxed);
        return true;
    }

    std::size_t bytes_used() const { return inner().bytes_used(); }
    std::size_t capacity_bytes() const { return inner().capacity_bytes(); }
    std::uint64_t bytes_read() const noexcept { return bytes_read_.load(std::memory_order_relaxed); }
    std::uint64_t bytes_written() const noexcept { return bytes_written_.load(std::memory_order_relaxed); }
    ///@}

    /// The store behind the link.
    ///@{
    Inner& inner() noexcept { return *inner_; }
    const Inner& inner() const noexcept { return *inner_; }
    ///@}

private:
    template <class Pass> bool over_the_link(const Pass& pass)
    {
        const LinkClock::Passage passage = link_.enter(unit_bytes_);
        link_.wait(passage);
        const bool done = pass();
        link_.leave(passage);
        return done;
    }

    std::unique_ptr<Inner> inner_;
    std::size_t unit_bytes_;
    bool throttle_writes_;
    LinkClock link_;
    std::atomic<std::uint64_t> bytes_read_{0};
    std::atomic<std::uint64_t> bytes_written_{0};
};

static_assert(check_store<ThrottledStore<RamStore>>());

} // namespace oasis
