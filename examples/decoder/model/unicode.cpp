// SPDX-License-Identifier: Apache-2.0
#include "model/unicode.hpp"

#include "model/byte_level.hpp"
#include "model/mapped_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utf8proc.h>

namespace oasis_decode {

std::span<const CharacterRange> white_space() noexcept
{
    static constexpr CharacterRange kRanges[] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                                 {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                                 {0x205F, 0x205F}, {0x3000, 0x3000}};
    return kRanges;
}

bool is_white_space(char32_t code) noexcept
{
    return std::ranges::any_of(white_space(), [&](auto range) { return range.first <= code && code <= range.last; });
}

bool is_word_character(char32_t code) noexcept
{
    if (code == 0x200C || code == 0x200D) { return true; }
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

std::string to_nfc(std::string_view text)
{
    std::string out;
    std::size_t begin = 0;
    const auto flush = [&](std::size_t end) {
        if (end == begin) { return; }
        utf8proc_uint8_t* raw = nullptr;
        const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + begin),
                                         static_cast<utf8proc_ssize_t>(end - begin), &raw,
                                         static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
        if (length < 0) { fail("normalisation failed: ", utf8proc_errmsg(length)); }
        out.append(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(length));
    };
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = next_utf8(text.substr(at));
        if (!step.valid) {
            flush(at);
            out += text[at];
            begin = at + 1;
        }
        at += step.bytes;
    }
    flush(text.size());
    return out;
}

char32_t last_character(std::string_view text) noexcept
{
    for (std::size_t bytes = 1; bytes <= 4 && bytes <= text.size(); ++bytes) {
        const Utf8Step step = next_utf8(text.substr(text.size() - bytes));
        if (step.valid && step.bytes == bytes) { return step.code; }
    }
    return 0;
}

std::size_t white_space_at_end(std::string_view text) noexcept
{
    while (!text.empty()) {
        const char32_t code = last_character(text);
        if (!is_white_space(code)) { break; }
        text.remove_suffix(code < 0x80 ? 1 : code < 0x800 ? 2 : 3);
    }
    return text.size();
}

std::size_t white_space_at_start(std::string_view text) noexcept
{
    std::size_t at = 0;
    while (at < text.size()) {
        const Utf8Step step = next_utf8(text.substr(at));
        if (!step.valid || !is_white_space(step.code)) { break; }
        at += step.bytes;
    }
    return at;
}

std::string_view trimmed(std::string_view text) noexcept
{
    text = text.substr(0, white_space_at_end(text));
    return text.substr(white_space_at_start(text));
}

} // namespace oasis_decode
