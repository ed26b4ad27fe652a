// SPDX-License-Identifier: Apache-2.0
//
// tokenizer.json. What a file asks for and this tokenizer does not do is refused by name.
#include "model/byte_level.hpp"
#include "model/tokenizer.hpp"

#include <algorithm>

namespace oasis_decode {
namespace {

constexpr std::int64_t kMostTokens = 1 << 22;

std::string type_of(const Json& part, const std::string& what) { return string_member(part, "type", "(none)", what); }

const Json& list_member(const Json& object, const char* key, const std::string& what)
{
    const Json* list = member(object, key);
    if (!list || !list->is_array()) { fail(what, ": \"", key, "\" is not a list"); }
    return *list;
}

Pretokenizer::Matches split_rule(const std::string& behaviour, const std::string& what)
{
    if (behaviour == "Isolated") { return Pretokenizer::Matches::kArePieces; }
    if (behaviour == "Removed") { return Pretokenizer::Matches::kAreDropped; }
    if (behaviour == "MergedWithPrevious") { return Pretokenizer::Matches::kJoinThePieceBefore; }
    if (behaviour == "MergedWithNext") { return Pretokenizer::Matches::kJoinThePieceAfter; }
    fail(what, ": split behaviour \"", legible(behaviour), "\" is not supported");
}

std::string split_expression(const Json& stage, const std::string& what)
{
    const Json* pattern = member(stage, "pattern");
    if (pattern && member(*pattern, "Regex")) { return string_member(*pattern, "Regex", "", what); }
    if (pattern && member(*pattern, "String")) {
        return literal_expression(string_member(*pattern, "String", "", what));
    }
    fail(what, ": a Split without a pattern");
}

} // namespace

// Reads the parts in the order in which they depend on each other: how text is normalised and cut says which
// alphabet the vocabulary is written in.
class Tokenizer::JsonReader {
public:
    JsonReader(Tokenizer& tokenizer, const Json& file, const std::string& what)
        : tokenizer_(tokenizer), file_(file), what_(what)
    {
    }

    void read()
    {
        const Json* model = member(file_, "model");
        if (!model) { fail(what_, ": no \"model\""); }
        // Old files leave the type out of a BPE model.
        if (const std::string type = string_member(*model, "type", "BPE", what_); type != "BPE") {
            fail(what_, ": tokenizer model \"", legible(type), "\" is not supported; \"BPE\" is");
        }
        if (const Json* normalizer = member(file_, "normalizer")) { read_normalizer(*normalizer); }
        if (const Json* pretokenizer = member(file_, "pre_tokenizer")) { read_pretokenizer(*pretokenizer); }
        choose_alphabet();
        read_options(*model);
        read_tokens(*model);
        read_merges(*model);
        read_added_tokens();
        tokenizer_.finish();
        if (const Json* processor = member(file_, "post_processor")) { read_postprocessor(*processor); }
    }

private:
    void read_normalizer(const Json& part)
    {
        const std::string type = type_of(part, what_);
        if (type == "Sequence") {
            for (const Json& inner : list_member(part, "normalizers", what_)) { read_normalizer(inner); }
        } else if (type == "NFC") {
            tokenizer_.nfc_ = true;
        } else if (type == "Prepend" && string_member(part, "prepend", "", what_) == kSpaceMark) {
            tokenizer_.prefix_ = SpacePrefix::kEveryText;
        } else if (type == "Replace" && string_member(part, "content", "", what_) == kSpaceMark &&
                   member(part, "pattern") && string_member(part["pattern"], "String", "", what_) == " ") {
            marks_spaces_ = true;
        } else {
            fail(what_, ": normalizer ", shown(part), " is not supported; NFC, Prepend ", kSpaceMark,
                 " and Replace of spaces by ", kSpaceMark, " are");
        }
    }

