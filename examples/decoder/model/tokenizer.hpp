// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding of two kinds. Byte-level (GPT-2, Llama 3, Qwen, Tekken): text is cut by expressions, and the
// bytes of a piece are merged by rank. SentencePiece (Llama 2, Mistral): characters are merged by the score of what
// they become, spaces are part of tokens, and a character without a token is spelt in byte tokens.
#pragma once

#include "model/added_tokens.hpp"
#include "model/gguf.hpp"
#include "model/json.hpp"
#include "model/pretokenizer.hpp"
#include "model/sentencepiece.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace oasis_decode {

/// Text that is not UTF-8 is accepted: each wrong byte becomes a symbol of its own. A byte for which the
/// vocabulary has no token is left out, or is the unknown token where there is one; `unencodable` counts such bytes.
/// decode(encode(text)) is `text` otherwise, except for what the file itself asks to be changed: NFC, the
/// space that ByteLevel's add_prefix_space or Metaspace puts before the text, white space that an added token takes.
class Tokenizer {
public:
    /// Whether a text is where the tokens begin, or goes on after others: SentencePiece puts a space before the first.
    enum class Place : std::uint8_t { kStart, kContinues };

    /// A model folder: tokenizer.json, or tokenizer.model where that is absent; the chat template from
    /// chat_template.jinja or tokenizer_config.json. Throws `ModelError`, as all of these.
    static Tokenizer from_folder(const std::filesystem::path& folder);
    static Tokenizer from_json(const Json& file, const std::string& what);
    static Tokenizer from_gguf(const GgufFile& file);
    static Tokenizer from_sentencepiece(const SentencePieceModel& model, const std::string& what);

    /// The ids of `text`, without BOS.
    std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::kAsText,
                                Place place = Place::kStart) const;

    /// The ids of a whole prompt: with exactly one BOS when the model wants one, whether or not the text has it.
    std::vector<TokenId> encode_prompt(std::string_view text, Specials specials = Specials::kAsText) const;

    /// The exact bytes of the tokens, special ones included as their text, without the spaces that `encode` puts
    /// before texts. Throws `InvalidArgument` on ids outside the vocabulary.
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
    /// Whether spaces are part of tokens, SentencePiece's way.
    bool is_sentencepiece() const noexcept { return alphabet_ == Alphabet::kCharacters; }
    /// The template that the model's files have for chats, in Jinja; empty without one.
    const std::string& chat_template() const noexcept { return chat_template_; }

private:
    enum class Alphabet : std::uint8_t { kBytes, kCharacters };
    struct Role {
        bool added = false; ///< found before text is cut and merged
        bool special = false;
        bool in_normalised = false; ///< found in normalised text, not in the text as it came
    };
    /// Where a space is put before text.
    enum class SpacePrefix : std::uint8_t {
        kNone,
        kEveryText,  ///< at the start and after each token that is found in the text as it came
        kFirstPiece, ///< at the start, unless there is one already
        kEveryPiece  ///< the same, and after each added token
    };
    struct Merge {
        std::uint32_t rank;
        TokenId merged;
    };
    class Merger;
    class JsonReader;
    /// The key of a pair in `merges_`.
    static std::uint64_t pair_key(TokenId left, TokenId right) noexcept
    {
        return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
    }

    void read_gguf_bytes(const GgufFile& file, const std::string& what);
    void add_tokens_beyond(const Json& decoder, const std::string& what);
    static AddedToken read_added_token(TokenId id, const Json& token, const std::string& what);

    void place_token(TokenId id, std::string_view bytes, Role role, const std::string& what);
    void add_token(TokenId id, std::string_view bytes, const std::string& what);
    void add_byte_token(TokenId id, std::uint8_t byte, const std::string& what);
    void add_added_token(std::string_view text, std::string_view pattern, const AddedToken& token, bool in_normalised,
                         const std::string& what);
    void add_merge(std::string_view left, std::string_view right, std::uint32_t rank, const std::string& what);
    void add_piece_merges(const SentencePieceModel& model, const std::string& what);
    void set_bos(std::optional<std::int64_t> id, bool add, const std::string& what);
    void finish();
    std::string normalised(std::string_view text, bool prefix) const;
    void encode_text(std::string_view text, bool prefix, Specials specials, Merger& merger,
                     std::vector<TokenId>& out) const;
    static std::array<TokenId, 256> no_tokens()
    {
        std::array<TokenId, 256> none{};
        none.fill(-1);
        return none;
    }

    Alphabet alphabet_ = Alphabet::kBytes;
    std::vector<std::string> tokens_;
    std::vector<Role> roles_;
    TextMap<TokenId> plain_; ///< bytes of plain tokens
    TextMap<TokenId> added_; ///< text of added and special tokens
    AddedTokens found_first_;
    AddedTokens found_in_normalised_;
    std::unordered_map<std::uint64_t, Merge> merges_; ///< by `pair_key`
    std::array<TokenId, 256> byte_tokens_ = no_tokens();
    Pretokenizer pretokenizer_;
    std::optional<TokenId> bos_;
    std::optional<TokenId> unknown_; ///< for what has no token; several in a row are one
    std::string chat_template_;
    SpacePrefix prefix_ = SpacePrefix::kNone;
    bool add_bos_ = false;
    bool whole_pieces_first_ = false; ///< a piece that is a token is never merged up
    bool nfc_ = false;
};

/// The file of a model folder that the tokenizer is read from.
std::filesystem::path tokenizer_path(const std::filesystem::path& folder);

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
