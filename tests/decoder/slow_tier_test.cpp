// SPDX-License-Identifier: Apache-2.0
#include "app/settings.hpp"
#include "app/slow_tier.hpp"

#include <oasis/tier/any_store.hpp>
#include <oasis/tier/file_store.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace oasis_decode;
using Kind = SlowTierSpec::Kind;
using std::chrono::nanoseconds;
using testing::HasSubstr;

std::string refused(const std::string& text)
{
    try {
        parse_slow_tier(text);
    } catch (const UsageError& e) {
        EXPECT_THAT(e.what(), HasSubstr("'" + text + "'"));
        return e.what();
    }
    ADD_FAILURE() << text << " was accepted";
    return {};
}

TEST(SlowTier, FormsAndUnits)
{
    EXPECT_EQ(parse_slow_tier("ram").kind, Kind::kRam);
    const SlowTierSpec link = parse_slow_tier("throttle:2GBps,20us");
    EXPECT_EQ(link.kind, Kind::kThrottled);
    EXPECT_EQ(link.throttle.bytes_per_second, 2e9);
    EXPECT_EQ(link.throttle.latency, nanoseconds(20'000));
    EXPECT_FALSE(link.throttle.throttle_writes);
    EXPECT_EQ(parse_slow_tier("throttle:1.5MBps").throttle.bytes_per_second, 1.5e6);
    EXPECT_EQ(parse_slow_tier("throttle:1.5MBps").throttle.latency, nanoseconds(0));
    EXPECT_EQ(parse_slow_tier("throttle:300kBps,1.5ms").throttle.bytes_per_second, 3e5);
    EXPECT_EQ(parse_slow_tier("throttle:300kBps,1.5ms").throttle.latency, nanoseconds(1'500'000));
    EXPECT_EQ(parse_slow_tier("throttle:70Bps,0ns").throttle.bytes_per_second, 70.0);
    EXPECT_EQ(parse_slow_tier("file:/var/tmp/a:b,c").kind, Kind::kFile);
    EXPECT_EQ(parse_slow_tier("file:/var/tmp/a:b,c").path, "/var/tmp/a:b,c");
}

TEST(SlowTier, TextReadsBack)
{
    EXPECT_EQ(parse_slow_tier("ram").text(), "ram");
    EXPECT_EQ(parse_slow_tier("throttle:2000MBps,20000ns").text(), "throttle:2GBps,20us");
    EXPECT_EQ(parse_slow_tier("throttle:0.25MBps").text(), "throttle:250kBps,0ns");
    EXPECT_EQ(parse_slow_tier("file:/var/tmp").text(), "file:/var/tmp");
    for (const char* text : {"throttle:1.234567GBps,1ms", "throttle:999Bps,999ns", "throttle:12345678Bps,1500ns"}) {
        const SlowTierSpec once = parse_slow_tier(text);
        const SlowTierSpec twice = parse_slow_tier(once.text());
        EXPECT_DOUBLE_EQ(twice.throttle.bytes_per_second, once.throttle.bytes_per_second) << text;
        EXPECT_EQ(twice.throttle.latency, once.throttle.latency) << text;
    }
}

TEST(SlowTier, ErrorsNameThePart)
{
    EXPECT_THAT(refused(""), HasSubstr("expected ram"));
    EXPECT_THAT(refused("disk"), HasSubstr("expected ram"));
    EXPECT_THAT(refused("throttle"), HasSubstr("expected ram"));
    EXPECT_THAT(refused("throttle:"), HasSubstr("rate ''"));
    EXPECT_THAT(refused("throttle:fast"), HasSubstr("rate 'fast'"));
    EXPECT_THAT(refused("throttle:2GB"),
                HasSubstr("rate '2GB' is not a number with one of the units GBps, MBps, kBps, Bps"));
    EXPECT_THAT(refused("throttle:2GBps "), HasSubstr("rate '2GBps '"));
    EXPECT_THAT(refused("throttle:2KBps"), HasSubstr("rate '2KBps'"));
    EXPECT_THAT(refused("throttle:nanGBps"), HasSubstr("rate 'nanGBps'"));
    EXPECT_THAT(refused("throttle:0GBps"), HasSubstr("rate '0GBps' must be at least 1Bps"));
    EXPECT_THAT(refused("throttle:-2GBps,1us"), HasSubstr("rate '-2GBps' must be"));
    EXPECT_THAT(refused("throttle:2GBps,"), HasSubstr("latency ''"));
    EXPECT_THAT(refused("throttle:2GBps,20"),
                HasSubstr("latency '20' is not a number with one of the units ms, us, ns"));
    EXPECT_THAT(refused("throttle:2GBps,20us,3"), HasSubstr("latency '20us,3'"));
    EXPECT_THAT(refused("throttle:2GBps,-1us"), HasSubstr("latency '-1us' must be"));
    EXPECT_THAT(refused("throttle:2GBps,61000ms"), HasSubstr("latency '61000ms' must be"));
    EXPECT_THAT(refused("file:"), HasSubstr("the path is empty"));
}

TEST(SlowTier, FactoriesMakeTheTierTheyName)
{
    constexpr oasis::StoreOptions shape{.unit_bytes = 1000, .layers = 1, .sets = 1, .capacity_bytes = 4000};
    const std::string folder = std::filesystem::temp_directory_path().string();
    for (const std::string& text : std::vector<std::string>{"ram", "throttle:1GBps", "file:" + folder}) {
        const auto tier = parse_slow_tier(text).factory()(shape);
        std::vector<std::byte> bytes(1000, std::byte{7});
        ASSERT_TRUE(tier->reserve(oasis::BlockId{1})) << text;
        ASSERT_TRUE(tier->write({oasis::BlockId{1}, 0, 0, bytes.data()})) << text;
        bytes.assign(1000, std::byte{0});
        ASSERT_TRUE(tier->read({oasis::BlockId{1}, 0, 0, bytes.data()})) << text;
        EXPECT_EQ(bytes.back(), std::byte{7}) << text;
        EXPECT_EQ(tier->bytes_read(), 1000U) << text;
        EXPECT_EQ(tier->capacity_bytes(), 4000U) << text;
    }
    // 1 MB per second is felt.
    const auto slow = parse_slow_tier("throttle:1MBps,5ms")
                          .factory()({.unit_bytes = 10'000, .layers = 1, .sets = 1, .capacity_bytes = 10'000});
    std::vector<std::byte> bytes(10'000);
    ASSERT_TRUE(slow->reserve(oasis::BlockId{0}));
    ASSERT_TRUE(slow->write({oasis::BlockId{0}, 0, 0, bytes.data()}));
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(slow->read({oasis::BlockId{0}, 0, 0, bytes.data()}));
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(15));
    EXPECT_THROW(parse_slow_tier("file:/no/such/folder/file").factory()(shape), oasis::StoreError);
}

} // namespace
