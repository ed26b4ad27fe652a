// SPDX-License-Identifier: Apache-2.0
//
// Where drafted tokens come from. A draft is only a guess: what is written never depends on it.
#pragma once

#include "app/settings.hpp"
#include "model/mtp.hpp"

#include <oasis/any_cache.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace oasis_decode {

struct Engine;

struct Draft {
    oasis::TokenId token = 0;
    double confidence = 1; ///< of it and those before it, from 0 to 1
};

/// Follows one sequence and guesses how it goes on.
class Drafter {
public:
    virtual ~Drafter() = default;

    /// Takes in rows that stand: their tokens, in order, and the model's residuals [tokens, hidden], or nothing unless
    /// `needs_residuals`.
    virtual void observe(std::span<const oasis::TokenId> tokens, std::span<const float> residuals) = 0;

    /// Guesses what follows `next`, which follows all that was observed and will be observed in its turn. At most
    /// `most` drafts; ends before the first whose confidence is below `floor`. Valid until the next call.
    virtual std::span<const Draft> propose(oasis::TokenId next, std::int32_t most, double floor) = 0;

    virtual bool needs_residuals() const noexcept { return false; }

protected:
    Drafter() = default;
    Drafter(const Drafter&) = default;
    Drafter& operator=(const Drafter&) = default;
};

/// Prompt lookup: the longest end of the text, at most three tokens, that occurred before, at its last occurrence; what
/// followed there is proposed. The confidence is the share of three tokens that agreed.
class LookupDrafter final : public Drafter {
public:
    static constexpr std::size_t kLongest = 3;

    void observe(std::span<const oasis::TokenId> tokens, std::span<const float> residuals) override;
    std::span<const Draft> propose(oasis::TokenId next, std::int32_t most, double floor) override;

private:
    std::vector<oasis::TokenId> text_;
    std::vector<Draft> drafts_;
};

/// The true text, for forced decoding alone: what drafts could do at best.
class OracleDrafter final : public Drafter {
public:
    explicit OracleDrafter(std::vector<oasis::TokenId> text) : text_(std::move(text)) {}

    void observe(std::span<const oasis::TokenId> tokens, std::span<const float> residuals) override;
    std::span<const Draft> propose(oasis::TokenId next, std::int32_t most, double floor) override;

private:
    std::vector<oasis::TokenId> text_;
    std::size_t observed_ = 0;
    std::vector<Draft> drafts_;
};

/// A multi-token-prediction head. Its K and V lie in a cache of its own, one dense layer: rows are committed as the
/// tokens after them become known, those of a chain are committed too and then truncated.
class MtpDrafter final : public Drafter {
public:
    /// Ids that a head chooses from: in a vocabulary by merges the frequent tokens come first, and reading the whole
    /// output matrix would take three quarters of a draft's time.
    static constexpr std::size_t kDraftVocabulary = 16384;

    /// For sequences of up to `context` tokens. `window`: the head attends to that many tokens; 0: to all. Drafts have
    /// ids below `vocabulary`.
    MtpDrafter(Engine& engine, std::shared_ptr<const MtpWeights> weights, std::int64_t context, std::int32_t window = 0,
               std::size_t vocabulary = kDraftVocabulary);

    void observe(std::span<const oasis::TokenId> tokens, std::span<const float> residuals) override;
    std::span<const Draft> propose(oasis::TokenId next, std::int32_t most, double floor) override;
    bool needs_residuals() const noexcept override { return true; }

    /// Rows whose K and V stand.
    oasis::TokenIndex length() const { return cache_->length(sequence_); }

private:
    void flush(std::size_t keep);
    void run_rows(std::span<const float> residuals, std::span<const oasis::TokenId> next, bool prefill);
    Draft pick(int row);

    Engine& engine_;
    std::int32_t window_;
    MtpHead head_;
    std::unique_ptr<oasis::AnyKVCache> cache_;
    oasis::SequenceId sequence_ = oasis::SequenceId::kNone;
    oasis::Queue queue_;
    std::vector<oasis::TokenId> tokens_; ///< of the observed rows that are not in the cache yet, the oldest first
    std::vector<float> residuals_;       ///< of the same rows
    std::vector<std::int64_t> positions_;
    std::vector<float> chained_;
    std::vector<float> logits_;
    std::vector<Draft> drafts_;
};

/// How a session drafts.
struct Drafting {
    std::unique_ptr<Drafter> drafter{}; ///< null: it does not
    std::int32_t tokens = 0;            ///< drafts to verify in a step
    double floor = 0;                   ///< drafts of less confidence are not used
    std::int32_t lookahead_rows = 0;    ///< this many drafts more go ahead as lookahead rows, at most 2
    bool gated = false;                 ///< most steps go without drafts while these hardly stand
};

/// The drafts that the settings ask for, for a sequence of up to `context` tokens. `truth`: the whole text, if it is
/// known. The model's file says where its head is looked for.
Drafting make_drafting(Engine& engine, const Settings& settings, const std::filesystem::path& model,
                       std::int64_t context, std::span<const oasis::TokenId> truth = {});

/// How wide the residuals are that some of the settings need of a prompt; 0: none of them does.
std::int32_t residual_width(std::span<const Settings> settings, const ModelConfig& config);

/// The head's file under these settings; empty when no head is asked for.
std::filesystem::path head_path(const Settings& settings, const std::filesystem::path& model);

} // namespace oasis_decode
