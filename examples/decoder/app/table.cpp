// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include <oasis/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace oasis_decode {
namespace {

/// Columns on a terminal: continuation bytes of UTF-8 take none.
std::size_t width(std::string_view text)
{
    return static_cast<std::size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

bool is_numeric(std::string_view text)
{
    return text.empty() || text == "-" || (text.front() >= '0' && text.front() <= '9') ||
           (text.size() > 1 && text.front() == '-' && text[1] >= '0' && text[1] <= '9');
}

} // namespace

Table::Table(std::vector<std::string> header) : header_(std::move(header)) {}

void Table::add(std::vector<std::string> row)
{
    oasis::detail::expects(row.size() == header_.size(), "Table: a row of ", row.size(), " cells under ",
                           header_.size(), " headings");
    rows_.push_back(std::move(row));
}

std::string Table::text() const
{
    std::vector<std::size_t> widths;
    std::vector<bool> right;
    for (std::size_t c = 0; c < header_.size(); ++c) {
        std::size_t widest = width(header_[c]);
        bool numeric = true;
        for (const auto& row : rows_) {
            widest = std::max(widest, width(row[c]));
            numeric = numeric && is_numeric(row[c]);
        }
        widths.push_back(widest);
        right.push_back(numeric && c > 0);
    }
    const auto line = [&](const std::vector<std::string>& cells) {
        std::string out;
        for (std::size_t c = 0; c < cells.size(); ++c) {
            const std::string padding(widths[c] - width(cells[c]), ' ');
            out += c ? "  " : "";
            out += right[c] ? padding + cells[c] : cells[c] + padding;
        }
        out.erase(out.find_last_not_of(' ') + 1);
        return out + "\n";
    };
    std::string out = line(header_);
    std::size_t total = 0;
    for (const std::size_t w : widths) { total += w + 2; }
    out += std::string(total ? total - 2 : 0, '-') + "\n";
    for (const auto& row : rows_) { out += line(row); }
    return out;
}

std::string number(double value, int digits) { return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits); }

std::string small_number(double value)
{
    if (std::isnan(value)) { return "-"; }
    if (value == 0) { return "0"; }
    const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(value))));
    return fmt::format("{:.{}f}", value, std::clamp(1 - magnitude, 2, 7));
}

std::string percent(double share) { return std::isnan(share) ? "-" : fmt::format("{:.1f} %", 100 * share); }

std::string bytes(double count)
{
    if (std::isnan(count)) { return "-"; }
    constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    while (std::abs(count) >= 1024 && unit + 1 < units.size()) {
        count /= 1024;
        ++unit;
    }
    return fmt::format("{:.{}f} {}", count, unit == 0 ? 0 : 1, units[unit]);
}

} // namespace oasis_decode
