// SPDX-License-Identifier: Apache-2.0
#include "app/drafts.hpp"

#include "app/session.hpp"
#include "app/stats.hpp"
#include "model/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace oasis_decode {
namespace {

using oasis::TokenId;
using oasis::detail::expects;

/// The most rows that a chain begins with: those of one step.
constexpr std::size_t kStepRows = oasis::kMaxVerifyRows;

} // namespace

void LookupDrafter::observe(std::span<const TokenId> tokens, std::span<const float>)
{
    text_.insert(text_.end(), tokens.begin(), tokens.end());
}

std::span<const Draft> LookupDrafter::propose(TokenId next, std::int32_t most, double floor)
{
    drafts_.clear();
    text_.push_back(next);
    const std::size_t size = text_.size();
    std::size_t follows = 0; // where the copy begins; 0: nothing agrees
    std::size_t agreed = 0;
    for (std::size_t end = size - 1; end > 0 && agreed < kLongest; --end) {
        // Of equally long ones the last counts, so only a longer one replaces what was found.
        std::size_t length = 0;
        while (length < kLongest && length < end && text_[end - 1 - length] == text_[size - 1 - length]) { ++length; }
        if (length > agreed) {
            agreed = length;
            follows = end;
        }
    }
    const double confidence = static_cast<double>(agreed) / static_cast<double>(kLongest);
    for (std::int32_t i = 0; agreed > 0 && confidence >= floor && i < most; ++i) {
        // A copy that reaches the end of the text goes on with what it wrote: a period is continued.
        const std::size_t from = follows + static_cast<std::size_t>(i);
        drafts_.push_back({from < size ? text_[from] : drafts_[from - size].token, confidence});
    }
    text_.pop_back();
    return drafts_;
}

void OracleDrafter::observe(std::span<const TokenId> tokens, std::span<const float>) { observed_ += tokens.size(); }

std::span<const Draft> OracleDrafter::propose(TokenId next, std::int32_t most, double)
{
    expects(observed_ < text_.size() && text_[observed_] == next, "OracleDrafter: token ", next, " at position ",
            observed_, " is not that of the known text");
    drafts_.clear();
    for (std::size_t at = observed_ + 1; at < text_.size() && drafts_.size() < static_cast<std::size_t>(most); ++at) {
        drafts_.push_back({text_[at], 1.0});
    }
    return drafts_;
}

MtpDrafter::MtpDrafter(Engine& engine, std::shared_ptr<const MtpWeights> weights, std::int64_t context,
                       std::int32_t window, std::size_t vocabulary)
    : engine_(engine),
      window_(window),
      head_(engine.model, std::move(weights), engine.threads, kChunkRows),
      queue_(engine.threads),
      logits_(std::min(engine.vocabulary(), vocabulary))
{
    oasis::CacheConfig config;
    config.shape = engine.config().shape();
    config.shape.layers = 1;
    config.dense_layers = {0};
    config.share_prefixes = false;
    // A chain goes beyond the text by its own rows.
    config.limits = {.max_sequences = 1, .max_rows = kChunkRows, .max_context = context + oasis::kMaxVerifyRows + 1};
    cache_ = engine.caches.make(config);
    const oasis::CreateResult created = cache_->create({});
    if (!created) { throw oasis::Error("the draft head's cache cannot take its sequence"); }
    sequence_ = created.id;
}

void MtpDrafter::observe(std::span<const TokenId> tokens, std::span<const float> residuals)
{
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    residuals_.insert(residuals_.end(), residuals.begin(), residuals.end());
    // More than a step's rows wait only after a prompt, or where nothing was drafted.
    if (tokens_.size() > kStepRows) { flush(1); }
}

/// Takes in the oldest rows, all but `keep`: the last one has to wait for the token after it.
void MtpDrafter::flush(std::size_t keep)
{
    const auto width = static_cast<std::size_t>(engine_.config().hidden);
    std::size_t done = 0;
    while (done + keep < tokens_.size()) {
        const std::size_t rows = std::min(tokens_.size() - keep - done, static_cast<std::size_t>(kChunkRows));
        run_rows(std::span(residuals_).subspan(done * width, rows * width), std::span(tokens_).subspan(done + 1, rows),
                 true);
        done += rows;
    }
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(done));
    residuals_.erase(residuals_.begin(), residuals_.begin() + static_cast<std::ptrdiff_t>(done * width));
}

