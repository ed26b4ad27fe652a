// SPDX-License-Identifier: Apache-2.0
#include "app/command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace oasis_decode;
using testing::HasSubstr;

Parsed parse(const std::vector<std::string>& arguments) { return parse_command(arguments); }

Command parsed(const std::vector<std::string>& arguments)
{
    Parsed out = parse(arguments);
    EXPECT_TRUE(out.command.has_value()) << out.text;
    return out.command.value_or(Command{});
}

/// The text of a usage error: exit code 2, one line.
std::string refused(const std::vector<std::string>& arguments)
{
    const Parsed out = parse(arguments);
    EXPECT_FALSE(out.command.has_value());
    EXPECT_EQ(out.exit_code, 2);
    EXPECT_EQ(out.text.find('\n'), std::string::npos) << out.text;
    return out.text;
}

oasis::CacheConfig config(const Settings& settings)
{
    return to_config(settings, {.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 64}, 4096, 512);
}

TEST(Settings, DefaultsFollowTheAttendBudget)
{
    Settings s;
    EXPECT_EQ(config(s).budgets, oasis::Budgets{});
    set(s, "attend-budget", "512");
    EXPECT_EQ(config(s).budgets.fetch, 512);
    EXPECT_EQ(config(s).budgets.logical_resident, 512);
    EXPECT_EQ(config(s).dense_below, -1);
    set(s, "fetch_budget", "256");
    set(s, "logical-resident", "1024");
    EXPECT_EQ(config(s).budgets.fetch, 256);
    EXPECT_EQ(config(s).budgets.logical_resident, 1024);
}

TEST(Settings, BudgetsThatDoNotGrowAreRefused)
{
    Settings s;
    set(s, "fetch-budget", "4096");
    EXPECT_THROW(static_cast<void>(config(s)), UsageError);
    EXPECT_THAT(refused({"compare", "m", "--file", "f", "--fetch-budget", "4096"}), HasSubstr("4096"));
}

TEST(Settings, SummaryForms)
{
    EXPECT_EQ(parse_summary("spread2-int4", 16), oasis::SummaryOptions{});
    EXPECT_EQ(parse_summary("cuboid8-int8", 32),
              (oasis::SummaryOptions{oasis::SummaryKind::kCuboid, 8, oasis::SummaryCode::kInt8}));
    EXPECT_EQ(parse_summary("minmax32-f16", 32),
              (oasis::SummaryOptions{oasis::SummaryKind::kMinMax, 32, oasis::SummaryCode::kF16}));
    EXPECT_EQ(parse_summary("mean64-f32", 64).tokens, 64);
    EXPECT_EQ(parse_summary("oracle", 16).kind, oasis::SummaryKind::kOracle);
    for (const char* bad : {"", "spread", "spread2", "spread-int4", "spread3-int4", "spread32-int4", "spread2-int5",
                            "blob2-int4", "spread2-", "2-int4", "spread128-int4"}) {
        EXPECT_THROW(static_cast<void>(parse_summary(bad, 16)), UsageError) << bad;
    }
    EXPECT_THROW(static_cast<void>(parse_summary("spread32-int4", 64)), UsageError);
}

TEST(Settings, Sizes)
{
    EXPECT_EQ(parse_bytes("12"), 12U);
    EXPECT_EQ(parse_bytes("3K"), 3072U);
    EXPECT_EQ(parse_bytes("512m"), std::size_t{512} << 20);
    EXPECT_EQ(parse_bytes("2G"), std::size_t{2} << 30);
    for (const char* bad : {"", "M", "-1", "1.5G", "1X", "99999999999999999999", "9999999999T"}) {
        EXPECT_THROW(static_cast<void>(parse_bytes(bad)), UsageError) << bad;
    }
    Settings s;
    set(s, "fast-bytes", "64K");
    EXPECT_EQ(config(s).fast_bytes, 65536U);
    EXPECT_THROW(set(s, "fast-bytes", "0"), UsageError);
}

