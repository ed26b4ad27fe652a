// SPDX-License-Identifier: Apache-2.0
#include "model/config.hpp"

#include <algorithm>
#include <cmath>

namespace oasis_decode {
namespace {

// Generous bounds: they only keep products of two extents far from overflow.
constexpr std::int64_t kMostLayers = 1024;
constexpr std::int64_t kMostHeads = 4096;
constexpr std::int64_t kMostWidth = 1 << 20;
constexpr std::int64_t kMostVocabulary = 1 << 24;

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

/// The class that "architectures" names, or the one that "model_type" stands for.
std::string architecture_of(const Json& json, const std::string& what)
{
    static constexpr struct {
        const char* type;
        const char* name;
    } kKnown[] = {{"llama", "LlamaForCausalLM"},
                  {"mistral", "MistralForCausalLM"},
                  {"qwen2", "Qwen2ForCausalLM"},
                  {"qwen3", "Qwen3ForCausalLM"}};
    const Json* names = member(json, "architectures");
    const std::string type = string_member(json, "model_type", "", what);
    for (const auto& known : kKnown) {
        const bool named = names && names->is_array() && names->size() == 1 && names->front() == known.name;
        if (names ? !named : type != known.type) { continue; }
        if (!type.empty() && type != known.type) {
            fail(what, ": architecture ", shown(*names), " with \"model_type\": \"", legible(type),
                 "\" is not supported");
        }
        return known.name;
    }
    fail(what, ": architecture ",
         names          ? shown(*names)
         : type.empty() ? "(none)"
                        : "\"" + legible(type) + "\"",
         " is not supported; LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM are");
}

void refuse_variants(const Json& json, const std::string& what)
{
    for (const char* key : {"mlp_bias", "rope_interleaved"}) {
        if (flag_member(json, key, false, what)) { fail(what, ": \"", key, "\": true is not supported"); }
    }
    for (const char* key : {"quantization_config", "attn_logit_softcapping", "final_logit_softcapping", "num_experts",
                            "num_local_experts"}) {
        if (const Json* value = member(json, key)) {
            fail(what, ": \"", key, "\": ", shown(*value), " is not supported");
        }
    }
    const std::string activation = string_member(json, "hidden_act", "silu", what);
    if (activation != "silu") {
        fail(what, ": \"hidden_act\" is \"", legible(activation), "\"; only \"silu\" is supported");
    }
}

/// The window of config.json, 0 where none is in use.
std::int32_t window_of(const Json& json, const std::string& architecture, const std::string& what)
{
    const bool llama = architecture == "LlamaForCausalLM";
    if (architecture.starts_with("Qwen") && !flag_member(json, "use_sliding_window", false, what)) { return 0; }
    if (!llama && !json.contains("sliding_window")) { return 4096; } // null is none
    if (!member(json, "sliding_window")) { return 0; }
    if (llama) {
        fail(what, ": \"sliding_window\": ", shown(json["sliding_window"]), " is not supported of ", architecture);
    }
    return static_cast<std::int32_t>(integer_member(json, "sliding_window", 1, INT32_MAX, what));
}

/// Which layers have the window: all, those from "max_window_layers" on (Qwen), or those that "layer_types" names.
void read_windows(const Json& json, ModelConfig& config, const std::string& what)
{
    const std::int32_t window = window_of(json, config.architecture, what);
    std::int64_t first = config.architecture.starts_with("Qwen") ? 28 : 0;
    if (first > 0 && member(json, "max_window_layers")) {
        first = integer_member(json, "max_window_layers", 0, kMostLayers, what);
    }
    const Json* types = member(json, "layer_types");
    if (types && (!types->is_array() || types->size() != static_cast<std::size_t>(config.layers))) {
        fail(what, ": \"layer_types\" is not a list of ", config.layers, " types: ", shown(*types));
    }
    for (std::int32_t layer = 0; layer < config.layers; ++layer) {
        bool slides = layer >= first;
        if (types) {
            const Json& type = (*types)[static_cast<std::size_t>(layer)];
            slides = type == "sliding_attention";
            if (!slides && type != "full_attention") {
                fail(what, ": \"layer_types\" says ", shown(type), " of layer ", layer,
                     "; full_attention and sliding_attention are supported");
            }
            if (slides && window == 0) {
                fail(what, ": layer ", layer, " has sliding_attention, but there is no window");
            }
        }
        config.windows.push_back(slides ? window : 0);
    }
    if (std::ranges::count(config.windows, 0) == config.layers) { config.windows.clear(); }
}

void read_sizes(const Json& json, ModelConfig& config, const std::string& what)
{
    config.layers = extent(json, "num_hidden_layers", kMostLayers, what);
    config.hidden = extent(json, "hidden_size", kMostWidth, what);
    config.q_heads = extent(json, "num_attention_heads", kMostHeads, what);
    const bool llama = config.architecture == "LlamaForCausalLM"; // the others have defaults of their own
    config.kv_heads = member(json, "num_key_value_heads") || !llama
                          ? extent(json, "num_key_value_heads", kMostHeads, what)
                          : config.q_heads;
    if (member(json, "head_dim")) {
        config.head_dim = extent(json, "head_dim", 4096, what);
    } else if (config.architecture == "Qwen3ForCausalLM") {
        config.head_dim = 128;
    } else if (config.hidden % config.q_heads == 0) {
        config.head_dim = config.hidden / config.q_heads;
    } else {
        fail(what, ": no \"head_dim\", and ", config.hidden, " channels do not divide among ", config.q_heads,
             " heads");
    }
    config.intermediate = extent(json, "intermediate_size", kMostWidth, what);
    config.vocab = extent(json, "vocab_size", kMostVocabulary, what);
    config.context = integer_member(json, "max_position_embeddings", 1, kMostContext, what);
    config.rms_eps = static_cast<float>(positive_member(json, "rms_norm_eps", what));
}

void refuse_gguf_variants(const GgufFile& file, const std::string& arch)
{
    const struct {
        const char* key;
        double neutral;
    } settings[] = {{".expert_count", 0},
                    {".attn_logit_softcapping", 0},
                    {".final_logit_softcapping", 0},
                    {".logit_scale", 1},
                    {".residual_scale", 1},
                    {".embedding_scale", 1},
                    {".attention.scale", 0},
                    {".attention.clamp_kqv", 0},
                    {".attention.max_alibi_bias", 0},
                    {".attention.temperature_scale", 0},
                    {".attention.sliding_window_pattern", 1}};
    for (const auto& [key, neutral] : settings) {
        const auto value = file.number(arch + key);
        if (value && *value != 0 && *value != neutral) {
            fail(file.label(), ": key ", arch, key, " is ", *value, ", which is not supported");
        }
    }
    if (!file.flag(arch + ".attention.causal").value_or(true)) {
        fail(file.label(), ": key ", arch, ".attention.causal is false, which is not supported");
    }
}

void read_gguf_sizes(const GgufFile& file, const std::string& arch, ModelConfig& config)
{
    config.layers = extent(file, arch + ".block_count", kMostLayers);
    config.hidden = extent(file, arch + ".embedding_length", kMostWidth);
    config.q_heads = extent(file, arch + ".attention.head_count", kMostHeads);
    config.kv_heads = extent(file, arch + ".attention.head_count_kv", kMostHeads, config.q_heads);
    config.head_dim = extent(file, arch + ".attention.key_length", 4096, config.hidden / config.q_heads);
    for (const char* key : {".attention.value_length", ".rope.dimension_count"}) {
        if (const auto other = extent(file, arch + key, 4096, config.head_dim); other != config.head_dim) {
            fail(file.label(), ": key ", arch, key, " is ", other, ", not the head size ", config.head_dim);
        }
    }
    config.intermediate = extent(file, arch + ".feed_forward_length", kMostWidth);
    if (file.has(arch + ".vocab_size")) { config.vocab = extent(file, arch + ".vocab_size", kMostVocabulary); }
    config.context = file.integer(arch + ".context_length").value_or(0);
    if (config.context < 1 || config.context > kMostContext) {
        fail(file.label(), ": key ", arch, ".context_length is ", config.context);
    }
    config.rms_eps = static_cast<float>(file.number(arch + ".attention.layer_norm_rms_epsilon").value_or(1e-5));
}

} // namespace

std::string ModelConfig::window_text() const
{
    if (windows.empty()) { return "none"; }
    const auto count = layers - std::ranges::count(windows, 0);
    return oasis::detail::text(*std::ranges::max_element(windows), " tokens in ", count, " of ", layers, " layers");
}

ModelConfig config_from_json(const Json& json, const std::string& what)
{
    ModelConfig config;
    config.architecture = architecture_of(json, what);
    refuse_variants(json, what);
    read_sizes(json, config, what);
    read_windows(json, config, what);
    config.rope = rope_from_json(json, config.context, what);
    config.context = config.rope.reach(config.context);

    const bool attention_bias = flag_member(json, "attention_bias", false, what);
    if (attention_bias && config.architecture == "MistralForCausalLM") {
        fail(what, ": \"attention_bias\": true is not supported of MistralForCausalLM");
    }
    const bool qwen2 = config.architecture == "Qwen2ForCausalLM"; // biases of q, k and v, whatever the file says
    config.qkv_bias = attention_bias || qwen2;
    config.output_bias = attention_bias && !qwen2;
    config.qk_norm = config.architecture == "Qwen3ForCausalLM";

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
    const std::string& arch = config.architecture;
    if (arch != "llama" && arch != "qwen2" && arch != "qwen3") {
        fail(file.label(), ": architecture \"", legible(arch), "\" is not supported; llama, qwen2 and qwen3 are");
    }
    if (const auto parts = file.integer("split.count").value_or(1); parts > 1) {
        fail(file.label(), ": one of ", parts, " parts of a model (split.count); they have to be joined into one file");
    }
    refuse_gguf_variants(file, arch);
    read_gguf_sizes(file, arch, config);
    const std::int64_t window = file.integer(arch + ".attention.sliding_window").value_or(0);
    if (window < 0 || window > INT32_MAX) {
        fail(file.label(), ": key ", arch, ".attention.sliding_window is ", window);
    }
    if (window > 0) {
        config.windows.assign(static_cast<std::size_t>(config.layers), static_cast<std::int32_t>(window));
    }
    config.rope = rope_from_gguf(file, arch, config.context, config.head_dim);
    config.context = config.rope.reach(config.context);
    // Biases are optional in llama files; qwen2 has those of q, k and v always.
    config.qkv_bias = arch == "qwen2" || file.find("blk.0.attn_q.bias");
    config.output_bias = file.find("blk.0.attn_output.bias");
    config.qk_norm = arch == "qwen3";
    config.bos = file.token("tokenizer.ggml.bos_token_id");
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
        const auto id = file.token(key);
        if (id && std::ranges::count(config.eos, *id) == 0) { config.eos.push_back(*id); }
    }
    check(config, file.label());
    return config;
}

} // namespace oasis_decode
