// SPDX-License-Identifier: Apache-2.0
#include "app/report.hpp"

#include "app/drafts.hpp"

#include <oasis/core/error.hpp>
#include <oasis/version.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include <unistd.h>

#if __has_include("oasis_decode_commit.hpp")
#include "oasis_decode_commit.hpp"
#else
#define OASIS_DECODE_COMMIT "unknown"
#endif

namespace oasis_decode {
namespace {

/// The rest of the first line of `path` that begins with `key`.
std::string proc_line(const char* path, std::string_view key)
{
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(key)) { continue; }
        const std::size_t begin = line.find_first_not_of(" \t:", key.size());
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return "";
}

std::size_t proc_kibibytes(const char* path, std::string_view key)
{
    const std::string text = proc_line(path, key);
    return text.empty() ? 0 : std::size_t{1024} * std::strtoull(text.c_str(), nullptr, 10);
}

Report options_json(const Command& command)
{
    Report out = to_json(command.settings);
    out["threads"] = command.threads;
    out["compute"] = command.compute == Compute::kQ8 ? "q8" : "f32";
    out["rows"] = command.rows;
    out["measure_mass"] = command.measure_mass.value_or(command.verb == Verb::kCompare);
    out["file"] = command.file.string();
    out["tokens"] = command.tokens;
    out["last"] = command.last;
    out["prompt"] = command.prompt;
    out["chat"] = command.chat;
    out["seed"] = command.seed;
    out["temp"] = command.temperature;
    out["top_p"] = command.top_p;
    out["max_tokens"] = command.max_tokens;
    out["dense_column"] = command.dense_column;
    out["tasks"] = command.tasks.string();
    out["items"] = command.items.string();
    out["generate"] = command.generate;
    out["max_items"] = command.max_items;
    out["sweep"] = Report::object();
    for (const Sweep& sweep : command.sweeps) { out["sweep"][sweep.name] = sweep.values; }
    return out;
}

/// Whether a file of this name in a model folder is read, or would be if it were there.
bool is_of_a_model(const std::string& name)
{
    return name == "config.json" || name == "chat_template.jinja" || name.starts_with("tokenizer") ||
           name.find(".safetensors") != std::string::npos;
}

/// What the command reads: texts, tasks, the model's files and draft heads.
std::vector<std::filesystem::path> inputs(const Command& command)
{
    std::vector<std::filesystem::path> out{command.model, command.file, command.tasks, command.items};
    for (const Settings& settings : expand(command.settings, command.sweeps)) {
        out.push_back(head_path(settings, command.model));
    }
    std::error_code unreadable;
    for (const auto& entry : std::filesystem::directory_iterator(command.model, unreadable)) {
        if (is_of_a_model(entry.path().filename().string())) { out.push_back(entry.path()); }
    }
    std::erase(out, std::filesystem::path());
    return out;
}

void check_output(const char* option, const std::filesystem::path& path, const Command& command)
{
    if (path.empty()) { return; }
    std::error_code error;
    for (const auto& input : inputs(command)) {
        if (std::filesystem::equivalent(path, input, error)) {
            throw UsageError(fmt::format("{} {}: this file is read, it would be lost", option, path.string()));
        }
    }
    const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
    if (is_of_a_model(path.filename().string()) && std::filesystem::equivalent(folder, command.model, error)) {
        throw UsageError(fmt::format("{} {}: would be a file of the model", option, path.string()));
    }
    const auto kind = std::filesystem::status(path, error).type();
    if (kind == std::filesystem::file_type::directory) {
        throw oasis::Error(fmt::format("{} {}: is a folder, expected a file", option, path.string()));
    }
    const bool there = kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::none;
    if ((there && ::access(path.c_str(), W_OK) != 0) ||
        ((!there || kind == std::filesystem::file_type::regular) && ::access(folder.c_str(), W_OK | X_OK) != 0)) {
        throw oasis::Error(fmt::format("{} {}: cannot be written: {}", option, path.string(), std::strerror(errno)));
    }
}

} // namespace

void check_outputs(const Command& command)
{
    const std::pair<const char*, std::filesystem::path> outputs[] = {
        {"--json", command.json}, {"--trace", command.trace}, {"--residency", command.residency}};
    for (const auto& [option, path] : outputs) {
        check_output(option, path, command);
        for (const auto& [other, same] : outputs) {
            if (option != other && !path.empty() && path == same) {
                throw UsageError(fmt::format("{} and {} name the same file", option, other));
            }
        }
    }
}

