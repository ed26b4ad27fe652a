// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer from the pieces of a SentencePiece model. Tokens are kept with spaces where the model has U+2581; that
// character itself is spelt in byte tokens, so that texts that have it come back as they were.
#include "model/byte_level.hpp"
#include "model/tokenizer.hpp"

#include <algorithm>
#include <cmath>

namespace oasis_decode {
namespace {

constexpr std::size_t kMostPieces = 1 << 22;
constexpr std::size_t kMostPieceBytes = 512; // bounds the ways to cut a piece in two

} // namespace

Tokenizer Tokenizer::from_sentencepiece(const SentencePieceModel& model, const std::string& what)
{
    using Type = SentencePieceModel::Type;
    if (model.pieces.empty() || model.pieces.size() > kMostPieces) { fail(what, ": ", model.pieces.size(), " pieces"); }
    Tokenizer tokenizer;
    tokenizer.alphabet_ = Alphabet::kCharacters;
    tokenizer.prefix_ = model.add_dummy_prefix ? SpacePrefix::kEveryText : SpacePrefix::kNone;
    std::optional<TokenId> unknown;
    bool bytes = false;
    for (std::size_t i = 0; i < model.pieces.size(); ++i) {
        const auto& piece = model.pieces[i];
        const auto id = static_cast<TokenId>(i);
        const std::string text = with_spaces(piece.text);
        const std::string label = what + ": piece " + std::to_string(i);
        if (!std::isfinite(piece.score)) { fail(label, " has the score ", piece.score); }
        if (piece.type == Type::kByte) {
            const auto byte = byte_token(piece.text);
            if (!byte) { fail(label, " is ", shown(Json(piece.text)), ", not a byte like <0x41>"); }
            tokenizer.add_byte_token(id, *byte, what);
            bytes = true;
        } else if (piece.type == Type::kNormal) {
            if (text.empty() || text.size() > kMostPieceBytes) { fail(label, " has ", text.size(), " bytes"); }
            tokenizer.add_token(id, text, what);
            if (tokenizer.plain_.find(text)->second != id) {
                fail(label, " is ", shown(Json(piece.text)), ", as piece ", tokenizer.plain_.find(text)->second);
            }
        } else if (piece.type == Type::kUnused) {
            tokenizer.place_token(id, text, {}, what); // nothing is encoded as it
        } else {
            const bool user_defined = piece.type == Type::kUserDefined;
            if (piece.type == Type::kUnknown) { unknown = id; }
            tokenizer.add_added_token(text, text, {.id = id, .special = !user_defined}, user_defined, what);
        }
    }
    if (!bytes) { tokenizer.unknown_ = unknown; }
    tokenizer.add_piece_merges(model, what);
    tokenizer.finish();
    const bool has_bos = model.bos >= 0;
    tokenizer.set_bos(has_bos ? std::optional(model.bos) : std::nullopt, has_bos && model.add_bos, what);
    return tokenizer;
}

// Two pieces merge if their text together is a piece; the higher its score, the earlier.
void Tokenizer::add_piece_merges(const SentencePieceModel& model, const std::string& what)
{
    using Type = SentencePieceModel::Type;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < model.pieces.size(); ++i) {
        const Type type = model.pieces[i].type;
        if (type == Type::kNormal || type == Type::kUnused) { order.push_back(i); }
    }
    const auto score = [&](std::size_t i) { return model.pieces[i].score; };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
    std::uint32_t rank = 0;
    for (std::size_t n = 0; n < order.size(); ++n) {
        if (n > 0 && score(order[n]) != score(order[n - 1])) { ++rank; }
        const std::string_view text = tokens_[order[n]];
        if (text.empty() || text.size() > kMostPieceBytes) { continue; }
        const auto id = static_cast<TokenId>(order[n]);
        for (std::size_t at = next_utf8(text).bytes; at < text.size(); at += next_utf8(text.substr(at)).bytes) {
            const auto left = plain_.find(text.substr(0, at));
            const auto right = plain_.find(text.substr(at));
            if (left == plain_.end() || right == plain_.end()) { continue; }
            if (model.pieces[order[n]].type == Type::kUnused) {
                fail(what, ": piece ", id, " (", shown(Json(std::string(text))),
                     ") is marked as unused, but can be merged: not supported");
            }
            merges_.emplace(pair_key(left->second, right->second), Merge{rank, id});
        }
    }
}

} // namespace oasis_decode
