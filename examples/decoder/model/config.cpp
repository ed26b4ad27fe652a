// SPDX-License-Identifier: Apache-2.0
#include "model/config.hpp"

#include <cmath>

namespace oasis_decode {
namespace {

// Generous bounds: they only keep products of two extents far from overflow.
constexpr std::int64_t kMostLayers = 1024;
constexpr std::int64_t kMostHeads = 4096;
constexpr std::int64_t kMostWidth = 1 << 20;
constexpr std::int64_t kMostVocabulary = 1 << 24;
constexpr std::int64_t kMostContext = std::int64_t{1} << 31;

void check(const ModelConfig& config, const std::string& what)
{
    if (config.q_heads % config.kv_heads != 0) {
        fail(what, ": ", config.q_heads, " query heads are not a multiple of ", config.kv_heads, " KV heads");
    }
    if (config.head_dim % 2 != 0) { fail(what, ": head size ", config.head_dim, " is odd, RoPE needs pairs"); }
    if (!std::isfinite(config.rms_eps) || config.rms_eps <= 0) {
        fail(what, ": RMS epsilon ", config.rms_eps, " is not positive");
    }
    for (const auto id : config.eos) {
        if (config.vocab > 0 && id >= config.vocab) {
            fail(what, ": eos token ", id, " is outside the vocabulary of ", config.vocab);
        }
    }
    if (config.bos && config.vocab > 0 && *config.bos >= config.vocab) {
        fail(what, ": bos token ", *config.bos, " is outside the vocabulary of ", config.vocab);
    }
}

void refuse_scaling(const Json& scaling, const char* key, const std::string& what)
{
    if (!scaling.is_object()) { fail(what, ": \"", key, "\" is ", shown(scaling), ", not an object"); }
    std::string type = string_member(scaling, "rope_type", "", what);
    if (type.empty()) { type = string_member(scaling, "type", "default", what); }
    if (type != "default") {
        fail(what, ": RoPE scaling \"", type, "\" in \"", key, "\" is not supported; only \"default\" is");
    }
}

void read_rope(const Json& json, ModelConfig& config, const std::string& what)
{
    const Json* parameters = member(json, "rope_parameters");
    if (parameters) { refuse_scaling(*parameters, "rope_parameters", what); }
    if (const Json* scaling = member(json, "rope_scaling")) { refuse_scaling(*scaling, "rope_scaling", what); }
    if (parameters && member(*parameters, "rope_theta")) {
        config.rope_theta = positive_member(*parameters, "rope_theta", what);
    } else if (member(json, "rope_theta")) {
        config.rope_theta = positive_member(json, "rope_theta", what);
    }
}

void read_eos(const Json& json, ModelConfig& config, const std::string& what)
{
    const Json* eos = member(json, "eos_token_id");
    if (!eos) { return; }
    const Json list = eos->is_array() ? *eos : Json::array({*eos});
    for (const Json& id : list) {
        config.eos.push_back(static_cast<oasis::TokenId>(
            integer_member(Json{{"eos_token_id", id}}, "eos_token_id", 0, kMostVocabulary, what)));
    }
}

std::int32_t extent(const Json& json, const char* key, std::int64_t most, const std::string& what)
{
    return static_cast<std::int32_t>(integer_member(json, key, 1, most, what));
}

std::int32_t extent(const GgufFile& file, const std::string& key, std::int64_t most,
                    std::optional<std::int64_t> absent = std::nullopt)
{
    auto value = file.integer(key);
    if (!value) { value = absent; }
    if (!value) { fail(file.label(), ": key ", key, " is missing"); }
    if (*value < 1 || *value > most) { fail(file.label(), ": key ", key, " is ", *value, ", not from 1 to ", most); }
    return static_cast<std::int32_t>(*value);
}

std::optional<oasis::TokenId> token_key(const GgufFile& file, const char* key)
{
    const auto id = file.integer(key);
    if (!id) { return std::nullopt; }
    if (*id < 0 || *id > kMostVocabulary) { fail(file.label(), ": key ", key, " is ", *id, ", not a token"); }
    return static_cast<oasis::TokenId>(*id);
}

void refuse_gguf_variants(const GgufFile& file)
{
    const std::string scaling = file.string("llama.rope.scaling.type").value_or("none");
    if (scaling != "none") {
        fail(file.label(), ": RoPE scaling \"", scaling,
             "\" in llama.rope.scaling.type is not supported; only \"none\" is");
    }
    if (file.find("rope_freqs.weight")) {
        fail(file.label(), ": RoPE frequency factors (tensor rope_freqs.weight) are not supported");
    }
    if (const auto experts = file.integer("llama.expert_count").value_or(0); experts > 0) {
        fail(file.label(), ": ", experts, " experts (llama.expert_count) are not supported");
    }
}

} // namespace

ModelConfig config_from_json(const Json& json, const std::string& what)
{
    ModelConfig config;
    const Json* names = member(json, "architectures");
    if (names && names->is_array() && names->size() == 1 && names->front().is_string()) {
        config.architecture = names->front().get<std::string>();
    }
    if (config.architecture != "LlamaForCausalLM") {
        fail(what, ": architecture ", names ? shown(*names) : "(none)", " is not supported; [\"LlamaForCausalLM\"] is");
    }
    for (const char* key : {"attention_bias", "mlp_bias"}) {
        if (flag_member(json, key, false, what)) { fail(what, ": \"", key, "\": true is not supported"); }
    }
    const std::string activation = string_member(json, "hidden_act", "silu", what);
    if (activation != "silu") { fail(what, ": \"hidden_act\" is \"", activation, "\"; only \"silu\" is supported"); }

    config.layers = extent(json, "num_hidden_layers", kMostLayers, what);
    config.hidden = extent(json, "hidden_size", kMostWidth, what);
    config.q_heads = extent(json, "num_attention_heads", kMostHeads, what);
    config.kv_heads =
        member(json, "num_key_value_heads") ? extent(json, "num_key_value_heads", kMostHeads, what) : config.q_heads;
    if (!member(json, "head_dim") && config.hidden % config.q_heads != 0) {
        fail(what, ": no \"head_dim\", and ", config.hidden, " channels do not divide among ", config.q_heads,
             " heads");
    }
    config.head_dim = member(json, "head_dim") ? extent(json, "head_dim", 4096, what) : config.hidden / config.q_heads;
    config.intermediate = extent(json, "intermediate_size", kMostWidth, what);
    config.vocab = extent(json, "vocab_size", kMostVocabulary, what);
    config.context = integer_member(json, "max_position_embeddings", 1, kMostContext, what);
    config.rms_eps = static_cast<float>(positive_member(json, "rms_norm_eps", what));
    read_rope(json, config, what);
    if (member(json, "tie_word_embeddings")) {
        config.tied_flag = flag_member(json, "tie_word_embeddings", false, what);
    }
    if (member(json, "bos_token_id")) {
        config.bos = static_cast<oasis::TokenId>(integer_member(json, "bos_token_id", 0, kMostVocabulary, what));
    }
    read_eos(json, config, what);
    check(config, what);
    return config;
}

ModelConfig config_from_gguf(const GgufFile& file)
{
    ModelConfig config;
    config.architecture = file.string("general.architecture").value_or("(none)");
    if (config.architecture != "llama") {
        fail(file.label(), ": architecture \"", config.architecture, "\" is not supported; \"llama\" is");
    }
    refuse_gguf_variants(file);
    config.layers = extent(file, "llama.block_count", kMostLayers);
    config.hidden = extent(file, "llama.embedding_length", kMostWidth);
    config.q_heads = extent(file, "llama.attention.head_count", kMostHeads);
    config.kv_heads = extent(file, "llama.attention.head_count_kv", kMostHeads, config.q_heads);
    config.head_dim = extent(file, "llama.attention.key_length", 4096, config.hidden / config.q_heads);
    for (const char* key : {"llama.attention.value_length", "llama.rope.dimension_count"}) {
        if (const auto other = extent(file, key, 4096, config.head_dim); other != config.head_dim) {
            fail(file.label(), ": key ", key, " is ", other, ", not the head size ", config.head_dim);
        }
    }
    config.intermediate = extent(file, "llama.feed_forward_length", kMostWidth);
    if (file.has("llama.vocab_size")) { config.vocab = extent(file, "llama.vocab_size", kMostVocabulary); }
    config.context = file.integer("llama.context_length").value_or(0);
    if (config.context < 1 || config.context > kMostContext) {
        fail(file.label(), ": key llama.context_length is ", config.context);
    }
    config.rope_theta = file.number("llama.rope.freq_base").value_or(10000.0);
    if (!(config.rope_theta > 0) || !std::isfinite(config.rope_theta)) {
        fail(file.label(), ": key llama.rope.freq_base is ", config.rope_theta);
    }
    config.rms_eps = static_cast<float>(file.number("llama.attention.layer_norm_rms_epsilon").value_or(1e-5));
    config.bos = token_key(file, "tokenizer.ggml.bos_token_id");
    if (const auto eos = token_key(file, "tokenizer.ggml.eos_token_id")) { config.eos.push_back(*eos); }
    check(config, file.label());
    return config;
}

} // namespace oasis_decode
