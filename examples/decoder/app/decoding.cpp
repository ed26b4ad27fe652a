// SPDX-License-Identifier: Apache-2.0
#include "app/decoding.hpp"

#include "app/stats.hpp"
#include "app/terminal.hpp"

#include <algorithm>
#include <chrono>

namespace oasis_decode {

using oasis::TokenId;
using oasis::detail::expects;

void DraftStats::add(const DraftStats& other)
{
    verifications += other.verifications;
    tokens += other.tokens;
    drafted += other.drafted;
    for (std::size_t i = 0; i < kMost; ++i) {
        judged[i] += other.judged[i];
        accepted[i] += other.accepted[i];
    }
}

double DraftStats::tokens_per_verification() const noexcept
{
    return ratio(static_cast<double>(tokens), static_cast<double>(verifications));
}

std::vector<double> DraftStats::acceptance() const
{
    std::vector<double> out;
    for (std::size_t i = 0; i < kMost && judged[i] > 0; ++i) {
        out.push_back(ratio(static_cast<double>(accepted[i]), static_cast<double>(judged[i])));
    }
    return out;
}

double Usage::tokens_per_second() const noexcept { return ratio(static_cast<double>(rows), seconds); }

Usage usage_between(const oasis::Counters& start, const oasis::Counters& after_first, const oasis::Counters& end)
{
    const auto share = [](auto part, auto whole) {
        return ratio(static_cast<double>(part), static_cast<double>(whole));
    };
    Usage out;
    out.captured_mass = share(end.captured_mass - start.captured_mass, end.captured_heads - start.captured_heads);
    out.attended_tokens =
        share(end.attended_tokens - start.attended_tokens, end.sparse_row_sets - start.sparse_row_sets);
    out.fetched_tokens =
        share(end.fetched_tokens - after_first.fetched_tokens, end.sparse_row_sets - after_first.sparse_row_sets);
    out.demand_bytes = end.fetched_bytes - start.fetched_bytes;
    out.prefetch_bytes = end.prefetched_bytes - start.prefetched_bytes;
    out.late_tokens = share(end.late_tokens - after_first.late_tokens, end.sparse_row_sets - after_first.sparse_row_sets);
    out.skipped_mass = share(end.skipped_mass - start.skipped_mass, end.sparse_row_sets - start.sparse_row_sets);
    out.resident_at_use =
        share(end.resident_must_tokens - after_first.resident_must_tokens, end.must_tokens - after_first.must_tokens);
    return out;
}

namespace {

using Clock = std::chrono::steady_clock;

/// Runs `work` on the logits; what it takes is no part of decoding.
template <class Work> auto aside(double& seconds, const Work& work)
{
    const auto begin = Clock::now();
    auto out = work();
    seconds -= std::chrono::duration<double>(Clock::now() - begin).count();
    return out;
}

} // namespace

bool DraftGate::open() noexcept { return pause_ == 0 || --pause_ == 0; }

void DraftGate::saw(std::int32_t stood_drafts) noexcept
{
    constexpr double weight = 0.1;
    mean_ += weight * (static_cast<double>(stood_drafts) - mean_);
    pause_ = mean_ < kLeast ? kPause : 0;
}

std::int32_t Decoding::step(TokenId last, std::int64_t most, const Choose& choose)
{
    expects(most >= 1, "Decoding::step: ", most, " rows");
    const auto begin = Clock::now();
    const Drafting& drafting = session_.drafting();
    const bool first = rows_ == 0;
    tokens_.assign(1, last);
    std::size_t verified = 1;
    bool tried = false;
    if (drafting.drafter) {
        const bool drafts = !first && (!drafting.gated || gate_.open());
        const std::int64_t wanted = drafts ? std::min<std::int64_t>(drafting.tokens, most - 1) : 0;
        // Rows ahead are worth their time only where another step follows.
        const std::int64_t ahead = std::clamp<std::int64_t>(most - wanted - 1, 0, drafting.lookahead_rows);
        for (const Draft& draft :
             drafting.drafter->propose(last, static_cast<std::int32_t>(wanted + ahead), drafting.floor)) {
            tokens_.push_back(draft.token);
        }
        verified = std::min(tokens_.size(), static_cast<std::size_t>(wanted + 1));
        tried = wanted > 0;
    }
    double seconds = 0;
    const std::span<const TokenId> all(tokens_);
    const std::int32_t stood =
        session_.verify({all.first(verified), all.subspan(verified)}, [&](std::span<const float> logits) {
            const std::size_t width = logits.size() / verified;
            for (std::size_t row = 0;; ++row) {
                const Choice choice = aside(seconds, [&] { return choose(logits.subspan(row * width, width)); });
                const bool drafted = row + 1 < verified;
                const bool right = drafted && choice.token == tokens_[row + 1];
                if (drafted) {
                    ++drafts_.judged[row];
                    drafts_.accepted[row] += right ? 1 : 0;
                }
                if (choice.last || !right) { return static_cast<std::int32_t>(row + 1); }
            }
        });
    if (tried) {
        gate_.saw(stood - 1);
        ++drafts_.verifications;
        drafts_.tokens += stood;
        drafts_.drafted += static_cast<std::int64_t>(verified) - 1;
    }
    count(stood, seconds + std::chrono::duration<double>(Clock::now() - begin).count());
    return stood;
}

void Decoding::step_known(std::span<const TokenId> tokens, const Choose& choose)
{
    const auto begin = Clock::now();
    const std::span<const float> logits = session_.decode(tokens);
    count(static_cast<std::int32_t>(tokens.size()), std::chrono::duration<double>(Clock::now() - begin).count());
    const std::size_t width = logits.size() / tokens.size();
    for (std::size_t row = 0; row < tokens.size(); ++row) {
        static_cast<void>(choose(logits.subspan(row * width, width)));
    }
}

void Decoding::count(std::int32_t rows, double seconds)
{
    if (rows_ == 0) { after_first_ = session_.stats().counters; }
    rows_ += rows;
    ++steps_;
    seconds_ += seconds;
}

Usage Decoding::usage() const
{
    const oasis::Stats stats = session_.stats();
    Usage out = usage_between(start_, after_first_, stats.counters);
    out.rows = rows_;
    out.steps = steps_;
    out.seconds = seconds_;
    out.fast_bytes = stats.fast_bytes;
    out.slow_bytes = stats.slow_bytes;
    out.stall = stats.stall;
    double agreed = 0;
    double guesses = 0;
    for (const oasis::LayerStats& layer : session_.layer_stats()) {
        agreed += layer.agreement * static_cast<double>(layer.agreement_terms);
        guesses += static_cast<double>(layer.agreement_terms);
    }
    out.agreement = ratio(agreed, guesses);
    out.drafts = drafts_;
    return out;
}

Usage decode_forced(Session& session, std::span<const TokenId> tokens, std::int32_t rows_per_step, const RowSink& sink)
{
    expects(rows_per_step >= 1 && rows_per_step <= oasis::kMaxVerifyRows, "decode_forced: ", rows_per_step,
            " rows in a step");
    Decoding decoding(session);
    std::size_t done = 0;
    const Decoding::Choose judge = [&](std::span<const float> logits) -> Decoding::Choice {
        sink(done, logits);
        ++done;
        return done < tokens.size() ? Decoding::Choice{tokens[done], false} : Decoding::Choice{0, true};
    };
    while (done < tokens.size()) {
        if (interrupted()) { throw Interrupted(); }
        const std::size_t left = tokens.size() - done;
        if (session.drafting().drafter || done == 0) {
            decoding.step(tokens[done], static_cast<std::int64_t>(left), judge);
        } else {
            decoding.step_known(tokens.subspan(done, std::min(left, static_cast<std::size_t>(rows_per_step))), judge);
        }
    }
    return decoding.usage();
}

} // namespace oasis_decode
