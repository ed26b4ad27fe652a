// SPDX-License-Identifier: Apache-2.0
//
// The laws of a summary policy. For one of your own (default-constructible):
//     INSTANTIATE_TYPED_TEST_SUITE_P(Mine, SummaryContract, MySummary);
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/score/block_scorer.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace oasis::contracts {

template <class Policy> class SummaryContract : public testing::Test {
protected:
    static_assert(check_summary<Policy>());
    static constexpr std::int32_t kDim = 48;

    struct Written {
        std::vector<float> values =
            std::vector<float>(2 * kDim + 2, -12345.0F); // planes, then the spread, then a canary
    };

    std::vector<float> numbers(std::size_t n, float scale = 1.0F)
    {
        std::vector<float> result(n);
        for (float& x : result) { x = normal_(random_) * scale; }
        return result;
    }

    static Written summarise(const Policy& policy, KeyRows keys)
    {
        Written w;
        policy.summarise(keys,
                         SummaryRow{.plane = {w.values.data(), policy.planes() == 2 ? w.values.data() + kDim : nullptr},
                                    .spread = policy.has_spread() ? w.values.data() + 2 * kDim : nullptr});
        return w;
    }

    static Written weigh(const Policy& policy, const float* q, float scale)
    {
        Written w;
        policy.weigh(q, kDim, scale,
                     QueryWeights{.plane = {w.values.data(), policy.planes() == 2 ? w.values.data() + kDim : nullptr},
                                  .spread = policy.has_spread() ? w.values.data() + 2 * kDim : nullptr});
        return w;
    }

    /// Every promised value is finite, everything else untouched.
    static void expect_written(const Policy& policy, const Written& w)
    {
        for (std::size_t i = 0; i < w.values.size(); ++i) {
            const bool promised = i < std::size_t(policy.planes() * kDim) || (i == 2 * kDim && policy.has_spread());
            if (promised) {
                EXPECT_TRUE(std::isfinite(w.values[i])) << "value " << i;
                EXPECT_NE(w.values[i], -12345.0F) << "value " << i << " was not written";
            } else {
                EXPECT_EQ(w.values[i], -12345.0F) << "value " << i << " is not the policy's to write";
            }
        }
    }

    /// log of the estimate of one sub-block of `tokens` keys through the scorer.
    static float score(const Policy& policy, SummaryCode code, const std::vector<float>& keys, std::int32_t tokens,
                       const float* q, float scale)
    {
        const BlockScorer<Policy> scorer(policy, {.kind = {}, .tokens = 16, .code = code}, kDim, 16);
        std::vector<std::byte> tail(scorer.layout().tail_bytes());
        scorer.write_tail(tail.data(), {keys.data(), tokens, kDim, kDim});
        const std::byte* tails[] = {tail.data()};
        const SummaryGroupRef group{};
        const TokenIndex position = tokens - 1;
        std::vector<float> out(64);
        scorer.score({.q = q,
                      .q_row_stride = kDim,
                      .rows = 1,
                      .group = 1,
                      .scale = scale,
                      .position = &position,
                      .tail = tails,
                      .groups = {&group, 1},
                      .first_group = 0,
                      .recent = 0,
                      .log_mass = out.data(),
                      .stride = 64});
        return out[0];
    }

    /// Log masses of the 64 blocks of a coded group, one sub-block each; scale 1.
    static std::vector<float> score_group(const Policy& policy, SummaryCode code, const std::vector<float>& keys,
                                          const float* q)
    {
        const BlockScorer<Policy> scorer(policy, {.kind = {}, .tokens = 16, .code = code}, kDim, 16);
        std::vector<std::byte> native(scorer.layout().native_bytes());
        std::vector<std::byte> coded(scorer.layout().coded_bytes());
        for (std::int32_t s = 0; s < 64; ++s) {
            scorer.write_sub_block(native.data(), s, {keys.data() + s * 16 * kDim, 16, kDim, kDim});
        }
        scorer.close_group(native.data(), 64, coded.data());
        const SummaryGroupRef group{nullptr, coded.data()};
        const TokenIndex position = 1023;
        std::vector<float> out(64);
        scorer.score({.q = q,
                      .q_row_stride = kDim,
                      .rows = 1,
                      .group = 1,
                      .scale = 1.0F,
                      .position = &position,
                      .tail = nullptr,
                      .groups = {&group, 1},
                      .first_group = 0,
                      .recent = 0,
                      .log_mass = out.data(),
                      .stride = 64});
        return out;
    }

    std::mt19937 random_{12};
    std::normal_distribution<float> normal_;
};
TYPED_TEST_SUITE_P(SummaryContract);

TYPED_TEST_P(SummaryContract, HasOneOrTwoPlanes)
{
    const TypeParam policy{};
    EXPECT_GE(policy.planes(), 1);
    EXPECT_LE(policy.planes(), 2);
}

TYPED_TEST_P(SummaryContract, WritesWhatItPromisesAndNoMore)
{
    const TypeParam policy{};
    const auto q = this->numbers(this->kDim);
    this->expect_written(policy, this->weigh(policy, q.data(), 0.144F));
    for (const std::int32_t tokens : {1, 2, 3, 16}) {
        const auto keys = this->numbers(std::size_t(tokens * this->kDim));
        const auto written = this->summarise(policy, {keys.data(), tokens, this->kDim, this->kDim});
        this->expect_written(policy, written);
        if (policy.has_spread()) { EXPECT_GE(written.values[2 * this->kDim], 0.0F) << "a spread is not negative"; }
    }
}

TYPED_TEST_P(SummaryContract, IsAPureFunctionOfTheKeys)
{
    const TypeParam policy{};
    const auto keys = this->numbers(std::size_t(4 * this->kDim));
    std::vector<float> apart(4 * 100, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t t = 0; t < 4; ++t) {
        std::copy_n(keys.data() + t * std::size_t(this->kDim), this->kDim, apart.data() + t * 100);
    }
    const auto once = this->summarise(policy, {keys.data(), 4, this->kDim, this->kDim});
    const auto again = this->summarise(TypeParam{}, {apart.data(), 4, this->kDim, 100});
    EXPECT_EQ(once.values, again.values);
}

/// For one key the estimate is its logit: what a summary loses, it loses between keys.
TYPED_TEST_P(SummaryContract, OneKeyIsItsLogit)
{
    const TypeParam policy{};
    for (int round = 0; round < 20; ++round) {
        const auto key = this->numbers(std::size_t(this->kDim));
        const auto q = this->numbers(std::size_t(this->kDim));
        double logit = 0.0;
        for (std::size_t c = 0; c < key.size(); ++c) { logit += 0.144 * double(key[c]) * q[c]; }
        const float got = this->score(policy, SummaryCode::kF32, key, 1, q.data(), 0.144F);
        if (policy.is_upper_bound()) {
            EXPECT_GE(got + 1e-4, logit);
        } else {
            EXPECT_NEAR(got, logit, 1e-3);
        }
    }
}

TYPED_TEST_P(SummaryContract, AnUpperBoundIsOneInEveryCode)
{
    const TypeParam policy{};
    if (!policy.is_upper_bound()) { GTEST_SKIP() << "the policy does not claim to be a bound; those that do run this"; }
    for (const SummaryCode code : {SummaryCode::kF32, SummaryCode::kF16, SummaryCode::kInt8, SummaryCode::kInt4}) {
        for (const float size : {1.0F, 1e-3F}) {
            // Sixteen times the same key and a long query: what rounding loses outweighs log n.
            auto keys = this->numbers(std::size_t(1024 * this->kDim), size);
            const auto row = [&keys](std::int64_t t) { return keys.begin() + t * SummaryContract<TypeParam>::kDim; };
            for (std::int64_t t = 0; t < 1024; ++t) { std::copy_n(row(t / 16 * 16), this->kDim, row(t)); }
            const auto q = this->numbers(std::size_t(this->kDim), 1e5F);
            const auto bounds = this->score_group(policy, code, keys, q.data());
            for (std::int64_t block = 0; block < 64; ++block) {
                double logit = 0.0;
                double total = 0.0;
                for (std::int32_t c = 0; c < this->kDim; ++c) {
                    const double term = double(row(block * 16)[c]) * q[std::size_t(c)];
                    logit += term;
                    total += std::abs(term);
                }
                ASSERT_GE(bounds[std::size_t(block)] + 2e-6 * total, logit)
                    << "code " << int(code) << " block " << block;
            }
        }
    }
}

REGISTER_TYPED_TEST_SUITE_P(SummaryContract, HasOneOrTwoPlanes, WritesWhatItPromisesAndNoMore, IsAPureFunctionOfTheKeys,
                            OneKeyIsItsLogit, AnUpperBoundIsOneInEveryCode);

} // namespace oasis::contracts
