// SPDX-License-Identifier: Apache-2.0
#include <oasis/core/telemetry_sinks.hpp>

#include <gtest/gtest.h>

#if __has_include(<nlohmann/json.hpp>) // comes with the packages of the decoder
#include <nlohmann/json.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace oasis {
namespace {

using namespace std::chrono_literals;

struct FakeClock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::steady_clock::time_point;
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
    both.on_transfer({.demand = true, .layer = 0});
    EXPECT_EQ(log.events().size(), 1U);
    EXPECT_EQ(count(written(trace), "\"ph\":\"X\""), 2);
    EXPECT_EQ(count(written(trace), "\"ph\":\"i\""), 1);
}

/// A sink without `on_transfer`.
struct Spans {
    static constexpr bool enabled = true;
    void on_event(const Event&) {}
    void begin_span(Stage, LayerId) {}
    void end_span(Stage, LayerId) {}
};

TEST(Fanout, TransfersReachThoseThatTakeThem)
{
    static_assert(check_telemetry<Spans>() && !TransferTelemetry<Spans>);
    static_assert(TransferTelemetry<Fanout<Spans, NullTelemetry>>);
    Trace trace;
    Fanout<Spans, Trace&> both{{}, trace};
    both.on_transfer({.demand = false, .layer = 2});
    EXPECT_EQ(count(written(trace), "\"ph\":\"X\""), 1);
}

TEST(ChromeTrace, SpansWithTimesInMicrosecondsOnTheLaneOfTheirThread)
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
    EXPECT_NE(text.find("\"tid\":1000,\"ts\":1.750,\"dur\":1000.000,\"name\":\"fetch\""), std::string::npos) << text;
    EXPECT_NE(text.find("\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}"), std::string::npos) << text;
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
    EXPECT_EQ(count(text, "\"tid\":1000,\"ts\""), 1) << text;
    EXPECT_EQ(count(text, "\"tid\":1001,\"ts\""), 1) << text;
    EXPECT_NE(text.find("\"compute 1\""), std::string::npos) << text;
}

TEST(ChromeTrace, TransfersHaveOneLaneForEachKindAndWorkerOnTheSpansClock)
{
    FakeClock::elapsed = 7s;
    Trace trace;
    trace.begin_span(Stage::kAttend, 3);
    const auto start = FakeClock::now();
    TransferSpan moved{.demand = true, .layer = 3, .set = 1, .block = BlockId{77}, .bytes = 4224, .worker = 1,
                       .begin = start + 500ns, .end = start + 2us, .delivered = true};
    trace.on_transfer(moved);
    moved.demand = false;
    moved.delivered = false;
    trace.on_transfer(moved);
    moved.worker = -1;
    moved.begin = start - 4us;
    moved.end = start + 1us;
    trace.on_transfer(moved);
    FakeClock::elapsed += 2us;
    trace.end_span(Stage::kAttend, 3);
    const std::string text = written(trace);
    const std::string unit = "\"args\":{\"block\":77,\"layer\":3,\"set\":1,\"bytes\":4224,\"delivered\":";
    const auto has = [&](const std::string& part) { EXPECT_NE(text.find(part), std::string::npos) << part << text; };
    has("\"tid\":1000,\"ts\":0.000,\"dur\":2.000,\"name\":\"attend\"");
    has("\"tid\":2002,\"ts\":0.500,\"dur\":1.500,\"name\":\"layer 3\"," + unit + "true}");
    has("\"tid\":3002,\"ts\":0.500,\"dur\":1.500,\"name\":\"layer 3\"," + unit + "false}");
    has("\"tid\":3000,\"ts\":0.000,\"dur\":1.000,\"name\":\"layer 3\"," + unit + "false}");
    has("\"tid\":2002,\"name\":\"thread_name\",\"args\":{\"name\":\"demand 1\"}");
    has("\"tid\":3002,\"name\":\"thread_name\",\"args\":{\"name\":\"prefetch 1\"}");
    has("\"tid\":3000,\"name\":\"thread_name\",\"args\":{\"name\":\"prefetch driver\"}");
    has("\"tid\":2002,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":2002}");
}

#if __has_include(<nlohmann/json.hpp>)
/// Two workers of either kind move units one after the other, while the driving thread computes.
void work(ChromeTrace& trace)
{
    std::vector<std::jthread> workers;
    for (std::int32_t w = 0; w < 4; ++w) {
        workers.emplace_back([&trace, w] {
            for (std::int32_t n = 0; n < 200; ++n) {
                const auto begin = std::chrono::steady_clock::now();
                std::this_thread::yield();
                trace.on_transfer({.demand = w % 2 == 0, .layer = n % 3, .set = w, .block = BlockId{n}, .bytes = 64,
                                   .worker = w / 2, .begin = begin, .end = std::chrono::steady_clock::now(),
                                   .delivered = n % 5 != 0});
            }
        });
    }
    for (LayerId layer = 0; layer < 100; ++layer) {
        trace.begin_span(Stage::kAttend, layer);
        trace.on_event(event(EventKind::kPromoted, EventReason::kDemand, Tier::kFast, layer, layer, 0));
        trace.end_span(Stage::kAttend, layer);
    }
}

TEST(ChromeTrace, IsJsonWithNamedLanesWhereSpansDoNotOverlap)
{
    ChromeTrace trace;
    work(trace);
    std::ostringstream out;
    trace.write(out);
    const auto json = nlohmann::json::parse(out.str());
    std::map<int, std::string> names;
    std::map<int, std::vector<std::pair<double, double>>> lanes;
    std::set<int> sorted;
    for (const auto& record : json.at("traceEvents")) {
        if (record.at("name") == "thread_name") { names[record.at("tid")] = record.at("args").at("name"); }
        if (record.at("name") == "thread_sort_index") { sorted.insert(int(record.at("tid"))); }
        if (record.at("ph") != "X") { continue; }
        lanes[record.at("tid")].emplace_back(record.at("ts"), record.at("dur"));
        EXPECT_TRUE(record.at("args").at("layer").is_number_integer());
        if (record.at("tid") < 2000) { continue; }
        EXPECT_EQ(record.at("args").at("delivered").get<bool>(), record.at("args").at("block").get<int>() % 5 != 0);
    }
    std::vector<std::string> texts;
    for (const auto& [lane, text] : names) {
        texts.push_back(text);
        EXPECT_TRUE(sorted.contains(lane)) << text;
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"compute", "demand 0", "demand 1", "prefetch 0", "prefetch 1",
                                               "residency"}));
    ASSERT_EQ(lanes.size(), 5U);
    for (auto& [lane, spans] : lanes) {
        ASSERT_TRUE(names.contains(lane));
        EXPECT_EQ(spans.size(), lane == 1000 ? 100U : 200U) << names[lane];
        std::sort(spans.begin(), spans.end());
        for (std::size_t i = 1; i < spans.size(); ++i) {
            // Times are whole nanoseconds; 0.5 ns is room for their sum in floating point.
            EXPECT_GE(spans[i].first, spans[i - 1].first + spans[i - 1].second - 5e-4) << names[lane] << " span " << i;
        }
    }
}
#endif

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
