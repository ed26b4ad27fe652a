// SPDX-License-Identifier: Apache-2.0
//
// How long decode steps wait for demand transfers, and how much of their time that is.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/core/telemetry.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace oasis {

/// Keeps the last `kSteps` decode steps in a ring that is allocated once. Thread-safe: a step adds on one thread while
/// another asks for the summary.
class StallMeter {
public:
    /// Steps that are kept.
    static constexpr std::size_t kSteps = 4096;

    StallMeter() : ring_(kSteps), sorted_(kSteps) {}

    /// One decode step: the time it waited for demand transfers, and its time from begin_step to commit. Allocates
    /// nothing.
    void add(std::chrono::nanoseconds stall, std::chrono::nanoseconds step)
    {
        detail::expects(stall.count() >= 0 && step.count() >= 0, "StallMeter: a stall of ", stall.count(),
                        " ns in a step of ", step.count(), " ns; neither can be negative.");
        const std::scoped_lock lock(mutex_);
        Sample& sample = ring_[next_];
        stall_ns_ += stall.count() - sample.stall_ns;
        step_ns_ += step.count() - sample.step_ns;
        sample = {stall.count(), step.count()};
        next_ = (next_ + 1) % kSteps;
        used_ = std::min(used_ + 1, kSteps);
    }

    /// Over the steps in the ring. Allocates nothing either.
    StallStats summary() const
    {
        StallStats stats;
        const std::scoped_lock lock(mutex_);
        for (std::size_t i = 0; i < used_; ++i) { sorted_[i] = ring_[i].stall_ns; }
        if (step_ns_ > 0) { stats.share = static_cast<double>(stall_ns_) / static_cast<double>(step_ns_); }
        if (used_ > 0) { stats.mean_us = micros(stall_ns_) / static_cast<double>(used_); }
        stats.steps = used_;
        stats.p50_us = nearest_rank(std::span(sorted_).first(used_), 50);
        stats.p99_us = nearest_rank(std::span(sorted_).first(used_), 99);
        return stats;
    }

private:
    struct Sample {
        std::int64_t stall_ns = 0;
        std::int64_t step_ns = 0;
    };

    static double micros(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

    /// The smallest sample that at least `percent` of all do not exceed.
    static double nearest_rank(std::span<std::int64_t> samples, std::size_t percent)
    {
        if (samples.empty()) { return 0; }
        const std::size_t rank = (samples.size() * percent + 99) / 100;
        const auto at = samples.begin() + static_cast<std::ptrdiff_t>(rank - 1);
        std::nth_element(samples.begin(), at, samples.end());
        return micros(*at);
    }

    mutable std::mutex mutex_;
    std::vector<Sample> ring_;
    mutable std::vector<std::int64_t> sorted_; ///< scratch of the summary
    std::size_t next_ = 0;
    std::size_t used_ = 0;
    std::int64_t stall_ns_ = 0; ///< sums over the ring
    std::int64_t step_ns_ = 0;
};

} // namespace oasis
