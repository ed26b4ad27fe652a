// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.hpp"

#include "model/byte_level.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <queue>
#include <utf8proc.h>

namespace oasis_decode {
namespace {

std::uint64_t pair_key(TokenId left, TokenId right) noexcept
{
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

std::string printable(std::string_view text)
{
    std::string out;
    for (const char c : text.substr(0, 60)) { out += (c >= 0x20 && c < 0x7F) ? c : '?'; }
    return out;
}

// NFC of the parts that are UTF-8; other bytes stay.
std::string normalised(std::string_view text)
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

} // namespace

// Merges one piece: a linked list of symbols and a queue of the pairs that may merge, lowest rank first, the
// leftmost of equals. Buffers are kept from piece to piece.
class Tokenizer::Merger {
public:
    explicit Merger(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void operator()(std::string_view piece, std::vector<TokenId>& out)
    {
        if (tokenizer_.whole_pieces_first_) {
            if (const auto whole = tokenizer_.plain_.find(std::string(piece)); whole != tokenizer_.plain_.end()) {
                out.push_back(whole->second);
                return;
            }
        }
        symbols_.clear();
        for (const char c : piece) {
            const TokenId id = tokenizer_.byte_tokens_[static_cast<unsigned char>(c)];
            if (id < 0) { continue; }
            const auto i = static_cast<std::int32_t>(symbols_.size());
            symbols_.push_back({id, i - 1, i + 1});
        }
        if (symbols_.empty()) { return; }
        symbols_.back().next = -1;
        for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) { offer(static_cast<std::int32_t>(i)); }
        while (!queue_.empty()) { merge_first(); }
        for (std::int32_t i = 0; i >= 0; i = symbols_[static_cast<std::size_t>(i)].next) {
            out.push_back(symbols_[static_cast<std::size_t>(i)].id);
        }
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

void Tokenizer::add_token(TokenId id, std::string bytes, Kind kind)
{
    const auto index = static_cast<std::size_t>(id);
    if (index >= tokens_.size()) {
        tokens_.resize(index + 1);
        kinds_.resize(index + 1, Kind::kPlain);
    }
    tokens_[index] = bytes;
    kinds_[index] = kind;
    // tokenizer.json lists an added token in the vocabulary too: it must not be reached by merging.
    if (const auto twin = plain_.find(bytes); kind != Kind::kPlain && twin != plain_.end() && twin->second == id) {
        plain_.erase(twin);
    }
    (kind == Kind::kPlain ? plain_ : added_).insert_or_assign(std::move(bytes), id);
}

void Tokenizer::add_merge(std::string_view left, std::string_view right, std::uint32_t rank, const std::string& what)
{
    const auto find = [&](std::string_view written) {
        const auto bytes = from_byte_alphabet(written);
        const auto found = bytes ? plain_.find(*bytes) : plain_.end();
        if (found == plain_.end()) {
            fail(what, ": merge ", rank, " uses a token that the vocabulary lacks: ", printable(written));
        }
        return found->second;
    };
    const TokenId l = find(left);
    const TokenId r = find(right);
    const TokenId merged = find(std::string(left) + std::string(right));
    merges_.emplace(pair_key(l, r), Merge{rank, merged});
}

void Tokenizer::finish(const std::string& what)
{
    byte_tokens_.fill(-1);
    for (unsigned byte = 0; byte < 256; ++byte) {
        const auto found = plain_.find(std::string(1, static_cast<char>(byte)));
        if (found != plain_.end()) { byte_tokens_[byte] = found->second; }
    }
    for (const auto& [text, id] : added_) {
        if (text.empty()) { fail(what, ": added token ", id, " is empty"); }
        added_by_first_byte_[static_cast<unsigned char>(text[0])].push_back(id);
    }
    for (auto& list : added_by_first_byte_) {
        std::sort(list.begin(), list.end(), [&](TokenId a, TokenId b) { return bytes(a).size() > bytes(b).size(); });
    }
    if (bos_ && (*bos_ < 0 || static_cast<std::size_t>(*bos_) >= tokens_.size())) {
        fail(what, ": bos token ", *bos_, " is outside the vocabulary of ", tokens_.size());
    }
}

std::optional<TokenId> Tokenizer::added_at(std::string_view text, Specials specials) const
{
    for (const TokenId id : added_by_first_byte_[static_cast<unsigned char>(text[0])]) {
        if (specials == Specials::kAsText && is_special(id)) { continue; }
        if (text.starts_with(bytes(id))) { return id; }
    }
    return std::nullopt;
}

void Tokenizer::encode_text(std::string_view text, Merger& merger, std::vector<TokenId>& out) const
{
    if (text.empty()) { return; }
    const std::string composed = nfc_ ? normalised(text) : std::string();
    pretokenizer_.split(nfc_ ? std::string_view(composed) : text, [&](std::string_view piece) { merger(piece, out); });
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, Specials specials) const
{
    std::vector<TokenId> out;
    Merger merger(*this);
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
        const auto added = added_at(text.substr(at), specials);
        if (!added) {
            ++at;
            continue;
        }
        encode_text(text.substr(begin, at - begin), merger, out);
        out.push_back(*added);
        at += bytes(*added).size();
        begin = at;
    }
    encode_text(text.substr(begin), merger, out);
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
    for (const TokenId id : ids) { text += bytes(id); }
    return text;
}

bool Tokenizer::is_special(TokenId id) const
{
    return id >= 0 && static_cast<std::size_t>(id) < kinds_.size() &&
           kinds_[static_cast<std::size_t>(id)] == Kind::kSpecial;
}

std::optional<TokenId> Tokenizer::token_id(std::string_view content) const
{
    const std::string key(content);
    if (const auto found = added_.find(key); found != added_.end()) { return found->second; }
    if (const auto found = plain_.find(key); found != plain_.end()) { return found->second; }
    return std::nullopt;
}

std::size_t Tokenizer::unencodable(std::string_view text) const
{
    return static_cast<std::size_t>(std::count_if(
        text.begin(), text.end(), [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)] < 0; }));
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
