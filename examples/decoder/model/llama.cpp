// SPDX-License-Identifier: Apache-2.0
#include "model/llama.hpp"

#include "model/kernels.hpp"

#include <algorithm>

namespace oasis_decode {

using oasis::detail::expects;

Llama::Llama(std::shared_ptr<const LoadedModel> model, oasis::Executor& executor, int max_rows)
    : model_(std::move(model)),
      runner_(model_->config, executor, max_rows),
      x_(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(model_->config.hidden))
{
}

void Llama::forward(std::span<const std::int32_t> tokens, std::span<const std::int64_t> positions,
                    const Attention& attention, std::int64_t length)
{
    const ModelConfig& config = model_->config;
    expects(tokens.size() == positions.size(), "forward: ", tokens.size(), " tokens at ", positions.size(),
            " positions");
    for (std::size_t r = 0; r < tokens.size(); ++r) {
        expects(tokens[r] >= 0 && tokens[r] < config.vocab, "forward: token ", tokens[r], " of row ", r,
                " is outside the vocabulary of ", config.vocab);
    }
    runner_.set_positions(positions, length);
    const auto width = static_cast<std::size_t>(config.hidden);
    for (std::size_t r = 0; r < tokens.size(); ++r) { model_->embedding.row(tokens[r], x_.data() + r * width); }
    for (int layer = 0; layer < config.layers; ++layer) {
        runner_.run(model_->blocks[static_cast<std::size_t>(layer)], layer, x_.data(), attention);
    }
}

void Llama::logits(std::span<const int> rows, std::span<float> out)
{
    const ModelConfig& config = model_->config;
    const auto width = static_cast<std::size_t>(config.hidden);
    expects(rows.size() <= static_cast<std::size_t>(runner_.max_rows()), "logits: ", rows.size(), " rows, more than ",
            runner_.max_rows());
    expects(out.size() == rows.size() * static_cast<std::size_t>(config.vocab), "logits: room for ", out.size(),
            " values, not ", rows.size(), " x ", config.vocab);
    float* normed = runner_.spare();
    for (std::size_t i = 0; i < rows.size(); ++i) {
        expects(rows[i] >= 0 && rows[i] < runner_.rows(), "logits: row ", rows[i], " of a step of ", runner_.rows(),
                " rows");
        std::copy_n(x_.data() + static_cast<std::size_t>(rows[i]) * width, width, normed + i * width);
    }
    const auto count = static_cast<std::int64_t>(rows.size());
    rms_norm(runner_.executor(), count, config.hidden, normed, model_->final_norm.data(), config.rms_eps, normed);
    runner_.multiplier()({.rows = count, .w = &model_->output_matrix(), .x = normed, .y = out.data()});
}

std::span<const float> Llama::hidden() const
{
    return x_.span().first(static_cast<std::size_t>(runner_.rows()) * static_cast<std::size_t>(model_->config.hidden));
}

} // namespace oasis_decode
