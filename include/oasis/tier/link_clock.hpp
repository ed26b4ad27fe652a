// SPDX-License-Identifier: Apache-2.0
//
// A link that is not there: how long pieces would take over one that carries so many bytes per second.
#pragma once

#include <oasis/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace oasis {

/// One link, shared by all threads. A piece starts when the link is free and leaves it `bytes / rate` later; it arrives
/// `latency` after that, and the latencies of pieces on their way overlap. A thread sleeps, without a lock, until its
/// piece has arrived.
///
/// A sleeping thread wakes up late, by more than a small piece takes. So what a thread asks for right after its last
/// piece (within `kBackToBack`) counts as asked for when that piece left the link, as though the thread had kept the
/// link's queue filled: nothing is ever early, and a late riser catches up (by `kMostLag` at most). The latency is then
/// paid once per run of pieces. From a moment when nothing is on its way no average exceeds the rate; a span that
/// begins while threads catch up may hold what they were late with.
class LinkClock {
public:
    /// What times are read from.
    using Clock = std::chrono::steady_clock;

    /// What is asked for within this of a thread's last piece counts as asked for with it.
    static constexpr std::chrono::nanoseconds kBackToBack = std::chrono::microseconds(20);
    /// What a late riser may catch up with.
    static constexpr std::chrono::nanoseconds kMostLag = std::chrono::milliseconds(50);
    /// Of the rate, used: a thread's usual 0.1 ms of lateness does not take 50 ms in the middle of a run above it.
    static constexpr double kHeadroom = 0.99;

    /// In ticks of the clock, see `kTick`.
    struct Passage {
        std::int64_t begin = 0; ///< of the call
        std::int64_t end = 0;   ///< the last byte leaves the link
        std::int64_t due = 0;   ///< the last byte arrives
    };

    /// Throws `InvalidArgument` for a rate or latency that cannot be.
    LinkClock(double bytes_per_second, std::chrono::nanoseconds latency)
        : ticks_per_byte_(1e9 * kTick / (bytes_per_second * kHeadroom)), latency_(latency.count() * kTick)
    {
        detail::expects(std::isfinite(bytes_per_second) && bytes_per_second >= 1.0, "LinkClock: bytes_per_second is ",
                        bytes_per_second, "; it must be at least 1.");
        detail::expects(latency.count() >= 0 && latency <= std::chrono::minutes(1), "LinkClock: latency is ",
                        latency.count(), " ns; it must be 0 to 60 s.");
    }
    LinkClock(const LinkClock&) = delete;
    LinkClock& operator=(const LinkClock&) = delete;

    /// Books the link for the next `bytes`.
    Passage enter(std::size_t bytes) noexcept
    {
        const std::int64_t cost = std::llround(static_cast<double>(bytes) * ticks_per_byte_);
        const std::int64_t begin = now();
        const std::int64_t asked = asked_at(begin);
        std::int64_t free = free_at_.load(std::memory_order_relaxed);
        std::int64_t end = 0;
        do {
            end = std::max(free, asked) + cost;
        } while (!free_at_.compare_exchange_weak(free, end, std::memory_order_relaxed));
        return {begin, end, end + latency_};
    }

    /// Sleeps until the piece has arrived.
    void wait(const Passage& passage) const
    {
        if (passage.begin >= passage.due) { return; }
        const SharpTimer sharp;
        std::this_thread::sleep_until(origin_ + std::chrono::nanoseconds(passage.due / kTick + 1));
    }

    /// The thread has its piece and is free to ask for the next.
    void leave(const Passage& passage) const noexcept { last() = {id_, passage.end, now()}; }

private:
    static constexpr std::int64_t kTick = 256; ///< ticks of a nanosecond: small pieces add up without rounding errors

    /// The last piece of this thread on any link.
    struct Last {
        std::uint64_t link = 0;
        std::int64_t end = 0;
        std::int64_t left = 0;
    };
    static Last& last() noexcept
    {
        thread_local Last mine;
        return mine;
    }

    /// While it lives the kernel may not put off this thread's timers to wake it together with others.
    class SharpTimer {
    public:
#if defined(__linux__)
        SharpTimer() noexcept : before_(prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL))
        {
            if (before_ > 1) { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }
        }
        ~SharpTimer()
        {
            if (before_ > 1) { prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_), 0UL, 0UL, 0UL); }
        }
        SharpTimer(const SharpTimer&) = delete;
        SharpTimer& operator=(const SharpTimer&) = delete;

    private:
        int before_;
#else
        SharpTimer() noexcept {}
#endif
    };

    std::int64_t now() const noexcept
    {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - origin_).count() * kTick;
    }

    /// When this thread would have asked had it woken up in time; `t` is now.
    std::int64_t asked_at(std::int64_t t) const noexcept
    {
        const Last& mine = last();
        const std::int64_t pause = t - mine.left;
        if (mine.link != id_ || pause > kBackToBack.count() * kTick) { return t; }
        return std::max(mine.end + pause, t - latency_ - kMostLag.count() * kTick);
    }

    static std::uint64_t next_id() noexcept
    {
        static std::atomic<std::uint64_t> next{1};
        return next.fetch_add(1, std::memory_order_relaxed);
    }

    double ticks_per_byte_;
    std::int64_t latency_;
    std::uint64_t id_ = next_id();
    Clock::time_point origin_ = Clock::now();
    std::atomic<std::int64_t> free_at_{0};
};

} // namespace oasis
