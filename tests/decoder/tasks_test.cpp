// SPDX-License-Identifier: Apache-2.0
#include "app/tasks.hpp"

#include <oasis/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <sstream>

namespace {

using namespace oasis_decode;
using testing::HasSubstr;
using testing::StartsWith;

class TaskFiles : public testing::Test {
protected:
    void SetUp() override { std::filesystem::create_directories(folder_); }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path write(const std::string& name, const std::string& content) const
    {
        std::ofstream(folder_ / name, std::ios::binary) << content;
        return folder_ / name;
    }
    static std::string line(const std::string& id)
    {
        return R"({"id":")" + id + R"(","task":"list","length":2048,"prompt":"P )" + id + R"(","answer":"A"})";
    }
    static std::string pack(const std::string& text)
    {
        std::string out(lzma_stream_buffer_bound(text.size()), '\0');
        std::size_t size = 0;
        EXPECT_EQ(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr,
                                          reinterpret_cast<const std::uint8_t*>(text.data()), text.size(),
                                          reinterpret_cast<std::uint8_t*>(out.data()), &size, out.size()),
                  LZMA_OK);
        out.resize(size);
        return out;
    }
    template <class Call> static std::string error_of(const Call& call)
    {
        try {
            call();
        } catch (const oasis::Error& e) {
            return e.what();
        }
        return "no error";
    }

