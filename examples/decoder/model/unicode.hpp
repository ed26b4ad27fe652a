// SPDX-License-Identifier: Apache-2.0
//
// What tokenizers ask of Unicode beyond UTF-8.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace oasis_decode {

/// Characters from first to last.
struct CharacterRange {
    char32_t first;
    char32_t last;
};

/// The characters with the property White_Space.
std::span<const CharacterRange> white_space() noexcept;
bool is_white_space(char32_t code) noexcept;

/// Letters, marks, decimal digits, letter numbers, connector punctuation and joiners: what \w means in Unicode.
bool is_word_character(char32_t code) noexcept;

/// Canonical composition of the parts that are UTF-8; other bytes stay.
std::string to_nfc(std::string_view text);

/// Without the white space at both ends.
std::string_view trimmed(std::string_view text) noexcept;

/// Where the white space begins with which `text` ends.
std::size_t white_space_at_end(std::string_view text) noexcept;
/// How many bytes of white space `text` begins with.
std::size_t white_space_at_start(std::string_view text) noexcept;

/// The last character of `text` (0 when it is empty or not UTF-8 there).
char32_t last_character(std::string_view text) noexcept;

} // namespace oasis_decode
