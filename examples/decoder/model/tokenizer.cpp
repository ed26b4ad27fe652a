// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.hpp"

#include "model/byte_level.hpp"
#include "model/unicode.hpp"

#include <algorithm>
#include <limits>
#include <queue>

namespace oasis_decode {
namespace {

std::string quoted(std::string_view bytes) { return shown(Json(std::string(bytes))); }

} // namespace

// Merges one piece: a linked list of symbols and a queue of the pairs that may merge, lowest rank first, the
// leftmost of equals. Buffers are kept from piece to piece.
class Tokenizer::Merger {
public:
    explicit Merger(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void operator()(std::string_view piece, std::vector<TokenId>& out)
    {
        if (tokenizer_.whole_pieces_first_) {
            if (const auto whole = tokenizer_.plain_.find(piece); whole != tokenizer_.plain_.end()) {
                out.push_back(whole->second);
                return;
            }
        }
        symbols_.clear();
        if (tokenizer_.alphabet_ == Alphabet::kBytes) {
            add_bytes(piece);
        } else {
            add_characters(piece);
        }
        if (symbols_.empty()) { return; }
        symbols_.back().next = -1;
        for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) { offer(static_cast<std::int32_t>(i)); }
        while (!queue_.empty()) { merge_first(); }
        for (std::int32_t i = 0; i >= 0; i = at(i).next) { out.push_back(at(i).id); }
    }

private:
    struct Symbol {
        TokenId id; // -1 once it was merged into its left neighbour
        std::int32_t previous;
        std::int32_t next;
    };
    struct Candidate {
        std::uint32_t rank;
        std::int32_t left;
        TokenId left_id, right_id, merged;
        bool operator<(const Candidate& other) const
        {
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };

    Symbol& at(std::int32_t i) { return symbols_[static_cast<std::size_t>(i)]; }

    void add_symbol(TokenId id)
    {
        const auto i = static_cast<std::int32_t>(symbols_.size());
        symbols_.push_back({id, i - 1, i + 1});
    }

    void add_bytes(std::string_view bytes)
    {
        for (const char c : bytes) {
            const TokenId id = tokenizer_.byte_tokens_[static_cast<unsigned char>(c)];
            if (id >= 0) { add_symbol(id); }
        }
    }

    void add_characters(std::string_view text)
    {
        while (!text.empty()) {
            const std::string_view character = text.substr(0, next_utf8(text).bytes);
            text.remove_prefix(character.size());
            if (const auto found = tokenizer_.plain_.find(character); found != tokenizer_.plain_.end()) {
                add_symbol(found->second);
            } else if (!tokenizer_.unknown_) {
                add_bytes(character);
            } else if (symbols_.empty() || symbols_.back().id != *tokenizer_.unknown_) {
                add_symbol(*tokenizer_.unknown_);
            }
        }
    }

    void offer(std::int32_t left)
    {
        const std::int32_t right = left < 0 ? -1 : at(left).next;
        if (right < 0) { return; }
        const auto found = tokenizer_.merges_.find(pair_key(at(left).id, at(right).id));
        if (found != tokenizer_.merges_.end()) {
            queue_.push({found->second.rank, left, at(left).id, at(right).id, found->second.merged});
        }
    }

    void merge_first()
    {
        const Candidate best = queue_.top();
        queue_.pop();
        // A candidate is stale when either side has been merged since.
        if (at(best.left).id != best.left_id) { return; }
        const std::int32_t right = at(best.left).next;
        if (right < 0 || at(right).id != best.right_id) { return; }
        at(best.left).id = best.merged;
        at(best.left).next = at(right).next;
        if (at(right).next >= 0) { at(at(right).next).previous = best.left; }
        at(right).id = -1;
        offer(at(best.left).previous);
        offer(best.left);
    }

