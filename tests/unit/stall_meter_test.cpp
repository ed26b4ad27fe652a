// SPDX-License-Identifier: Apache-2.0
#include "unit/counted_new.hpp"

#include <oasis/core/stall_meter.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace oasis {
namespace {

using namespace std::chrono_literals;

TEST(StallMeter, NothingBeforeTheFirstStep)
{
    const StallStats stats = StallMeter().summary();
    EXPECT_EQ(stats.steps, 0U);
    EXPECT_EQ(stats.p50_us, 0);
    EXPECT_EQ(stats.p99_us, 0);
    EXPECT_EQ(stats.mean_us, 0);
    EXPECT_EQ(stats.share, 0);
}

TEST(StallMeter, HandWorkedSteps)
{
    StallMeter meter;
    meter.add(30us, 100us);
    meter.add(0us, 40us);
    meter.add(10us, 60us);
    meter.add(2500ns, 50us);
    StallStats stats = meter.summary();
    EXPECT_EQ(stats.steps, 4U);
    EXPECT_DOUBLE_EQ(stats.p50_us, 2.5) << "the second of 0, 2.5, 10, 30: nearest rank, no interpolation";
    EXPECT_DOUBLE_EQ(stats.p99_us, 30);
    EXPECT_DOUBLE_EQ(stats.mean_us, 42.5 / 4);
    EXPECT_DOUBLE_EQ(stats.share, 42.5 / 250);
    meter.add(4us, 10us);
    stats = meter.summary();
    EXPECT_DOUBLE_EQ(stats.p50_us, 4) << "the third of 0, 2.5, 4, 10, 30";
    EXPECT_DOUBLE_EQ(stats.share, 46.5 / 260);
}

TEST(StallMeter, NearestRankOfAHundredAndOfAHundredAndOne)
{
    StallMeter meter;
    for (std::int64_t us = 100; us >= 1; --us) { meter.add(us * 1us, 1ms); }
    EXPECT_DOUBLE_EQ(meter.summary().p50_us, 50);
    EXPECT_DOUBLE_EQ(meter.summary().p99_us, 99);
    meter.add(101us, 1ms);
    EXPECT_DOUBLE_EQ(meter.summary().p50_us, 51);
    EXPECT_DOUBLE_EQ(meter.summary().p99_us, 100);
}

TEST(StallMeter, OldStepsLeaveTheRing)
{
    StallMeter meter;
    const std::int64_t before = test::allocations;
    for (std::size_t i = 0; i < 3 * StallMeter::kSteps; ++i) { meter.add(1ms, 1ms); }
    EXPECT_EQ(test::allocations, before);
    EXPECT_DOUBLE_EQ(meter.summary().share, 1);
    for (std::size_t i = 0; i < StallMeter::kSteps; ++i) { meter.add(i % 2 == 0 ? 0us : 5us, 50us); }
    const StallStats stats = meter.summary();
    EXPECT_EQ(stats.steps, StallMeter::kSteps);
    EXPECT_DOUBLE_EQ(stats.p50_us, 0);
    EXPECT_DOUBLE_EQ(stats.p99_us, 5);
    EXPECT_DOUBLE_EQ(stats.mean_us, 2.5);
    EXPECT_DOUBLE_EQ(stats.share, 0.05);
}

TEST(StallMeter, NegativeTimesAreRefused)
{
    StallMeter meter;
    EXPECT_THROW(meter.add(0ns, -1ns), InvalidArgument);
    try {
        meter.add(-3ns, 9ns);
        FAIL();
    } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("-3 ns in a step of 9 ns"), std::string::npos) << error.what();
    }
    EXPECT_EQ(meter.summary().steps, 0U);
}

TEST(StallMeter, SummariesWhileStepsAreAdded)
{
    StallMeter meter;
    std::jthread driver([&] {
        for (int i = 0; i < 20000; ++i) { meter.add(2us, 8us); }
    });
    for (int i = 0; i < 50; ++i) {
        const StallStats stats = meter.summary();
        if (stats.steps == 0) { continue; }
        EXPECT_DOUBLE_EQ(stats.share, 0.25);
        EXPECT_DOUBLE_EQ(stats.p99_us, 2);
    }
}

} // namespace
} // namespace oasis
