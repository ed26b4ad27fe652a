// SPDX-License-Identifier: Apache-2.0
#include "model/block.hpp"

#include "model/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace oasis_decode {
namespace {

std::size_t cells(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

} // namespace

BlockNames hf_block_names(const std::string& prefix)
{
    BlockNames names;
    names.attention_norm = prefix + "input_layernorm.weight";
    names.q = prefix + "self_attn.q_proj.weight";
    names.k = prefix + "self_attn.k_proj.weight";
    names.v = prefix + "self_attn.v_proj.weight";
    names.q_norm = prefix + "self_attn.q_norm.weight";
    names.k_norm = prefix + "self_attn.k_norm.weight";
    names.output = prefix + "self_attn.o_proj.weight";
    names.mlp_norm = prefix + "post_attention_layernorm.weight";
    names.gate = prefix + "mlp.gate_proj.weight";
    names.up = prefix + "mlp.up_proj.weight";
    names.down = prefix + "mlp.down_proj.weight";
    return names;
}

BlockNames gguf_block_names(int layer, bool adjacent_pairs)
{
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    BlockNames names;
    names.attention_norm = prefix + "attn_norm.weight";
    names.q = prefix + "attn_q.weight";
    names.k = prefix + "attn_k.weight";
    names.v = prefix + "attn_v.weight";
    names.q_norm = prefix + "attn_q_norm.weight";
    names.k_norm = prefix + "attn_k_norm.weight";
    names.output = prefix + "attn_output.weight";
    names.mlp_norm = prefix + "ffn_norm.weight";
    names.gate = prefix + "ffn_gate.weight";
    names.up = prefix + "ffn_up.weight";
    names.down = prefix + "ffn_down.weight";
    names.adjacent_pairs = adjacent_pairs;
    return names;
}

const TensorView& WeightReader::require(const std::string& name, std::initializer_list<std::int64_t> shape)
{
    const TensorView* tensor = source_.find(name);
    if (!tensor) { fail(source_.label(), ": tensor ", name, " is missing"); }
    if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
        TensorView wanted;
        wanted.shape = shape;
        fail(source_.label(), ": tensor ", name, " has shape ", tensor->shape_text(), ", not ", wanted.shape_text());
    }
    used_.insert(name);
    return *tensor;
}

void WeightReader::refuse_not_finite(const TensorView& tensor) const
{
    if (const auto at = first_not_finite(tensor)) {
        fail(source_.label(), ": tensor ", tensor.name, " of shape ", tensor.shape_text(), ": element ", *at,
             " is NaN or infinite");
    }
}

Buffer WeightReader::read(const std::string& name, std::initializer_list<std::int64_t> shape)
{
    const TensorView& tensor = require(name, shape);
    refuse_not_finite(tensor);
    Buffer buffer(static_cast<std::size_t>(tensor.elements()));
    dequantise(tensor, buffer.span());
    return buffer;
}

Buffer WeightReader::biases(std::initializer_list<Part> parts)
{
    std::vector<float> values;
    for (const Part& part : parts) {
        const std::string stem = part.name.substr(0, part.name.size() - std::string_view("weight").size());
        const Buffer bias = read(stem + "bias", {part.out});
        const std::size_t base = values.size();
        values.resize(base + bias.size());
        for (std::int64_t r = 0; r < part.out; ++r) {
            values[base + static_cast<std::size_t>(part.target(r))] = bias.data()[r];
        }
    }
    Buffer joined(values.size());
    std::ranges::copy(values, joined.data());
    return joined;
}

Matrix WeightReader::matrix(std::initializer_list<Part> parts, std::int64_t in)
{
    // Every shape is checked before memory is taken.
    std::int64_t out = 0;
    std::optional<Matrix::Code> code;
    for (const Part& part : parts) {
        const Matrix::Code own = Matrix::code_for(require(part.name, {part.out, in}).type, in, compute_);
        code = code ? Matrix::common(*code, own) : own;
        out += part.out;
    }
    Matrix matrix(code.value_or(Matrix::Code::kF32), out, in);
    std::int64_t base = 0;
    for (const Part& part : parts) {
        const TensorView& tensor = require(part.name, {part.out, in});
        refuse_not_finite(tensor);
        if (!Matrix::keeps(matrix.code(), tensor.type)) { rounded_.insert(tensor.type); }
        const std::size_t row_bytes = tensor.bytes.size() / static_cast<std::size_t>(part.out);
        for (std::int64_t r = 0; r < part.out; ++r) {
            matrix.set_row(base + part.target(r), tensor.type,
                           tensor.bytes.subspan(static_cast<std::size_t>(r) * row_bytes, row_bytes));
        }
        base += part.out;
    }
    return matrix;
}

BlockWeights read_block(WeightReader& reader, const ModelConfig& config, const BlockNames& names)
{
    const std::int64_t hidden = config.hidden;
    const std::int64_t q_rows = std::int64_t{config.q_heads} * config.head_dim;
    const std::int64_t kv_rows = std::int64_t{config.kv_heads} * config.head_dim;
    const std::int64_t inner = config.intermediate;
    const std::int64_t paired = names.adjacent_pairs ? config.head_dim : 0;
    const std::initializer_list<WeightReader::Part> qkv = {
        {names.q, q_rows, paired}, {names.k, kv_rows, paired}, {names.v, kv_rows, 0}};
    BlockWeights block;
    block.attention_norm = reader.read(names.attention_norm, {hidden});
    block.qkv = reader.matrix(qkv, hidden);
    if (config.qkv_bias) { block.qkv_bias = reader.biases(qkv); }
    if (config.qk_norm) {
        block.q_norm = reader.read(names.q_norm, {config.head_dim});
        block.k_norm = reader.read(names.k_norm, {config.head_dim});
    }
    block.output = reader.matrix({{names.output, hidden, 0}}, q_rows);
    if (config.output_bias) { block.output_bias = reader.biases({{names.output, hidden, 0}}); }
    block.mlp_norm = reader.read(names.mlp_norm, {hidden});
    block.gate_up = reader.matrix({{names.gate, inner, 0}, {names.up, inner, 0}}, hidden);
    block.down = reader.matrix({{names.down, hidden, 0}}, inner);
    return block;
}

