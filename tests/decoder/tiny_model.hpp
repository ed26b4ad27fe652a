// SPDX-License-Identifier: Apache-2.0
//
// A random model of a few thousand weights, written in both containers.
#pragma once

#include "decoder/support.hpp"

#include "model/byte_level.hpp"

namespace oasis_decode::test {

/// 256 byte tokens, one merge, two special tokens: 259 in all.
struct TinyModel {
    static constexpr std::int64_t kLayers = 2, kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kInner = 96,
                                  kVocab = 259;

    std::vector<Float32Tensor> tensors; // with the names and the order of HF
    Json config;
    Json tokenizer;

    explicit TinyModel(unsigned seed = 1)
    {
        std::mt19937 random(seed);
        const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, float spread, float mean = 0) {
            std::normal_distribution<float> draw(mean, spread);
            const std::int64_t count =
                std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
            Float32Tensor tensor{name, std::move(shape), std::vector<float>(static_cast<std::size_t>(count))};
            for (float& x : tensor.values) { x = draw(random); }
            tensors.push_back(std::move(tensor));
        };
        add("model.embed_tokens.weight", {kVocab, kHidden}, 1.0F);
        add("model.norm.weight", {kHidden}, 0.1F, 1.0F);
        for (int layer = 0; layer < kLayers; ++layer) {
            const std::string prefix = "model.layers." + std::to_string(layer) + ".";
            add(prefix + "input_layernorm.weight", {kHidden}, 0.1F, 1.0F);
            add(prefix + "self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden}, 0.15F);
            add(prefix + "self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden}, 0.15F);
            add(prefix + "self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden}, 0.15F);
            add(prefix + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim}, 0.1F);
            add(prefix + "post_attention_layernorm.weight", {kHidden}, 0.1F, 1.0F);
            add(prefix + "mlp.gate_proj.weight", {kInner, kHidden}, 0.15F);
            add(prefix + "mlp.up_proj.weight", {kInner, kHidden}, 0.15F);
            add(prefix + "mlp.down_proj.weight", {kHidden, kInner}, 0.15F);
        }
        config = {{"architectures", {"LlamaForCausalLM"}},
                  {"num_hidden_layers", kLayers},
                  {"hidden_size", kHidden},
                  {"num_attention_heads", kHeads},
                  {"num_key_value_heads", kKvHeads},
                  {"head_dim", kHeadDim},
                  {"intermediate_size", kInner},
                  {"vocab_size", kVocab},
                  {"max_position_embeddings", 512},
                  {"rope_theta", 10000.0},
                  {"rms_norm_eps", 1e-5},
                  {"tie_word_embeddings", true},
                  {"eos_token_id", 258},
                  {"bos_token_id", 257}};
        Json vocab = Json::object();
        for (int i = 0; i < 256; ++i) { vocab[to_byte_alphabet(std::string(1, static_cast<char>(i)))] = i; }
        vocab["ab"] = 256;
        tokenizer = {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}},
                     {"added_tokens",
                      {{{"id", 257}, {"content", "<s>"}, {"special", true}},
                       {{"id", 258}, {"content", "</s>"}, {"special", true}}}},
                     {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
    }

    Float32Tensor& tensor(const std::string& name)
    {
        return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
    }

    void add_head(std::vector<float> values)
    {
        tensors.push_back({"lm_head.weight", {kVocab, kHidden}, std::move(values)});
    }

    SafetensorsWriter safetensors() const
    {
        SafetensorsWriter writer;
        for (const auto& t : tensors) { writer.add(t); }
        return writer;
    }

    void write_folder(const std::filesystem::path& folder) const
    {
        std::filesystem::create_directories(folder);
        write_file(folder / "config.json", config.dump());
        write_file(folder / "tokenizer.json", tokenizer.dump());
        write_file(folder / "model.safetensors", safetensors().str());
    }

    GgufWriter gguf() const
    {
        GgufWriter writer;
        writer.key_string("general.architecture", "llama");
        writer.key_u32("llama.block_count", kLayers);
        writer.key_u32("llama.context_length", 512);
        writer.key_u32("llama.embedding_length", kHidden);
        writer.key_u32("llama.feed_forward_length", kInner);
        writer.key_u32("llama.attention.head_count", kHeads);
        writer.key_u32("llama.attention.head_count_kv", kKvHeads);
        writer.key_u32("llama.attention.key_length", kHeadDim);
        writer.key_u32("llama.rope.dimension_count", kHeadDim);
        writer.key_f32("llama.rope.freq_base", 10000.0F);
        writer.key_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
        add_tokenizer(writer);
        for (const auto& t : tensors) { writer.add(gguf_form(t)); }
        return writer;
    }

    static void add_tokenizer(GgufWriter& writer)
    {
        writer.key_string("tokenizer.ggml.model", "gpt2");
        writer.key_string("tokenizer.ggml.pre", "gpt-2");
        std::vector<std::string> tokens;
        for (int i = 0; i < 256; ++i) { tokens.push_back(to_byte_alphabet(std::string(1, static_cast<char>(i)))); }
        tokens.insert(tokens.end(), {"ab", "<s>", "</s>"});
        writer.key_strings("tokenizer.ggml.tokens", tokens);
        writer.begin_key("tokenizer.ggml.token_type", 9);
        put<std::uint32_t>(writer.keys, 5);
        put<std::uint64_t>(writer.keys, tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) { put<std::int32_t>(writer.keys, i < 257 ? 1 : 3); }
        writer.key_strings("tokenizer.ggml.merges", {"a b"});
        writer.key_u32("tokenizer.ggml.bos_token_id", 257);
        writer.key_u32("tokenizer.ggml.eos_token_id", 258);
        writer.key_bool("tokenizer.ggml.add_bos_token", true);
    }

    /// The GGUF name of a tensor.
    static std::string gguf_name(std::string name)
    {
        static const std::vector<std::pair<std::string, std::string>> kNames = {
            {"model.embed_tokens", "token_embd"},
            {"model.norm", "output_norm"},
            {"lm_head", "output"},
            {"model.layers.", "blk."},
            {"input_layernorm", "attn_norm"},
            {"self_attn.q_norm", "attn_q_norm"},
            {"self_attn.k_norm", "attn_k_norm"},
            {"self_attn.q_proj", "attn_q"},
            {"self_attn.k_proj", "attn_k"},
            {"self_attn.v_proj", "attn_v"},
            {"self_attn.o_proj", "attn_output"},
            {"post_attention_layernorm", "ffn_norm"},
            {"mlp.gate_proj", "ffn_gate"},
            {"mlp.up_proj", "ffn_up"},
            {"mlp.down_proj", "ffn_down"}};
        for (const auto& [from, to] : kNames) {
            if (const auto at = name.find(from); at != std::string::npos) { name.replace(at, from.size(), to); }
        }
        return name;
    }

private:
    static Float32Tensor gguf_form(const Float32Tensor& tensor)
    {
        Float32Tensor out = tensor;
        out.name = gguf_name(tensor.name);
        if (out.name.find("attn_q.") == std::string::npos && out.name.find("attn_k.") == std::string::npos) {
            return out;
        }
        // As converters do: [head, half, pair, in] becomes [head, pair, half, in].
        std::size_t target = 0;
        for (std::int64_t head = 0; head < tensor.shape[0] / kHeadDim; ++head) {
            for (std::int64_t pair = 0; pair < kHeadDim / 2; ++pair) {
                for (std::int64_t half = 0; half < 2; ++half) {
                    const std::int64_t row = head * kHeadDim + half * (kHeadDim / 2) + pair;
                    for (std::int64_t c = 0; c < kHidden; ++c) {
                        out.values[target++] = tensor.values[static_cast<std::size_t>(row * kHidden + c)];
                    }
                }
            }
        }
        return out;
    }
};

} // namespace oasis_decode::test
