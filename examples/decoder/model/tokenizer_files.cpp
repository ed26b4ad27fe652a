// SPDX-License-Identifier: Apache-2.0
//
// Reading tokenizers. What a file asks for and this tokenizer does not do is refused by name.
#include "model/byte_level.hpp"
#include "model/tokenizer.hpp"

#include <limits>

namespace oasis_decode {
namespace {

constexpr std::int64_t kMostTokens = 1 << 22;

// The bytes of a vocabulary entry; entries outside the byte alphabet can only be meant as they stand.
std::string token_bytes(const std::string& written)
{
    auto bytes = from_byte_alphabet(written);
    return bytes ? std::move(*bytes) : written;
}

void refuse_if_set(const Json& model, const char* key, const std::string& what)
{
    const Json* value = member(model, key);
    if (!value || (value->is_boolean() && !value->get<bool>()) ||
        (value->is_string() && value->get<std::string>().empty())) {
        return;
    }
    if (value->is_number() && value->get<double>() == 0) { return; }
    fail(what, ": BPE option \"", key, "\": ", shown(*value), " is not supported");
}

std::string type_of(const Json& part, const std::string& what) { return string_member(part, "type", "(none)", what); }

const Json& list_member(const Json& object, const char* key, const std::string& what)
{
    const Json* list = member(object, key);
    if (!list || !list->is_array()) { fail(what, ": \"", key, "\" is not a list"); }
    return *list;
}

void refuse_prefix_space(const Json& part, bool absent, const std::string& what)
{
    if (flag_member(part, "add_prefix_space", absent, what)) {
        fail(what, ": \"add_prefix_space\": true is not supported");
    }
}

Pretokenizer::Matches split_rule(const std::string& behaviour, const std::string& what)
{
    if (behaviour == "Isolated") { return Pretokenizer::Matches::kArePieces; }
    if (behaviour == "Removed") { return Pretokenizer::Matches::kAreDropped; }
    if (behaviour == "MergedWithPrevious") { return Pretokenizer::Matches::kJoinThePieceBefore; }
    if (behaviour == "MergedWithNext") { return Pretokenizer::Matches::kJoinThePieceAfter; }
    fail(what, ": split behaviour \"", behaviour, "\" is not supported");
}

// A literal for PCRE2: \Q...\E with an inner \E taken apart.
std::string quoted(const std::string& literal)
{
    std::string out = "\\Q";
    for (std::size_t at = 0;;) {
        const std::size_t end = literal.find("\\E", at);
        out += literal.substr(at, end == std::string::npos ? end : end - at);
        if (end == std::string::npos) { return out + "\\E"; }
        out += "\\E\\\\E\\Q";
        at = end + 2;
    }
}

std::string split_expression(const Json& stage, const std::string& what)
{
    const Json* pattern = member(stage, "pattern");
    if (pattern && member(*pattern, "Regex")) { return string_member(*pattern, "Regex", "", what); }
    if (pattern && member(*pattern, "String")) { return quoted(string_member(*pattern, "String", "", what)); }
    fail(what, ": a Split without a pattern");
}

} // namespace

Tokenizer Tokenizer::from_json(const Json& file, const std::string& what)
{
    Tokenizer tokenizer;
    const Json* model = member(file, "model");
    if (!model) { fail(what, ": no \"model\""); }
    // Old files leave the type out of a BPE model.
    if (const std::string type = string_member(*model, "type", "BPE", what); type != "BPE") {
        fail(what, ": tokenizer model \"", type, "\" is not supported; \"BPE\" is");
    }
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
        refuse_if_set(*model, key, what);
    }
    tokenizer.whole_pieces_first_ = flag_member(*model, "ignore_merges", false, what);
    if (const Json* normaliser = member(file, "normalizer")) {
        if (const std::string type = type_of(*normaliser, what); type != "NFC") {
            fail(what, ": normalizer \"", type, "\" is not supported; NFC is");
        }
        tokenizer.nfc_ = true;
    }
    tokenizer.read_json_tokens(file, what);
    const Json* pretokenizer = member(file, "pre_tokenizer");
    if (!pretokenizer) { fail(what, ": no \"pre_tokenizer\"; a byte-level one is needed"); }
    tokenizer.read_json_pretokenizer(*pretokenizer, what);
    if (const Json* processor = member(file, "post_processor")) { tokenizer.read_json_postprocessor(*processor, what); }
    tokenizer.finish(what);
    return tokenizer;
}

void Tokenizer::read_json_tokens(const Json& file, const std::string& what)
{
    const Json& model = *member(file, "model");
    const Json* vocabulary = member(model, "vocab");
    if (!vocabulary || !vocabulary->is_object()) { fail(what, ": \"vocab\" is not an object"); }
    // Ids are dense up to a few added tokens, so a count bounds the ids that are believed.
    const auto most = std::min<std::int64_t>(kMostTokens, 2 * static_cast<std::int64_t>(vocabulary->size()) + 65536);
    for (const auto& [written, id] : vocabulary->items()) {
        add_token(static_cast<TokenId>(integer_member(Json{{"id", id}}, "id", 0, most, what + ": vocab")),
                  token_bytes(written), Kind::kPlain);
    }
    std::uint32_t rank = 0;
    for (const Json& merge : list_member(model, "merges", what)) {
        std::string left, right;
        if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            left = merge[0].get<std::string>();
            right = merge[1].get<std::string>();
        } else if (merge.is_string() && merge.get<std::string>().find(' ') != std::string::npos) {
            const std::string both = merge.get<std::string>();
            left = both.substr(0, both.find(' '));
            right = both.substr(both.find(' ') + 1);
        } else {
            fail(what, ": merge ", rank, " is ", shown(merge), ", not a pair of tokens");
        }
        add_merge(left, right, rank++, what);
    }
    const Json* added = member(file, "added_tokens");
    if (!added) { return; }
    for (const Json& token : list_member(file, "added_tokens", what)) {
        const auto id = static_cast<TokenId>(integer_member(token, "id", 0, most, what + ": added token"));
        const std::string content = string_member(token, "content", "", what);
        for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
            if (flag_member(token, flag, false, what)) {
                fail(what, ": added token ", shown(Json(content)), ": \"", flag, "\" is not supported");
            }
        }
        add_token(id, content, flag_member(token, "special", false, what) ? Kind::kSpecial : Kind::kAdded);
    }
}

