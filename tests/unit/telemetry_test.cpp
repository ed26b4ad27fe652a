// SPDX-License-Identifier: Apache-2.0
#include <oasis/core/telemetry_sinks.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace oasis {
namespace {

using namespace std::chrono_literals;

struct FakeClock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<FakeClock>;
    static constexpr bool is_steady = true;
    inline static duration elapsed{};
    static time_point now() { return time_point(elapsed); }
};

using Trace = BasicChromeTrace<FakeClock>;

std::string written(const Trace& trace)
{
    std::ostringstream out;
    trace.write(out);
    return out.str();
}

int count(const std::string& text, const std::string& part)
{
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) { ++n; }
    return n;
}

Event event(EventKind kind, EventReason reason, Tier tier, std::int32_t block, LayerId layer = -1,
            std::int32_t set = -1)
{
    return {kind, reason, tier, BlockId{block}, layer, set, 4224};
}

TEST(NullTelemetry, IsEmptyAndOff)
{
    static_assert(!NullTelemetry::enabled && std::is_empty_v<NullTelemetry>);
    static_assert(!Fanout<NullTelemetry, NullTelemetry>::enabled && Fanout<NullTelemetry, EventLog&>::enabled);
}

TEST(Fanout, ReachesBothSinks)
{
    EventLog log;
    Trace trace;
    Fanout<EventLog&, Trace&> both{log, trace};
    both.on_event(event(EventKind::kStored, EventReason::kSeal, Tier::kSlow, 1));
    both.begin_span(Stage::kScore, 0);
    both.end_span(Stage::kScore, 0);
    EXPECT_EQ(log.events().size(), 1U);
    EXPECT_EQ(count(written(trace), "\"ph\":\"X\""), 1);
    EXPECT_EQ(count(written(trace), "\"ph\":\"i\""), 1);
}

TEST(ChromeTrace, SpansWithTimesInMicrosecondsAndTwoLanes)
{
    FakeClock::elapsed = 5s;
    Trace trace;
    FakeClock::elapsed += 1500ns;
    trace.begin_span(Stage::kAttend, 3);
    FakeClock::elapsed += 250ns;
    trace.begin_span(Stage::kFetch, 3);
    FakeClock::elapsed += 1ms;
    trace.end_span(Stage::kFetch, 3);
    trace.end_span(Stage::kAttend, 3);
    const std::string text = written(trace);
    EXPECT_NE(text.find("\"tid\":1000,\"ts\":1.500,\"dur\":1000.250,\"name\":\"attend\",\"args\":{\"layer\":3}"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("\"tid\":2000,\"ts\":1.750,\"dur\":1000.000,\"name\":\"fetch\""), std::string::npos) << text;
    EXPECT_NE(text.find("\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}"), std::string::npos) << text;
    EXPECT_NE(text.find("\"args\":{\"name\":\"transfer\"}"), std::string::npos) << text;
    EXPECT_EQ(count(text, "{"), count(text, "}"));
}

TEST(ChromeTrace, KeepsItsBoundAndCountsTheRest)
{
    Trace trace(3);
    for (LayerId layer = 0; layer < 10; ++layer) {
        trace.begin_span(Stage::kScore, layer);
        trace.end_span(Stage::kScore, layer);
    }
    trace.end_span(Stage::kScore, 99);
    EXPECT_EQ(trace.dropped(), 7U);
    EXPECT_EQ(count(written(trace), "\"ph\":\"X\""), 3);
    EXPECT_NE(written(trace).find("\"dropped\":7"), std::string::npos);
}

TEST(ChromeTrace, ThreadsOfAStageDoNotShareALane)
{
    Trace trace;
    trace.begin_span(Stage::kFetch, 0);
    std::jthread([&] {
        trace.begin_span(Stage::kFetch, 0);
        trace.end_span(Stage::kFetch, 0);
    }).join();
    trace.end_span(Stage::kFetch, 0);
    const std::string text = written(trace);
    EXPECT_EQ(count(text, "\"tid\":2000,\"ts\""), 1) << text;
    EXPECT_EQ(count(text, "\"tid\":2001,\"ts\""), 1) << text;
    EXPECT_NE(text.find("\"transfer 2\""), std::string::npos) << text;
}

TEST(ChromeTrace, ManyThreadsAtOnce)
{
    ChromeTrace trace(100000);
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                for (int n = 0; n < 500; ++n) {
                    trace.begin_span(Stage::kAttend, t);
                    trace.on_event(event(EventKind::kPromoted, EventReason::kDemand, Tier::kFast, n, t, 0));
                    trace.end_span(Stage::kAttend, t);
                }
            });
        }
    }
    std::ostringstream out;
    trace.write(out);
    EXPECT_EQ(count(out.str(), "\"ph\":\"X\""), 2000);
    EXPECT_EQ(count(out.str(), "\"ph\":\"i\""), 2000);
}