    std::filesystem::path folder_ =
        std::filesystem::path(testing::TempDir()) /
        (std::string("tasks_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(TaskFiles, PlainAndPackedAreTheSame)
{
    const std::string text = line("a") + "\n" + line("b") + "\n";
    const auto plain = read_tasks(write("t.jsonl", text));
    const auto packed = read_tasks(write("t.jsonl.xz", pack(text)));
    ASSERT_EQ(plain.size(), 2U);
    ASSERT_EQ(packed.size(), 2U);
    EXPECT_EQ(packed[1].id, "b");
    EXPECT_EQ(packed[1].prompt, "P b");
    EXPECT_EQ(plain[1].prompt, packed[1].prompt);
    EXPECT_EQ(read_tasks(write("no_newline.jsonl", line("a"))).size(), 1U);
}

TEST_F(TaskFiles, BadLinesNameFileLineAndField)
{
    const auto why = [&](const std::string& bad) {
        const auto path = write("bad.jsonl", line("a") + "\n" + bad + "\n");
        const std::string text = error_of([&] { static_cast<void>(read_tasks(path)); });
        EXPECT_THAT(text, HasSubstr("bad.jsonl, line 2")) << bad;
        return text;
    };
    EXPECT_THAT(why("{"), HasSubstr("not valid JSON"));
    EXPECT_THAT(why("[1]"), HasSubstr("array"));
    EXPECT_THAT(why(R"({"task":"x","length":1,"prompt":"p"})"), HasSubstr("\"answer\" is missing"));
    EXPECT_THAT(why(R"({"task":"x","length":"long","prompt":"p","answer":"a"})"), HasSubstr("\"length\" is \"long\""));
    EXPECT_THAT(why(R"({"task":"x","length":1,"prompt":"","answer":"a"})"), HasSubstr("\"prompt\" is empty"));
    EXPECT_THAT(why("\n" + line("c")), HasSubstr("empty line"));
}

TEST_F(TaskFiles, BadFiles)
{
    const auto why = [](const std::filesystem::path& path) {
        return error_of([&] { static_cast<void>(read_tasks(path)); });
    };
    EXPECT_THAT(why(folder_ / "absent.jsonl"), HasSubstr("cannot open"));
    EXPECT_THAT(why(folder_), HasSubstr("Is a directory"));
    EXPECT_THAT(why(write("empty.jsonl", "")), HasSubstr("no tasks"));
    const std::string packed = pack(line("a") + "\n");
    EXPECT_THAT(why(write("cut.jsonl.xz", packed.substr(0, packed.size() - 9))), HasSubstr("broken xz"));
    EXPECT_THAT(why(write("not.jsonl.xz", "plain text")), HasSubstr("broken xz"));
    EXPECT_THAT(why(write("none.jsonl.xz", "")), HasSubstr("broken xz"));
    std::string flipped = packed;
    flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x40);
    EXPECT_THAT(why(write("flipped.jsonl.xz", flipped)), HasSubstr("broken xz"));
    // A few bytes that unpack to much more than is allowed.
    const auto bomb = write("bomb.xz", pack(std::string(std::size_t{8} << 20, 'x')));
    EXPECT_THAT(error_of([&] { static_cast<void>(read_text(bomb, std::size_t{1} << 20)); }),
                HasSubstr("more than 1048576 bytes"));
}

TEST_F(TaskFiles, ItemsPickLinesFromFilesBesideThem)
{
    write("t.jsonl.xz", pack(line("a") + "\n" + line("b") + "\n"));
    const auto items =
        read_items(write("items.json", R"([{"file":"t.jsonl.xz","line":2,"id":"b"},{"file":"t.jsonl.xz","line":1}])"));
    ASSERT_EQ(items.size(), 2U);
    EXPECT_EQ(items[0].id, "b");
    EXPECT_EQ(items[1].id, "a");
    const auto why = [&](const std::string& text) {
        return error_of([&] { static_cast<void>(read_items(write("bad.json", text))); });
    };
    EXPECT_THAT(why(R"([{"file":"t.jsonl.xz","line":3}])"), HasSubstr("line 3"));
    EXPECT_THAT(why(R"([{"file":"t.jsonl.xz","line":0}])"), HasSubstr("line 0"));
    EXPECT_THAT(why(R"([{"file":"t.jsonl.xz","line":1,"id":"b"}])"), HasSubstr("is 'a', not 'b'"));
    EXPECT_THAT(why(R"([{"line":1}])"), HasSubstr("\"file\" is missing"));
    EXPECT_THAT(why("{}"), HasSubstr("not an array"));
    EXPECT_THAT(why("[]"), HasSubstr("empty list"));
}

/// Roughly what a tokenizer of 4,096 entries makes of such text.
std::size_t rough_count(std::string_view text) { return text.size() / 3 + 1; }

std::vector<std::string> lines(const std::string& text)
{
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) { out.push_back(line); }
    return out;
}

class Generated : public testing::TestWithParam<std::string> {};

TEST_P(Generated, IsReproducibleAndOfItsLength)
{
    for (const std::int64_t length : {2048, 8192}) {
        const Task task = generate_task(GetParam(), length, 3, 1, rough_count);
        EXPECT_EQ(task.prompt, generate_task(GetParam(), length, 3, 1, rough_count).prompt);
        EXPECT_NE(task.prompt, generate_task(GetParam(), length, 3, 2, rough_count).prompt);
        EXPECT_NE(task.prompt, generate_task(GetParam(), length, 4, 1, rough_count).prompt);
        EXPECT_LE(static_cast<std::int64_t>(rough_count(task.prompt)), length);
        EXPECT_GE(static_cast<std::int64_t>(rough_count(task.prompt)), length - 600);
        EXPECT_THAT(task.prompt, HasSubstr("\nAnswer:\n"));
        EXPECT_EQ(task.answer.back(), '\n');
    }
    EXPECT_THROW(static_cast<void>(generate_task(GetParam(), 200, 0, 0, rough_count)), oasis::InvalidArgument);
}

TEST_P(Generated, TheAnswerStandsInThePromptOnceAndFarFromTheQuestion)
{
    for (std::uint64_t index = 0; index < 12; ++index) {
        const Task task = generate_task(GetParam(), 4096, 9, index, rough_count);
        const std::size_t question = task.prompt.rfind("Question:");
        ASSERT_NE(question, std::string::npos);
        for (std::string line : lines(task.answer)) {
            if (line.starts_with("So ")) { continue; }
            // The value is what follows the last separator; JSON lines are copied whole.
            const std::size_t cut = line.starts_with("{") ? 0 : line.find_last_of(" ") + 1;
            const std::string value = line.substr(cut);
            const std::size_t at = task.prompt.find(value);
            ASSERT_NE(at, std::string::npos) << line;
            EXPECT_GE(rough_count(std::string_view(task.prompt).substr(at, question - at)), 640U) << line;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, Generated, testing::ValuesIn(generated_tasks()),
                         [](const auto& task) { return task.param; });

TEST(Generator, KvDenseAnswersFollowFromItsRecords)
{
    const Task task = generate_task("kv_dense", 4096, 1, 0, rough_count);
    const auto answer = lines(task.answer);
    ASSERT_EQ(answer.size(), 12U);
    for (const auto& line : answer) {
        const std::size_t colon = line.rfind(": ");
        const std::string key = line.substr(0, colon);
        const std::string value = line.substr(colon + 2);
        int found = 0;
        for (const auto& record : lines(task.prompt.substr(0, task.prompt.rfind("Question:")))) {
            if (record.find(key) != std::string::npos && record.find(value) != std::string::npos) { ++found; }
        }
        EXPECT_EQ(found, 1) << line;
    }
}

TEST(Generator, VartrackChainsResolveByFollowingThePrompt)
{
    const Task task = generate_task("vartrack", 4096, 1, 0, rough_count);
    std::map<std::string, std::string> assigned;
    for (std::string record : lines(task.prompt)) {
        const std::size_t equals = record.find(" = ");
        if (equals == std::string::npos) { continue; }
        const std::size_t name = record.rfind(' ', equals - 1) + 1;
        if (record.back() == ';') { record.pop_back(); }
        EXPECT_TRUE(assigned.emplace(record.substr(name, equals - name), record.substr(equals + 3)).second) << record;
    }
    EXPECT_EQ(assigned.size(), 24U);
    const auto answer = lines(task.answer);
    ASSERT_EQ(answer.size(), 7U);
    std::string name = answer[0].substr(0, answer[0].find(" = "));
    const std::string first = name;
    for (int hop = 0; hop < 6; ++hop) {
        EXPECT_EQ(answer[static_cast<std::size_t>(hop)], name + " = " + assigned.at(name));
        name = assigned.at(name);
    }
    EXPECT_EQ(answer[6], "So " + first + " = " + name);
    EXPECT_THAT(task.prompt, HasSubstr("Resolve " + first + " step by step."));
}

TEST(Generator, ListIsInOrderAndJsonLinesParse)
{
    const auto list = lines(generate_task("list", 2048, 5, 0, rough_count).answer);
    ASSERT_EQ(list.size(), 12U);
    EXPECT_THAT(list[11], StartsWith("12: "));
    for (const auto& line : lines(generate_task("json", 2048, 5, 0, rough_count).answer)) {
        EXPECT_EQ(nlohmann::json::parse(line).size(), 4U);
    }
}

TEST(Generator, Specs)
{
    EXPECT_EQ(parse_generate("all").size(), 5U);
    const auto specs = parse_generate("json:2048:3,list:4096");
    ASSERT_EQ(specs.size(), 2U);
    EXPECT_EQ(specs[0].length, 2048);
    EXPECT_EQ(specs[0].items, 3);
    EXPECT_EQ(specs[1].length, 4096);
    for (const char* bad : {"", "json:", "json:0", "json:10:x", "json,", "poem"}) {
        EXPECT_THROW(static_cast<void>(parse_generate(bad)), oasis::InvalidArgument) << bad;
    }
}

} // namespace
