// SPDX-License-Identifier: Apache-2.0
#include "model/json.hpp"

#include <cmath>
#include <unordered_set>
#include <vector>

namespace oasis_decode {

std::string shown(const Json& value)
{
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 60) { text = text.substr(0, 57) + "..."; }
    return text;
}

Json parse_json(std::string_view text, const std::string& what, Json::value_t top)
{
    // One set of keys for each open object; arrays open none.
    std::vector<std::unordered_set<std::string>> open;
    const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
        if (depth > kMostJsonDepth) { fail(what, ": JSON nested deeper than ", kMostJsonDepth, " levels"); }
        if (event == Json::parse_event_t::object_start) {
            open.emplace_back();
        } else if (event == Json::parse_event_t::object_end) {
            open.pop_back();
        } else if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second) {
            fail(what, ": duplicate key ", shown(parsed));
        }
        return true;
    };
    Json parsed;
    try {
        parsed = Json::parse(text.begin(), text.end(), watch);
    } catch (const nlohmann::json::exception& error) {
        fail(what, ": not valid JSON: ", legible(error.what(), 160)); // it may quote megabytes
    }
    if (parsed.type() != top) {
        fail(what, ": the JSON is not an ", Json(top).type_name(), " but of type ", parsed.type_name());
    }
    return parsed;
}

Json read_json(const std::filesystem::path& path, std::uint64_t limit)
{
    const MappedFile file(path);
    if (file.size() > limit) { fail(path.string(), ": ", file.size(), " bytes of JSON, more than ", limit); }
    const auto bytes = file.bytes();
    return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

const Json* member(const Json& object, std::string_view key)
{
    if (!object.is_object()) { return nullptr; }
    const auto found = object.find(std::string(key));
    return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t integer_member(const Json& object, std::string_view key, std::int64_t lowest, std::int64_t highest,
                            const std::string& what)
{
    const Json* value = member(object, key);
    if (!value) { fail(what, ": \"", key, "\" is missing"); }
    const bool huge =
        value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
    if (!value->is_number_integer() || huge || value->get<std::int64_t>() < lowest ||
        value->get<std::int64_t>() > highest) {
        fail(what, ": \"", key, "\" is ", shown(*value), ", not an integer from ", lowest, " to ", highest);
    }
    return value->get<std::int64_t>();
}

double positive_member(const Json& object, std::string_view key, const std::string& what)
{
    const Json* value = member(object, key);
    if (!value) { fail(what, ": \"", key, "\" is missing"); }
    if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
        fail(what, ": \"", key, "\" is ", shown(*value), ", not a positive number");
    }
    return value->get<double>();
}

bool flag_member(const Json& object, std::string_view key, bool absent, const std::string& what)
{
    const Json* value = member(object, key);
    if (!value) { return absent; }
    if (!value->is_boolean()) { fail(what, ": \"", key, "\" is ", shown(*value), ", not true or false"); }
    return value->get<bool>();
}

std::string string_member(const Json& object, std::string_view key, std::string_view absent, const std::string& what)
{
    const Json* value = member(object, key);
    return value ? string_member(object, key, what) : std::string(absent);
}

std::string string_member(const Json& object, std::string_view key, const std::string& what)
{
    const Json* value = member(object, key);
    if (!value) { fail(what, ": \"", key, "\" is missing"); }
    if (!value->is_string()) { fail(what, ": \"", key, "\" is ", shown(*value), ", not a string"); }
    return value->get<std::string>();
}

} // namespace oasis_decode
