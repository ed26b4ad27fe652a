// SPDX-License-Identifier: Apache-2.0
#include "app/tasks.hpp"

#include "model/json.hpp"

#include <fmt/format.h>
#include <lzma.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>

#include <fcntl.h>
#include <unistd.h>

namespace oasis_decode {
namespace {

/// A file that is open for reading; "-" is standard input.
class Input {
public:
    explicit Input(const std::filesystem::path& path) : name_(path == "-" ? "standard input" : path.string())
    {
        if (path == "-") { return; }
        file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file_ < 0) { fail("cannot open ", name_, ": ", std::strerror(errno)); }
    }
    Input(const Input&) = delete;
    Input& operator=(const Input&) = delete;
    ~Input()
    {
        if (file_ != STDIN_FILENO) { ::close(file_); }
    }

    std::string read(std::size_t limit)
    {
        std::string out;
        std::string chunk(std::size_t{1} << 16, '\0');
        for (;;) {
            const ssize_t count = ::read(file_, chunk.data(), chunk.size());
            if (count < 0 && errno == EINTR) { continue; }
            if (count < 0) { fail("cannot read ", name_, ": ", std::strerror(errno)); }
            if (count == 0) { return out; }
            out.append(chunk, 0, static_cast<std::size_t>(count));
            if (out.size() > limit) { fail(name_, ": more than ", limit, " bytes"); }
        }
    }

private:
    std::string name_;
    int file_ = STDIN_FILENO;
};

Task parse_task(std::string_view line, const std::string& where)
{
    const Json object = parse_json(line, where);
    Task task;
    task.task = string_member(object, "task", where);
    task.length = integer_member(object, "length", 0, INT64_MAX, where);
    task.prompt = string_member(object, "prompt", where);
    task.answer = string_member(object, "answer", where);
    task.id = string_member(object, "id", where, where);
    if (task.prompt.empty()) { fail(where, ": \"prompt\" is empty"); }
    if (task.answer.empty()) { fail(where, ": \"answer\" is empty"); }
    return task;
}

} // namespace

std::string unpack_xz(std::string_view packed, const std::string& name, std::size_t limit)
{
    lzma_stream stream = LZMA_STREAM_INIT;
    const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> guard(&stream, lzma_end);
    // 256 MiB is four times what the highest preset needs to decode.
    if (lzma_stream_decoder(&stream, std::uint64_t{256} << 20, LZMA_CONCATENATED) != LZMA_OK) {
        fail(name, ": no xz decoder");
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
            fail(name, ": broken xz file (decoder status ", static_cast<int>(status), ") after ", out.size(), " bytes");
        }
        if (out.size() > limit) { fail(name, ": more than ", limit, " bytes after decompression"); }
    }
    return out;
}

std::string read_text(const std::filesystem::path& path, std::size_t limit)
{
    std::string out = Input(path).read(limit);
    return path.extension() == ".xz" ? unpack_xz(out, path.string(), limit) : out;
}

std::vector<Task> parse_tasks(std::string_view text, const std::string& name)
{
    std::vector<Task> out;
    std::size_t line = 1;
    for (std::size_t begin = 0; begin < text.size(); ++line) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view content = text.substr(begin, end - begin);
        begin = end + 1;
        const std::string where = fmt::format("{}, line {}", name, line);
        if (content.find_first_not_of(" \t\r") != std::string_view::npos) {
            out.push_back(parse_task(content, where));
        } else if (begin < text.size()) {
            fail(where, ": empty line");
        }
    }
    if (out.empty()) { fail(name, ": no tasks"); }
    return out;
}

std::vector<Task> read_tasks(const std::filesystem::path& path) { return parse_tasks(read_text(path), path.string()); }

std::vector<Task> read_items(const std::filesystem::path& path) { return parse_items(read_text(path), path); }

std::vector<Task> parse_items(std::string_view text, const std::filesystem::path& path)
{
    const Json list = parse_json(text, path.string(), Json::value_t::array);
    if (list.empty()) { fail(path.string(), ": an empty list of items"); }
    std::map<std::string, std::vector<Task>> files;
    std::vector<Task> out;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const std::string where = fmt::format("{}, item {}", path.string(), i);
        const std::string file = string_member(list[i], "file", where);
        const std::int64_t line = integer_member(list[i], "line", INT64_MIN, INT64_MAX, where);
        auto it = files.find(file);
        if (it == files.end()) { it = files.emplace(file, read_tasks(path.parent_path() / file)).first; }
        if (line < 1 || line > static_cast<std::int64_t>(it->second.size())) {
            fail(where, ": line ", line, " of ", file, ", which has ", it->second.size(), " lines");
        }
        const Task& task = it->second[static_cast<std::size_t>(line - 1)];
        if (const auto id = string_member(list[i], "id", task.id, where); id != task.id) {
            fail(where, ": line ", line, " of ", file, " is '", task.id, "', not '", id, "'");
        }
        out.push_back(task);
    }
    return out;
}

} // namespace oasis_decode
