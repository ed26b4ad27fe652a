// SPDX-License-Identifier: Apache-2.0
//
// Wrong arguments, texts and tasks; and odd ones that are right.
#include "decoder/bad_inputs.hpp"

#include "app/terminal.hpp"

namespace oasis_decode::test {
namespace {

using Arguments = std::vector<std::string>;
using testing::HasSubstr;

Arguments run_with(Scene& scene, const Arguments& more)
{
    Arguments out{"run", scene.gguf_file()};
    out.insert(out.end(), more.begin(), more.end());
    return out;
}

Arguments compare_with(Scene& scene, const std::string& text, const Arguments& more)
{
    Arguments out{"compare", scene.gguf_file(), "--file", scene.file("text.txt", text)};
    out.insert(out.end(), more.begin(), more.end());
    return out;
}

Arguments eval_tasks(Scene& scene, const std::string& name, const std::string& bytes)
{
    return {"eval", scene.gguf_file(), "--tasks", scene.file(name, bytes)};
}

Arguments eval_items(Scene& scene, const std::string& items)
{
    scene.file("t.jsonl", R"({"task":"list","length":1,"prompt":"P","answer":"A"})");
    return {"eval", scene.gguf_file(), "--items", scene.file("items.json", items)};
}

Arguments eval_generate(Scene& scene, const std::string& spec)
{
    return {"eval", scene.gguf_file(), "--generate", spec};
}

const std::vector<BadInput> kUsage = {
    {"UnknownCommand", "unknown command 'rnu'", [](Scene& s) { return Arguments{"rnu", s.gguf_file()}; }, 2},
    {"NoModel", "MODEL is required", [](Scene&) { return Arguments{"inspect"}; }, 2},
    {"UnknownOption", "--propmt", [](Scene& s) { return run_with(s, {"--propmt", "x"}); }, 2},
    {"NoPrompt", "run needs a text", [](Scene& s) { return run_with(s, {}); }, 2},
    {"EmptyPrompt", "an empty prompt cannot be continued", [](Scene& s) { return run_with(s, {"--prompt", ""}); }, 2},
    {"BlockOfSeventeen", "--block '17'", [](Scene& s) { return run_with(s, {"--prompt", "x", "--block", "17"}); }, 2},
    {"BudgetOverflows", "--attend-budget '99999999999999999999'",
     [](Scene& s) { return run_with(s, {"--prompt", "x", "--attend-budget", "99999999999999999999"}); }, 2},
    {"NegativeBudget", "--sink '-1'", [](Scene& s) { return run_with(s, {"--prompt", "x", "--sink=-1"}); }, 2},
    {"SizeOverflows", "'9999999999T' is no size",
     [](Scene& s) { return run_with(s, {"--prompt", "x", "--fast-bytes", "9999999999T"}); }, 2},
    {"FloorIsNoNumber", "--draft-floor 'nan'",
     [](Scene& s) { return run_with(s, {"--prompt", "x", "--draft-floor", "nan"}); }, 2},
    {"RateIsInfinite", "rate 'inf' is not a number",
     [](Scene& s) { return run_with(s, {"--prompt", "x", "--slow", "throttle:inf"}); }, 2},
    {"ManyThreads", "--threads", [](Scene& s) { return run_with(s, {"--prompt", "x", "--threads", "100000"}); }, 2},
    {"SweepWithoutValues", "--sweep 'block='", [](Scene& s) { return compare_with(s, "ab", {"--sweep", "block="}); },
     2},
    {"SweepsThatMultiply", "multiply to 1024 configurations",
     [](Scene& s) {
         Arguments more;
         for (int i = 0; i < 11; ++i) { more.insert(more.end(), {"--sweep", "sink=0,16"}); }
         return compare_with(s, "ab", more);
     },
     2},
    {"UnknownTask", "unknown task 'poem'", [](Scene& s) { return eval_generate(s, "poem"); }, 2},
    {"LengthOverflows", "'99999999999999999999' is no positive number",
     [](Scene& s) { return eval_generate(s, "json:99999999999999999999"); }, 2},
    {"TwoSourcesOfTasks", "eval needs one of", [](Scene& s) { return Arguments{"eval", s.gguf_file()}; }, 2},
    {"ReportOverTheModel", "this file is read, it would be lost",
     [](Scene& s) { return run_with(s, {"--prompt", "x", "--json", s.path("model.gguf")}); }, 2},
    {"ReportOverAFileOfTheModelFolder", "this file is read, it would be lost",
     [](Scene& s) {
         const std::string model = s.model_folder();
         return Arguments{"inspect", model, "--json", model + "/config.json"};
     },
     2},
    {"ReportOverAShardBehindALink", "this file is read, it would be lost",
     [](Scene& s) {
         const std::string model = s.model_folder();
         std::filesystem::create_symlink(model + "/model.safetensors", s.path("out.json"));
         return Arguments{"inspect", model, "--json", s.path("out.json")};
     },
     2},
    {"ReportThatWouldJoinTheModel", "tokenizer_config.json: would be a file of the model",
     [](Scene& s) {
         const std::string model = s.model_folder();
         return Arguments{"inspect", model, "--json", model + "/tokenizer_config.json"};
     },
     2},
    {"ReportOverADraftHead", "this file is read, it would be lost",
     [](Scene& s) {
         const std::string head = s.file("head.bin", "head");
         return run_with(s, {"--prompt", "x", "--draft", "mtp:" + head, "--json", head});
     },
     2},
    {"TraceOverTheText", "this file is read, it would be lost",
     [](Scene& s) {
         const std::string text = s.file("text.txt", "ab");
         return run_with(s, {"--file", text, "--trace", text});
     },
     2},
    {"ReportAndTraceInOneFile", "name the same file",
     [](Scene& s) { return run_with(s, {"--prompt", "x", "--json", s.path("out"), "--trace", s.path("out")}); }, 2},
};

const std::vector<BadInput> kTexts = {
    {"ModelIsNotThere", "absent.gguf: No such file",
     [](Scene& s) {
         return Arguments{"inspect", s.path("absent.gguf")};
     }},
    {"ModelNameTooLong", "File name too long",
     [](Scene&) {
         return Arguments{"inspect", std::string(5000, 'x')};
     }},
    {"TextIsNotThere", "absent.txt: No such file",
     [](Scene& s) {
         return run_with(s, {"--file", s.path("absent.txt")});
     }},
    {"TextIsAFolder", "Is a directory",
     [](Scene& s) {
         return run_with(s, {"--file", s.folder.path().string()});
     }},
    {"EmptyText", "the prompt is empty",
     [](Scene& s) {
         return run_with(s, {"--file", s.file("empty.txt", "")});
     }},
    {"PromptBeyondTheContext", "the prompt has 601 tokens, the model's context is 512",
     [](Scene& s) {
         return run_with(s, {"--prompt", std::string(600, '7')});
     }},
    {"TextBeyondTheContext", "--tokens 600: the model's context is 512 tokens",
     [](Scene& s) {
         return compare_with(s, std::string(700, '7'), {"--tokens", "600"});
     }},
    {"TextTooShort", "has 11 tokens, --tokens asks for 400",
     [](Scene& s) {
         return compare_with(s, "0123456789", {"--tokens", "400"});
     }},
    {"NoChatForm", "the model has no chat template",
     [](Scene& s) {
         return run_with(s, {"--prompt", "x", "--chat"});
     }},
    {"TaskIsNoJson", "bad.jsonl, line 1: not valid JSON", [](Scene& s) { return eval_tasks(s, "bad.jsonl", "{\n"); }},
    {"TaskWithoutAnswer", "line 1: \"answer\" is missing",
     [](Scene& s) { return eval_tasks(s, "bad.jsonl", R"({"task":"x","length":1,"prompt":"p"})"); }},
    {"TaskOfFractionalLength", "\"length\" is 1.5",
     [](Scene& s) { return eval_tasks(s, "bad.jsonl", R"({"task":"x","length":1.5,"prompt":"p","answer":"a"})"); }},
    {"NoTasks", "empty.jsonl: no tasks", [](Scene& s) { return eval_tasks(s, "empty.jsonl", ""); }},
    {"TasksAreNotPacked", "broken xz file", [](Scene& s) { return eval_tasks(s, "bad.jsonl.xz", "plain"); }},
    {"TaskBeyondTheContext", "the model's context is 512",
     [](Scene& s) {
         return eval_tasks(
             s, "long.jsonl",
             Json({{"task", "x"}, {"length", 1}, {"prompt", std::string(600, '7')}, {"answer", "a"}}).dump());
     }},
    {"ItemBehindTheLastLine", "item 0: line 2 of t.jsonl, which has 1 lines",
     [](Scene& s) { return eval_items(s, R"([{"file":"t.jsonl","line":2}])"); }},
    {"ItemsAreNoList", "the JSON is not an array but of type object", [](Scene& s) { return eval_items(s, "{}"); }},
    {"GeneratedTooShort", "a prompt of 10 tokens is too short", [](Scene& s) { return eval_generate(s, "json:10"); }},
    {"ReportIntoAFolder", "is a folder, expected a file",
     [](Scene& s) {
         return run_with(s, {"--prompt", "x", "--json", s.folder.path().string()});
     }},
    {"ReportIntoNoFolder", "cannot be written: No such file",
     [](Scene& s) {
         return run_with(s, {"--prompt", "x", "--json", s.path("absent/out.json")});
     }},
};

TEST_P(BadInputs, AreOneSentenceAndAnExitCode) { expect_one_sentence(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Usage, BadInputs, testing::ValuesIn(kUsage), name_of);
INSTANTIATE_TEST_SUITE_P(Texts, BadInputs, testing::ValuesIn(kTexts), name_of);

/// Odd, but not wrong.
TEST(OddInputs, AreAnswered)
{
    Scene scene;
    const std::string bad_utf8 = scene.file("bytes.txt", {"\xFF\x00\xC3(\xED\xA0\x80", 7});
    const std::string one = R"({"task":"list","length":1,"prompt":"P","answer":"A"})";
    const std::vector<Arguments> all{
        run_with(scene, {"--prompt", "a", "--max-tokens", "3"}),
        run_with(scene, {"--prompt", "a", "--max-tokens", "1"}),
        run_with(scene, {"--prompt", std::string(510, 'x'), "--max-tokens", "1000000000"}),
        run_with(scene, {"--file", bad_utf8, "--max-tokens", "2"}),
        compare_with(scene, "a", {"--tokens", "2", "--last", "1"}),
        eval_tasks(scene, "one.jsonl", one),
    };
    for (const Arguments& arguments : all) {
        const Answer answer = call(arguments);
        EXPECT_EQ(answer.code, 0) << arguments[0] << " " << arguments[3] << ": " << answer.err;
        EXPECT_EQ(answer.err, "");
    }
}

TEST(OddInputs, ALineOnStandardErrorIsShortAndLegible)
{
    testing::internal::CaptureStderr();
    complain("\xC2\x9B" + std::string(3000, 'a') + "caf\xC3\xA9 \xFF!\nnext");
    const std::string line = testing::internal::GetCapturedStderr();
    EXPECT_LE(line.size(), 1001U);
    EXPECT_THAT(line, testing::StartsWith("oasis-decode: ?aaa"));
    EXPECT_THAT(line, HasSubstr("aaa ... aaa"));
    EXPECT_THAT(line, testing::EndsWith("caf\xC3\xA9 ?!\n"));
    // Where the line is cut there are whole characters.
    for (const std::size_t shift : {0, 1, 2}) {
        std::string text(shift, 'x');
        for (int i = 0; i < 1000; ++i) { text += "\xE2\x82\xAC"; }
        testing::internal::CaptureStderr();
        complain(text);
        EXPECT_NO_THROW((void)Json(testing::internal::GetCapturedStderr()).dump());
    }
}

TEST(OddInputs, TheHelpListsTheExitCodes)
{
    const Answer answer = call({"--help"});
    EXPECT_EQ(answer.code, 0);
    for (const char* code : {"0 done", "1 failed", "2 ", "130 ", "141 "}) { EXPECT_THAT(answer.out, HasSubstr(code)); }
}

} // namespace
} // namespace oasis_decode::test
