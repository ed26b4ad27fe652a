// SPDX-License-Identifier: Apache-2.0
//
// The tiny models of tests/data/model-references.json, written in every form that is read. Their weights follow from the
// names of the tensors, by the rules of make_references.py.
#pragma once

#include "decoder/tiny_model.hpp"

#include <oasis/core/half.hpp>

#include <map>

namespace oasis_decode::test {

/// splitmix64, seeded with the FNV-1a hash of the name.
inline std::vector<std::uint64_t> stream(const std::string& name, std::size_t count)
{
    std::uint64_t state = 0xCBF29CE484222325;
    for (const char c : name) { state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3; }
    std::vector<std::uint64_t> out(count);
    for (std::uint64_t& word : out) {
        std::uint64_t z = state += 0x9E3779B97F4A7C15;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
        z = (z ^ z >> 27) * 0x94D049BB133111EB;
        word = z ^ z >> 31;
    }
    return out;
}

inline std::vector<float> tiny_floats(const std::string& name, std::size_t count)
{
    const bool norm = name.ends_with("norm.weight"), bias = name.ends_with(".bias");
    const bool ends = name == "model.embed_tokens.weight" || name == "lm_head.weight";
    const double mean = norm ? 1 : 0;
    const double half = norm || bias ? 0.5 : ends ? 0.25 : 0.125;
    std::vector<float> out;
    for (const std::uint64_t word : stream(name, count)) {
        out.push_back(static_cast<float>(mean + half * (static_cast<double>(word >> 40) / (1 << 23) - 1)));
    }
    return out;
}

/// How a type is stored: its number in GGUF, elements and bytes of a block, and the sign and exponent of its half floats.
struct TinyType {
    std::uint32_t number;
    std::size_t elements;
    std::size_t bytes;
    std::vector<std::pair<std::size_t, unsigned>> halves;
};

inline const TinyType& tiny_type(const std::string& name)
{
    static const std::map<std::string, TinyType> kTypes = {{"F32", {0, 1, 4, {}}},
                                                           {"F16", {1, 1, 2, {}}},
                                                           {"BF16", {30, 1, 2, {}}},
                                                           {"Q4_0", {2, 32, 18, {{0, 0x20}}}},
                                                           {"Q4_1", {3, 32, 20, {{0, 0x20}, {2, 0xAC}}}},
                                                           {"Q5_0", {6, 32, 22, {{0, 0x1C}}}},
                                                           {"Q5_1", {7, 32, 24, {{0, 0x1C}, {2, 0xAC}}}},
                                                           {"Q8_0", {8, 32, 34, {{0, 0x10}}}},
                                                           {"Q4_K", {12, 256, 144, {{0, 0x0C}, {2, 0x18}}}},
                                                           {"Q5_K", {13, 256, 176, {{0, 0x08}, {2, 0x18}}}},
                                                           {"Q6_K", {14, 256, 210, {{208, 0x00}}}}};
    return kTypes.at(name);
}

/// The bytes of a tensor of a type.
inline std::string tiny_bytes(const std::string& name, const std::string& type_name, std::size_t elements)
{
    const TinyType& type = tiny_type(type_name);
    std::string out;
    if (type.elements == 1) {
        for (const float x : tiny_floats(name, elements)) {
            if (type_name == "F32") {
                put(out, x);
            } else {
                put(out, type_name == "F16" ? oasis::to_f16(x).bits : oasis::to_bf16(x).bits);
            }
        }
        return out;
    }
    const std::size_t bytes = elements / type.elements * type.bytes;
    for (const std::uint64_t word : stream(name + ":" + type_name, (bytes + 7) / 8)) { put(out, word); }
    out.resize(bytes);
    for (std::size_t block = 0; block < bytes; block += type.bytes) {
        for (const auto& [offset, exponent] : type.halves) {
            char& high = out[block + offset + 1];
            high = static_cast<char>((static_cast<unsigned char>(high) & 3U) | exponent);
        }
    }
    return out;
}

class TinyFamily {
public:
    struct Tensor {
        std::string name;
        std::vector<std::int64_t> shape;
        std::string type;
        std::string bytes;
    };

    explicit TinyFamily(Json description) : case_(std::move(description)), config_(case_["config"])
    {
        const std::int64_t hidden = config_["hidden_size"], inner = config_["intermediate_size"];
        const std::int64_t vocab = config_["vocab_size"], d = config_["head_dim"];
        const std::int64_t q = config_["num_attention_heads"].get<std::int64_t>() * d;
        const std::int64_t kv = config_["num_key_value_heads"].get<std::int64_t>() * d;
        const bool biases = config_.value("attention_bias", false);
        add("model.embed_tokens.weight", {vocab, hidden});
        add("model.norm.weight", {hidden});
        if (!config_["tie_word_embeddings"]) { add("lm_head.weight", {vocab, hidden}); }
        for (int layer = 0; layer < config_["num_hidden_layers"]; ++layer) {
            const std::string prefix = "model.layers." + std::to_string(layer) + ".";
            const std::string attention = prefix + "self_attn.";
            for (const auto& [part, rows] : {std::pair("q", q), std::pair("k", kv), std::pair("v", kv)}) {
                add(attention + part + "_proj.weight", {rows, hidden});
                if (biases || family() == "qwen2") { add(attention + part + "_proj.bias", {rows}); }
            }
            if (family() == "qwen3") {
                add(attention + "q_norm.weight", {d});
                add(attention + "k_norm.weight", {d});
            }
            add(attention + "o_proj.weight", {hidden, q});
            if (biases) { add(attention + "o_proj.bias", {hidden}); }
            add(prefix + "input_layernorm.weight", {hidden});
            add(prefix + "post_attention_layernorm.weight", {hidden});
            add(prefix + "mlp.gate_proj.weight", {inner, hidden});
            add(prefix + "mlp.up_proj.weight", {inner, hidden});
            add(prefix + "mlp.down_proj.weight", {hidden, inner});
        }
    }