    void read_pretokenizer(const Json& stage)
    {
        const std::string type = type_of(stage, what_);
        Pretokenizer& out = tokenizer_.pretokenizer_;
        if (type == "Sequence") {
            for (const Json& part : list_member(stage, "pretokenizers", what_)) { read_pretokenizer(part); }
            return;
        }
        if (type == "Metaspace") {
            read_metaspace(stage);
            return;
        }
        cuts_ = true;
        if (type == "Digits") {
            out.add_stage(flag_member(stage, "individual_digits", false, what_) ? expressions::kSingleDigits
                                                                                : R"(\p{N}+)");
        } else if (type == "ByteLevel") {
            byte_level_ = true;
            if (flag_member(stage, "add_prefix_space", true, what_)) { out.add_space_stage(); }
            if (flag_member(stage, "use_regex", true, what_)) { out.add_stage(expressions::kGpt2); }
        } else if (type == "Split") {
            const auto rule = split_rule(string_member(stage, "behavior", "Isolated", what_), what_);
            out.add_stage(split_expression(stage, what_), rule, flag_member(stage, "invert", false, what_));
        } else {
            fail(what_, ": pre-tokenizer \"", legible(type),
                 "\" is not supported; Sequence, Digits, Split, ByteLevel and Metaspace are");
        }
    }

    void read_metaspace(const Json& stage)
    {
        if (const auto mark = string_member(stage, "replacement", kSpaceMark, what_); mark != kSpaceMark) {
            fail(what_, ": Metaspace replacement ", shown(Json(mark)), " is not supported; ", kSpaceMark, " is");
        }
        if (tokenizer_.prefix_ != SpacePrefix::kNone) { fail(what_, ": Metaspace after Prepend is not supported"); }
        const bool old_flag = flag_member(stage, "add_prefix_space", true, what_);
        const std::string scheme = string_member(stage, "prepend_scheme", old_flag ? "always" : "never", what_);
        if (scheme == "first") {
            tokenizer_.prefix_ = SpacePrefix::kFirstPiece;
        } else if (scheme == "always") {
            tokenizer_.prefix_ = SpacePrefix::kEveryPiece;
        } else if (scheme != "never") {
            fail(what_, ": Metaspace prepend_scheme \"", legible(scheme), "\" is not supported");
        }
        marks_spaces_ = true;
        if (flag_member(stage, "split", true, what_)) {
            tokenizer_.pretokenizer_.add_stage(" ", Pretokenizer::Matches::kJoinThePieceAfter);
        }
    }

    void choose_alphabet()
    {
        const bool prepends = tokenizer_.prefix_ != SpacePrefix::kNone;
        if (prepends && !marks_spaces_) { fail(what_, ": Prepend without Replace of spaces is not supported"); }
        if (byte_level_ && marks_spaces_) {
            fail(what_, ": ByteLevel together with ", kSpaceMark, " is not supported");
        }
        if (!byte_level_ && !marks_spaces_) {
            fail(what_, ": neither a ByteLevel \"pre_tokenizer\" nor one or a \"normalizer\" that makes spaces ",
                 kSpaceMark);
        }
        if (marks_spaces_ && cuts_) { fail(what_, ": a \"pre_tokenizer\" other than Metaspace after ", kSpaceMark); }
        tokenizer_.alphabet_ = byte_level_ ? Alphabet::kBytes : Alphabet::kCharacters;
    }

    void refuse_if_set(const Json& model, const char* key)
    {
        const Json* value = member(model, key);
        if (!value || (value->is_boolean() && !value->get<bool>()) ||
            (value->is_string() && value->get<std::string>().empty()) ||
            (value->is_number() && value->get<double>() == 0)) {
            return;
        }
        fail(what_, ": BPE option \"", key, "\": ", shown(*value), " is not supported");
    }

    void read_options(const Json& model)
    {
        for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
            refuse_if_set(model, key);
        }
        tokenizer_.whole_pieces_first_ = flag_member(model, "ignore_merges", false, what_);
        if (tokenizer_.alphabet_ == Alphabet::kBytes) {
            refuse_if_set(model, "byte_fallback");
        } else if (!flag_member(model, "byte_fallback", false, what_)) {
            fail(what_, ": BPE of characters without \"byte_fallback\": true is not supported");
        }
    }

    // The bytes that a word of the file stands for; outside the byte alphabet it can only be meant as it stands.
    std::string token_bytes(const std::string& written) const
    {
        if (tokenizer_.alphabet_ == Alphabet::kCharacters) { return with_spaces(written); }
        auto bytes = from_byte_alphabet(written);
        return bytes ? std::move(*bytes) : written;
    }

