// SPDX-License-Identifier: Apache-2.0
//
// Stands for the engine's model: q, k and v of a layer as functions of the position. Keys stay near a topic for 24
// tokens, and a query asks for one earlier topic, so that a few blocks matter.
#pragma once

#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

class ToyModel {
public:
    struct Layer {
        std::vector<float> q;   ///< [rows, q_heads, head_dim]
        std::vector<float> k;   ///< [rows, kv_heads, head_dim]
        std::vector<float> v;   ///< [rows, kv_heads, head_dim]
        std::vector<float> out; ///< [rows, q_heads, head_dim]
    };

    explicit ToyModel(const oasis::ModelShape& shape) : shape_(shape) {}

    Layer layer(oasis::LayerId layer, oasis::TokenIndex position, std::int32_t rows) const
    {
        Layer x;
        for (std::int32_t row = 0; row < rows; ++row, ++position) {
            const auto topic = static_cast<std::uint64_t>(position / 24);
            const std::uint64_t asked = topic ? random(topic) % topic : 0;
            for (std::int32_t head = 0; head < shape_.kv_heads; ++head) {
                push(x.k, key(layer, head, topic), static_cast<std::uint64_t>(position) + 1, 0.5F);
                push(x.v, 0, static_cast<std::uint64_t>(position) + 1, 1.0F);
            }
            for (std::int32_t head = 0; head < shape_.q_heads; ++head) {
                push(x.q, key(layer, head / shape_.group(), asked), static_cast<std::uint64_t>(position + head), 0.5F);
            }
        }
        x.out.resize(x.q.size());
        return x;
    }

private:
    static std::uint64_t random(std::uint64_t x) noexcept
    {
        x += 0x9E3779B97F4A7C15ULL;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
        return x ^ (x >> 31);
    }
    static float signed_unit(std::uint64_t x) noexcept
    {
        return static_cast<float>(random(x) >> 40) / static_cast<float>(1 << 23) - 1.0F;
    }

    static std::uint64_t key(oasis::LayerId layer, std::int32_t head, std::uint64_t topic) noexcept
    {
        return random((static_cast<std::uint64_t>(layer * 64 + head) << 32) + topic) | 1U;
    }

    /// Appends a vector: what `base` says (nothing for 0), and noise of its own.
    void push(std::vector<float>& to, std::uint64_t base, std::uint64_t seed, float noise) const
    {
        for (std::int32_t i = 0; i < shape_.head_dim; ++i) {
            const auto channel = static_cast<std::uint64_t>(i) << 40;
            to.push_back((base ? signed_unit(base + channel) : 0.0F) + noise * signed_unit(random(seed) + channel));
        }
    }

    oasis::ModelShape shape_;
};
