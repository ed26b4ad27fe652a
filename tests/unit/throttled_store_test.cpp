// SPDX-License-Identifier: Apache-2.0
#include <oasis/tier/any_store.hpp>
#include <oasis/tier/throttled_store.hpp>

#include "fault/failing_store.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace oasis {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kLeast = 0.02; // how fast instrumented code is, is not the point
#else
constexpr double kLeast = 0.9;
#endif

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

StoreOptions one_block(std::size_t unit)
{
    return {.unit_bytes = unit, .layers = 1, .sets = 1, .capacity_bytes = unit};
}

/// A store of one block that was written once.
template <class Store> void fill(Store& store, std::size_t unit)
{
    std::vector<std::byte> bytes(unit, std::byte{5});
    ASSERT_TRUE(store.reserve(BlockId{0}));
    ASSERT_TRUE(store.write({BlockId{0}, 0, 0, bytes.data()}));
}

/// Bytes per second that `threads` threads get together, each piece by piece for `span`.
template <class Call> double rate_of(int threads, std::size_t unit, std::chrono::nanoseconds span, const Call& call)
{
    std::atomic<std::size_t> pieces{0};
    const Clock::time_point start = Clock::now();
    {
        std::vector<std::jthread> crowd;
        for (int t = 0; t < threads; ++t) {
            crowd.emplace_back([&] {
                std::vector<std::byte> bytes(unit);
                while (Clock::now() - start < span) {
                    if (call(StorePiece{BlockId{0}, 0, 0, bytes.data()})) { ++pieces; }
                }
            });
        }
    }
    return static_cast<double>(pieces.load() * unit) / seconds_since(start);
}

TEST(ThrottledStore, RateHoldsForSmallPiecesAndIsNeverExceeded)
{
    constexpr std::size_t kUnit = 4096;
    for (const double rate : {1e8, 1e9, 2e9}) {
        for (const microseconds latency : {microseconds(0), microseconds(20)}) {
            double best = 0.0;
            // A busy machine may keep a link idle: one of the runs must reach the rate, none may exceed it.
            for (const int span : {300, 300, 600, 1200, 2400}) {
                if (best >= kLeast) { break; }
                ThrottledStore<> store(one_block(kUnit), {.bytes_per_second = rate, .latency = latency});
                fill(store, kUnit);
                const double part =
                    rate_of(4, kUnit, milliseconds(span), [&](const StorePiece& p) { return store.read(p); }) / rate;
                ASSERT_LE(part, 1.0) << rate << " B/s, latency " << latency.count() << " us";
                best = std::max(best, part);
            }
            EXPECT_GE(best, kLeast) << rate << " B/s, latency " << latency.count() << " us";
            RecordProperty("part_of_" + std::to_string(std::int64_t(rate)) + "_" + std::to_string(latency.count()) +
                               "us",
                           std::to_string(best));
        }
    }
}

TEST(ThrottledStoreCases, OBS_01_EightTransfersShareTheRate)
{
    constexpr std::size_t kUnit = 64 << 10;
    constexpr int kTransfers = 8;
    constexpr std::size_t kPieces = 160; // of a transfer: 10 MB
    constexpr double kRate = 1e9;
    double best = 0.0;
    for (int run = 0; run < 5 && best < kLeast; ++run) {
        ThrottledStore<> store(one_block(kUnit), {.bytes_per_second = kRate, .latency = microseconds(20)});
        fill(store, kUnit);
        const Clock::time_point start = Clock::now();
        {
            std::vector<std::jthread> transfers;
            for (int t = 0; t < kTransfers; ++t) {
                transfers.emplace_back([&] {
                    std::vector<std::byte> bytes(kUnit);
                    for (std::size_t i = 0; i < kPieces; ++i) { store.read({BlockId{0}, 0, 0, bytes.data()}); }
                });
            }
        }
        const double aggregate = static_cast<double>(store.bytes_read()) / seconds_since(start);
        EXPECT_EQ(store.bytes_read(), std::uint64_t{kTransfers} * kPieces * kUnit);
        ASSERT_LE(aggregate, kRate);
        best = std::max(best, aggregate / kRate);
    }
    EXPECT_GE(best, kLeast);
}

