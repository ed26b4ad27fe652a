// SPDX-License-Identifier: Apache-2.0
//
// Results as JSON: who measured, where, with what, and what came out. NaN becomes null.
#pragma once

#include "app/command.hpp"
#include "app/decoding.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace oasis_decode {

using Report = nlohmann::ordered_json;

/// Schema version, commit, machine, model and every option; results go under "configurations".
Report new_report(std::string_view verb, const Command& command, const Engine& engine);

Report to_json(const Settings& settings);
/// Adds the measures of a stretch of decoding.
void add_usage(Report& to, const Usage& usage);

/// Throws, before any work is done, when --json, --trace or --residency could not be written, would replace
/// what is read, or are one file.
void check_outputs(const Command& command);

/// Replaces the file as a whole, so that a reader never sees half of it; devices, pipes and links are written to as they
/// are. An empty path: nothing. `option` is what the user gave the path to; `indent` as of JSON libraries, -1: one line.
void write_report(const std::filesystem::path& path, const Report& report, std::string_view option = "--json",
                  int indent = 2);

/// "spread2-int4, block 16, 2048/1024", ", mtp 4" after it with drafts: a configuration in a few characters.
std::string short_name(const Settings& settings);

/// The largest memory this process has had.
std::size_t peak_memory();
/// What the system says is free; 0: unknown.
std::size_t available_memory();

} // namespace oasis_decode