void Tokenizer::read_json_pretokenizer(const Json& stage, const std::string& what)
{
    const std::string type = type_of(stage, what);
    if (type == "Sequence") {
        for (const Json& part : list_member(stage, "pretokenizers", what)) { read_json_pretokenizer(part, what); }
    } else if (type == "Digits") {
        pretokenizer_.add_stage(flag_member(stage, "individual_digits", false, what) ? kSingleDigits : R"(\p{N}+)");
    } else if (type == "ByteLevel") {
        refuse_prefix_space(stage, true, what);
        if (flag_member(stage, "use_regex", true, what)) { pretokenizer_.add_stage(kGpt2Expression); }
    } else if (type == "Split") {
        const auto rule = split_rule(string_member(stage, "behavior", "Isolated", what), what);
        pretokenizer_.add_stage(split_expression(stage, what), rule, flag_member(stage, "invert", false, what));
    } else {
        fail(what, ": pre-tokenizer \"", type, "\" is not supported; Sequence, Digits, Split and ByteLevel are");
    }
}

void Tokenizer::read_json_postprocessor(const Json& processor, const std::string& what)
{
    const std::string type = type_of(processor, what);
    if (type == "ByteLevel") { return; }
    if (type == "Sequence") {
        for (const Json& part : list_member(processor, "processors", what)) { read_json_postprocessor(part, what); }
        return;
    }
    if (type != "TemplateProcessing") { fail(what, ": post-processor \"", type, "\" is not supported"); }
    const Json& single = list_member(processor, "single", what);
    for (std::size_t i = 0; i < single.size(); ++i) {
        const Json* special = member(single[i], "SpecialToken");
        if (!special) { continue; }
        const std::string content = string_member(*special, "id", "", what);
        if (i != 0) {
            fail(what, ": a template that adds ", shown(Json(content)), " behind the text is not supported");
        }
        bos_ = token_id(content);
        add_bos_ = true;
        if (!bos_) { fail(what, ": the template adds ", shown(Json(content)), ", which is not a token"); }
    }
}

Tokenizer Tokenizer::from_gguf(const GgufFile& file)
{
    constexpr std::int64_t kControl = 3;
    constexpr std::int64_t kUserDefined = 4;
    const std::string what = file.label();
    const std::string model = file.string("tokenizer.ggml.model").value_or("(none)");
    if (model != "gpt2") { fail(what, ": tokenizer.ggml.model \"", model, "\" is not supported; \"gpt2\" is"); }
    Tokenizer tokenizer;
    const std::string pre = file.string("tokenizer.ggml.pre").value_or("default");
    if (pre == "smollm") {
        tokenizer.pretokenizer_.add_stage(kSingleDigits);
    } else if (pre != "gpt-2" && pre != "default") {
        fail(what, ": tokenizer.ggml.pre \"", pre, "\" is not supported; smollm, gpt-2 and default are");
    }
    tokenizer.pretokenizer_.add_stage(kGpt2Expression);
    if (file.flag("tokenizer.ggml.add_space_prefix").value_or(false)) {
        fail(what, ": tokenizer.ggml.add_space_prefix: true is not supported");
    }

    const auto tokens = file.strings("tokenizer.ggml.tokens");
    const auto types = file.integers("tokenizer.ggml.token_type");
    if (tokens.empty() || static_cast<std::int64_t>(tokens.size()) > kMostTokens) {
        fail(what, ": tokenizer.ggml.tokens holds ", tokens.size(), " tokens");
    }
    if (!types.empty() && types.size() != tokens.size()) {
        fail(what, ": ", types.size(), " token types for ", tokens.size(), " tokens");
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::int64_t type = types.empty() ? 1 : types[i];
        const Kind kind = type == kControl ? Kind::kSpecial : type == kUserDefined ? Kind::kAdded : Kind::kPlain;
        tokenizer.add_token(static_cast<TokenId>(i), kind == Kind::kPlain ? token_bytes(tokens[i]) : tokens[i], kind);
    }
    std::uint32_t rank = 0;
    for (const auto& merge : file.strings("tokenizer.ggml.merges")) {
        const std::size_t space = merge.find(' ');
        if (space == std::string::npos) { fail(what, ": merge ", rank, " is not a pair of tokens"); }
        tokenizer.add_merge(std::string_view(merge).substr(0, space), std::string_view(merge).substr(space + 1), rank++,
                            what);
    }
    if (const auto bos = file.integer("tokenizer.ggml.bos_token_id")) {
        tokenizer.bos_ = static_cast<TokenId>(std::clamp<std::int64_t>(*bos, -1, std::numeric_limits<TokenId>::max()));
    }
    tokenizer.add_bos_ = file.flag("tokenizer.ggml.add_bos_token").value_or(false);
    if (tokenizer.add_bos_ && !tokenizer.bos_) {
        fail(what, ": tokenizer.ggml.add_bos_token is true without tokenizer.ggml.bos_token_id");
    }
    tokenizer.finish(what);
    return tokenizer;
}

} // namespace oasis_decode
