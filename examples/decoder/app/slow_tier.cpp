// SPDX-License-Identifier: Apache-2.0
#include "app/slow_tier.hpp"

#include "app/settings.hpp"

#include <oasis/tier/any_store.hpp>
#include <oasis/tier/file_store.hpp>

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

namespace oasis_decode {
namespace {

/// Units with their sizes, the largest first.
using Unit = std::pair<std::string_view, double>;
constexpr std::array rate_units = {Unit{"GBps", 1e9}, Unit{"MBps", 1e6}, Unit{"kBps", 1e3}, Unit{"Bps", 1.0}};
constexpr std::array time_units = {Unit{"ms", 1e6}, Unit{"us", 1e3}, Unit{"ns", 1.0}};

/// A decimal number with one of the units behind it.
double parse_quantity(std::string_view text, std::span<const Unit> units, std::string_view option, std::string_view what)
{
    double value = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    if (error == std::errc{} && std::isfinite(value)) {
        const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
        for (const auto& [name, size] : units) {
            if (unit == name) { return value * size; }
        }
    }
    std::string known;
    for (const auto& [name, size] : units) { known += (known.empty() ? "" : ", ") + std::string(name); }
    throw UsageError(
        fmt::format("{}: {} '{}' is not a number with one of the units {}", option, what, text, known));
}

/// In the largest unit in which the number is at least 1.
std::string quantity_text(double value, std::span<const Unit> units)
{
    for (const auto& [name, size] : units) {
        if (value >= size) { return fmt::format("{}{}", value / size, name); }
    }
    return fmt::format("{}{}", value, units.back().first);
}

SlowTierSpec parse_throttle(std::string_view rest, std::string_view whole)
{
    SlowTierSpec spec{.kind = SlowTierSpec::Kind::kThrottled};
    const std::size_t comma = rest.find(',');
    const std::string_view rate = rest.substr(0, comma);
    spec.throttle.bytes_per_second = parse_quantity(rate, rate_units, fmt::format("--slow '{}'", whole), "rate");
    if (spec.throttle.bytes_per_second < 1.0) {
        throw UsageError(fmt::format("--slow '{}': rate '{}' must be at least 1Bps", whole, rate));
    }
    if (comma != std::string_view::npos) {
        const std::string_view latency = rest.substr(comma + 1);
        spec.throttle.latency = parse_time(latency, fmt::format("--slow '{}'", whole), "latency");
    }
    return spec;
}

} // namespace

std::chrono::nanoseconds parse_time(std::string_view text, std::string_view option, std::string_view what)
{
    const double nanoseconds = parse_quantity(text, time_units, option, what);
    if (nanoseconds < 0.0 || nanoseconds > 60e9) {
        throw UsageError(fmt::format("{}: {} '{}' must be 0 to 60000ms", option, what, text));
    }
    return std::chrono::nanoseconds(std::llround(nanoseconds));
}

SlowTierSpec parse_slow_tier(std::string_view text)
{
    constexpr std::string_view throttle = "throttle:";
    constexpr std::string_view file = "file:";
    if (text == "ram") { return {}; }
    if (text.starts_with(throttle)) { return parse_throttle(text.substr(throttle.size()), text); }
    if (text.starts_with(file)) {
        if (text.size() == file.size()) { throw UsageError(fmt::format("--slow '{}': the path is empty", text)); }
        return {.kind = SlowTierSpec::Kind::kFile, .path = std::string(text.substr(file.size()))};
    }
    throw UsageError(
        fmt::format("--slow '{}': expected ram, throttle:RATE[,LATENCY] (throttle:2GBps,20us) or file:PATH", text));
}

std::string SlowTierSpec::text() const
{
    switch (kind) {
    case Kind::kRam: break;
    case Kind::kThrottled:
        return fmt::format("throttle:{},{}", quantity_text(throttle.bytes_per_second, rate_units),
                           quantity_text(static_cast<double>(throttle.latency.count()), time_units));
    case Kind::kFile: return "file:" + path;
    }
    return "ram";
}

oasis::StoreFactory SlowTierSpec::factory() const
{
    switch (kind) {
    case Kind::kRam: break;
    case Kind::kThrottled:
        return [options = throttle](const oasis::StoreOptions& store) {
            return oasis::erase_store(std::make_unique<oasis::ThrottledStore<>>(store, options));
        };
    case Kind::kFile:
        return [where = path](const oasis::StoreOptions& store) {
            return oasis::erase_store(
                std::make_unique<oasis::FileStore>(store, oasis::FileStoreOptions{.path = where}));
        };
    }
    return
        [](const oasis::StoreOptions& store) { return oasis::erase_store(std::make_unique<oasis::RamStore>(store)); };
}

} // namespace oasis_decode