TEST(Settings, DraftsAndLookahead)
{
    Settings s;
    EXPECT_EQ(s.resolved_draft_tokens(), 0);
    EXPECT_EQ(config(s).prefetch_cap, 0) << "without drafts nothing is brought in ahead";
    EXPECT_EQ(config(s).lookahead, oasis::LookaheadSource::kRows);
    set(s, "draft", "lookup");
    EXPECT_EQ(s.draft, DraftSource::kLookup);
    EXPECT_EQ(s.resolved_draft_tokens(), 4);
    EXPECT_EQ(config(s).prefetch_cap, 512);
    set(s, "lookahead", "none");
    EXPECT_EQ(config(s).prefetch_cap, 0);
    EXPECT_EQ(config(s).lookahead, oasis::LookaheadSource::kNone);
    set(s, "cap", "64");
    EXPECT_EQ(config(s).prefetch_cap, 64);
    set(s, "draft", "none");
    set(s, "draft-tokens", "7");
    EXPECT_EQ(s.resolved_draft_tokens(), 0) << "nobody drafts them";
    set(s, "draft", "mtp:heads/one.safetensors");
    EXPECT_EQ(s.draft, DraftSource::kMtp);
    EXPECT_EQ(s.draft_file, "heads/one.safetensors");
    EXPECT_EQ(s.resolved_draft_tokens(), 7);
    set(s, "draft", "mtp");
    EXPECT_EQ(s.draft_file, "") << "the file of before is not kept";
    EXPECT_DOUBLE_EQ(s.resolved_draft_floor(), 0.2);
    set(s, "draft-floor", "0.5");
    EXPECT_DOUBLE_EQ(s.resolved_draft_floor(), 0.5);
    Settings same;
    set(same, "lookahead", "same");
    EXPECT_EQ(config(same).prefetch_cap, 512);
    for (const char* bad : {"", "mtp:", "magic", "lookup:x"}) { EXPECT_THROW(set(s, "draft", bad), UsageError) << bad; }
    for (const char* bad : {"8", "-1", "x"}) { EXPECT_THROW(set(s, "draft-tokens", bad), UsageError) << bad; }
    for (const char* bad : {"1.5", "-0.1", "x", "", "nan"}) {
        EXPECT_THROW(set(s, "draft-floor", bad), UsageError) << bad;
    }
}

TEST(Settings, EverySettingRoundTripsThroughItsText)
{
    for (const SettingInfo& info : setting_infos()) {
        Settings s;
        const std::string text = info.get(s);
        set(s, info.name, text);
        EXPECT_EQ(info.get(s), text) << info.name;
    }
}

TEST(Settings, SweepsMultiplyTheLastOneFastest)
{
    const std::vector<Sweep> sweeps{parse_sweep("attend_budget=512,1024"),
                                    parse_sweep("summary=spread2-int4,cuboid4-int4")};
    const auto all = expand(Settings{}, sweeps);
    ASSERT_EQ(all.size(), 4U);
    EXPECT_EQ(all[1].attend_budget, 512);
    EXPECT_EQ(all[1].summary, "cuboid4-int4");
    EXPECT_EQ(all[2].attend_budget, 1024);
    EXPECT_EQ(all[2].resolved_fetch(), 1024);
    EXPECT_EQ(expand(Settings{}, {}).size(), 1U);
    for (const char* bad :
         {"", "attend_budget", "attend_budget=", "=1", "attend_budget=1,", "colour=red", "attend_budget=many"}) {
        EXPECT_THROW(static_cast<void>(parse_sweep(bad)), UsageError) << bad;
    }
}

TEST(CommandLine, NoArgumentsGiveHelpWithExamples)
{
    const Parsed out = parse({});
    EXPECT_EQ(out.exit_code, 0);
    EXPECT_THAT(out.text, HasSubstr("oasis-decode run MODEL"));
    EXPECT_THAT(parse({"compare", "--help"}).text, HasSubstr("--attend-budget"));
    EXPECT_EQ(parse({"--version"}).exit_code, 0);
}

