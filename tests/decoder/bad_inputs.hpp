// SPDX-License-Identifier: Apache-2.0
//
// Bad inputs as tables: what is wrong, and which sentence and exit code the program answers with.
#pragma once

#include "decoder/fake_cache.hpp"
#include "decoder/tiny_model.hpp"

#include "app/command.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace oasis_decode::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr double kMostSeconds = 10;
#else
inline constexpr double kMostSeconds = 1;
#endif

/// A folder with a small model in both containers, which a case damages.
class Scene {
public:
    TinyModel tiny{};
    GgufWriter gguf = TinyModel().gguf();
    TemporaryFolder folder{};

    std::string path(const std::string& name) const { return (folder / name).string(); }
    /// Writes a file and returns its path.
    std::string file(const std::string& name, const std::string& bytes) const
    {
        write_file(folder / name, bytes);
        return path(name);
    }
    std::string gguf_file() const { return file("model.gguf", gguf.str()); }
    std::string model_folder() const
    {
        tiny.write_folder(folder / "model");
        return path("model");
    }
};

struct BadInput {
    std::string name;                                          ///< of the case
    std::string sentence;                                      ///< a part of what is said
    std::function<std::vector<std::string>(Scene&)> arguments; ///< makes the damage
    int exit_code = 1;
};

/// The name of the case in GoogleTest's output.
inline void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }

struct Answer {
    int code = 0;
    std::string out;
    std::string err;
};

inline Answer call(const std::vector<std::string>& arguments)
{
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Answer answer;
    answer.code = run_program(arguments, fake_maker());
    answer.out = testing::internal::GetCapturedStdout();
    answer.err = testing::internal::GetCapturedStderr();
    return answer;
}

class BadInputs : public testing::TestWithParam<BadInput> {};

inline void expect_one_sentence(const BadInput& input)
{
    Scene scene;
    const std::vector<std::string> arguments = input.arguments(scene);
    const auto begin = std::chrono::steady_clock::now();
    const Answer answer = call(arguments);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(answer.code, input.exit_code);
    EXPECT_EQ(answer.out, "");
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
    EXPECT_THAT(answer.err, testing::StartsWith("oasis-decode: "));
    EXPECT_THAT(answer.err, testing::HasSubstr(input.sentence));
    EXPECT_LT(answer.err.size(), 6000U) << "quotes what should not be quoted whole";
    EXPECT_LT(took.count(), kMostSeconds);
}

inline std::string name_of(const testing::TestParamInfo<BadInput>& info) { return info.param.name; }

} // namespace oasis_decode::test
