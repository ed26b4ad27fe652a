// SPDX-License-Identifier: Apache-2.0
#include "app/sampler.hpp"

#include "app/random.hpp"
#include "app/stats.hpp"

#include <algorithm>
#include <cmath>

namespace oasis_decode {

oasis::TokenId Sampler::pick(std::span<const float> logits, std::int64_t position)
{
    const std::size_t best = argmax(logits);
    if (temperature_ <= 0) { return static_cast<oasis::TokenId>(best); }
    candidates_.clear();
    double total = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const double share = std::exp((static_cast<double>(logits[i]) - logits[best]) / temperature_);
        candidates_.push_back({share, static_cast<std::int32_t>(i)});
        total += share;
    }
    // Ties go to the lower id, so that the order is the same everywhere.
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
        return a.share != b.share ? a.share > b.share : a.token < b.token;
    });
    std::size_t kept = 0;
    double mass = 0;
    while (kept < candidates_.size() && (kept == 0 || mass < top_p_ * total)) { mass += candidates_[kept++].share; }
    double left = uniform(seed_, static_cast<std::uint64_t>(position)) * mass;
    for (std::size_t i = 0; i + 1 < kept; ++i) {
        left -= candidates_[i].share;
        if (left < 0) { return candidates_[i].token; }
    }
    return candidates_[kept - 1].token;
}

} // namespace oasis_decode