Report to_json(const Settings& settings)
{
    Report out = Report::object();
    for (const SettingInfo& info : setting_infos()) {
        std::string name = info.name;
        std::replace(name.begin(), name.end(), '-', '_');
        const std::string value = info.get(settings);
        const bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
        const bool fraction =
            !digits && value.starts_with("0.") && value.find_first_not_of("0123456789.") == std::string::npos;
        out[name] = digits ? Report(std::stoll(value)) : fraction ? Report(std::stod(value)) : Report(value);
    }
    return out;
}

void add_usage(Report& to, const Usage& usage)
{
    to["captured_mass"] = usage.captured_mass;
    to["attended_tokens"] = usage.attended_tokens;
    to["fetched_tokens"] = usage.fetched_tokens;
    to["resident_at_use"] = usage.resident_at_use;
    to["tokens_per_second"] = usage.tokens_per_second();
    to["steps"] = usage.steps;
    to["verifications"] = usage.drafts.verifications;
    to["tokens_per_verification"] = usage.drafts.tokens_per_verification();
    to["draft_acceptance"] = usage.drafts.acceptance();
    to["drafted_tokens"] = usage.drafts.drafted;
    to["fast_bytes"] = usage.fast_bytes;
    to["slow_bytes"] = usage.slow_bytes;
    to["demand_bytes"] = usage.demand_bytes;
    to["prefetch_bytes"] = usage.prefetch_bytes;
    to["late_tokens"] = usage.late_tokens;
    to["skipped_mass"] = usage.skipped_mass;
    to["agreement"] = usage.agreement;
    to["stall_p50_us"] = usage.stall.p50_us;
    to["stall_p99_us"] = usage.stall.p99_us;
    to["stall_share"] = usage.stall.share;
}

Report new_report(std::string_view verb, const Command& command, const Engine& engine)
{
    const ModelConfig& config = engine.config();
    Report out = Report::object();
    out["schema_version"] = 1;
    out["program"] = "oasis-decode";
    out["version"] = fmt::format("{}.{}.{}", OASIS_VERSION_MAJOR, OASIS_VERSION_MINOR, OASIS_VERSION_PATCH);
    out["commit"] = OASIS_DECODE_COMMIT;
    out["command"] = verb;
    out["partial"] = false;
    out["machine"] = {{"cpu", proc_line("/proc/cpuinfo", "model name")},
                      {"cores", std::thread::hardware_concurrency()}};
    out["model"] = {{"name", command.model.filename().string()},
                    {"hash", engine.model->id},
                    {"architecture", config.architecture},
                    {"layers", config.layers},
                    {"q_heads", config.q_heads},
                    {"kv_heads", config.kv_heads},
                    {"head_dim", config.head_dim},
                    {"vocabulary", config.vocab},
                    {"context", config.context},
                    {"rope", config.rope.text()},
                    {"window", config.window_text()}};
    out["options"] = options_json(command);
    out["configurations"] = Report::array();
    return out;
}

void write_report(const std::filesystem::path& path, const Report& report, std::string_view option, int indent)
{
    if (path.empty()) { return; }
    // Only a regular file may be replaced: a device, a pipe or a link is written to as it is.
    std::error_code ignored;
    const auto kind = std::filesystem::symlink_status(path, ignored).type();
    const bool replace = kind == std::filesystem::file_type::not_found || kind == std::filesystem::file_type::regular;
    std::filesystem::path target = path;
    if (replace) { target += ".part"; }
    std::ofstream out(target, std::ios::binary | std::ios::trunc);
    // Text of a prompt may hold any bytes: what is no UTF-8 is replaced.
    out << report.dump(indent, ' ', false, Report::error_handler_t::replace) << "\n";
    out.close();
    int reason = out ? 0 : errno;
    if (reason == 0 && replace && std::rename(target.c_str(), path.c_str()) != 0) { reason = errno; }
    if (reason == 0) { return; }
    if (replace) { std::filesystem::remove(target, ignored); }
    throw oasis::Error(fmt::format("{} {}: cannot be written: {}", option, path.string(), std::strerror(reason)));
}

std::string short_name(const Settings& settings)
{
    std::string out = fmt::format("{}, block {}, {}/{}", settings.summary, settings.block, settings.attend_budget,
                                  settings.resolved_fetch());
    if (settings.draft != DraftSource::kNone) {
        out += fmt::format(", {} {}", word(settings.draft), settings.resolved_draft_tokens());
    }
    return out;
}

std::size_t peak_memory() { return proc_kibibytes("/proc/self/status", "VmHWM"); }

std::size_t available_memory() { return proc_kibibytes("/proc/meminfo", "MemAvailable"); }

} // namespace oasis_decode
