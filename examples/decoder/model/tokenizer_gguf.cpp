// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers from GGUF keys. What a file asks for and this tokenizer does not do is refused by name.
#include "model/byte_level.hpp"
#include "model/tokenizer.hpp"

#include <algorithm>
#include <array>

namespace oasis_decode {
namespace {

constexpr std::size_t kMostTokens = 1 << 22;

using Type = SentencePieceModel::Type;

// What a name in tokenizer.ggml.pre stands for; GGUF has no room for the expressions.
struct PreRule {
    std::string_view name;
    std::string_view first_expression;
    std::string_view expression;
    bool add_bos = false;
    bool whole_pieces_first = false;
};
constexpr std::array kPreRules = {
    PreRule{"default", "", expressions::kGpt2},
    PreRule{"gpt-2", "", expressions::kGpt2},
    PreRule{"smollm", expressions::kSingleDigits, expressions::kGpt2},
    PreRule{"llama-bpe", "", expressions::kLlama3, true, true},
    PreRule{"llama3", "", expressions::kLlama3, true, true},
    PreRule{"llama-v3", "", expressions::kLlama3, true, true},
    PreRule{"qwen2", "", expressions::kQwen2},
    PreRule{"deepseek-r1-qwen", "", expressions::kQwen2},
    PreRule{"tekken", "", expressions::kTekken, true, true},
};

const PreRule& pre_rule(const std::string& name, const std::string& what)
{
    const auto found =
        std::find_if(kPreRules.begin(), kPreRules.end(), [&](const PreRule& rule) { return rule.name == name; });
    if (found != kPreRules.end()) { return *found; }
    std::string names;
    for (const PreRule& rule : kPreRules) { names.append(names.empty() ? "" : ", ").append(rule.name); }
    fail(what, ": tokenizer.ggml.pre \"", legible(name), "\" is not supported; these are: ", names);
}

// Tokens with scores and types, whatever the model.
std::vector<SentencePieceModel::Piece> read_pieces(const GgufFile& file, const std::string& what)
{
    auto tokens = file.strings("tokenizer.ggml.tokens");
    const auto types = file.integers("tokenizer.ggml.token_type");
    const auto scores = file.numbers("tokenizer.ggml.scores");
    if (tokens.empty() || tokens.size() > kMostTokens) {
        fail(what, ": tokenizer.ggml.tokens holds ", tokens.size(), " tokens");
    }
    if (!types.empty() && types.size() != tokens.size()) {
        fail(what, ": ", types.size(), " token types for ", tokens.size(), " tokens");
    }
    if (!scores.empty() && scores.size() != tokens.size()) {
        fail(what, ": ", scores.size(), " token scores for ", tokens.size(), " tokens");
    }
    std::vector<SentencePieceModel::Piece> pieces(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::int64_t type = types.empty() ? 1 : types[i];
        if (type < 1 || type > 6) { fail(what, ": token ", i, " has the unknown type ", type); }
        pieces[i] = {std::move(tokens[i]), scores.empty() ? 0.0F : static_cast<float>(scores[i]),
                     static_cast<Type>(type)};
    }
    return pieces;
}

void refuse_flag(const GgufFile& file, const char* key, const std::string& what)
{
    if (file.flag(key).value_or(false)) { fail(what, ": ", key, ": true is not supported"); }
}

SentencePieceModel read_sentencepiece(const GgufFile& file, const std::string& what)
{
    if (!file.has("tokenizer.ggml.scores")) { fail(what, ": no tokenizer.ggml.scores"); }
    if (file.has("tokenizer.ggml.precompiled_charsmap")) {
        fail(what, ": tokenizer.ggml.precompiled_charsmap: normalisation is not supported");
    }
    refuse_flag(file, "tokenizer.ggml.remove_extra_whitespaces", what);
    SentencePieceModel model;
    model.pieces = read_pieces(file, what);
    model.add_dummy_prefix = file.flag("tokenizer.ggml.add_space_prefix").value_or(true);
    const auto bos = file.token("tokenizer.ggml.bos_token_id");
    model.bos = bos.value_or(-1);
    model.add_bos = file.flag("tokenizer.ggml.add_bos_token").value_or(bos.has_value());
    if (model.add_bos && !bos) {
        fail(what, ": tokenizer.ggml.add_bos_token is true without tokenizer.ggml.bos_token_id");
    }
    return model;
}

// The bytes of a vocabulary entry; entries outside the byte alphabet can only be meant as they stand.
std::string token_bytes(const std::string& written)
{
    auto bytes = from_byte_alphabet(written);
    return bytes ? std::move(*bytes) : written;
}

} // namespace

Tokenizer Tokenizer::from_gguf(const GgufFile& file)
{
    const std::string what = file.label();
    const std::string model = file.string("tokenizer.ggml.model").value_or("(none)");
    Tokenizer tokenizer;
    if (model == "llama") {
        tokenizer = from_sentencepiece(read_sentencepiece(file, what), what);
    } else if (model == "gpt2") {
        tokenizer.read_gguf_bytes(file, what);
    } else {
        fail(what, ": tokenizer.ggml.model \"", legible(model), "\" is not supported; \"gpt2\" and \"llama\" are");
    }
    refuse_flag(file, "tokenizer.ggml.add_eos_token", what);
    tokenizer.chat_template_ = file.string("tokenizer.chat_template").value_or("");
    return tokenizer;
}

void Tokenizer::read_gguf_bytes(const GgufFile& file, const std::string& what)
{
    const PreRule rule = pre_rule(file.string("tokenizer.ggml.pre").value_or("default"), what);
    if (file.flag("tokenizer.ggml.add_space_prefix").value_or(false)) { pretokenizer_.add_space_stage(); }
    if (!rule.first_expression.empty()) { pretokenizer_.add_stage(rule.first_expression); }
    pretokenizer_.add_stage(rule.expression);
    whole_pieces_first_ = rule.whole_pieces_first;

    const auto pieces = read_pieces(file, what);
    const auto is_added = [](Type type) { return type == Type::kControl || type == Type::kUserDefined; };
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const auto& [text, score, type] = pieces[i];
        const auto id = static_cast<TokenId>(i);
        if (type == Type::kUnused) {
            place_token(id, text, {}, what); // nothing is encoded as it
        } else {
            add_token(id, is_added(type) ? text : token_bytes(text), what);
        }
    }
    std::uint32_t rank = 0;
    for (const auto& merge : file.strings("tokenizer.ggml.merges")) {
        const std::size_t space = merge.find(' ');
        if (space == std::string::npos) { fail(what, ": merge ", rank, " is not a pair of tokens"); }
        add_merge(token_bytes(merge.substr(0, space)), token_bytes(merge.substr(space + 1)), rank, what);
        ++rank;
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const auto& [text, score, type] = pieces[i];
        if (!is_added(type)) { continue; }
        add_added_token(text, text, {.id = static_cast<TokenId>(i), .special = type == Type::kControl}, false, what);
    }
    finish();
    const auto bos = file.token("tokenizer.ggml.bos_token_id");
    const bool add_bos = file.flag("tokenizer.ggml.add_bos_token").value_or(rule.add_bos && bos.has_value());
    if (add_bos && !bos) { fail(what, ": tokenizer.ggml.add_bos_token is true without tokenizer.ggml.bos_token_id"); }
    set_bos(bos, add_bos, what);
}

} // namespace oasis_decode