    void read_tokens(const Json& model)
    {
        const Json* vocabulary = member(model, "vocab");
        if (!vocabulary || !vocabulary->is_object()) { fail(what_, ": \"vocab\" is not an object"); }
        // Ids are dense up to a few added tokens, so a count bounds the ids that are believed.
        most_ = std::min<std::int64_t>(kMostTokens, 2 * static_cast<std::int64_t>(vocabulary->size()) + 65536);
        for (const auto& [written, number] : vocabulary->items()) {
            const std::int64_t id64 = number.is_number_integer() ? number.get<std::int64_t>() : -1;
            if (id64 < 0 || id64 > most_) {
                fail(what_, ": vocab: ", shown(Json(written)), " has the id ", shown(number),
                     ", not an integer from 0 to ", most_);
            }
            const auto id = static_cast<TokenId>(id64);
            const auto byte = tokenizer_.alphabet_ == Alphabet::kCharacters ? byte_token(written) : std::nullopt;
            if (byte) {
                tokenizer_.add_byte_token(id, *byte, what_);
            } else {
                tokenizer_.add_token(id, token_bytes(written), what_);
            }
        }
    }

    void read_merges(const Json& model)
    {
        std::uint32_t rank = 0;
        for (const Json& merge : list_member(model, "merges", what_)) {
            std::string left, right;
            if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
                left = merge[0].get<std::string>();
                right = merge[1].get<std::string>();
            } else if (merge.is_string() && merge.get_ref<const std::string&>().find(' ') != std::string::npos) {
                const auto& both = merge.get_ref<const std::string&>();
                left = both.substr(0, both.find(' '));
                right = both.substr(both.find(' ') + 1);
            } else {
                fail(what_, ": merge ", rank, " is ", shown(merge), ", not a pair of tokens");
            }
            tokenizer_.add_merge(token_bytes(left), token_bytes(right), rank++, what_);
        }
    }

    void read_added_tokens()
    {
        if (!member(file_, "added_tokens")) { return; }
        for (const Json& token : list_member(file_, "added_tokens", what_)) {
            const auto id = static_cast<TokenId>(integer_member(token, "id", 0, most_, what_ + ": added token"));
            const AddedToken added = read_added_token(id, token, what_);
            const std::string content = string_member(token, "content", "", what_);
            if (flag_member(token, "normalized", !added.special, what_)) {
                tokenizer_.add_added_token(content, tokenizer_.normalised(content, true), added, true, what_);
            } else {
                tokenizer_.add_added_token(content, content, added, false, what_);
            }
        }
    }

    void read_postprocessor(const Json& processor)
    {
        const std::string type = type_of(processor, what_);
        if (type == "ByteLevel") { return; }
        if (type == "Sequence") {
            for (const Json& part : list_member(processor, "processors", what_)) { read_postprocessor(part); }
            return;
        }
        if (type != "TemplateProcessing") { fail(what_, ": post-processor \"", legible(type), "\" is not supported"); }
        const Json& single = list_member(processor, "single", what_);
        for (std::size_t i = 0; i < single.size(); ++i) {
            const Json* special = member(single[i], "SpecialToken");
            if (!special) { continue; }
            const std::string content = string_member(*special, "id", "", what_);
            if (i != 0) {
                fail(what_, ": a template that adds ", shown(Json(content)), " behind the text is not supported");
            }
            const auto id = tokenizer_.token_id(content);
            if (!id) { fail(what_, ": the template adds ", shown(Json(content)), ", which is not a token"); }
            tokenizer_.set_bos(*id, true, what_);
        }
    }

    Tokenizer& tokenizer_;
    const Json& file_;
    const std::string& what_;
    std::int64_t most_ = 0;
    bool marks_spaces_ = false; ///< text has U+2581 for spaces
    bool byte_level_ = false;
    bool cuts_ = false;
};

AddedToken Tokenizer::read_added_token(TokenId id, const Json& token, const std::string& what)
{
    return {.id = id,
            .special = flag_member(token, "special", false, what),
            .single_word = flag_member(token, "single_word", false, what),
            .lstrip = flag_member(token, "lstrip", false, what),
            .rstrip = flag_member(token, "rstrip", false, what)};
}

Tokenizer Tokenizer::from_json(const Json& file, const std::string& what)
{
    Tokenizer tokenizer;
    JsonReader(tokenizer, file, what).read();
    return tokenizer;
}

} // namespace oasis_decode
