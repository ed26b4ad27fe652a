// SPDX-License-Identifier: Apache-2.0
//
// What the project promises, measured by the program itself on real models. The bounds are measured values with some
// margin; what is known to select badly must miss them.
#include "app/command.hpp"
#include "decoder/fake_cache.hpp"
#include "decoder/support.hpp"
#include "model/sha256.hpp"

namespace oasis_decode::test {
namespace {

const std::filesystem::path kText = "/usr/share/common-licenses/GPL-3";

/// Runs the program and returns its report; null when it failed.
Json report_of(std::vector<std::string> arguments)
{
    const TemporaryFolder folder;
    const std::filesystem::path path = folder / "out.json";
    arguments.insert(arguments.end(), {"--json", path.string()});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = run_program(arguments, real_maker());
    static_cast<void>(testing::internal::GetCapturedStdout());
    const std::string errors = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, 0) << errors;
    return code == 0 ? read_json(path, 100'000'000) : Json();
}

std::string why_no_text()
{
    if (smollm2_path().empty()) { return kNeedsSmolLM2; }
    if (!std::filesystem::exists(kText)) { return "needs the text " + kText.string(); }
    const Json reference = read_json(data_dir() / "smollm2-135m" / "reference.json", 100'000'000);
    const std::string text = read_file(kText);
    const bool known = sha256_hex(std::as_bytes(std::span(text))) == reference["text_sha256"].get<std::string>();
    return known ? "" : "needs " + kText.string() + " as it was when the bounds were measured";
}

std::vector<std::string> compare_arguments(const char* tokens, const char* last)
{
    return {"compare", smollm2_path().string(), "--file", kText.string(), "--tokens", tokens, "--last", last};
}

/// Quest's summaries at the same budgets: what finer summaries are held against.
std::vector<std::string> with_minmax(std::vector<std::string> arguments)
{
    arguments.insert(arguments.end(), {"--summary", "minmax32-f16", "--block", "32", "--reduce", "max"});
    return arguments;
}

std::vector<std::string> eval_arguments(const char* tasks)
{
    return {"eval",
            (data_dir() / "retrieval-14m").string(),
            "--seed",
            "1",
            "--generate",
            tasks,
            "--attend-budget",
            "1024",
            "--fetch-budget",
            "512"};
}

TEST(Acceptance, RecordsAreFoundWithinAQuarterOfTheContext)
{
    const Json report =
        report_of(eval_arguments("kv_dense:4096:2,json:4096:2,list:4096:2,vartrack:4096:2,multikey:4096:2"));
    ASSERT_FALSE(report.is_null());
    EXPECT_EQ(report["items"], 10);
    EXPECT_GE(report["dense"]["exact"], 9);
    const Json& sparse = report["configurations"][0];
    EXPECT_EQ(sparse["options"]["summary"], "spread2-int4");
    EXPECT_EQ(sparse["exact"], report["dense"]["exact"]);
    EXPECT_EQ(sparse["exact_as_dense"], 10);
    EXPECT_LE(sparse["kl"], 3e-4);
    EXPECT_LE(sparse["attended_tokens"], 1024);
    EXPECT_GE(sparse["attended_tokens"], 512);
    EXPECT_LE(sparse["fetched_tokens"], 40);
    EXPECT_GT(sparse["fetched_tokens"], 1);
    EXPECT_GE(sparse["resident_at_use"], 0.9);
    EXPECT_LT(sparse["resident_at_use"], 1.0);
}

TEST(Acceptance, DraftsAreAcceptedOnAnswersAndChangeNothing)
{
    auto arguments = eval_arguments("kv_dense:2048:2,json:2048:1,list:2048:1,vartrack:2048:1,multikey:2048:1");
    arguments.insert(arguments.end(),
                     {"--sweep", "draft=none,lookup,mtp,oracle", "--draft-floor", "0", "--draft-tokens", "4"});
    const Json report = report_of(arguments);
    ASSERT_FALSE(report.is_null());
    ASSERT_EQ(report["configurations"].size(), 4U);
    const Json& none = report["configurations"][0];
    EXPECT_TRUE(none["tokens_per_verification"].is_null());
    for (const Json& entry : report["configurations"]) {
        SCOPED_TRACE(entry["options"]["draft"].dump());
        EXPECT_EQ(entry["kl"], none["kl"]);
        EXPECT_EQ(entry["top1"], none["top1"]);
        EXPECT_EQ(entry["exact"], none["exact"]);
        EXPECT_EQ(entry["answer_tokens"], none["answer_tokens"]);
    }
    const Json& lookup = report["configurations"][1];
    EXPECT_GT(lookup["tokens_per_verification"], 1.2);
    const Json& mtp = report["configurations"][2];
    EXPECT_GE(mtp["tokens_per_verification"], 3.0);
    ASSERT_EQ(mtp["draft_acceptance"].size(), 4U);
    EXPECT_GE(mtp["draft_acceptance"][0], 0.9);
    const Json& oracle = report["configurations"][3];
    EXPECT_GE(oracle["tokens_per_verification"], mtp["tokens_per_verification"]);
    EXPECT_EQ(oracle["draft_acceptance"], (std::vector<double>{1, 1, 1, 1}));
}

TEST(Acceptance, ChatAnswersTakeTwoTokensAStep)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for twenty answers"; }
    if (smollm2_path().empty()) { GTEST_SKIP() << kNeedsSmolLM2; }
    std::ifstream questions(data_dir() / "chat-questions.txt");
    double tokens = 0;
    double verifications = 0;
    int count = 0;
    for (std::string question; std::getline(questions, question); ++count) {
        const Json report = report_of({"run", smollm2_path().string(), "--chat", "--prompt", question, "--max-tokens",
                                       "200", "--dense-column", "off", "--draft-floor", "0.02", "--draft",
                                       "mtp:" + (data_dir() / "smollm2-135m" / "mtp.safetensors").string()});
        ASSERT_FALSE(report.is_null());
        const Json& entry = report["configurations"][0];
        verifications += entry["verifications"].get<double>();
        tokens += entry["verifications"].get<double>() * entry["tokens_per_verification"].get<double>();
    }
    EXPECT_EQ(count, 20);
    EXPECT_GE(tokens / verifications, 2.0);
}

