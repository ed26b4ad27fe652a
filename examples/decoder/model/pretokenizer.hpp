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

/// The expressions of the model families. `\s` is Unicode's White_Space.
namespace expressions {
inline constexpr std::string_view kSingleDigits = R"(\p{N})";
inline constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+)"
                                            R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+)"
                                           R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
} // namespace expressions

class Pretokenizer {
public:
    /// What happens to the matches of a stage.
    enum class Matches { kArePieces, kJoinThePieceBefore, kJoinThePieceAfter, kAreDropped };

    Pretokenizer() = default;
    /// Adds a stage; what lies between two matches is a piece of its own. `inverted`: the expression describes
    /// the gaps. Expressions are in the dialect of tokenizer.json, Oniguruma's; throws `ModelError` when one is not
    /// valid, or uses what PCRE2 reads otherwise.
    void add_stage(std::string_view expression, Matches matches = Matches::kArePieces, bool inverted = false);

    /// Adds a stage that puts a space before each piece that begins with none.
    void add_space_stage();

    /// Calls `piece` for every piece of `text`, in order. Bytes that are not UTF-8 are pieces of one byte each.
    void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

private:
    struct Stage;
    using Pass = std::function<void(std::string_view)>;
    void split_stage(std::size_t stage, std::string_view text, const Pass& piece) const;
    void split_matches(std::size_t stage, std::string_view text, const Pass& piece) const;
    std::vector<std::shared_ptr<const Stage>> stages_;
};

/// An expression that matches `literal` and nothing else.
std::string literal_expression(std::string_view literal);

} // namespace oasis_decode