    const Tokenizer& tokenizer_;
    std::vector<Symbol> symbols_;
    std::priority_queue<Candidate> queue_;
};

void Tokenizer::place_token(TokenId id, std::string_view bytes, Role role, const std::string& what)
{
    const auto index = static_cast<std::size_t>(id);
    if (index >= tokens_.size()) {
        tokens_.resize(index + 1);
        roles_.resize(index + 1);
    }
    if (!role.added && !tokens_[index].empty()) {
        fail(what, ": id ", id, " is given to two tokens: ", quoted(tokens_[index]), " and ", quoted(bytes));
    }
    tokens_[index] = bytes;
    roles_[index] = role;
}

void Tokenizer::add_token(TokenId id, std::string_view bytes, const std::string& what)
{
    place_token(id, bytes, {}, what);
    if (!bytes.empty()) { plain_.try_emplace(std::string(bytes), id); }
}

void Tokenizer::add_byte_token(TokenId id, std::uint8_t byte, const std::string& what)
{
    place_token(id, std::string(1, static_cast<char>(byte)), {}, what);
    byte_tokens_[byte] = id;
}

void Tokenizer::add_added_token(std::string_view text, std::string_view pattern, const AddedToken& token,
                                bool in_normalised, const std::string& what)
{
    if (text.empty() || pattern.empty()) { fail(what, ": added token ", token.id, " is empty"); }
    // tokenizer.json lists an added token in the vocabulary too, perhaps spelt otherwise: no text is encoded as that.
    if (static_cast<std::size_t>(token.id) < tokens_.size()) {
        const auto twin = plain_.find(tokens_[static_cast<std::size_t>(token.id)]);
        if (twin != plain_.end() && twin->second == token.id) { plain_.erase(twin); }
    }
    place_token(token.id, text, {.added = true, .special = token.special, .in_normalised = in_normalised}, what);
    added_.insert_or_assign(std::string(text), token.id);
    (in_normalised ? found_in_normalised_ : found_first_).add(pattern, token);
}

void Tokenizer::add_merge(std::string_view left, std::string_view right, std::uint32_t rank, const std::string& what)
{
    const auto find = [&](std::string_view bytes) {
        const auto found = plain_.find(bytes);
        if (found == plain_.end()) {
            fail(what, ": merge ", rank, " uses a token that the vocabulary lacks: ", quoted(bytes));
        }
        return found->second;
    };
    const TokenId l = find(left);
    const TokenId r = find(right);
    const TokenId merged = find(std::string(left) + std::string(right));
    merges_.emplace(pair_key(l, r), Merge{rank, merged});
}

void Tokenizer::set_bos(std::optional<std::int64_t> id, bool add, const std::string& what)
{
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= tokens_.size())) {
        fail(what, ": bos token ", *id, " is outside the vocabulary of ", tokens_.size());
    }
    if (id) { bos_ = static_cast<TokenId>(*id); }
    add_bos_ = add;
}

void Tokenizer::finish()
{
    // Text is never merged into a special token.
    std::erase_if(merges_, [&](const auto& merge) { return is_special(merge.second.merged); });
    if (alphabet_ != Alphabet::kBytes) { return; }
    for (unsigned byte = 0; byte < 256; ++byte) {
        const char c = static_cast<char>(byte);
        if (const auto found = plain_.find(std::string_view(&c, 1)); found != plain_.end()) {
            byte_tokens_[byte] = found->second;
        }
    }
}

std::string Tokenizer::normalised(std::string_view text, bool prefix) const
{
    std::string out = nfc_ ? to_nfc(text) : std::string(text);
    if (prefix && prefix_ == SpacePrefix::kEveryText && !out.empty()) { out.insert(out.begin(), ' '); }
    return out;
}

