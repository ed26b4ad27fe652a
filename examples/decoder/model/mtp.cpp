// SPDX-License-Identifier: Apache-2.0
#include "model/mtp.hpp"

#include "model/kernels.hpp"
#include "model/safetensors.hpp"

#include <algorithm>

namespace oasis_decode {

using oasis::detail::expects;

std::shared_ptr<const MtpWeights> load_mtp(const std::filesystem::path& path, const ModelConfig& config, Compute compute)
{
    const SafetensorsFile file(path);
    WeightReader reader(file, compute);
    const std::int64_t hidden = config.hidden;
    auto weights = std::make_shared<MtpWeights>();
    weights->residual_norm = reader.read("mtp.hnorm.weight", {hidden});
    weights->embedding_norm = reader.read("mtp.enorm.weight", {hidden});
    weights->projection = reader.matrix({{"mtp.proj.weight", hidden, 0}}, 2 * hidden);
    weights->block = read_block(reader, config, hf_block_names("mtp.layers.0."));
    weights->final_norm = reader.read("mtp.norm.weight", {hidden});
    for (const auto& name : file.names()) {
        if (!reader.used().contains(name)) {
            fail(file.label(), ": tensor ", legible(name), " is no part of a draft head of one block");
        }
    }
    return weights;
}

std::filesystem::path mtp_beside(const std::filesystem::path& model)
{
    return (is_folder(model) ? model : model.parent_path()) / "mtp.safetensors";
}

MtpHead::MtpHead(std::shared_ptr<const LoadedModel> model, std::shared_ptr<const MtpWeights> weights,
                 oasis::Executor& executor, int max_rows)
    : model_(std::move(model)),
      weights_(std::move(weights)),
      runner_(model_->config, executor, max_rows, 2 * std::int64_t{model_->config.hidden}),
      x_(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(model_->config.hidden)),
      joined_(2 * x_.size())
{
}

void MtpHead::mix(const Rows& rows)
{
    const ModelConfig& config = model_->config;
    const std::size_t count = rows.next.size();
    const auto width = static_cast<std::size_t>(config.hidden);
    expects(rows.positions.size() == count && rows.residuals.size() == count * width, "MtpHead: ", count,
            " tokens with ", rows.positions.size(), " positions and ", rows.residuals.size(), " values of residuals");
    runner_.set_positions(rows.positions);
    oasis::Executor& executor = runner_.executor();
    const auto n = static_cast<std::int64_t>(count);
    // The two halves are normed one after the other in x, then stand side by side.
    rms_norm(executor, n, config.hidden, rows.residuals.data(), weights_->residual_norm.data(), config.rms_eps,
             x_.data());
    for (std::size_t r = 0; r < count; ++r) {
        std::copy_n(x_.data() + r * width, width, joined_.data() + 2 * r * width);
    }
    for (std::size_t r = 0; r < count; ++r) {
        const TokenId token = rows.next[r];
        expects(token >= 0 && token < config.vocab, "MtpHead: token ", token, " of row ", r,
                " is outside the vocabulary of ", config.vocab);
        model_->embedding.row(token, x_.data() + r * width);
    }
    rms_norm(executor, n, config.hidden, x_.data(), weights_->embedding_norm.data(), config.rms_eps, x_.data());
    for (std::size_t r = 0; r < count; ++r) {
        std::copy_n(x_.data() + r * width, width, joined_.data() + (2 * r + 1) * width);
    }
    runner_.multiplier()({.rows = n, .w = &weights_->projection, .x = joined_.data(), .y = x_.data()});
}

void MtpHead::forward(const Rows& rows, const Attention& attention)
{
    mix(rows);
    runner_.run(weights_->block, 0, x_.data(), attention);
}

void MtpHead::keys(const Rows& rows, const Attention& attention)
{
    mix(rows);
    runner_.keys(weights_->block, 0, x_.data(), attention);
}

std::span<const float> MtpHead::output() const
{
    return x_.span().first(static_cast<std::size_t>(runner_.rows()) * static_cast<std::size_t>(model_->config.hidden));
}

void MtpHead::logits(int row, std::span<float> out)
{
    const ModelConfig& config = model_->config;
    expects(row >= 0 && row < runner_.rows(), "MtpHead::logits: row ", row, " of ", runner_.rows());
    expects(!out.empty() && out.size() <= static_cast<std::size_t>(config.vocab), "MtpHead::logits: room for ",
            out.size(), " values with a vocabulary of ", config.vocab);
    float* const normed = runner_.spare();
    rms_norm(runner_.executor(), 1, config.hidden, x_.data() + std::int64_t{row} * config.hidden,
             weights_->final_norm.data(), config.rms_eps, normed);
    runner_.multiplier()({.rows = 1,
                          .w = &model_->output_matrix(),
                          .x = normed,
                          .y = out.data(),
                          .outputs = static_cast<std::int64_t>(out.size())});
}

} // namespace oasis_decode
