// SPDX-License-Identifier: Apache-2.0
//
// A multi-token-prediction head: one decoder block that guesses the token after the next one. Row t takes the model's
// last residual of position t, before the final norm, and the token at t + 1; what it gives is read through the
// model's output matrix as the token at t + 2. In a chain, the block's output stands in for the next residual.
#pragma once

#include "model/llama.hpp"

#include <oasis/cpu/executor.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace oasis_decode {

struct MtpWeights {
    Buffer residual_norm;  ///< [hidden], "mtp.hnorm"
    Buffer embedding_norm; ///< [hidden], "mtp.enorm"
    Matrix projection;     ///< [hidden, 2 hidden], "mtp.proj": residual columns, then embedding columns
    BlockWeights block;    ///< "mtp.layers.0"
    Buffer final_norm;     ///< [hidden], "mtp.norm"
};

/// Reads a head for a model of this shape. Throws `ModelError` that names the file and the tensor.
std::shared_ptr<const MtpWeights> load_mtp(const std::filesystem::path& path, const ModelConfig& config,
                                           Compute compute = Compute::kF32);

/// Where the head of a model lies when nobody says: `mtp.safetensors` in the model's folder.
std::filesystem::path mtp_beside(const std::filesystem::path& model);

/// Runs the head. All scratch is taken here. The attention keeps K and V of the head's only layer, 0.
class MtpHead {
public:
    MtpHead(std::shared_ptr<const LoadedModel> model, std::shared_ptr<const MtpWeights> weights,
            oasis::Executor& executor, int max_rows);

    /// Rows of residuals [rows, hidden] with the tokens that follow them.
    struct Rows {
        std::span<const float> residuals;
        std::span<const TokenId> next;
        std::span<const std::int64_t> positions;
    };

    /// The whole block; `output` then holds a row for each.
    void forward(const Rows& rows, const Attention& attention);

    /// K and V alone: the attention gets `out` null. This is all that a row leaves behind.
    void keys(const Rows& rows, const Attention& attention);

    /// [rows, hidden] of the last `forward`: what stands in for the residual in a chain.
    std::span<const float> output() const;

    /// Logits of a row of the last forward. `out` holds the vocabulary, or the first ids of it.
    void logits(int row, std::span<float> out);

    const LoadedModel& model() const noexcept { return *model_; }
    int max_rows() const noexcept { return runner_.max_rows(); }

private:
    void mix(const Rows& rows);

    std::shared_ptr<const LoadedModel> model_;
    std::shared_ptr<const MtpWeights> weights_;
    BlockRunner runner_;
    Buffer x_;      ///< [max_rows, hidden]
    Buffer joined_; ///< [max_rows, 2 hidden]
};

} // namespace oasis_decode
