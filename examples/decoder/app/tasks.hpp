// SPDX-License-Identifier: Apache-2.0
//
// Tasks with a known answer: read from JSON lines, or generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

struct Task {
    std::string id;
    std::string task;
    std::int64_t length = 0; ///< nominal length of the prompt in tokens
    std::string prompt;
    std::string answer;
};

/// Tasks, one a line. Errors name `name`, the line (counted from 1) and the field.
std::vector<Task> parse_tasks(std::string_view text, const std::string& name);

/// The same of a file, `.jsonl` or `.jsonl.xz`.
std::vector<Task> read_tasks(const std::filesystem::path& path);

/// A JSON list of {file, line}: files relative to the folder of `path`, lines counted from 1. An `id` given must agree.
std::vector<Task> parse_items(std::string_view text, const std::filesystem::path& path);
std::vector<Task> read_items(const std::filesystem::path& path);

/// The bytes of an .xz file's text; at most `limit` of them.
std::string unpack_xz(std::string_view packed, const std::string& name, std::size_t limit);

/// A whole file, `.xz` decompressed, or standard input for "-". At most `limit` bytes after decompression.
std::string read_text(const std::filesystem::path& path, std::size_t limit = std::size_t{1} << 31);

/// Tokens of a text, so that prompts reach their length.
using TokenCount = std::function<std::size_t(std::string_view)>;

/// One part of "kv_dense:8192:4,json:4096:2".
struct GenerateSpec {
    std::string task;
    std::int64_t length = 4096;
    std::int32_t items = 4;
};

/// Names of the generated tasks: kv_dense, vartrack, json, list, multikey.
std::vector<std::string> generated_tasks();

/// TASK[:LENGTH[:ITEMS]], several with commas; "all" stands for every task.
std::vector<GenerateSpec> parse_generate(std::string_view text);

/// One task of random records. The same name, length, seed and index give the same text. The prompt has at most
/// `length` tokens and what it asks for lies at least 640 tokens before the question (a third of the length if short).
Task generate_task(std::string_view name, std::int64_t length, std::uint64_t seed, std::uint64_t index,
                   const TokenCount& count);

} // namespace oasis_decode
