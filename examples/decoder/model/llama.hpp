// SPDX-License-Identifier: Apache-2.0
//
// The example decoder's model: loading, and the forward pass around a caller's attention.
#pragma once

#include "model/block.hpp"
#include "model/buffer.hpp"
#include "model/config.hpp"
#include "model/tokenizer.hpp"

#include <oasis/cpu/executor.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace oasis_decode {

struct LoadedModel {
    ModelConfig config;
    Compute compute = Compute::kF32;
    Tokenizer tokenizer;
    std::vector<std::string> warnings; ///< what a user should be told; nothing is printed here
    /// Identifies the model: SHA-256 in hex of the GGUF file, or of the folder's files, one after another: config.json,
    /// tokenizer.json (or tokenizer.model), tokenizer_config.json and chat_template.jinja where there are such, the shards.
    std::string id;

    std::vector<BlockWeights> blocks;
    Matrix embedding;  ///< [vocab, hidden]
    Matrix head;       ///< [vocab, hidden]; empty when tied
    Buffer final_norm; ///< [hidden]

    /// What turns the final hidden state into logits.
    const Matrix& output_matrix() const noexcept { return head.empty() ? embedding : head; }
};

/// Loads a GGUF file, or a folder with config.json, tokenizer.json and safetensors. Throws `ModelError`.
///
/// The output head: a head that the file has is used, and a warning says so when the file calls the model tied and
/// the head differs from the embedding; without one the embedding serves, unless the file says it is not tied.
std::shared_ptr<const LoadedModel> load_model(const std::filesystem::path& path, Compute compute = Compute::kF32);

/// The forward pass for up to `max_rows` rows. All scratch is taken here; `forward` and `logits` allocate nothing.
class Llama {
public:
    using Attention = oasis_decode::Attention;

    Llama(std::shared_ptr<const LoadedModel> model, oasis::Executor& executor, int max_rows);

    /// Runs all layers for the rows (tokens at positions, of one sequence or of several: only the attention knows).
    /// Keeps the residuals of every row. Throws `InvalidArgument` on ids outside the vocabulary or too many rows.
    ///
    /// `length`: tokens of the prompt that the rows belong to, where dynamic RoPE scaling turns all of a prompt alike
    /// whatever its chunks; 0: each row is the last of its text, as in decoding.
    void forward(std::span<const std::int32_t> tokens, std::span<const std::int64_t> positions,
                 const Attention& attention, std::int64_t length = 0);

    /// Logits [rows.size(), vocab] of some rows of the last forward; computed only here. At most `max_rows` rows.
    void logits(std::span<const int> rows, std::span<float> out);

    /// [rows, hidden]: the last residuals, before the final norm.
    std::span<const float> hidden() const;

    const LoadedModel& model() const noexcept { return *model_; }
    int max_rows() const noexcept { return runner_.max_rows(); }

private:
    std::shared_ptr<const LoadedModel> model_;
    BlockRunner runner_;
    Buffer x_;
};

} // namespace oasis_decode
