// SPDX-License-Identifier: Apache-2.0
//
// Tokens that are found in the text before it is cut and merged: special ones (<|im_start|>) and added words.
#pragma once

#include <oasis/core/types.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace oasis_decode {

using oasis::TokenId;

/// Whether `<|im_start|>` and its like inside a text mean the token or the characters.
enum class Specials : std::uint8_t {
    kAsText,     ///< the characters: right for whatever a user or a document wrote
    kRecognised, ///< the token: for prompts whose author is trusted
};

/// Looks strings up by a view, without a copy.
struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};
template <class Value> using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

struct AddedToken {
    TokenId id = -1;
    bool special = false;
    bool single_word = false; ///< not inside a word
    bool lstrip = false;      ///< takes the white space before it
    bool rstrip = false;      ///< takes the white space after it
};

class AddedTokens {
public:
    /// A part of a text: a token, or text without tokens (`token.id < 0`).
    struct Part {
        std::string_view text;
        TokenId token = -1;
    };

    /// `text` must not be empty; a text that is there already is replaced.
    void add(std::string_view text, const AddedToken& token);

    /// The parts of `text` in order; none is empty. The leftmost token wins, of those the longest. A special token
    /// that is to be text, and a single word inside another, is passed over whole.
    std::vector<Part> split(std::string_view text, Specials specials) const;

    bool empty() const noexcept { return tokens_.empty(); }

private:
    TextMap<AddedToken> tokens_;
    std::array<std::vector<std::uint32_t>, 256> lengths_; ///< by first byte, longest first
};

} // namespace oasis_decode
