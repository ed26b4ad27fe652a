// SPDX-License-Identifier: Apache-2.0
//
// A random Llama of any shape, and the plainest implementation of it: float64, one token at a time, no code in common
// with the decoder.
#pragma once

#include "decoder/tiny_model.hpp"

#include <map>

namespace oasis_decode::test {

struct LlamaShape {
    std::int64_t hidden = 64, heads = 1, kv_heads = 1, head_dim = 64, inner = 32;
    std::int64_t context = 512;
    double theta = 10000.0;
};

/// One layer, the tokenizer of `TinyModel`.
class RandomLlama {
public:
    RandomLlama(const LlamaShape& shape, unsigned seed) : shape_(shape)
    {
        std::mt19937 random(seed);
        const auto add = [&](const std::string& name, std::vector<std::int64_t> extents, double spread, double mean) {
            std::normal_distribution<double> draw(mean, spread);
            std::size_t count = 1;
            for (const std::int64_t extent : extents) { count *= static_cast<std::size_t>(extent); }
            Float32Tensor tensor{name, std::move(extents), std::vector<float>(count)};
            for (float& x : tensor.values) { x = static_cast<float>(draw(random)); }
            tensors_.push_back(std::move(tensor));
        };
        const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in, double gain) {
            add(name, {out, in}, gain / std::sqrt(static_cast<double>(in)), 0);
        };
        const std::int64_t h = shape.hidden, q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
        const std::string layer = "model.layers.0.";
        add("model.embed_tokens.weight", {TinyModel::kVocab, h}, 1, 0);
        add("model.norm.weight", {h}, 0.1, 1);
        add(layer + "input_layernorm.weight", {h}, 0.1, 1);
        add(layer + "post_attention_layernorm.weight", {h}, 0.1, 1);
        // Queries and keys are large, so that attention depends on where things stand.
        matrix(layer + "self_attn.q_proj.weight", q, h, 3);
        matrix(layer + "self_attn.k_proj.weight", kv, h, 3);
        matrix(layer + "self_attn.v_proj.weight", kv, h, 2);
        matrix(layer + "self_attn.o_proj.weight", h, q, 2);
        matrix(layer + "mlp.gate_proj.weight", shape.inner, h, 1);
        matrix(layer + "mlp.up_proj.weight", shape.inner, h, 1);
        matrix(layer + "mlp.down_proj.weight", h, shape.inner, 1);
    }

    const LlamaShape& shape() const { return shape_; }
    const std::vector<float>& operator[](const std::string& name) const
    {
        return std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; })->values;
    }

    /// A model folder; `changes` are merged into its config.json.
    void write(const std::filesystem::path& folder, const Json& changes = Json::object()) const
    {
        TinyModel form;
        form.tensors = tensors_;
        form.config.merge_patch({{"num_hidden_layers", 1},
                                 {"hidden_size", shape_.hidden},
                                 {"num_attention_heads", shape_.heads},
                                 {"num_key_value_heads", shape_.kv_heads},
                                 {"head_dim", shape_.head_dim},
                                 {"intermediate_size", shape_.inner},
                                 {"max_position_embeddings", shape_.context},
                                 {"rope_theta", shape_.theta}});
        form.config.merge_patch(changes);
        form.write_folder(folder);
    }

private:
    LlamaShape shape_;
    std::vector<Float32Tensor> tensors_;
};

class ReferenceLlama {
public:
    using Vector = std::vector<double>;

    /// `frequencies`: radians a token, of each pair of a head's channels.
    ReferenceLlama(const RandomLlama& model, Vector frequencies) : model_(model), frequencies_(std::move(frequencies)) {}

    /// Takes a token in; what it attends to does not matter to later ones, as there is one layer.
    void append(TokenId token) { static_cast<void>(keys_of(token)); }

