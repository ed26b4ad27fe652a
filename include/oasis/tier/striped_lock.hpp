// SPDX-License-Identifier: Apache-2.0
//
// A reader-writer lock for tables that are read by several threads with every piece and changed with every block.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <shared_mutex>

namespace oasis::detail {

/// Readers take the lock of their thread's stripe alone, so that two threads do not pass one cache line to and fro.
/// A writer takes all stripes, always in the same order.
class StripedLock {
public:
    static constexpr std::size_t kStripes = 16;

    /// The stripe of this thread.
    static std::size_t stripe() noexcept
    {
        static std::atomic<std::size_t> next{0};
        thread_local const std::size_t mine = next.fetch_add(1, std::memory_order_relaxed) % kStripes;
        return mine;
    }

    /// For `std::shared_lock`.
    std::shared_mutex& reader() noexcept { return stripes_[stripe()].mutex; }

    /// For `std::scoped_lock`: nobody else reads or writes.
    void lock()
    {
        for (Stripe& s : stripes_) { s.mutex.lock(); }
    }
    void unlock()
    {
        for (Stripe& s : stripes_) { s.mutex.unlock(); }
    }

private:
    struct alignas(64) Stripe {
        std::shared_mutex mutex;
    };
    std::array<Stripe, kStripes> stripes_;
};

} // namespace oasis::detail
