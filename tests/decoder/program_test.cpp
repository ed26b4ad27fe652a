// SPDX-License-Identifier: Apache-2.0
//
// The whole program with a small real model and the plainest cache.
#include "app/command.hpp"
#include "app/random.hpp"
#include "app/report.hpp"
#include "app/setup.hpp"
#include "app/tasks.hpp"
#include "app/terminal.hpp"
#include "fake_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>

namespace {

using namespace oasis_decode;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

const std::string kModel = OASIS_TEST_DATA_DIR "/retrieval-14m";

struct Result {
    int code = 0;
    std::string out;
    std::string err;
};

Result call(const std::vector<std::string>& arguments)
{
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Result out;
    out.code = run_program(arguments, test::fake_maker());
    out.out = testing::internal::GetCapturedStdout();
    out.err = testing::internal::GetCapturedStderr();
    return out;
}

class Program : public testing::Test {
protected:
    void SetUp() override
    {
        std::filesystem::create_directories(folder_);
        std::ofstream text(folder_ / "text.txt");
        for (int i = 0; i < 400; ++i) {
            text << "Line " << i * 7919 % 1000 << " says that item " << i << " is here.\n";
        }
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string path(const char* name) const { return (folder_ / name).string(); }
    Json report() const
    {
        std::ifstream in(folder_ / "out.json");
        return Json::parse(in);
    }

    std::filesystem::path folder_ =
        std::filesystem::path(testing::TempDir()) /
        (std::string("program_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(Program, CompareIsExactWhereEverythingIsReadAndNotWhereItIsNot)
{
    const Result r = call({"compare", kModel, "--file", path("text.txt"), "--tokens", "600", "--last", "24", "--sink",
                           "16", "--recent", "64", "--sweep", "attend_budget=208,608", "--json", path("out.json")});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    EXPECT_THAT(r.out, HasSubstr("600 tokens, the last 24 decoded"));
    const Json report = this->report();
    EXPECT_EQ(report["schema_version"], 1);
    EXPECT_EQ(report["partial"], false);
    EXPECT_EQ(report["model"]["layers"], 8);
    EXPECT_GT(report["dense"]["perplexity"], 1.0);
    const Json& narrow = report["configurations"][0];
    EXPECT_EQ(narrow["options"]["attend_budget"], 208);
    EXPECT_GT(narrow["kl"], 1e-4);
    EXPECT_DOUBLE_EQ(narrow["attended_tokens"], 208.0);
    EXPECT_DOUBLE_EQ(narrow["fetched_tokens"], 3.0) << "the first row's fill must not count";
    EXPECT_DOUBLE_EQ(narrow["resident_at_use"], 0.7);
    const Json& wide = report["configurations"][1];
    EXPECT_LT(wide["kl"], 1e-9);
    EXPECT_DOUBLE_EQ(wide["top1"], 1.0);
    EXPECT_NEAR(wide["ppl_ratio"], 1.0, 1e-6);
    EXPECT_TRUE(wide["attended_tokens"].is_null());
}

TEST_F(Program, CompareDoesNotDependOnRowsPerStep)
{
    const std::vector<std::string> base{
        "compare", kModel,     "--file", path("text.txt"),  "--tokens", "300",    "--last",        "20", "--sink",
        "16",      "--recent", "64",     "--attend-budget", "128",      "--json", path("out.json")};
    std::vector<double> kl;
    for (const char* rows : {"1", "8"}) {
        std::vector<std::string> arguments = base;
        arguments.insert(arguments.end(), {"--rows", rows});
        ASSERT_EQ(call(arguments).code, 0);
        kl.push_back(report()["configurations"][0]["kl"]);
    }
    EXPECT_GT(kl[0], 0);
    EXPECT_NEAR(kl[0], kl[1], 1e-4 * kl[0]);
}

TEST_F(Program, CompareInSixteenBits)
{
    for (const char* type : {"f16", "bf16"}) {
        ASSERT_EQ(call({"compare", kModel, "--file", path("text.txt"), "--tokens", "200", "--last", "10",
                        "--attend-budget", "256", "--kv-dtype", type, "--json", path("out.json")})
                      .code,
                  0);
        EXPECT_LT(report()["configurations"][0]["kl"], 1e-9) << type;
        EXPECT_EQ(report()["options"]["kv_dtype"], type);
    }
}

TEST_F(Program, EvalScoresDenseAndSparse)
{
    const Result r = call({"eval", kModel, "--generate", "multikey:1024:2", "--seed", "1", "--sink", "16", "--recent",
                           "64", "--sweep", "attend_budget=192,2048", "--json", path("out.json")});
    ASSERT_EQ(r.code, 0) << r.err;
    const Json report = this->report();
    EXPECT_EQ(report["items"], 2);
    EXPECT_EQ(report["dense"]["exact"], 2) << r.out;
    const Json& narrow = report["configurations"][0];
    EXPECT_EQ(narrow["exact"], 0) << "a window cannot know the answer";
    EXPECT_LT(narrow["answer_token_accuracy"], 1.0);
    EXPECT_GT(narrow["kl"], 0.1);
    const Json& wide = report["configurations"][1];
    EXPECT_EQ(wide["exact"], 2);
    EXPECT_EQ(wide["exact_as_dense"], 2);
    EXPECT_EQ(wide["tasks"][0]["task"], "multikey");
    EXPECT_THAT(r.out, HasSubstr("2/2"));
}

TEST_F(Program, RunStreamsTextAndEndsWithATable)
{
    const Result r = call({"run", kModel, "--file", path("text.txt"), "--tokens", "300", "--max-tokens", "12", "--sink",
                           "16", "--recent", "64", "--attend-budget", "128", "--json", path("out.json")});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("tokens per second"));
    EXPECT_THAT(r.out, HasSubstr("would have chosen the same token"));
    const Json entry = report()["configurations"][0];
    EXPECT_EQ(entry["prompt_tokens"], 300);
    EXPECT_DOUBLE_EQ(entry["attended_tokens"], 128.0);
    EXPECT_TRUE(entry.contains("tokens_as_dense"));
    const Result without = call({"run", kModel, "--file", path("text.txt"), "--tokens", "300", "--max-tokens", "12",
                                 "--sink", "16", "--recent", "64", "--attend-budget", "128", "--dense-column", "off"});
    EXPECT_THAT(without.out, Not(HasSubstr("would have chosen")));
    EXPECT_EQ(without.out.substr(0, 20), r.out.substr(0, 20));
}

TEST_F(Program, RunWithinTheBudgetAgreesWithDense)
{
    for (const char* temperature : {"0", "0.8"}) {
        ASSERT_EQ(call({"run", kModel, "--prompt", "The option is ", "--max-tokens", "10", "--temp", temperature,
                        "--seed", "3", "--json", path("out.json")})
                      .code,
                  0);
        const Json entry = report()["configurations"][0];
        EXPECT_EQ(entry["tokens_as_dense"], entry["written_tokens"].get<int>() - 1);
    }
}

TEST_F(Program, DraftsChangeNoTextAndAreReported)
{
    const std::vector<std::string> base{
        "run", kModel,     "--file", path("text.txt"),  "--tokens", "300",    "--max-tokens",  "24", "--sink",
        "16",  "--recent", "64",     "--attend-budget", "128",      "--json", path("out.json")};
    std::string text;
    for (const char* draft : {"none", "lookup", "mtp"}) {
        std::vector<std::string> arguments = base;
        arguments.insert(arguments.end(), {"--draft", draft});
        const Result r = call(arguments);
        ASSERT_EQ(r.code, 0) << r.err;
        EXPECT_THAT(r.out, HasSubstr("tokens per verification"));
        EXPECT_THAT(r.out, HasSubstr("drafts accepted"));
        EXPECT_THAT(r.out, HasSubstr("needed tokens already in fast memory"));
        const Json report = this->report();
        const Json& entry = report["configurations"][0];
        EXPECT_EQ(report["options"]["draft"], draft);
        EXPECT_EQ(entry["written_tokens"], 24);
        if (draft == std::string("none")) {
            text = report["text"];
            EXPECT_TRUE(entry["tokens_per_verification"].is_null());
            EXPECT_EQ(entry["draft_acceptance"].size(), 0U);
        } else {
            EXPECT_EQ(report["text"], text);
            EXPECT_GT(entry["tokens_per_verification"], 1.0);
            EXPECT_GT(entry["drafted_tokens"], 0);
            EXPECT_GT(entry["draft_acceptance"][0], 0.0);
        }
    }
}

TEST_F(Program, AnEndMarkInsideAcceptedDraftsEndsTheText)
{
    const auto task = generate_task("multikey", 1024, 1, 0, [](std::string_view text) { return text.size() / 2; });
    std::ofstream(folder_ / "task.txt") << task.prompt;
    std::vector<Json> reports;
    for (const char* draft : {"none", "mtp"}) {
        const Result r = call({"run", kModel, "--file", path("task.txt"), "--max-tokens", "60", "--draft", draft,
                               "--draft-tokens", "7", "--dense-column", "off", "--json", path("out.json")});
        ASSERT_EQ(r.code, 0) << r.err;
        reports.push_back(report());
    }
    EXPECT_EQ(reports[0]["configurations"][0]["ended"], true);
    EXPECT_EQ(reports[1]["configurations"][0]["ended"], true);
    EXPECT_EQ(reports[0]["text"], reports[1]["text"]);
    EXPECT_LT(reports[1]["configurations"][0]["written_tokens"], 60);
    EXPECT_EQ(reports[0]["configurations"][0]["written_tokens"], reports[1]["configurations"][0]["written_tokens"]);
}

TEST_F(Program, ADraftHeadThatIsNotThereIsNamedBeforeThePromptIsRead)
{
    const Result r = call({"run", kModel, "--prompt", "x", "--draft", "mtp:" + path("absent.safetensors")});
    EXPECT_EQ(r.code, 1);
    EXPECT_EQ(r.out, "");
    EXPECT_THAT(r.err, HasSubstr("absent.safetensors"));
    const Result plan = call({"run", kModel, "--prompt", "x", "--draft", "mtp", "--dry-run"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    EXPECT_THAT(plan.out, HasSubstr("with the draft head"));
}

TEST_F(Program, FailuresAreOneLineAndExitCodeOne)
{
    const auto fails = [](const std::vector<std::string>& arguments) {
        const Result r = call(arguments);
        EXPECT_EQ(r.code, 1);
        EXPECT_EQ(r.out, "");
        EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
        EXPECT_THAT(r.err, testing::StartsWith("oasis-decode: "));
        return r.err;
    };
    EXPECT_THAT(fails({"inspect", path("absent.gguf")}), HasSubstr("absent.gguf"));
    EXPECT_THAT(fails({"compare", kModel, "--file", path("absent.txt")}), HasSubstr("absent.txt"));
    EXPECT_THAT(fails({"compare", kModel, "--file", path("text.txt"), "--tokens", "32000"}), HasSubstr("32000"));
    EXPECT_THAT(fails({"eval", kModel, "--tasks", path("text.txt")}), HasSubstr("line 1"));
    std::ofstream(folder_ / "empty.txt").close();
    EXPECT_THAT(fails({"run", kModel, "--file", path("empty.txt")}), HasSubstr("empty"));
    std::ofstream(folder_ / "long.txt") << std::string(40000, '7');
    EXPECT_THAT(fails({"run", kModel, "--file", path("long.txt")}),
                HasSubstr("40000 tokens, the model's context is 32768"));
    EXPECT_THAT(fails({"run", kModel, "--prompt", "x", "--chat"}), HasSubstr("name one: chatml, llama2"));
    EXPECT_THAT(fails({"run", kModel, "--prompt", "x", "--chat", "--chat-template", "chatml"}),
                HasSubstr("needs the special token <|im_start|>"));
}

TEST_F(Program, UsageErrorsAreOneLineAndExitCodeTwo)
{
    const Result r = call({"compare", kModel, "--file", path("text.txt"), "--block", "17"});
    EXPECT_EQ(r.code, 2);
    EXPECT_EQ(r.out, "");
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
}

TEST_F(Program, DryRunNamesTheMemory)
{
    const Result r =
        call({"compare", kModel, "--file", path("text.txt"), "--tokens", "600", "--last", "20", "--dry-run"});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("Memory for 600 tokens"));
    EXPECT_THAT(r.out, HasSubstr("weights 27."));
    EXPECT_THAT(r.out, testing::AnyOf(HasSubstr("it fits"), HasSubstr("does not fit")));
}

// What q8 is measured against computes in floats, and is loaded before it.
TEST_F(Program, CompareInEightBitsPlansForTheModelInFloats)
{
    const std::vector<std::string> arguments{"compare", kModel,   "--file", path("text.txt"), "--tokens",
                                             "600",     "--last", "20",     "--dry-run"};
    std::vector<std::string> rounded = arguments;
    rounded.insert(rounded.end(), {"--compute", "q8"});
    EXPECT_EQ(call(rounded).out, call(arguments).out);
}

TEST_F(Program, InspectDescribesTheModel)
{
    const Result r = call({"inspect", kModel});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("6 query on 2 KV heads of 64"));
    EXPECT_THAT(r.out, HasSubstr("32768"));
}

TEST_F(Program, AnInterruptLeavesAPartialReport)
{
    set_interrupted(true);
    const Result r = call(
        {"compare", kModel, "--file", path("text.txt"), "--tokens", "300", "--last", "20", "--json", path("out.json")});
    set_interrupted(false);
    EXPECT_EQ(r.code, 130);
    EXPECT_THAT(r.out, HasSubstr("not complete"));
    EXPECT_EQ(report()["partial"], true);
}

TEST_F(Program, AReportThatCannotBeWrittenIsAnError)
{
    const Result r = call({"inspect", kModel, "--json", path("absent/out.json")});
    EXPECT_EQ(r.code, 1);
    EXPECT_THAT(r.err, HasSubstr("absent/out.json"));
}

TEST(Report, ReplacesFilesAndNothingElse)
{
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "report_kinds";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    const auto content = [](const std::filesystem::path& path) {
        std::ifstream in(path);
        return Json::parse(in)["x"].get<int>();
    };
    write_report(folder / "file", {{"x", 1}});
    write_report(folder / "file", {{"x", 2}});
    EXPECT_EQ(content(folder / "file"), 2);
    EXPECT_FALSE(std::filesystem::exists(folder / "file.part"));
    std::filesystem::create_symlink(folder / "file", folder / "link");
    write_report(folder / "link", {{"x", 3}});
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
    EXPECT_EQ(content(folder / "file"), 3);
    std::filesystem::create_symlink("/dev/null", folder / "device");
    write_report(folder / "device", {{"x", 4}});
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "device"));
    std::filesystem::remove_all(folder);
}

/// Real caches of many kinds, with the automatic fast memory: it admits the prompt, its chunks and every step.
TEST(RealCache, AutomaticFastMemoryIsEnough)
{
    const CacheMaker maker = test::real_maker();
    Command command;
    command.model = kModel;
    command.threads = 2;
    command.verb = Verb::kCompare;
    set(command.settings, "attend-budget", "256");
    const std::unique_ptr<Engine> engine = open_engine(command, maker);
    const oasis::ModelShape shape = engine->config().shape();
    KvStore store(shape, 1200);
    std::vector<float> noise(1200 * 128);
    for (std::size_t i = 0; i < noise.size(); ++i) { noise[i] = static_cast<float>(uniform(1, i)) - 0.5F; }
    for (int layer = 0; layer < shape.layers; ++layer) { store.append(layer, noise.data(), noise.data() + 64, 1199); }
    const std::vector<oasis::TokenId> tokens(12, 100);
    const std::vector<Sweep> sweeps{
        parse_sweep("block=16,32"), parse_sweep("summary=spread2-int4,minmax16-f16,cuboid1-int8,oracle"),
        parse_sweep("scope=kv_head,layer"), parse_sweep("block-code=native,int8"), parse_sweep("kv-dtype=f32,bf16")};
    for (const Settings& settings : expand(command.settings, sweeps)) {
        SCOPED_TRACE(short_name(settings) + ", " + to_json(settings).dump());
        const SparseCache cache = sparse_cache(command, settings, maker, shape, 1211);
        Session session(*engine, cache);
        ASSERT_NO_THROW(session.ingest(store));
        Usage usage;
        ASSERT_NO_THROW(usage = decode_forced(session, tokens, 8, [](std::size_t, std::span<const float>) {}));
        EXPECT_GT(usage.attended_tokens, 100);
        EXPECT_LE(usage.attended_tokens, 256);
        EXPECT_GT(usage.captured_mass, 0);
        EXPECT_LE(usage.captured_mass, 1.0 + 1e-9);
        EXPECT_LE(usage.fast_bytes, cache.decode_fast_bytes);
    }
}

} // namespace
