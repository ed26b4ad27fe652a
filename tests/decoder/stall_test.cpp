// SPDX-License-Identifier: Apache-2.0
//
// Prefetch hides a slow link: the same answers over a throttled slow tier, with and without drafts that look ahead. Rates are chosen from the
// step time and the bytes of this machine, so that the link alone would cost more than the step.
// RUN-SERIAL: waits are measured, and drafts beside a busy processor hide less
#include "app/command.hpp"
#include "decoder/fake_cache.hpp"
#include "decoder/support.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace oasis_decode::test {
namespace {

/// Configurations of one report, by the text of their options.
Json configurations(std::vector<std::string> more)
{
    std::vector<std::string> arguments{"eval", (data_dir() / "retrieval-14m").string(), "--generate", "json:4096:2", "--seed", "3", "--attend-budget", "512",
                                       "--fetch-budget", "256", "--logical-resident", "512", "--rows", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const TemporaryFolder folder;
    const std::filesystem::path path = folder / "out.json";
    arguments.insert(arguments.end(), {"--json", path.string()});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = run_program(arguments, real_maker());
    static_cast<void>(testing::internal::GetCapturedStdout());
    const std::string errors = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, 0) << errors;
    return code == 0 ? read_json(path, 100'000'000)["configurations"] : Json();
}

TEST(Stall, DraftsThatLookAheadHideTheLink)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer build is no measure of time; the release build runs this";
#endif
    const Json ram = configurations({"--draft", "none"});
    ASSERT_EQ(ram.size(), 1U);
    const double step = 1 / ram[0]["tokens_per_second"].get<double>();
    const double bytes = ram[0]["demand_bytes"].get<double>() / ram[0]["steps"].get<double>();
    std::string rates;
    for (const double share : {1.2, 1.6, 2.0}) { // of the step, for the link alone
        rates += fmt::format("{}throttle:{:.3f}MBps", rates.empty() ? "slow=" : ",", bytes / (share * step) / 1e6);
    }
    const Json none = configurations({"--draft", "none", "--sweep", rates});
    const Json ahead = configurations({"--draft", "mtp", "--draft-tokens", "0", "--draft-floor", "0", "--sweep", rates});
    const Json drafted = configurations({"--draft", "mtp", "--draft-tokens", "1", "--draft-floor", "0", "--lookahead", "rows:2", "--sweep", rates});
    const Json unaware = configurations({"--draft", "mtp", "--draft-tokens", "0", "--draft-floor", "0", "--cap", "0", "--sweep", rates});
    ASSERT_EQ(none.size(), 3U);
    ASSERT_EQ(ahead.size(), 3U);
    ASSERT_EQ(drafted.size(), 3U);
    ASSERT_EQ(unaware.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
        SCOPED_TRACE(none[i]["options"]["slow"].get<std::string>());
        const double waited = none[i]["stall_p50_us"];
        EXPECT_LE(none[i]["tokens_per_second"].get<double>(), 0.55 / step) << "the link does not double the step";
        EXPECT_LE(ahead[i]["stall_p50_us"].get<double>(), waited / 2);
        EXPECT_LE(drafted[i]["stall_p50_us"].get<double>(), waited / 2) << "with a draft accepted in every step";
        EXPECT_GE(drafted[i]["tokens_per_verification"].get<double>(), 1.8);
        EXPECT_GT(unaware[i]["stall_p50_us"].get<double>(), waited / 2) << "the same rows without prefetch must fail";
        EXPECT_GE(ahead[i]["resident_at_use"].get<double>(), 0.98);
        EXPECT_EQ(ahead[i]["exact"], none[i]["exact"]);
        EXPECT_EQ(ahead[i]["kl"], none[i]["kl"]); // whatever was guessed and whenever it came
        fmt::print("{}: P50 wait {:.0f} us, {:.0f} with lookahead, {:.0f} with its rows but no prefetch; tokens/s {:.1f}, {:.1f}, {:.1f}\n",
                   none[i]["options"]["slow"].get<std::string>(), waited, ahead[i]["stall_p50_us"].get<double>(), unaware[i]["stall_p50_us"].get<double>(),
                   none[i]["tokens_per_second"].get<double>(), ahead[i]["tokens_per_second"].get<double>(), unaware[i]["tokens_per_second"].get<double>());
    }
    const char* const idle = std::getenv("OASIS_LONG_TESTS");
    if (!idle || std::string_view(idle) != "1") { return; } // speed is only compared where nothing else runs
    EXPECT_GT(ahead[2]["tokens_per_second"].get<double>(), none[2]["tokens_per_second"].get<double>());
    EXPECT_LT(unaware[2]["tokens_per_second"].get<double>(), ahead[2]["tokens_per_second"].get<double>());
}

} // namespace
} // namespace oasis_decode::test
