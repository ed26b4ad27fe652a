// SPDX-License-Identifier: Apache-2.0
#include "model/byte_level.hpp"

#include <algorithm>

namespace oasis_decode {
namespace {

constexpr char32_t kFirstExtra = 0x100;
constexpr std::size_t kExtra = 68;

constexpr bool stands_for_itself(unsigned byte) noexcept
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
    std::array<char32_t, 256> written{};
    std::array<std::uint8_t, kExtra> extra{};
};

constexpr Alphabet make_alphabet() noexcept
{
    Alphabet alphabet;
    std::size_t extras = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
        alphabet.written[byte] = byte;
        if (!stands_for_itself(byte)) {
            alphabet.extra[extras] = static_cast<std::uint8_t>(byte);
            alphabet.written[byte] = kFirstExtra + static_cast<char32_t>(extras++);
        }
    }
    return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

} // namespace

Utf8Step next_utf8(std::string_view text) noexcept
{
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned lead = at(0);
    if (lead < 0x80) { return {lead, 1, true, false}; }
    if (lead < 0xC2 || lead > 0xF4) { return {}; }
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    char32_t code = lead & (0x7FU >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if (i >= text.size()) { return {0, 1, false, true}; }
        // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
        const unsigned low = i > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        const unsigned high = i > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (at(i) < low || at(i) > high) { return {}; }
        code = (code << 6) | (at(i) & 0x3FU);
    }
    return {code, length, true, false};
}

std::optional<std::string> from_byte_alphabet(std::string_view token)
{
    std::string bytes;
    while (!token.empty()) {
        const Utf8Step step = next_utf8(token);
        if (!step.valid) { return std::nullopt; }
        if (step.code < kFirstExtra && stands_for_itself(step.code)) {
            bytes += static_cast<char>(step.code);
        } else if (step.code >= kFirstExtra && step.code < kFirstExtra + kExtra) {
            bytes += static_cast<char>(kAlphabet.extra[step.code - kFirstExtra]);
        } else {
            return std::nullopt;
        }
        token.remove_prefix(step.bytes);
    }
    return bytes;
}

std::string to_byte_alphabet(std::string_view bytes)
{
    std::string text;
    for (const char c : bytes) {
        const char32_t code = kAlphabet.written[static_cast<unsigned char>(c)];
        if (code < 0x80) {
            text += static_cast<char>(code);
        } else {
            text += static_cast<char>(0xC0 | (code >> 6));
            text += static_cast<char>(0x80 | (code & 0x3F));
        }
    }
    return text;
}

} // namespace oasis_decode
