// SPDX-License-Identifier: Apache-2.0
//
// `run --residency`: which blocks were in fast memory after each step, as the events of a real cache tell.
#include "app/command.hpp"
#include "app/residency.hpp"
#include "decoder/fake_cache.hpp"
#include "decoder/support.hpp"

#include <fstream>
#include <numeric>
#include <utility>
#include <vector>

namespace oasis_decode::test {
namespace {

using oasis::BlockId;
using oasis::EventKind;
using oasis::EventReason;
using oasis::Tier;

TEST(ResidencyGrid, CountsUnitsByPositionAndTheUnsealedAsThere)
{
    ResidencyGrid grid({.shape = {.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 64}, .block_tokens = 16});
    const auto tell = [&](EventKind kind, EventReason reason, Tier tier, int block, int set) {
        grid.on_event({.kind = kind, .reason = reason, .tier = tier, .block = BlockId{block}, .layer = 0, .set = set});
    };
    for (const int block : {7, 3}) { // ids say nothing about positions: the order of sealing does
        for (const int set : {0, 1}) { tell(EventKind::kStored, EventReason::kSeal, Tier::kSlow, block, set); }
    }
    tell(EventKind::kPromoted, EventReason::kSeal, Tier::kFast, 7, 0);
    tell(EventKind::kPromoted, EventReason::kDemand, Tier::kFast, 7, 1);
    tell(EventKind::kPromoted, EventReason::kPrefetch, Tier::kFast, 3, 1);
    grid.end_step(33);
    tell(EventKind::kEvicted, EventReason::kPressure, Tier::kFast, 7, 0);
    grid.on_event({.kind = EventKind::kRefused, .tier = Tier::kFast});
    grid.end_step(34);
    const Json json = Json::parse(grid.to_json().dump());
    EXPECT_EQ(json["units"], 2);
    EXPECT_EQ(json["steps"][0], Json::parse(R"({"tokens": 33, "demand": 1, "ahead": 1, "resident": [2, 1, 2]})"));
    EXPECT_EQ(json["steps"][1], Json::parse(R"({"tokens": 34, "demand": 0, "ahead": 0, "resident": [1, 1, 2]})"));
}

/// `run` over 900 tokens with the given options; the file of --residency, and what --json says.
std::pair<Json, Json> run_with(std::vector<std::string> more)
{
    const TemporaryFolder folder;
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 400; ++i) { text << "Line " << i * 7919 % 1000 << " says that item " << i << " is here.\n"; }
    text.close();
    std::vector<std::string> arguments{"run", (data_dir() / "retrieval-14m").string(), "--file", (folder / "text.txt").string(), "--tokens", "900",
                                       "--max-tokens", "24", "--dense-column", "off",
                                       "--residency", (folder / "residency.json").string(), "--json", (folder / "out.json").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    testing::internal::CaptureStdout();
    const int code = run_program(arguments, real_maker());
    static_cast<void>(testing::internal::GetCapturedStdout());
    EXPECT_EQ(code, 0);
    return {read_json(folder / "residency.json", 100'000'000), read_json(folder / "out.json", 100'000'000)};
}

TEST(ResidencyGrid, FollowsACache)
{
    const auto [file, report] = run_with({"--attend-budget", "256"});
    const Json& grid = file["residency"];
    EXPECT_EQ(file["commit"], report["commit"]);
    ASSERT_EQ(grid["units"], 8 * 2);
    ASSERT_EQ(grid["steps"].size(), report["configurations"][0]["steps"].get<std::size_t>());
    for (const Json& step : grid["steps"]) {
        const auto resident = step["resident"].get<std::vector<int>>();
        const auto tokens = step["tokens"].get<std::int64_t>();
        ASSERT_EQ(std::ssize(resident), (tokens + 15) / 16);
        for (std::size_t block = 0; block < 4; ++block) { EXPECT_EQ(resident[block], 16) << "sinks are always there"; }
        EXPECT_EQ(resident.back(), 16) << "and so is the recent window";
        const int all = std::accumulate(resident.begin(), resident.end(), 0);
        EXPECT_GE(all, 16 * 256 / 16) << "the logical set";
        EXPECT_LE(all * std::int64_t{2 * 16 * 64 * 4}, report["configurations"][0]["fast_bytes"].get<std::int64_t>());
        EXPECT_LT(all, 16 * std::ssize(resident)) << "not everything fits";
    }
}

TEST(ResidencyGrid, WithRoomForEverythingEverythingIsThere)
{
    const auto [file, report] = run_with({"--fast-bytes", "all", "--attend-budget", "1024"});
    for (const Json& step : file["residency"]["steps"]) {
        for (const Json& resident : step["resident"]) { EXPECT_EQ(resident, 16); }
    }
}

} // namespace
} // namespace oasis_decode::test
