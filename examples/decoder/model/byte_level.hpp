// SPDX-License-Identifier: Apache-2.0
//
// The byte alphabet of byte-level BPE files: each byte is written as one printable character. Bytes that are
// printable in Latin-1 stand for themselves, the other 68 are numbered from U+0100.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oasis_decode {

/// One step through UTF-8 text: the code point and its bytes, or `valid == false` and one byte.
struct Utf8Step {
    char32_t code = 0;
    std::size_t bytes = 1;
    bool valid = false;
    bool truncated = false; ///< the text ends inside what could become a valid character
};
Utf8Step next_utf8(std::string_view text) noexcept;

/// The bytes that a token of the file stands for, or nothing when it has a character outside the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view token);

/// The text in which a file writes these bytes.
std::string to_byte_alphabet(std::string_view bytes);

} // namespace oasis_decode
