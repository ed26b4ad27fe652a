// SPDX-License-Identifier: Apache-2.0
#include "model/pretokenizer.hpp"

#include "model/byte_level.hpp"
#include "model/mapped_file.hpp"
#include "model/unicode.hpp"

#include <cctype>

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace oasis_decode {
namespace {

constexpr std::size_t kMostStages = 16;

/// White space as the inside of a class.
const std::string& space_class()
{
    static const std::string kClass = [] {
        std::string out;
        for (const auto [first, last] : white_space()) {
            out += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", std::uint32_t{first}, std::uint32_t{last});
        }
        return out;
    }();
    return kClass;
}

std::string pcre2_text(int code)
{
    char buffer[256] = {};
    pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof buffer);
    return buffer;
}

// `\s` spelt out, because PCRE2's has one character more than Unicode's; what else the dialects read differently
// is refused.
class Translation {
public:
    explicit Translation(std::string_view expression) : in_(expression)
    {
        for (; at_ < in_.size(); ++at_) {
            if (in_[at_] == '\\') {
                escape();
            } else if (in_class_) {
                class_character();
            } else {
                plain_character();
            }
        }
    }
    std::string text() && { return std::move(out_); }

private:
    [[noreturn]] void refuse(std::string_view what) const
    {
        fail("pre-tokenizer expression ", legible(in_), ": ", what, " at ", at_, " is not supported");
    }
    bool follows(std::string_view text) const { return follows_at(0, text); }
    bool follows_at(std::size_t ahead, std::string_view text) const
    {
        return at_ + ahead <= in_.size() && in_.substr(at_ + ahead).starts_with(text);
    }

    void escape()
    {
        if (at_ + 1 == in_.size()) { refuse("a backslash"); }
        const char c = in_[++at_];
        if (c == 's') {
            out_.append(in_class_ ? "" : "[").append(space_class()).append(in_class_ ? "" : "]");
        } else if (c == 'S' && !in_class_) {
            out_.append("[^").append(space_class()).append("]");
        } else if (std::string_view("SwWbBhHRXKGONyYQE").find(c) != std::string_view::npos) {
            refuse(std::string("\\") + c);
        } else {
            out_ += {'\\', c};
            // Braces that belong to the escape are no quantifier.
            const std::size_t end = follows_at(1, "{") ? in_.find('}', at_) : at_;
            if (std::string_view("pPxogk").find(c) != std::string_view::npos && end != std::string_view::npos) {
                out_ += in_.substr(at_ + 1, end - at_);
                at_ = end;
            }
        }
    }
    void class_character()
    {
        if (in_[at_] == '[') { refuse("a class in a class"); }
        if (follows("&&")) { refuse("&&"); }
        in_class_ = in_[at_] != ']';
        out_ += in_[at_];
    }
    void plain_character()
    {
        if (in_[at_] == '[') {
            in_class_ = true;
            if (follows("[^")) {
                ++at_;
                out_ += '[';
            }
        } else if (follows("(*") || (follows("(?") && has_odd_flag())) {
            refuse("a flag or verb");
        } else if (in_[at_] == '{') {
            check_quantifier();
        }
        out_ += in_[at_];
    }
    /// m and x mean other things to Oniguruma: m is PCRE2's s.
    bool has_odd_flag() const
    {
        const std::string_view flags = in_.substr(at_ + 2);
        return flags.substr(0, flags.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ^-"))
                   .find_first_of("mx") != std::string_view::npos;
    }
    /// To Oniguruma {,n} is {0,n}, {n,m}+ a repetition of {n,m}, and {n}? an optional {n}.
    void check_quantifier() const
    {
        const std::size_t end = in_.find_first_not_of("0123456789,", at_ + 1);
        if (end == std::string_view::npos || in_[end] != '}' || end == at_ + 1) { return; } // braces as they stand
        const std::string_view inside = in_.substr(at_ + 1, end - at_ - 1);
        const std::string_view next = in_.substr(end + 1, 1);
        const bool exact = inside.find(',') == std::string_view::npos;
        if (next == "+" || (exact && next == "?")) { refuse(fmt::format("the quantifier {{{}}}{}", inside, next)); }
        if (inside.front() == ',') { refuse(fmt::format("the quantifier {{{}}}", inside)); }
    }

    std::string_view in_;
    std::string out_;
    std::size_t at_ = 0;
    bool in_class_ = false;
};

void check_room(std::size_t stages)
{
    if (stages == kMostStages) { fail("a pre-tokenizer of more than ", kMostStages, " stages"); }
}

struct FreeMatch {
    void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};

} // namespace

struct Pretokenizer::Stage {
    Stage() = default; // puts a space before the piece
    explicit Stage(std::string_view expression)
    {
        const std::string text = Translation(expression).text();
        int code = 0;
        PCRE2_SIZE at = 0;
        // \C would split a character, and the next stage would be handed half of one.
        compiled =
            pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, nullptr);
        if (!compiled) { fail("pre-tokenizer expression ", legible(expression), " is not valid: ", pcre2_text(code)); }
        // Where no machine code can be made, the interpreter gives the same.
        static_cast<void>(pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE));
    }
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage() { pcre2_code_free(compiled); }

    pcre2_code* compiled = nullptr;
    Matches matches = Matches::kArePieces;
    bool inverted = false;
};