    std::string family() const { return config_["model_type"]; }
    bool has_gguf() const { return case_.contains("gguf"); }
    bool has_folder() const { return !case_.contains("only_gguf"); }

    /// A folder as Hugging Face has it; with more than one shard, an index too.
    void write_folder(const std::filesystem::path& folder, std::size_t shards) const
    {
        std::filesystem::create_directories(folder);
        write_file(folder / "config.json", config_.dump());
        write_file(folder / "tokenizer.json", TinyModel().tokenizer.dump());
        Json map = Json::object();
        for (std::size_t shard = 0; shard < shards; ++shard) {
            SafetensorsWriter writer;
            const std::string name =
                shards == 1 ? "model.safetensors" : "model-" + std::to_string(shard) + ".safetensors";
            for (std::size_t i = shard; i < tensors_.size(); i += shards) {
                writer.add_raw(tensors_[i].name, tensors_[i].shape, tensors_[i].type, tensors_[i].bytes);
                map[tensors_[i].name] = name;
            }
            write_file(folder / name, writer.str());
        }
        if (shards > 1) { write_file(folder / "model.safetensors.index.json", Json{{"weight_map", map}}.dump()); }
    }

    GgufWriter gguf() const
    {
        const std::string arch = family() == "mistral" ? "llama" : family();
        GgufWriter writer;
        writer.key_string("general.architecture", arch);
        const auto number = [&](const char* key, const char* from) {
            writer.key_u32(arch + "." + key, config_[from].get<std::uint32_t>());
        };
        number("block_count", "num_hidden_layers");
        number("context_length", "max_position_embeddings");
        number("embedding_length", "hidden_size");
        number("feed_forward_length", "intermediate_size");
        number("attention.head_count", "num_attention_heads");
        number("attention.head_count_kv", "num_key_value_heads");
        number("attention.key_length", "head_dim");
        number("attention.value_length", "head_dim");
        writer.key_f32(arch + ".rope.freq_base", config_.value("rope_theta", 10000.0F));
        writer.key_f32(arch + ".attention.layer_norm_rms_epsilon", config_["rms_norm_eps"].get<float>());
        for (const auto& [key, value] : case_["gguf"].items()) { add_key(writer, arch + "." + key, value); }
        TinyModel::add_tokenizer(writer);
        for (const Tensor& tensor : tensors_) {
            const bool paired = arch == "llama" && (tensor.name.find("q_proj") != std::string::npos ||
                                                    tensor.name.find("k_proj") != std::string::npos);
            writer.add_raw(TinyModel::gguf_name(tensor.name), tensor.shape, tiny_type(tensor.type).number,
                           paired ? neighbours(tensor) : tensor.bytes);
        }
        if (case_.contains("rope_freqs")) {
            const auto factors = case_["rope_freqs"].get<std::vector<float>>();
            writer.add({"rope_freqs.weight", {static_cast<std::int64_t>(factors.size())}, factors});
        }
        return writer;
    }

private:
    void add(const std::string& name, std::vector<std::int64_t> shape)
    {
        std::string type = shape.size() == 2 ? case_["types"][""] : Json("F32");
        for (const auto& [part, own] : case_["types"].items()) {
            if (shape.size() == 2 && !part.empty() && name.find(part) != std::string::npos) { type = own; }
        }
        const auto elements =
            static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
        tensors_.push_back({name, std::move(shape), type, tiny_bytes(name, type, elements)});
    }

    static void add_key(GgufWriter& writer, const std::string& key, const Json& value)
    {
        if (value.is_string()) {
            writer.key_string(key, value);
        } else if (value.is_number_integer()) {
            writer.key_u32(key, value);
        } else {
            writer.key_f32(key, value);
        }
    }

    /// As converters do: of each head, rows i and i + d/2 become neighbours.
    std::string neighbours(const Tensor& tensor) const
    {
        const auto rows = static_cast<std::size_t>(tensor.shape[0]);
        const std::size_t bytes = tensor.bytes.size() / rows, d = config_["head_dim"];
        std::string out;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::size_t from = row / d * d + row % d / 2 + (row % 2 ? d / 2 : 0);
            out += tensor.bytes.substr(from * bytes, bytes);
        }
        return out;
    }

    Json case_;
    Json config_;
    std::vector<Tensor> tensors_;
};

} // namespace oasis_decode::test
