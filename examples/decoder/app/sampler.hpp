// SPDX-License-Identifier: Apache-2.0
//
// From logits to a token. The random number of a position depends on the seed and the position alone, so that
// decoding several tokens at once, or again, gives the same text.
#pragma once

#include <oasis/core/types.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace oasis_decode {

class Sampler {
public:
    /// temperature 0: the likeliest token. top_p: only the likeliest tokens whose shares reach it.
    Sampler(double temperature, double top_p, std::uint64_t seed) noexcept
        : temperature_(temperature), top_p_(top_p), seed_(seed)
    {
    }

    /// The token that goes to `position`.
    oasis::TokenId pick(std::span<const float> logits, std::int64_t position);

private:
    struct Candidate {
        double share;
        std::int32_t token;
    };

    double temperature_;
    double top_p_;
    std::uint64_t seed_;
    std::vector<Candidate> candidates_;
};

} // namespace oasis_decode