void Tokenizer::encode_text(std::string_view text, bool prefix, Specials specials, Merger& merger,
                            std::vector<TokenId>& out) const
{
    const std::string normal = normalised(text, prefix);
    for (const AddedTokens::Part& part : found_in_normalised_.split(normal, specials)) {
        if (part.token >= 0) {
            out.push_back(part.token);
            continue;
        }
        const auto merge = [&](std::string_view piece) { merger(piece, out); };
        const bool first = part.text.data() == normal.data();
        const bool space = prefix_ == SpacePrefix::kFirstPiece   ? prefix && first
                           : prefix_ == SpacePrefix::kEveryPiece ? prefix || !first
                                                                 : false;
        if (space && part.text.front() != ' ') {
            pretokenizer_.split(" " + std::string(part.text), merge);
        } else {
            pretokenizer_.split(part.text, merge);
        }
    }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, Specials specials, Place place) const
{
    if (text.size() > std::numeric_limits<std::int32_t>::max() / 2) {
        throw oasis::InvalidArgument(oasis::detail::text("a text of ", text.size(), " bytes is too long to encode"));
    }
    std::vector<TokenId> out;
    Merger merger(*this);
    for (const AddedTokens::Part& part : found_first_.split(text, specials)) {
        if (part.token >= 0) {
            out.push_back(part.token);
            continue;
        }
        const bool start = part.text.data() == text.data();
        const bool prefix = start ? place == Place::kStart : prefix_ != SpacePrefix::kFirstPiece;
        encode_text(part.text, prefix, specials, merger, out);
    }
    return out;
}

std::vector<TokenId> Tokenizer::encode_prompt(std::string_view text, Specials specials) const
{
    std::vector<TokenId> ids = encode(text, specials);
    if (add_bos_ && bos_ && (ids.empty() || ids.front() != *bos_)) { ids.insert(ids.begin(), *bos_); }
    return ids;
}

std::string_view Tokenizer::bytes(TokenId id) const
{
    if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size()) {
        throw oasis::InvalidArgument(
            oasis::detail::text("token ", id, " is outside the vocabulary of ", tokens_.size()));
    }
    return tokens_[static_cast<std::size_t>(id)];
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const
{
    std::string text;
    bool prefixed = prefix_ != SpacePrefix::kNone;
    for (const TokenId id : ids) {
        std::string_view token = bytes(id);
        const Role role = roles_[static_cast<std::size_t>(id)];
        if (prefixed && !role.added && token.starts_with(' ')) { token.remove_prefix(1); }
        text += token;
        prefixed = role.added &&
                   (prefix_ == SpacePrefix::kEveryPiece || (prefix_ == SpacePrefix::kEveryText && !role.in_normalised));
    }
    return text;
}

bool Tokenizer::is_special(TokenId id) const
{
    return id >= 0 && static_cast<std::size_t>(id) < roles_.size() && roles_[static_cast<std::size_t>(id)].special;
}

std::optional<TokenId> Tokenizer::token_id(std::string_view content) const
{
    if (const auto found = added_.find(content); found != added_.end()) { return found->second; }
    if (const auto found = plain_.find(content); found != plain_.end()) { return found->second; }
    return std::nullopt;
}

std::size_t Tokenizer::unencodable(std::string_view text) const
{
    std::size_t count = 0;
    while (!text.empty()) {
        const std::string_view symbol =
            text.substr(0, alphabet_ == Alphabet::kBytes ? std::size_t{1} : next_utf8(text).bytes);
        text.remove_prefix(symbol.size());
        if (alphabet_ == Alphabet::kCharacters && plain_.contains(symbol)) { continue; }
        count += static_cast<std::size_t>(std::count_if(symbol.begin(), symbol.end(), [&](char c) {
            return unknown_ || byte_tokens_[static_cast<unsigned char>(c)] < 0;
        }));
    }
    return count;
}

std::string StreamDecoder::push(TokenId id)
{
    pending_ += tokenizer_->bytes(id);
    return take(false);
}

std::string StreamDecoder::finish() { return take(true); }

std::string StreamDecoder::take(bool at_end)
{
    std::string text;
    std::size_t at = 0;
    while (at < pending_.size()) {
        const Utf8Step step = next_utf8(std::string_view(pending_).substr(at));
        if (step.truncated && !at_end) { break; }
        text += step.valid ? pending_.substr(at, step.bytes) : "\xEF\xBF\xBD";
        at += step.bytes;
    }
    pending_.erase(0, at);
    return text;
}

} // namespace oasis_decode
