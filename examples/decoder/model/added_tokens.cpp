// SPDX-License-Identifier: Apache-2.0
#include "model/added_tokens.hpp"

#include "model/byte_level.hpp"
#include "model/unicode.hpp"

#include <algorithm>
#include <functional>

namespace oasis_decode {
namespace {

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) noexcept
{
    const Utf8Step after = end < text.size() ? next_utf8(text.substr(end)) : Utf8Step{};
    return !is_word_character(last_character(text.substr(0, begin))) && !(after.valid && is_word_character(after.code));
}

} // namespace

void AddedTokens::add(std::string_view text, const AddedToken& token)
{
    auto& lengths = lengths_[static_cast<unsigned char>(text.front())];
    const auto length = static_cast<std::uint32_t>(text.size());
    const auto place = std::lower_bound(lengths.begin(), lengths.end(), length, std::greater<>());
    if (place == lengths.end() || *place != length) { lengths.insert(place, length); }
    tokens_.insert_or_assign(std::string(text), token);
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, Specials specials) const
{
    std::vector<Part> parts;
    std::size_t done = 0;
    const auto text_until = [&](std::size_t end) {
        if (end > done) { parts.push_back({text.substr(done, end - done), -1}); }
    };
    const auto longest_at = [&](std::size_t at) {
        for (const std::uint32_t length : lengths_[static_cast<unsigned char>(text[at])]) {
            if (length > text.size() - at) { continue; }
            const auto found = tokens_.find(text.substr(at, length));
            if (found != tokens_.end()) { return found; }
        }
        return tokens_.end();
    };
    for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
        const auto found = longest_at(at);
        if (found == tokens_.end()) {
            ++at;
            continue;
        }
        const AddedToken& token = found->second;
        std::size_t begin = at;
        at += found->first.size();
        if (token.special && specials == Specials::kAsText) { continue; }
        if (token.single_word && !stands_alone(text, begin, at)) { continue; }
        // White space that the token before took is not taken twice.
        if (token.lstrip) { begin = std::max(done, white_space_at_end(text.substr(0, begin))); }
        if (token.rstrip) { at += white_space_at_start(text.substr(at)); }
        text_until(begin);
        parts.push_back({text.substr(begin, at - begin), token.id});
        done = at;
    }
    text_until(text.size());
    return parts;
}

} // namespace oasis_decode
