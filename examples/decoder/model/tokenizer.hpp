// SPDX-License-Identifier: Apache-2.0
//
// Byte-level BPE, read from tokenizer.json or from GGUF keys.
#pragma once

#include "model/gguf.hpp"
#include "model/json.hpp"
#include "model/pretokenizer.hpp"

#include <oasis/core/types.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace oasis_decode {

using oasis::TokenId;

/// Whether `<|im_start|>` and its like inside a text mean the token or the characters.
enum class Specials {
    kAsText,     ///< the characters: right for whatever a user or a document wrote
    kRecognised, ///< the token: for prompts whose author is trusted
};

/// Text that is not UTF-8 is accepted: each wrong byte becomes a symbol of its own. A byte for which the
/// vocabulary has no token is left out, as the reference implementations do; `unencodable` counts such bytes.
/// NFC normalisation is applied only when the file asks for it (and then decode gives the NFC form back).
class Tokenizer {
public:
    static Tokenizer from_json(const Json& file, const std::string& what);
    static Tokenizer from_gguf(const GgufFile& file);

    /// The ids of `text`, without BOS.
    std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::kAsText) const;

    /// The ids of a whole prompt: with exactly one BOS when the model wants one, whether or not the text has it.
    std::vector<TokenId> encode_prompt(std::string_view text, Specials specials = Specials::kAsText) const;

    /// The exact bytes of the tokens, special ones included as their text. Throws on ids outside the vocabulary.
    std::string decode(std::span<const TokenId> ids) const;

    /// The bytes of one token.
    std::string_view bytes(TokenId id) const;

    std::size_t vocabulary() const noexcept { return tokens_.size(); }
    bool is_special(TokenId id) const;
    /// The token that is exactly this text, special or not.
    std::optional<TokenId> token_id(std::string_view content) const;
    bool adds_bos() const noexcept { return add_bos_; }
    std::optional<TokenId> bos() const noexcept { return bos_; }
    std::size_t unencodable(std::string_view text) const;

private:
    enum class Kind : std::uint8_t { kPlain, kAdded, kSpecial };
    struct Merge {
        std::uint32_t rank;
        TokenId merged;
    };
    class Merger;

    void add_token(TokenId id, std::string bytes, Kind kind);
    void add_merge(std::string_view left, std::string_view right, std::uint32_t rank, const std::string& what);
    void finish(const std::string& what);
    void read_json_tokens(const Json& file, const std::string& what);
    void read_json_pretokenizer(const Json& stage, const std::string& what);
    void read_json_postprocessor(const Json& processor, const std::string& what);
    void encode_text(std::string_view text, Merger& merger, std::vector<TokenId>& out) const;
    std::optional<TokenId> added_at(std::string_view text, Specials specials) const;

    std::vector<std::string> tokens_;
    std::vector<Kind> kinds_;
    std::unordered_map<std::string, TokenId> plain_;            ///< bytes of plain tokens
    std::unordered_map<std::string, TokenId> added_;            ///< text of added and special tokens
    std::array<std::vector<TokenId>, 256> added_by_first_byte_; ///< longest first
    std::unordered_map<std::uint64_t, Merge> merges_;           ///< key: left id, right id
    std::array<TokenId, 256> byte_tokens_{};                    ///< -1: the vocabulary has none
    Pretokenizer pretokenizer_;
    std::optional<TokenId> bos_;
    bool add_bos_ = false;
    bool whole_pieces_first_ = false; ///< a piece that is a token is never merged up
    bool nfc_ = false;
};

/// Turns ids into text one by one: bytes that end inside a character are held back until it is whole.
class StreamDecoder {
public:
    explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
    /// The text that has become whole; always valid UTF-8 (a wrong byte becomes U+FFFD).
    std::string push(TokenId id);
    /// What was held back; the stream is at its end.
    std::string finish();

private:
    std::string take(bool at_end);

    const Tokenizer* tokenizer_;
    std::string pending_;
};

} // namespace oasis_decode