TEST(ThrottledStore, NoPieceIsEarly)
{
    constexpr std::size_t kUnit = 1 << 20;
    ThrottledStore<> store(one_block(kUnit), {.bytes_per_second = 1e9, .latency = milliseconds(3)});
    fill(store, kUnit);
    std::vector<std::byte> bytes(kUnit);
    for (int i = 0; i < 3; ++i) {
        std::this_thread::sleep_for(milliseconds(2)); // no credit for time in which nobody asked
        const Clock::time_point start = Clock::now();
        ASSERT_TRUE(store.read({BlockId{0}, 0, 0, bytes.data()}));
        EXPECT_GE(seconds_since(start), 0.004);
    }
    EXPECT_EQ(bytes.front(), std::byte{5});
}

TEST(ThrottledStore, LatenciesOfConcurrentReadsOverlap)
{
    constexpr std::size_t kUnit = 4096;
    ThrottledStore<> store(one_block(kUnit), {.bytes_per_second = 1e9, .latency = milliseconds(40)});
    fill(store, kUnit);
    const Clock::time_point start = Clock::now();
    {
        std::vector<std::jthread> crowd;
        for (int t = 0; t < 8; ++t) {
            crowd.emplace_back([&] {
                std::vector<std::byte> bytes(kUnit);
                EXPECT_TRUE(store.read({BlockId{0}, 0, 0, bytes.data()}));
            });
        }
    }
    EXPECT_GE(seconds_since(start), 0.040);
    EXPECT_LT(seconds_since(start), 0.160) << "eight latencies one after the other are 320 ms";
}

TEST(ThrottledStore, WritesAreChargedOnRequestAlone)
{
    constexpr std::size_t kUnit = 1 << 20;
    for (const bool throttled : {false, true}) {
        ThrottledStore<> store(one_block(kUnit),
                               {.bytes_per_second = 1e8, .latency = {}, .throttle_writes = throttled});
        ASSERT_TRUE(store.reserve(BlockId{0}));
        std::vector<std::byte> bytes(kUnit);
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < 10; ++i) { ASSERT_TRUE(store.write({BlockId{0}, 0, 0, bytes.data()})); }
        const double spent = seconds_since(start); // 105 ms over the link
        EXPECT_EQ(spent > 0.1, throttled) << spent;
        EXPECT_EQ(store.bytes_written(), 10 * kUnit);
        EXPECT_EQ(store.inner().bytes_written(), 10 * kUnit);
    }
}

TEST(ThrottledStore, AnyInnerStoreAndItsFailures)
{
    constexpr std::size_t kUnit = 64;
    const auto faults = std::make_shared<fault::StoreFaults>();
    auto inner = std::make_unique<fault::FailingStore<>>(one_block(kUnit), faults);
    ThrottledStore<fault::FailingStore<>> store(std::move(inner), kUnit, {.bytes_per_second = 1e9});
    fill(store, kUnit);
    std::vector<std::byte> bytes(kUnit);
    faults->fail_read_at = 1;
    EXPECT_FALSE(store.read({BlockId{0}, 0, 0, bytes.data()}));
    EXPECT_EQ(store.bytes_read(), 0U) << "what was not delivered does not count";
    EXPECT_TRUE(store.read({BlockId{0}, 0, 0, bytes.data()}));
    EXPECT_EQ(store.bytes_read(), kUnit);
    EXPECT_FALSE(store.reserve(BlockId{1}));
}

TEST(ThrottledStore, RefusesLinksThatCannotBe)
{
    const auto refuses = [](ThrottleOptions options, const char* what) {
        try {
            ThrottledStore<> store(one_block(8), options);
            ADD_FAILURE() << what;
        } catch (const InvalidArgument& e) {
            EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
        }
    };
    refuses({.bytes_per_second = 0.0}, "bytes_per_second is 0");
    refuses({.bytes_per_second = -3.0}, "bytes_per_second is -3");
    refuses({.bytes_per_second = std::numeric_limits<double>::infinity()}, "bytes_per_second is inf");
    refuses({.bytes_per_second = 1e9, .latency = std::chrono::nanoseconds(-7)}, "latency is -7 ns");
    EXPECT_THROW((ThrottledStore<>(std::unique_ptr<RamStore>(), 8, {.bytes_per_second = 1e9})), InvalidArgument);
}

} // namespace
} // namespace oasis
