// SPDX-License-Identifier: Apache-2.0
//
// SentencePiece models: the pieces of a BPE model, from tokenizer.model (a protocol buffer, `ModelProto`) or from
// GGUF keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

/// U+2581, which stands for a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

struct SentencePieceModel {
    /// The numbers of the file.
    enum class Type : std::uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
    struct Piece {
        std::string text{}; ///< spaces are U+2581
        float score = 0;    ///< of two merges, the one whose result has the higher score goes first
        Type type = Type::kNormal;
    };

    std::vector<Piece> pieces{};
    bool add_dummy_prefix = true; ///< a space goes before the text
    bool add_bos = true;
    std::int64_t bos = 1; ///< -1: none
};

/// Parses a `ModelProto`. Every length is checked against the bytes that are left. Throws `ModelError` that names
/// `what`: damaged or truncated files, and by name what is not supported (unigram, word and character models,
/// normalisation other than identity, white space removed or taken as a suffix).
SentencePieceModel parse_sentencepiece(std::string_view bytes, const std::string& what);

/// The text of a piece with U+2581 as spaces.
std::string with_spaces(std::string_view piece);

/// `<0x41>`, as byte pieces are written: the byte.
std::optional<std::uint8_t> byte_token(std::string_view piece);

} // namespace oasis_decode
