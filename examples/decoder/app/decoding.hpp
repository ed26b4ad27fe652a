// SPDX-License-Identifier: Apache-2.0
//
// The decode loop: steps of the last token and drafts, of which those stand that are chosen. The text is that of
// decoding token by token, whatever is drafted.
#pragma once

#include "app/session.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace oasis_decode {

/// How drafts fared. All counts; those of several stretches add up.
struct DraftStats {
    static constexpr std::size_t kMost = oasis::kMaxVerifyRows - 1;

    std::int64_t verifications = 0;             ///< steps that asked for drafts to verify, whether or not there were any
    std::int64_t tokens = 0;                    ///< rows that stood in them
    std::int64_t drafted = 0;                   ///< drafts that were verified
    std::array<std::int64_t, kMost> judged{};   ///< drafts of an index that those before it led to
    std::array<std::int64_t, kMost> accepted{}; ///< of those, right

    void add(const DraftStats& other);
    /// NaN without verifications.
    double tokens_per_verification() const noexcept;
    /// Share of the drafts of an index that were right, given that those before them were, up to the last index used.
    std::vector<double> acceptance() const;
};

/// What a stretch of decoding cost, from differences of the cache's counters.
struct Usage {
    std::int64_t rows = 0;
    std::int64_t steps = 0;
    double seconds = 0;
    double captured_mass = 0;   ///< NaN unless measured
    double attended_tokens = 0; ///< per row, layer and set
    double fetched_tokens = 0;  ///< the same, rows after the first: the first fills the resident set
    double resident_at_use = 0; ///< share of the must tokens that were in fast memory, rows after the first
    std::size_t fast_bytes = 0;
    std::size_t slow_bytes = 0;
    std::uint64_t demand_bytes = 0;   ///< copied from the slow tier because a step needed it
    std::uint64_t prefetch_bytes = 0; ///< copied ahead of need
    double late_tokens = 0;           ///< per row, layer and set: on their way when they were needed
    double skipped_mass = 0;          ///< with `--miss bounded`: bound of the attention that was not read, per row, layer and query head group
    double agreement = 0;             ///< share of a row's must blocks that were guessed; NaN without guesses
    oasis::StallStats stall{};        ///< of all decode steps of the cache
    DraftStats drafts{};

    double tokens_per_second() const noexcept;
};

/// The usage between three readings of the counters.
Usage usage_between(const oasis::Counters& start, const oasis::Counters& after_first, const oasis::Counters& end);

/// Says when drafting does not pay: after steps in which drafts hardly stood it lets most steps go without, and tries
/// again now and then. It counts steps, not time, so that a run can be repeated.
class DraftGate {
public:
    static constexpr double kLeast = 0.3;      ///< drafts that must stand per step, on average over the last ones
    static constexpr std::int32_t kPause = 15; ///< steps without drafts between two tries

    bool open() noexcept;
    /// What came of a step for which the gate was open.
    void saw(std::int32_t stood_drafts) noexcept;

private:
    double mean_ = 1;
    std::int32_t pause_ = 0;
};

/// Runs the steps of a session with its drafts and keeps the books.
class Decoding {
public:
    explicit Decoding(Session& session) : session_(session), start_(session.stats().counters), after_first_(start_) {}

    /// What follows a row.
    struct Choice {
        oasis::TokenId token = 0;
        bool last = false; ///< nothing is decoded after it
    };
    /// Called for each row that stands, in order.
    using Choose = std::function<Choice(std::span<const float> logits)>;

    /// One step that begins with `last`, of which at most `most` rows may stand; returns how many do. The first step is
    /// a row alone, without drafts to verify.
    std::int32_t step(oasis::TokenId last, std::int64_t most, const Choose& choose);

    /// One step of given tokens; all stand.
    void step_known(std::span<const oasis::TokenId> tokens, const Choose& choose);

    /// Of all steps so far.
    Usage usage() const;

private:
    void count(std::int32_t rows, double seconds);

    Session& session_;
    oasis::Counters start_;
    oasis::Counters after_first_;
    std::int64_t rows_ = 0;
    std::int64_t steps_ = 0;
    double seconds_ = 0;
    DraftStats drafts_;
    DraftGate gate_;
    std::vector<oasis::TokenId> tokens_;
};

/// Called for each decoded row with its index and logits.
using RowSink = std::function<void(std::size_t, std::span<const float>)>;

/// Decodes `tokens` as given (teacher-forced): the first alone, then with the session's drafts, which stand where they
/// are the true tokens; without drafts up to `rows_per_step` true tokens at once. Throws `Interrupted`.
Usage decode_forced(Session& session, std::span<const oasis::TokenId> tokens, std::int32_t rows_per_step,
                    const RowSink& sink);

} // namespace oasis_decode
