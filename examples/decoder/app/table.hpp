// SPDX-License-Identifier: Apache-2.0
//
// A table of text, aligned: words to the left, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace oasis_decode {

class Table {
public:
    explicit Table(std::vector<std::string> header);

    /// Throws when the row's length is not the header's.
    void add(std::vector<std::string> row);
    bool empty() const noexcept { return rows_.empty(); }
    /// Lines with a newline each: header, rule, rows.
    std::string text() const;

private:
    std::vector<std::string> header_;
    std::vector<std::vector<std::string>> rows_;
};

/// "-" for NaN, else `digits` decimals.
std::string number(double value, int digits);
/// Three significant digits at least, never an exponent for what fits in a column: for divergences.
std::string small_number(double value);
/// "97.3 %", or "-".
std::string percent(double share);
/// "12.4 MiB".
std::string bytes(double count);

} // namespace oasis_decode
