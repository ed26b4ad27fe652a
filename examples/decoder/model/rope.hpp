// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding: what a model's files say of it, and the angles that follow. Queries and keys are turned
// pair by pair; the ways to reach beyond the context of training all change how fast the pairs turn.
#pragma once

#include "model/gguf.hpp"
#include "model/json.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

/// More tokens than a model can say that it reaches; keeps sums and products of positions far from overflow.
inline constexpr std::int64_t kMostContext = std::int64_t{1} << 31;

enum class RopeScaling : std::uint8_t {
    kNone,
    kLinear,  ///< every frequency divided by the factor
    kDynamic, ///< a larger theta, the longer the text is beyond the original context ("dynamic NTK")
    kYarn,    ///< slow pairs divided, fast ones kept, a ramp between them; longer vectors (arXiv:2309.00071)
    kLlama3   ///< the same with another ramp (Llama 3.1)
};

std::string_view name(RopeScaling scaling) noexcept;

struct RopeConfig {
    double theta = 10000.0;
    RopeScaling scaling = RopeScaling::kNone;
    double factor = 1.0;
    std::int64_t original_context = 0; ///< tokens of training, before the context was stretched
    double beta_fast = 32.0;       ///< yarn: pairs with this many turns in the original context keep their frequency
    double beta_slow = 1.0;        ///< yarn: pairs with fewer turns are divided by the factor
    bool truncate = true;          ///< yarn: the ends of the ramp are whole pairs
    double attention_factor = 1.0; ///< yarn: the length of turned vectors
    double low_factor = 1.0;       ///< llama3: as beta_slow
    double high_factor = 4.0;      ///< llama3: as beta_fast
    std::vector<float> divisors{}; ///< of each pair's frequency (tensor rope_freqs.weight); empty: all 1

    /// "theta 1e+06, yarn 4 x 32768 tokens"
    std::string text() const;
    /// What the model can reach when its files give `context`: the stretched original where that is more.
    std::int64_t reach(std::int64_t context) const noexcept;
};

/// From config.json: "rope_parameters", or "rope_scaling" and "rope_theta". `context` is "max_position_embeddings".
/// Throws `ModelError` on a type or a setting that is not known.
RopeConfig rope_from_json(const Json& config, std::int64_t context, const std::string& what);

/// From the keys `prefix`.rope.* and the tensor rope_freqs.weight.
RopeConfig rope_from_gguf(const GgufFile& file, const std::string& prefix, std::int64_t context, std::int32_t head_dim);

/// Cosines and sines for the pairs of a head.
class Rope {
public:
    Rope(RopeConfig config, std::int32_t head_dim);

    /// Cosine and sine [head_dim / 2] at `position` of a text of `length` tokens. Only dynamic scaling looks at the
    /// length.
    void angles(std::int64_t position, std::int64_t length, float* cosine, float* sine) const;

    /// Radians a token of each pair, in a text within the original context.
    std::span<const double> frequencies() const noexcept { return frequencies_; }

private:
    void stretch_yarn();
    void stretch_llama3();

    RopeConfig config_;
    std::int32_t head_dim_;
    std::vector<double> frequencies_;
};

} // namespace oasis_decode