TEST(Acceptance, CoarseSummariesMissRecords)
{
    const Json report = report_of(with_minmax(eval_arguments("kv_dense:4096:2,json:4096:2")));
    ASSERT_FALSE(report.is_null());
    EXPECT_EQ(report["dense"]["exact"], 4);
    EXPECT_LE(report["configurations"][0]["exact"], 2);
    EXPECT_GE(report["configurations"][0]["kl"], 0.02);
}

TEST(Acceptance, TextStaysCloseToDenseAtAFifthOfTheContext)
{
    if (const std::string why = why_no_text(); !why.empty()) { GTEST_SKIP() << why; }
    auto arguments = compare_arguments("2400", "64");
    arguments.insert(arguments.end(), {"--attend-budget", "512", "--fetch-budget", "512"});
    const Json report = report_of(arguments);
    ASSERT_FALSE(report.is_null());
    const Json& spread = report["configurations"][0];
    EXPECT_EQ(spread["options"]["summary"], "spread2-int4");
    EXPECT_LE(spread["kl"], 0.035);
    EXPECT_GE(spread["top1"], 0.8);
    EXPECT_GE(spread["captured_mass"], 0.865);
    EXPECT_LE(spread["captured_mass"], 1.0);
    EXPECT_LE(spread["fetched_tokens"], 80);
    const Json coarse_report = report_of(with_minmax(arguments));
    ASSERT_FALSE(coarse_report.is_null());
    const Json& coarse = coarse_report["configurations"][0];
    EXPECT_LE(spread["kl"].get<double>(), 0.5 * coarse["kl"].get<double>());
    EXPECT_GE(spread["captured_mass"].get<double>(), coarse["captured_mass"].get<double>() + 0.01);
}

TEST(Acceptance, LongTextReachesTheFiguresOfTheDefaultSummary)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for 7,600 tokens"; }
    if (const std::string why = why_no_text(); !why.empty()) { GTEST_SKIP() << why; }
    auto arguments = compare_arguments("7600", "256");
    arguments.insert(arguments.end(), {"--attend-budget", "2048", "--fetch-budget", "2048"});
    const Json report = report_of(arguments);
    ASSERT_FALSE(report.is_null());
    const Json& sparse = report["configurations"][0];
    EXPECT_LE(sparse["kl"], 0.0018);
    EXPECT_GE(sparse["captured_mass"], 0.970);
    EXPECT_NEAR(sparse["ppl_ratio"].get<double>(), 1.0, 0.015);
}

// All attention is dense: what is left is the rounding of activations to 8 bits.
TEST(Acceptance, ProductsOfIntegersStayCloseToFloats)
{
    if (const std::string why = why_no_text(); !why.empty()) { GTEST_SKIP() << why; }
    auto arguments = long_tests() ? compare_arguments("7600", "256") : compare_arguments("600", "64");
    arguments.insert(arguments.end(), {"--compute", "q8"});
    const Json report = report_of(arguments);
    ASSERT_FALSE(report.is_null());
    EXPECT_EQ(report["options"]["compute"], "q8");
    const Json& rounded = report["dense_q8"];
    EXPECT_GT(rounded["kl"], 1e-6);
    EXPECT_LE(rounded["kl"], 0.01);
    EXPECT_GE(rounded["top1"], 0.93);
    EXPECT_NEAR(rounded["ppl_ratio"].get<double>(), 1.0, 0.02);
    // The sparse run is held against the floats too.
    EXPECT_LE(report["configurations"][0]["kl"], 0.02);
}

// The items of the study that the defaults rest on: 16K and 32K tokens, all solved by full attention.
TEST(Acceptance, StudyItemsAreExactWithTwoBudgets)
{
    const char* const folder = std::getenv("OASIS_EVAL_DIR");
    if (!folder) { GTEST_SKIP() << "needs $OASIS_EVAL_DIR, a folder with study-items.json and its dev-*.jsonl.xz"; }
    const Json report = report_of({"eval", (data_dir() / "retrieval-14m").string(), "--items",
                                   (std::filesystem::path(folder) / "study-items.json").string(), "--attend-budget",
                                   "2048", "--sweep", "fetch-budget=1024,512"});
    ASSERT_FALSE(report.is_null());
    EXPECT_EQ(report["items"], 26);
    EXPECT_EQ(report["dense"]["exact"], 26);
    ASSERT_EQ(report["configurations"].size(), 2U);
    const double most_fetched[] = {170, 50};
    for (std::size_t i = 0; i < 2; ++i) {
        const Json& sparse = report["configurations"][i];
        SCOPED_TRACE("fetch budget " + sparse["options"]["fetch_budget"].dump());
        EXPECT_EQ(sparse["exact"], 26);
        EXPECT_LE(sparse["kl"], 0.001);
        EXPECT_LE(sparse["fetched_tokens"], most_fetched[i]);
    }
}

} // namespace
} // namespace oasis_decode::test