void Pretokenizer::add_stage(std::string_view expression, Matches matches, bool inverted)
{
    auto stage = std::make_shared<Stage>(expression);
    stage->matches = matches;
    stage->inverted = inverted;
    check_room(stages_.size());
    stages_.push_back(std::move(stage));
}

void Pretokenizer::add_space_stage()
{
    check_room(stages_.size());
    stages_.push_back(std::make_shared<Stage>());
}

void Pretokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const
{
    std::size_t begin = 0;
    std::size_t at = 0;
    while (at < text.size()) {
        const Utf8Step step = next_utf8(text.substr(at));
        if (!step.valid) {
            if (at > begin) { split_stage(0, text.substr(begin, at - begin), piece); }
            piece(text.substr(at, 1));
            begin = at + 1;
        }
        at += step.bytes;
    }
    if (at > begin) { split_stage(0, text.substr(begin), piece); }
}

void Pretokenizer::split_stage(std::size_t index, std::string_view text, const Pass& piece) const
{
    if (text.empty()) { return; }
    if (index == stages_.size()) {
        piece(text);
    } else if (stages_[index]->compiled) {
        split_matches(index, text, piece);
    } else if (text.front() == ' ') {
        split_stage(index + 1, text, piece);
    } else {
        split_stage(index + 1, " " + std::string(text), piece);
    }
}

void Pretokenizer::split_matches(std::size_t index, std::string_view text, const Pass& piece) const
{
    const Stage& stage = *stages_[index];
    const std::unique_ptr<pcre2_match_data, FreeMatch> data(pcre2_match_data_create(1, nullptr));
    std::size_t held = 0; // where the piece begins that has not been passed on
    std::size_t done = 0; // up to where the text has been looked at
    const auto pass = [&](std::size_t end) {
        if (end > held) { split_stage(index + 1, text.substr(held, end - held), piece); }
        held = end;
    };
    const auto segment = [&](std::size_t end, bool match) {
        if (end == done) { return; }
        const Matches rule = match ? stage.matches : Matches::kArePieces;
        if (rule == Matches::kArePieces) {
            if (match || stage.matches != Matches::kJoinThePieceAfter) { pass(done); }
            if (match || stage.matches != Matches::kJoinThePieceBefore) { pass(end); }
        } else if (rule == Matches::kJoinThePieceBefore) {
            pass(end);
        } else {
            pass(done);
            if (rule == Matches::kAreDropped) { held = end; }
        }
        done = end;
    };
    const auto match_from = [&](std::size_t from, std::uint32_t options) {
        return pcre2_match(stage.compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                           PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | options, data.get(), nullptr);
    };
    std::size_t from = 0;
    while (from < text.size()) {
        int found = match_from(from, 0);
        if (found == PCRE2_ERROR_JIT_STACKLIMIT) { found = match_from(from, PCRE2_NO_JIT); }
        if (found == PCRE2_ERROR_NOMATCH) { break; }
        if (found < 0) { fail("pre-tokenizer: ", pcre2_text(found), " in a piece of ", text.size(), " bytes"); }
        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
        segment(range[0], stage.inverted);
        segment(range[1], !stage.inverted);
        from = range[1];
    }
    segment(text.size(), stage.inverted);
    pass(text.size());
}

std::string literal_expression(std::string_view literal)
{
    std::string out;
    for (const char c : literal) {
        if (c > 0 && std::ispunct(static_cast<unsigned char>(c))) { out += '\\'; }
        out += c;
    }
    return out;
}

} // namespace oasis_decode
