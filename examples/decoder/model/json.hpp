// SPDX-License-Identifier: Apache-2.0
//
// Strict JSON reading: duplicate keys and deep nesting are refused, and every typed access names the file, the key and
// the value.
#pragma once

#include "model/mapped_file.hpp"

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace oasis_decode {

using Json = nlohmann::json;

/// More levels than any file of a model has; few enough for functions that recurse over values.
inline constexpr int kMostJsonDepth = 100;

/// Parses `text`, an object (or what `top` says) at the top; throws `ModelError` naming `what`.
Json parse_json(std::string_view text, const std::string& what, Json::value_t top = Json::value_t::object);

/// Reads and parses a file of at most `limit` bytes.
Json read_json(const std::filesystem::path& path, std::uint64_t limit);

/// The member `key`, or null when it is absent or JSON null.
const Json* member(const Json& object, std::string_view key);

/// An integer member in [lowest, highest]; throws when it is absent, of another type or outside.
std::int64_t integer_member(const Json& object, std::string_view key, std::int64_t lowest, std::int64_t highest,
                            const std::string& what);

/// A finite positive number.
double positive_member(const Json& object, std::string_view key, const std::string& what);

/// A boolean member, or `absent`.
bool flag_member(const Json& object, std::string_view key, bool absent, const std::string& what);

/// A string member, or `absent`.
std::string string_member(const Json& object, std::string_view key, std::string_view absent, const std::string& what);

/// A string member that must be there.
std::string string_member(const Json& object, std::string_view key, const std::string& what);

/// A value for an error text: at most 60 characters, whatever bytes it holds.
std::string shown(const Json& value);

} // namespace oasis_decode
