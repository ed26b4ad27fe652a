// SPDX-License-Identifier: Apache-2.0
//
// What the decoder has to know of a model, from config.json or from GGUF keys. Settings that would change the results and
// that it does not know are refused by name, never ignored.
#pragma once

#include "model/gguf.hpp"
#include "model/json.hpp"
#include "model/rope.hpp"

#include <oasis/core/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace oasis_decode {

struct ModelConfig {
    std::string architecture; ///< "LlamaForCausalLM" or "llama", as the file calls it
    std::int32_t layers = 0;
    std::int32_t hidden = 0;
    std::int32_t q_heads = 0;
    std::int32_t kv_heads = 0;
    std::int32_t head_dim = 0; ///< given by the file; need not be hidden / q_heads
    std::int32_t intermediate = 0;
    std::int32_t vocab = 0; ///< 0 in a GGUF without the key: the loader takes it from the embedding
    std::int64_t context = 0;
    RopeConfig rope;
    std::vector<std::int32_t> windows; ///< how many tokens each layer attends to, 0: all; empty: all layers to all
    bool qkv_bias = false;
    bool output_bias = false; ///< of the attention's output
    bool qk_norm = false;     ///< each head of queries and keys is normed before RoPE
    float rms_eps = 1e-5F;
    std::optional<bool> tied_flag; ///< what the file says; GGUF says nothing
    bool tied = false;             ///< what holds, decided by the loader from the flag and the weights
    std::optional<oasis::TokenId> bos;
    std::vector<oasis::TokenId> eos;

    std::int32_t window(int layer) const noexcept
    {
        return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
    }
    /// "4096 tokens in 16 of 32 layers", or "none".
    std::string window_text() const;
    oasis::ModelShape shape() const noexcept { return {layers, q_heads, kv_heads, head_dim}; }
};

ModelConfig config_from_json(const Json& config, const std::string& what);
ModelConfig config_from_gguf(const GgufFile& file);

} // namespace oasis_decode
