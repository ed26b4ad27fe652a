// SPDX-License-Identifier: Apache-2.0
#include "model/pretokenizer.hpp"

#include "model/byte_level.hpp"
#include "model/mapped_file.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace oasis_decode {
namespace {

const std::string kSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string pcre2_text(int code)
{
    char buffer[256] = {};
    pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof buffer);
    return buffer;
}

struct FreeMatch {
    void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};

} // namespace

const std::string kGpt2Expression = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" + kSpace + R"(\p{L}\p{N}]+|[)" +
                                    kSpace + R"(]+(?![^)" + kSpace + R"(])|[)" + kSpace + "]+";

struct Pretokenizer::Stage {
    explicit Stage(std::string_view expression)
    {
        int code = 0;
        PCRE2_SIZE at = 0;
        // \C would split a character, and the next stage would be handed half of one.
        compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, nullptr);
        if (!compiled) {
            fail("pre-tokenizer expression ", expression, " is not valid at ", at, ": ", pcre2_text(code));
        }
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
    stages_.push_back(std::move(stage));
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

void Pretokenizer::split_stage(std::size_t index, std::string_view text,
                               const std::function<void(std::string_view)>& piece) const
{
    if (text.empty()) { return; }
    if (index == stages_.size()) {
        piece(text);
        return;
    }
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
    std::size_t from = 0;
    while (from < text.size()) {
        const int found = pcre2_match(stage.compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                      PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), nullptr);
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

} // namespace oasis_decode
