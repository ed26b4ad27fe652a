// SPDX-License-Identifier: Apache-2.0
#include "app/tasks.hpp"

#include <oasis/core/error.hpp>

#include <fmt/format.h>
#include <lzma.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

namespace oasis_decode {
namespace {

using Json = nlohmann::json;

std::string read_plain(const std::filesystem::path& path, std::size_t limit)
{
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
        throw oasis::Error(fmt::format("{}: is a folder, expected a file", path.string()));
    }
    std::ifstream in(path, std::ios::binary);
    if (!in) { throw oasis::Error(fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno))); }
    std::string out;
    std::string chunk(std::size_t{1} << 16, '\0');
    while (in) {
        in.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
        out.append(chunk, 0, static_cast<std::size_t>(in.gcount()));
        if (out.size() > limit) { throw oasis::Error(fmt::format("{}: more than {} bytes", path.string(), limit)); }
    }
    if (in.bad()) { throw oasis::Error(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno))); }
    return out;
}

std::string decompress(const std::string& packed, const std::string& name, std::size_t limit)
{
    lzma_stream stream = LZMA_STREAM_INIT;
    const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> guard(&stream, lzma_end);
    // 256 MiB is four times what the highest preset needs to decode.
    if (lzma_stream_decoder(&stream, std::uint64_t{256} << 20, LZMA_CONCATENATED) != LZMA_OK) {
        throw oasis::Error(name + ": no xz decoder");
    }
    std::string out;
    std::string chunk(std::size_t{1} << 18, '\0');
    stream.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
    stream.avail_in = packed.size();
    for (lzma_ret status = LZMA_OK; status != LZMA_STREAM_END;) {
        stream.next_out = reinterpret_cast<std::uint8_t*>(chunk.data());
        stream.avail_out = chunk.size();
        status = lzma_code(&stream, LZMA_FINISH);
        out.append(chunk, 0, chunk.size() - stream.avail_out);
        if (status != LZMA_OK && status != LZMA_STREAM_END) {
            throw oasis::Error(fmt::format("{}: broken xz file (decoder status {}) after {} bytes", name,
                                           static_cast<int>(status), out.size()));
        }
        if (out.size() > limit) {
            throw oasis::Error(fmt::format("{}: more than {} bytes after decompression", name, limit));
        }
    }
    return out;
}

template <class Value> Value field(const Json& object, const char* key, const std::string& where)
{
    const auto it = object.find(key);
    if (it == object.end()) { throw oasis::Error(fmt::format("{}: field '{}' is missing", where, key)); }
    try {
        return it->get<Value>();
    } catch (const Json::exception&) {
        throw oasis::Error(fmt::format("{}: field '{}' is of the wrong type: {}", where, key, it->type_name()));
    }
}

Json parse(std::string_view text, const std::string& where)
{
    try {
        return Json::parse(text);
    } catch (const Json::exception& e) {
        throw oasis::Error(fmt::format("{}: no JSON: {}", where, e.what()));
    }
}

Task parse_task(std::string_view line, const std::string& where)
{
    const Json object = parse(line, where);
    if (!object.is_object()) {
        throw oasis::Error(fmt::format("{}: expected an object, found {}", where, object.type_name()));
    }
    Task task;
    task.task = field<std::string>(object, "task", where);
    task.length = field<std::int64_t>(object, "length", where);
    task.prompt = field<std::string>(object, "prompt", where);
    task.answer = field<std::string>(object, "answer", where);
    task.id = object.contains("id") ? field<std::string>(object, "id", where) : where;
    if (task.prompt.empty()) { throw oasis::Error(fmt::format("{}: field 'prompt' is empty", where)); }
    if (task.answer.empty()) { throw oasis::Error(fmt::format("{}: field 'answer' is empty", where)); }
    return task;
}

} // namespace

std::string read_text(const std::filesystem::path& path, std::size_t limit)
{
    std::string out = read_plain(path, limit);
    return path.extension() == ".xz" ? decompress(out, path.string(), limit) : out;
}

std::vector<Task> read_tasks(const std::filesystem::path& path)
{
    const std::string text = read_text(path);
    std::vector<Task> out;
    std::size_t line = 1;
    for (std::size_t begin = 0; begin < text.size(); ++line) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view content = std::string_view(text).substr(begin, end - begin);
        begin = end + 1;
        const std::string where = fmt::format("{}, line {}", path.string(), line);
        if (content.find_first_not_of(" \t\r") != std::string_view::npos) {
            out.push_back(parse_task(content, where));
        } else if (begin < text.size()) {
            throw oasis::Error(where + ": empty line");
        }
    }
    if (out.empty()) { throw oasis::Error(fmt::format("{}: no tasks", path.string())); }
    return out;
}

std::vector<Task> read_items(const std::filesystem::path& path)
{
    const Json list = parse(read_text(path), path.string());
    if (!list.is_array() || list.empty()) {
        throw oasis::Error(fmt::format("{}: expected a list of items", path.string()));
    }
    std::map<std::string, std::vector<Task>> files;
    std::vector<Task> out;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const std::string where = fmt::format("{}, item {}", path.string(), i);
        const auto file = field<std::string>(list[i], "file", where);
        const auto line = field<std::int64_t>(list[i], "line", where);
        auto it = files.find(file);
        if (it == files.end()) { it = files.emplace(file, read_tasks(path.parent_path() / file)).first; }
        if (line < 1 || line > static_cast<std::int64_t>(it->second.size())) {
            throw oasis::Error(
                fmt::format("{}: line {} of {}, which has {} lines", where, line, file, it->second.size()));
        }
        const Task& task = it->second[static_cast<std::size_t>(line - 1)];
        if (list[i].contains("id") && field<std::string>(list[i], "id", where) != task.id) {
            throw oasis::Error(fmt::format("{}: line {} of {} is '{}', not '{}'", where, line, file, task.id,
                                           list[i]["id"].get<std::string>()));
        }
        out.push_back(task);
    }
    return out;
}

} // namespace oasis_decode