BlockRunner::BlockRunner(const ModelConfig& config, oasis::Executor& executor, int max_rows, std::int64_t widest)
    : config_(config),
      multiply_(executor, std::max({std::int64_t{config.hidden}, std::int64_t{config.q_heads} * config.head_dim,
                                    std::int64_t{config.intermediate}, widest})),
      max_rows_(max_rows),
      rope_(config.rope, config.head_dim)
{
    oasis::detail::expects(max_rows >= 1, "BlockRunner: max_rows ", max_rows, " is less than 1");
    const std::int64_t half = config.head_dim / 2;
    const std::int64_t q_width = std::int64_t{config.q_heads} * config.head_dim;
    const std::int64_t kv_width = std::int64_t{config.kv_heads} * config.head_dim;
    cosine_ = Buffer(cells(max_rows, half));
    sine_ = Buffer(cells(max_rows, half));
    normed_ = Buffer(cells(max_rows, config.hidden));
    qkv_ = Buffer(cells(max_rows, q_width + 2 * kv_width));
    q_ = Buffer(cells(max_rows, q_width));
    k_ = Buffer(cells(max_rows, kv_width));
    v_ = Buffer(cells(max_rows, kv_width));
    attended_ = Buffer(cells(max_rows, q_width));
    gate_up_ = Buffer(cells(max_rows, 2 * std::int64_t{config.intermediate}));
    active_ = Buffer(cells(max_rows, config.intermediate));
}

void BlockRunner::set_positions(std::span<const std::int64_t> positions, std::int64_t length)
{
    oasis::detail::expects(!positions.empty() && positions.size() <= static_cast<std::size_t>(max_rows_),
                           "BlockRunner: ", positions.size(), " rows, not from 1 to ", max_rows_);
    const auto half = static_cast<std::size_t>(config_.head_dim / 2);
    for (std::size_t r = 0; r < positions.size(); ++r) {
        oasis::detail::expects(positions[r] >= 0, "BlockRunner: row ", r, " is at position ", positions[r]);
        rope_.angles(positions[r], std::max(length, positions[r] + 1), cosine_.data() + r * half,
                     sine_.data() + r * half);
    }
    rows_ = static_cast<int>(positions.size());
}

void BlockRunner::rotate(const BlockWeights& weights)
{
    const std::int64_t d = config_.head_dim;
    const std::int64_t q_width = config_.q_heads * d;
    const std::int64_t kv_width = config_.kv_heads * d;
    const std::int64_t width = q_width + 2 * kv_width;
    const auto one = [&](std::size_t row) {
        const auto r = static_cast<std::int64_t>(row);
        float* const from = qkv_.data() + r * width;
        if (!weights.qkv_bias.empty()) { add(width, weights.qkv_bias.data(), from); }
        if (!weights.q_norm.empty()) {
            norm_heads(config_.q_heads, d, weights.q_norm.data(), config_.rms_eps, from);
            norm_heads(config_.kv_heads, d, weights.k_norm.data(), config_.rms_eps, from + q_width);
        }
        const float* cosine = cosine_.data() + r * (d / 2);
        const float* sine = sine_.data() + r * (d / 2);
        rotate_heads(config_.q_heads, d, from, cosine, sine, q_.data() + r * q_width);
        rotate_heads(config_.kv_heads, d, from + q_width, cosine, sine, k_.data() + r * kv_width);
        std::copy_n(from + q_width + kv_width, kv_width, v_.data() + r * kv_width);
    };
    if (rows_ > kFewRows) {
        executor().parallel_for(static_cast<std::size_t>(rows_), one);
    } else {
        for (int r = 0; r < rows_; ++r) { one(static_cast<std::size_t>(r)); }
    }
}

void BlockRunner::project(const BlockWeights& weights, const float* x)
{
    rms_norm(executor(), rows_, config_.hidden, x, weights.attention_norm.data(), config_.rms_eps, normed_.data());
    multiply_({.rows = rows_, .w = &weights.qkv, .x = normed_.data(), .y = qkv_.data()});
    rotate(weights);
}

void BlockRunner::keys(const BlockWeights& weights, int layer, const float* x, const Attention& attention)
{
    project(weights, x);
    attention(layer, q_.data(), k_.data(), v_.data(), nullptr);
}

void BlockRunner::run(const BlockWeights& weights, int layer, float* x, const Attention& attention)
{
    const std::int64_t rows = rows_;
    const std::int64_t hidden = config_.hidden;
    project(weights, x);
    attention(layer, q_.data(), k_.data(), v_.data(), attended_.data());
    multiply_({.rows = rows, .w = &weights.output, .x = attended_.data(), .y = x, .accumulate = true});
    if (!weights.output_bias.empty()) {
        for (std::int64_t r = 0; r < rows; ++r) { add(hidden, weights.output_bias.data(), x + r * hidden); }
    }

    rms_norm(executor(), rows, hidden, x, weights.mlp_norm.data(), config_.rms_eps, normed_.data());
    multiply_({.rows = rows, .w = &weights.gate_up, .x = normed_.data(), .y = gate_up_.data()});
    swiglu(executor(), rows, config_.intermediate, gate_up_.data(), active_.data());
    multiply_({.rows = rows, .w = &weights.down, .x = active_.data(), .y = x, .accumulate = true});
}

} // namespace oasis_decode