TEST(EventLogCases, OBS_06_ReplayGivesTheResidencyMap)
{
    EventLog log;
    log.on_event(event(EventKind::kStored, EventReason::kSeal, Tier::kSlow, 1));
    // A failed store is not stored, and takes nothing away from what is there.
    log.on_event(event(EventKind::kRefused, EventReason::kStoreFailed, Tier::kSlow, 2));
    log.on_event(event(EventKind::kRefused, EventReason::kStoreFailed, Tier::kSlow, 1, 0, 0));
    log.on_event(event(EventKind::kPromoted, EventReason::kDemand, Tier::kFast, 1, 0, 1));
    log.on_event(event(EventKind::kPromoted, EventReason::kPrefetch, Tier::kFast, 1, 1, 0));
    log.on_event(
        event(EventKind::kEvicted, EventReason::kPressure, Tier::kFast, 1, 0, 1)); // demoted: the slow copy stays
    log.on_event(event(EventKind::kStored, EventReason::kSeal, Tier::kSlow, 3));
    log.on_event(event(EventKind::kDropped, EventReason::kRemoved, Tier::kSlow, 3));

    const ResidencyMap map = log.replay(2, 2);
    for (LayerId layer = 0; layer < 2; ++layer) {
        for (std::int32_t set = 0; set < 2; ++set) {
            EXPECT_TRUE(map.resident(Tier::kSlow, BlockId{1}, layer, set));
            EXPECT_EQ(map.resident(Tier::kFast, BlockId{1}, layer, set), layer == 1 && set == 0);
            EXPECT_FALSE(map.resident(Tier::kSlow, BlockId{2}, layer, set));
            EXPECT_FALSE(map.resident(Tier::kSlow, BlockId{3}, layer, set));
        }
    }
    EXPECT_EQ(map.units(Tier::kSlow), 4U);
    EXPECT_EQ(map.units(Tier::kFast), 1U);
    EXPECT_EQ(map, log.replay(2, 2));
}

TEST(EventLogCases, OBS_06_ContradictionsAndGapsAreReported)
{
    EventLog twice;
    twice.on_event(event(EventKind::kPromoted, EventReason::kDemand, Tier::kFast, 7, 0, 0));
    twice.on_event(event(EventKind::kPromoted, EventReason::kDemand, Tier::kFast, 7, 0, 0));
    try {
        (void)twice.replay(1, 1);
        FAIL() << "a unit cannot arrive twice";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("event 1 (promoted, demand, fast tier, block 7, layer 0, set 0)"),
                  std::string::npos)
            << error.what();
    }
    EventLog before;
    before.on_event(event(EventKind::kEvicted, EventReason::kPressure, Tier::kFast, 7, 0, 0));
    EXPECT_THROW((void)before.replay(1, 1), Error);

    EventLog small(1);
    small.on_event(event(EventKind::kStored, EventReason::kSeal, Tier::kSlow, 1));
    small.on_event(event(EventKind::kStored, EventReason::kSeal, Tier::kSlow, 2));
    EXPECT_EQ(small.dropped(), 1U);
    EXPECT_THROW((void)small.replay(1, 1), Error);
}

TEST(Telemetry, EveryEnumeratorHasAName)
{
    EXPECT_EQ(name(EventKind::kRefused), "refused");
    EXPECT_EQ(name(EventReason::kStoreFailed), "store_failed");
    EXPECT_EQ(name(Stage::kPrefetch), "prefetch");
}

} // namespace
} // namespace oasis
