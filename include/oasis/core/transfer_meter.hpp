// SPDX-License-Identifier: Apache-2.0
//
// Throughput of transfers that overlap. The sum of their durations counts shared time more than once and reports too
// little; all bytes over the last one's duration report more than the link can do. The meter divides by the time at
// least one ran.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace oasis {

/// What was moved so far, and how fast.
struct TransferRates {
    std::uint64_t bytes = 0;         ///< of finished transfers
    std::uint64_t transfers = 0;     ///< finished
    double busy_seconds = 0;         ///< length of the union of the transfers' intervals, running ones included
    double per_transfer_seconds = 0; ///< mean duration of one transfer, waiting for the others included
    /// Of all transfers together; never above the link's rate. 0 before the first one.
    double aggregate_bytes_per_second() const noexcept
    {
        return busy_seconds > 0 ? static_cast<double>(bytes) / busy_seconds : 0.0;
    }
};

/// Thread-safe. Takes no memory per transfer.
template <class Clock = std::chrono::steady_clock> class BasicTransferMeter {
public:
    /// When a transfer began.
    using Ticket = typename Clock::time_point;

    /// A transfer begins.
    [[nodiscard]] Ticket begin()
    {
        const std::scoped_lock lock(mutex_);
        const Ticket now = Clock::now();
        if (running_++ == 0) { busy_since_ = now; }
        return now;
    }

    /// `bytes` that arrived: 0 for a transfer that failed or was cancelled.
    void end(Ticket begun, std::uint64_t bytes)
    {
        const std::scoped_lock lock(mutex_);
        const Ticket now = Clock::now();
        bytes_ += bytes;
        ++transfers_;
        summed_ += seconds(now - begun);
        if (--running_ == 0) { busy_ += seconds(now - busy_since_); }
    }

    /// Of all that ran so far, running ones included.
    TransferRates rates() const
    {
        const std::scoped_lock lock(mutex_);
        TransferRates rates;
        rates.bytes = bytes_;
        rates.transfers = transfers_;
        rates.busy_seconds = busy_ + (running_ > 0 ? seconds(Clock::now() - busy_since_) : 0.0);
        rates.per_transfer_seconds = transfers_ > 0 ? summed_ / static_cast<double>(transfers_) : 0.0;
        return rates;
    }

private:
    static double seconds(typename Clock::duration d) { return std::chrono::duration<double>(d).count(); }

    mutable std::mutex mutex_;
    std::uint64_t bytes_ = 0;
    std::uint64_t transfers_ = 0;
    std::int64_t running_ = 0;
    Ticket busy_since_{};
    double busy_ = 0;
    double summed_ = 0;
};

/// By the steady clock.
using TransferMeter = BasicTransferMeter<>;

} // namespace oasis
