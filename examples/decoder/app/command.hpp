// SPDX-License-Identifier: Apache-2.0
//
// The command line.
#pragma once

#include "app/session.hpp"
#include "app/settings.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace oasis_decode {

enum class Verb : std::uint8_t { kInspect, kRun, kCompare, kEval };

struct Command {
    Verb verb = Verb::kInspect;
    std::filesystem::path model;
    Settings settings{};
    std::vector<Sweep> sweeps{};
    std::int32_t threads = 0;                  ///< 0: one per processor
    Compute compute = Compute::kF32;
    std::int32_t rows = oasis::kMaxVerifyRows; ///< verify rows of a step when the tokens are known and none are drafted
    std::optional<bool> measure_mass{};        ///< default: compare yes, else no
    std::filesystem::path json{};
    std::filesystem::path trace{};     ///< run: where the decoding is drawn
    std::filesystem::path residency{}; ///< run: where it is written which blocks were in fast memory
    bool dry_run = false;

    std::filesystem::path file{}; ///< run, compare: the text; "-": standard input
    std::int64_t tokens = 0;      ///< run, compare: the text is cut there; 0: run does not cut, compare takes 7,600
    std::int64_t last = 256;      ///< compare: decoded at the end of it

    std::string prompt{};
    bool chat = false;
    std::string chat_template{}; ///< empty: the model's
    std::uint64_t seed = 0;
    double temperature = 0;
    double top_p = 1;
    std::int64_t max_tokens = 128;
    bool dense_column = true;

    std::filesystem::path tasks{};
    std::filesystem::path items{};
    std::string generate{};
    std::int64_t max_items = 0; ///< 0: all
};

/// The command, or what to print and the exit code.
struct Parsed {
    std::optional<Command> command{};
    int exit_code = 0;
    std::string text{};
};

/// Never throws on what a user typed: a usage error has exit code 2 and one line of text.
Parsed parse_command(std::span<const std::string> arguments);

/// What the program ends with; the last two are the shell's 128 + signal.
namespace exit_code {
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kInterrupted = 130;
inline constexpr int kBrokenPipe = 141;
} // namespace exit_code

/// The whole program. Every failure is one line on standard error and an exit code.
int run_program(std::span<const std::string> arguments, const CacheMaker& maker);

void inspect(const Command& command, const CacheMaker& maker);
void run(const Command& command, const CacheMaker& maker);
void compare(const Command& command, const CacheMaker& maker);
void evaluate(const Command& command, const CacheMaker& maker);

} // namespace oasis_decode
