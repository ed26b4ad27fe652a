// SPDX-License-Identifier: Apache-2.0
//
// One decoder block: RMSNorm, attention with RoPE, SwiGLU, residuals. The attention itself is the caller's.
#pragma once

#include "model/buffer.hpp"
#include "model/config.hpp"
#include "model/kernels.hpp"
#include "model/matrix.hpp"
#include "model/tensor.hpp"

#include <oasis/cpu/executor.hpp>

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

/// Attention of one layer for the rows of a step: q and out [rows, q_heads, d], k and v [rows, kv_heads, d], all
/// contiguous and after RoPE (halves paired). It stores k and v where later rows find them and fills out, unless null.
using Attention = std::function<void(int layer, const float* q, const float* k, const float* v, float* out)>;

/// A block's weights; matrices are [out, in].
struct BlockWeights {
    Buffer attention_norm; ///< [hidden]
    Matrix qkv;            ///< [(q_heads + 2 kv_heads) d, hidden]: query rows, key rows, value rows
    Buffer qkv_bias;       ///< [(q_heads + 2 kv_heads) d], or empty
    Buffer q_norm;         ///< [d], or empty
    Buffer k_norm;         ///< [d], or empty
    Matrix output;         ///< [hidden, q_heads d]
    Buffer output_bias;    ///< [hidden], or empty
    Buffer mlp_norm;       ///< [hidden]
    Matrix gate_up;        ///< [2 intermediate, hidden]: gate rows, up rows
    Matrix down;           ///< [hidden, intermediate]
};

/// How a container names and orders a block's tensors.
struct BlockNames {
    std::string attention_norm, q, k, v, q_norm, k_norm, output, mlp_norm, gate, up, down;
    bool adjacent_pairs =
        false; ///< q and k rows are ordered for RoPE on neighbours (GGUF's llama), to be put in halves
};
BlockNames hf_block_names(const std::string& prefix); ///< "model.layers.3."
BlockNames gguf_block_names(int layer, bool adjacent_pairs);

/// Finds tensors of a given shape, converts them, and remembers which were used. A NaN or an infinity is an error that
/// names the tensor.
class WeightReader {
public:
    explicit WeightReader(const TensorSource& source, Compute compute = Compute::kF32)
        : source_(source), compute_(compute)
    {
    }

    /// Throws `ModelError` when the tensor is missing or of another shape.
    const TensorView& require(const std::string& name, std::initializer_list<std::int64_t> shape);
    /// A vector or other small tensor, as floats.
    Buffer read(const std::string& name, std::initializer_list<std::int64_t> shape);
    const std::set<std::string>& used() const noexcept { return used_; }
    /// Types whose values were rounded to 8 bits for `Compute::kQ8`.
    const std::set<StorageType>& rounded() const noexcept { return rounded_; }

    /// A part of a matrix: `out` rows. With `head_dim` set, each head's rows are ordered for RoPE on neighbours and
    /// are put in the order of halves.
    struct Part {
        std::string name;
        std::int64_t out = 0;
        std::int64_t head_dim = 0;

        /// Where row r of the file belongs.
        std::int64_t target(std::int64_t r) const noexcept
        {
            // Within each head, row 2i + s of the file is row i + s d/2 of the halves order.
            return head_dim == 0 ? r : r / head_dim * head_dim + r % head_dim / 2 + r % 2 * (head_dim / 2);
        }
    };
    /// The biases that belong to the parts ("x.bias" to "x.weight"), in the order of the matrix' rows.
    Buffer biases(std::initializer_list<Part> parts);
    /// One matrix of all parts, one below the other, in the smallest code that holds them all.
    Matrix matrix(std::initializer_list<Part> parts, std::int64_t in);

private:
    void refuse_not_finite(const TensorView& tensor) const;

    const TensorSource& source_;
    Compute compute_;
    std::set<std::string> used_;
    std::set<StorageType> rounded_;
};

/// Reads a block, fusing q, k, v and gate, up. `config` gives hidden, heads, head_dim and intermediate.
BlockWeights read_block(WeightReader& reader, const ModelConfig& config, const BlockNames& names);

/// Runs blocks. Owns the scratch for `max_rows` rows, so that running allocates nothing.
class BlockRunner {
public:
    /// `widest`: the widest matrix that `multiplier` is asked for, when wider than those of a block.
    BlockRunner(const ModelConfig& config, oasis::Executor& executor, int max_rows, std::int64_t widest = 0);

    /// Sets the rows of the step and their positions (RoPE angles). Each row ends a text, or belongs to one of at least
    /// `length` tokens.
    void set_positions(std::span<const std::int64_t> positions, std::int64_t length = 0);

    /// x [rows, hidden] is the residual stream, changed in place.
    void run(const BlockWeights& weights, int layer, float* x, const Attention& attention);

    /// Only the block's K and V for x, which is not changed: the attention gets `out` null.
    void keys(const BlockWeights& weights, int layer, const float* x, const Attention& attention);

    int rows() const noexcept { return rows_; }
    int max_rows() const noexcept { return max_rows_; }
    Multiplier& multiplier() noexcept { return multiply_; }
    oasis::Executor& executor() const noexcept { return multiply_.executor(); }
    /// Scratch [max_rows, hidden] that is free between two runs.
    float* spare() noexcept { return normed_.data(); }

private:
    void project(const BlockWeights& weights, const float* x);
    void rotate(const BlockWeights& weights);

    ModelConfig config_;
    Multiplier multiply_;
    int max_rows_;
    int rows_ = 0;
    Rope rope_;
    Buffer cosine_, sine_, normed_, qkv_, q_, k_, v_, attended_, gate_up_, active_;
};

} // namespace oasis_decode