    /// Takes a token in and returns the logits after it.
    Vector logits(TokenId token)
    {
        Vector x = embedding(token);
        const Vector normed = keys_of(token);
        add(x, times("model.layers.0.self_attn.o_proj.weight", attend(normed)));
        const Vector inner = norm(x, "model.layers.0.post_attention_layernorm.weight");
        Vector gate = times("model.layers.0.mlp.gate_proj.weight", inner);
        const Vector up = times("model.layers.0.mlp.up_proj.weight", inner);
        for (std::size_t i = 0; i < gate.size(); ++i) { gate[i] *= up[i] / (1 + std::exp(-gate[i])); }
        add(x, times("model.layers.0.mlp.down_proj.weight", gate));
        return times("model.embed_tokens.weight", norm(x, "model.norm.weight"));
    }

private:
    Vector embedding(TokenId token) const
    {
        const auto& rows = model_["model.embed_tokens.weight"];
        const auto begin = rows.begin() + std::int64_t{token} * model_.shape().hidden;
        return Vector(begin, begin + model_.shape().hidden);
    }
    Vector norm(const Vector& x, const std::string& name) const
    {
        double squares = 0;
        for (const double v : x) { squares += v * v; }
        const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
        Vector out;
        for (std::size_t i = 0; i < x.size(); ++i) { out.push_back(x[i] * scale * static_cast<double>(model_[name][i])); }
        return out;
    }
    Vector times(const std::string& name, const Vector& x) const
    {
        const auto& weights = model_[name];
        Vector out(weights.size() / x.size());
        for (std::size_t r = 0; r < out.size(); ++r) {
            for (std::size_t i = 0; i < x.size(); ++i) { out[r] += static_cast<double>(weights[r * x.size() + i]) * x[i]; }
        }
        return out;
    }
    static void add(Vector& to, const Vector& what)
    {
        for (std::size_t i = 0; i < to.size(); ++i) { to[i] += what[i]; }
    }
    /// Turns channel i with channel i + d/2 of every head.
    void rotate(Vector& heads, std::size_t position) const
    {
        const std::size_t half = frequencies_.size();
        for (std::size_t base = 0; base < heads.size(); base += 2 * half) {
            for (std::size_t i = 0; i < half; ++i) {
                const double angle = static_cast<double>(position) * frequencies_[i];
                const double a = heads[base + i], b = heads[base + half + i];
                heads[base + i] = a * std::cos(angle) - b * std::sin(angle);
                heads[base + half + i] = a * std::sin(angle) + b * std::cos(angle);
            }
        }
    }
    /// Stores K and V of the token, and returns what its queries are made of.
    Vector keys_of(TokenId token)
    {
        Vector normed = norm(embedding(token), "model.layers.0.input_layernorm.weight");
        keys_.push_back(times("model.layers.0.self_attn.k_proj.weight", normed));
        rotate(keys_.back(), keys_.size() - 1);
        values_.push_back(times("model.layers.0.self_attn.v_proj.weight", normed));
        return normed;
    }
    Vector attend(const Vector& normed) const
    {
        Vector queries = times("model.layers.0.self_attn.q_proj.weight", normed);
        rotate(queries, keys_.size() - 1);
        const std::size_t d = 2 * frequencies_.size();
        const auto group = static_cast<std::size_t>(model_.shape().heads / model_.shape().kv_heads);
        Vector out(queries.size());
        for (std::size_t head = 0; head * d < queries.size(); ++head) {
            const std::size_t kv = head / group * d;
            Vector shares;
            for (const Vector& key : keys_) {
                double score = 0;
                for (std::size_t c = 0; c < d; ++c) { score += queries[head * d + c] * key[kv + c]; }
                shares.push_back(score / std::sqrt(static_cast<double>(d)));
            }
            const double highest = *std::max_element(shares.begin(), shares.end());
            double total = 0;
            for (double& share : shares) { total += share = std::exp(share - highest); }
            for (std::size_t t = 0; t < shares.size(); ++t) {
                for (std::size_t c = 0; c < d; ++c) { out[head * d + c] += shares[t] / total * values_[t][kv + c]; }
            }
        }
        return out;
    }

    const RandomLlama& model_;
    Vector frequencies_;
    std::vector<Vector> keys_{}, values_{};
};

} // namespace oasis_decode::test
