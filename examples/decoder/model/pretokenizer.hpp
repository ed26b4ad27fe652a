// SPDX-License-Identifier: Apache-2.0
//
// Cuts text into the pieces inside which BPE merges: a chain of regular expressions, each applied to the pieces
// of the one before.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

/// Every Unicode number character by itself.
inline constexpr std::string_view kSingleDigits = R"(\p{N})";

/// The GPT-2 expression. White space is Unicode's White_Space property, spelt out because PCRE2's \s adds U+180E.
extern const std::string kGpt2Expression;

class Pretokenizer {
public:
    /// What happens to the matches of a stage.
    enum class Matches { kArePieces, kJoinThePieceBefore, kJoinThePieceAfter, kAreDropped };

    Pretokenizer() = default;
    /// Adds a stage; what lies between two matches is a piece of its own. `inverted`: the expression describes
    /// the gaps. Throws `ModelError` when the expression is not valid.
    void add_stage(std::string_view expression, Matches matches = Matches::kArePieces, bool inverted = false);

    /// Calls `piece` for every piece of `text`, in order. Bytes that are not UTF-8 are pieces of one byte each.
    void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

private:
    struct Stage;
    void split_stage(std::size_t stage, std::string_view text,
                     const std::function<void(std::string_view)>& piece) const;
    std::vector<std::shared_ptr<const Stage>> stages_;
};

} // namespace oasis_decode