TEST(CommandLine, OptionsReachTheCommand)
{
    const Command c = parsed({"compare",      "model",
                              "--file",       "text",
                              "--tokens",     "900",
                              "--last",       "16",
                              "--block",      "32",
                              "--summary",    "minmax32-f16",
                              "--reduce",     "max",
                              "--sweep",      "attend_budget=256,512",
                              "--sweep",      "may=none,logical",
                              "--kv-dtype",   "bf16",
                              "--block-code", "int8",
                              "--threads",    "2",
                              "--compute",    "q8"});
    EXPECT_EQ(c.verb, Verb::kCompare);
    EXPECT_EQ(c.compute, Compute::kQ8);
    EXPECT_EQ(c.tokens, 900);
    EXPECT_EQ(c.last, 16);
    EXPECT_EQ(c.sweeps.size(), 2U);
    EXPECT_EQ(config(c.settings).summary.kind, oasis::SummaryKind::kMinMax);
    EXPECT_EQ(config(c.settings).dtype, oasis::DType::kBF16);
    EXPECT_EQ(config(c.settings).block_code, oasis::BlockCode::kInt8);
    EXPECT_EQ(config(c.settings).reduction, oasis::GroupReduction::kMax);
    const Command r = parsed({"run", "model", "--prompt", "hi", "--temp", "0.7", "--top-p", "0.9", "--seed", "7",
                              "--max-tokens", "3", "--chat", "--chat-template", "llama3.1"});
    EXPECT_EQ(r.verb, Verb::kRun);
    EXPECT_TRUE(r.chat);
    EXPECT_EQ(r.chat_template, "llama3.1");
    EXPECT_EQ(r.compute, Compute::kF32);
    EXPECT_DOUBLE_EQ(r.top_p, 0.9);
}

TEST(CommandLine, UsageErrorsNameTheValue)
{
    EXPECT_THAT(refused({"compare", "m", "--file", "f", "--block", "17"}), HasSubstr("17"));
    EXPECT_THAT(refused({"compare", "m", "--file", "f", "--attend-budget", "many"}), HasSubstr("many"));
    EXPECT_THAT(refused({"compare", "m", "--file", "f", "--sweep", "colour=red"}), HasSubstr("colour"));
    EXPECT_THAT(refused({"compare", "m", "--file", "f", "--tokens", "100", "--last", "100"}), HasSubstr("100"));
    EXPECT_THAT(refused({"compare", "m", "--file", "f", "--block", "16", "--summary", "spread32-int4"}),
                HasSubstr("32"));
    EXPECT_THAT(refused({"compare", "m"}), HasSubstr("--file"));
    EXPECT_THAT(refused({"dance"}), HasSubstr("dance"));
    EXPECT_THAT(refused({"run", "m"}), HasSubstr("--prompt"));
    EXPECT_THAT(refused({"run", "m", "--prompt", ""}), HasSubstr("empty prompt"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--nonsense"}), HasSubstr("nonsense"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--dense-column", "maybe"}), HasSubstr("maybe"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--compute", "q4"}), HasSubstr("q4"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--draft", "oracle"}), HasSubstr("oracle"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--draft", "magic"}), HasSubstr("magic"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--draft-tokens", "8"}), HasSubstr("'8'"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--cap", "7"}), HasSubstr("7"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--chat-template", "llama3"}), HasSubstr("requires --chat"));
    EXPECT_THAT(refused({"run", "m", "--prompt", "x", "--chat", "--chat-template", "zephyr"}),
                HasSubstr("'zephyr': expected one of chatml, llama2"));
    EXPECT_THAT(refused({"eval", "m"}), HasSubstr("--tasks"));
    EXPECT_THAT(refused({"eval", "m", "--tasks", "a", "--generate", "list"}), HasSubstr("--generate"));
    EXPECT_THAT(refused({"eval", "m", "--generate", "poetry"}), HasSubstr("poetry"));
    EXPECT_THAT(refused({"eval", "m", "--generate", "list:x"}), HasSubstr("'x'"));
    EXPECT_THAT(refused({"eval", "m", "--rows", "9", "--generate", "list"}), HasSubstr("9"));
}

} // namespace