void MtpDrafter::run_rows(std::span<const float> residuals, std::span<const TokenId> next, bool prefill)
{
    const auto rows = static_cast<std::int32_t>(next.size());
    const oasis::RowGroup group{.sequence = sequence_,
                                .verify_rows = prefill ? 0 : rows,
                                .lookahead_rows = 0,
                                .prefill_tokens = prefill ? rows : 0};
    positions_.resize(next.size());
    std::iota(positions_.begin(), positions_.end(), length());
    oasis::Step step = cache_->begin_step(queue_, std::span(&group, 1));
    if (!step) { throw oasis::Error(fmt::format("the draft head's cache is full at token {}", length())); }
    const Attention attention = [&](int layer, const float* q, const float* k, const float* v, float* out) {
        oasis::AttendArgs args{.q = q, .k = k, .v = v};
        if (out) { args.out = out; }
        args.window = window_;
        cache_->enqueue_attend(queue_, step, layer, args);
    };
    const MtpHead::Rows in{residuals, next, positions_};
    if (prefill) {
        head_.keys(in, attention);
    } else {
        head_.forward(in, attention);
    }
    const oasis::Accepted accepted{.rows = rows};
    cache_->commit(queue_, std::move(step), std::span(&accepted, 1));
}

Draft MtpDrafter::pick(int row)
{
    head_.logits(row, logits_);
    const std::size_t best = argmax(logits_);
    return {static_cast<TokenId>(best), 1.0 / static_cast<double>(sum_exp(logits_, logits_[best]))};
}

std::span<const Draft> MtpDrafter::propose(TokenId next, std::int32_t most, double floor)
{
    drafts_.clear();
    if (most <= 0 || tokens_.empty()) { return drafts_; }
    if (tokens_.size() > kStepRows) { flush(1); }
    const auto width = static_cast<std::size_t>(engine_.config().hidden);
    std::vector<TokenId>& after = tokens_; // the waiting rows, each with the token after it
    after.push_back(next);
    run_rows(residuals_, std::span(after).subspan(1), false);
    int last = static_cast<int>(after.size()) - 2;
    tokens_.clear();
    residuals_.clear();
    const oasis::TokenIndex stands = length();
    for (double confidence = 1;;) {
        Draft draft = pick(last);
        // A draft stands only if those before it do.
        draft.confidence = confidence *= draft.confidence;
        if (!(draft.confidence >= floor)) { break; }
        drafts_.push_back(draft);
        if (drafts_.size() == static_cast<std::size_t>(most)) { break; }
        const std::span<const float> output = head_.output().subspan(static_cast<std::size_t>(last) * width, width);
        chained_.assign(output.begin(), output.end());
        run_rows(chained_, std::span(&draft.token, 1), false);
        last = 0;
    }
    if (length() > stands) { cache_->truncate(sequence_, stands); }
    return drafts_;
}

std::filesystem::path head_path(const Settings& settings, const std::filesystem::path& model)
{
    if (settings.draft != DraftSource::kMtp) { return {}; }
    return settings.draft_file.empty() ? mtp_beside(model) : std::filesystem::path(settings.draft_file);
}

std::int32_t residual_width(std::span<const Settings> settings, const ModelConfig& config)
{
    const bool some =
        std::any_of(settings.begin(), settings.end(), [](const Settings& s) { return s.draft == DraftSource::kMtp; });
    return some ? config.hidden : 0;
}

Drafting make_drafting(Engine& engine, const Settings& settings, const std::filesystem::path& model,
                       std::int64_t context, std::span<const TokenId> truth)
{
    Drafting out{.drafter = nullptr,
                 .tokens = settings.resolved_draft_tokens(),
                 .floor = settings.resolved_draft_floor(),
                 .lookahead_rows = settings.lookahead == oasis::LookaheadSource::kRows ? settings.lookahead_rows : 0,
                 .gated = settings.resolved_draft_floor() > 0};
    switch (settings.draft) {
    case DraftSource::kNone: break;
    case DraftSource::kLookup: out.drafter = std::make_unique<LookupDrafter>(); break;
    case DraftSource::kMtp:
        out.drafter = std::make_unique<MtpDrafter>(engine, engine.head(head_path(settings, model)), context,
                                                   settings.draft_window);
        break;
    case DraftSource::kOracle:
        out.drafter = std::make_unique<OracleDrafter>(std::vector<TokenId>(truth.begin(), truth.end()));
        break;
    }
    return out;
}

} // namespace oasis_decode
