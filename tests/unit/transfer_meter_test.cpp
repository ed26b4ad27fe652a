// SPDX-License-Identifier: Apache-2.0
#include <oasis/core/transfer_meter.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace oasis {
namespace {

using namespace std::chrono_literals;

struct FakeClock {
    using duration = std::chrono::nanoseconds;
    using time_point = std::chrono::time_point<FakeClock, duration>;
    inline static duration elapsed{};
    static time_point now() { return time_point(elapsed); }
};
using Meter = BasicTransferMeter<FakeClock>;

constexpr double kLink = 1e9; // bytes per second
constexpr std::uint64_t kSlice = 1000000;

/// A link of 1 GB/s that gives each of its transfers one slice in turn; transfer i starts at start[i].
class ThrottledLink {
public:
    void run(Meter& meter, const std::vector<FakeClock::duration>& start, std::uint64_t bytes)
    {
        struct Transfer {
            FakeClock::duration start;
            std::uint64_t left;
            Meter::Ticket ticket{};
            bool running = false;
        };
        std::vector<Transfer> transfers;
        for (const auto s : start) { transfers.push_back({s, bytes}); }
        for (std::size_t done = 0; done < transfers.size();) {
            bool moved = false;
            for (Transfer& t : transfers) {
                if (t.left == 0 || FakeClock::elapsed < t.start) { continue; }
                if (!t.running) {
                    t.ticket = meter.begin();
                    t.running = true;
                }
                FakeClock::elapsed += 1ms;
                t.left -= kSlice;
                moved = true;
                if (t.left == 0) {
                    meter.end(t.ticket, bytes);
                    ++done;
                }
                peak = std::max(peak, meter.rates().aggregate_bytes_per_second());
            }
            if (!moved) { FakeClock::elapsed += 1ms; }
        }
    }
    double peak = 0;
};

TEST(TransferMeterCases, OBS_01_EightTransfersOverOneLink)
{
    FakeClock::elapsed = 0s;
    Meter meter;
    ThrottledLink link;
    link.run(meter, std::vector<FakeClock::duration>(8, 0s), 100 * kSlice);
    const TransferRates rates = meter.rates();
    EXPECT_EQ(rates.bytes, 800 * kSlice);
    EXPECT_EQ(rates.transfers, 8U);
    EXPECT_GE(rates.aggregate_bytes_per_second(), 0.9 * kLink);
    EXPECT_LE(rates.aggregate_bytes_per_second(), kLink);
    EXPECT_LE(link.peak, kLink) << "never above the link's rate, at any moment";
    // What the two common mistakes would report: an eighth, and eight times as much.
    const double summed = 8 * rates.per_transfer_seconds;
    EXPECT_LT(static_cast<double>(rates.bytes) / summed, 0.2 * kLink);
}

TEST(TransferMeterCases, OBS_01_PausesAndStaggeredStarts)
{
    FakeClock::elapsed = 0s;
    Meter meter;
    ThrottledLink link;
    link.run(meter, {0s, 30ms, 60ms, 2s, 2s, 5s, 5010ms, 5020ms}, 100 * kSlice);
    EXPECT_NEAR(meter.rates().busy_seconds, 0.8, 0.01) << "pauses are not busy time";
    EXPECT_GE(meter.rates().aggregate_bytes_per_second(), 0.9 * kLink);
    EXPECT_LE(link.peak, kLink);
}

TEST(TransferMeter, FailedTransfersTakeTimeAndBringNothing)
{
    FakeClock::elapsed = 0s;
    Meter meter;
    EXPECT_EQ(meter.rates().aggregate_bytes_per_second(), 0.0);
    const auto a = meter.begin();
    FakeClock::elapsed += 1s;
    meter.end(a, 0);
    const auto b = meter.begin();
    FakeClock::elapsed += 1s;
    meter.end(b, 1000);
    EXPECT_DOUBLE_EQ(meter.rates().busy_seconds, 2.0);
    EXPECT_DOUBLE_EQ(meter.rates().aggregate_bytes_per_second(), 500.0);
    EXPECT_DOUBLE_EQ(meter.rates().per_transfer_seconds, 1.0);
}

} // namespace
} // namespace oasis
