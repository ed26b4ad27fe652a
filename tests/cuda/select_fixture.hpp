// SPDX-License-Identifier: Apache-2.0
//
// Rows of scores for the selection on the device, and what must hold of the sets.
#pragma once

#include "support.hpp"

#include "oracle/scoring.hpp"

#include <oasis/cuda/select.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace oasis::cuda::test {

using Ids = std::vector<std::int32_t>;
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Rows of log masses, and what became of them.
struct SelectWorld {
    std::int32_t heads = 1;
    std::int32_t group = 1;
    std::int32_t stride = 0;
    std::int32_t must_blocks = 64;
    std::int32_t may_blocks = 128;
    std::int32_t sink = 0;
    std::int32_t recent = 0;
    std::int32_t window = 0;
    std::int32_t max_blocks = 0; ///< 0: the stride
    GroupReduction reduction = GroupReduction::kMax;
    std::vector<TokenIndex> position{};
    std::vector<float> mass{}; ///< [rows, heads, group, stride]

    std::vector<Ids> must{}; ///< [rows, heads], with what follows the count
    std::vector<Ids> may{};
    std::vector<std::int32_t> count{};
    std::vector<float> score{};

    std::size_t sets() const { return position.size() * std::size_t(heads); }

    void select(Queue queue)
    {
        const auto masses = upload(queue, mass);
        const auto positions = upload(queue, position);
        const auto musts = poisoned<std::int32_t>(queue, sets() * std::size_t(must_blocks));
        const auto mays = poisoned<std::int32_t>(queue, sets() * std::size_t(may_blocks));
        enqueue_fill(queue, musts.data(), musts.size(), 0x7F);
        enqueue_fill(queue, mays.data(), mays.size(), 0x7F);
        const auto counts = poisoned<std::int32_t>(queue, sets() * 2);
        const auto scores = poisoned<float>(queue, sets() * std::size_t(stride));
        enqueue_select(queue, {.log_mass = masses.data(),
                               .mass_stride = stride,
                               .position = positions.data(),
                               .must = musts.data(),
                               .may = mays.data(),
                               .count = counts.data(),
                               .score = scores.data(),
                               .rows = std::int32_t(position.size()),
                               .kv_heads = heads,
                               .group = group,
                               .max_blocks = max_blocks > 0 ? max_blocks : stride,
                               .block_tokens = 16,
                               .sink = sink,
                               .recent = recent,
                               .window = window,
                               .must_blocks = must_blocks,
                               .may_blocks = may_blocks,
                               .reduction = reduction});
        const auto all_must = download(queue, musts);
        const auto all_may = download(queue, mays);
        count = download(queue, counts);
        score = download(queue, scores);
        must.clear();
        may.clear();
        for (std::size_t s = 0; s < sets(); ++s) {
            must.emplace_back(all_must.begin() + std::ptrdiff_t(s) * must_blocks, all_must.begin() + std::ptrdiff_t(s + 1) * must_blocks);
            may.emplace_back(all_may.begin() + std::ptrdiff_t(s) * may_blocks, all_may.begin() + std::ptrdiff_t(s + 1) * may_blocks);
        }
    }

    /// The sets are those of a full sort of the scores that the device wrote, and with `kMax` these are the largest log masses.
    void expect_sorted() const
    {
        for (std::size_t s = 0; s < sets(); ++s) {
            const TokenIndex p = position[s / std::size_t(heads)];
            const auto end = std::int32_t(p < 0 ? 0 : p / 16 + 1);
            const auto first = std::int32_t(window > 0 ? std::max<TokenIndex>(0, p + 1 - window) / 16 : 0);
            const std::vector<float> scores(score.begin() + std::ptrdiff_t(s) * stride + first,
                                            score.begin() + std::ptrdiff_t(s) * stride + std::max(first, end));
            if (reduction == GroupReduction::kMax) { expect_largest(s, first, scores); }
            if (::testing::Test::HasFatalFailure()) { return; }
            const auto begin = std::max(first, std::int32_t(std::max<TokenIndex>(0, p + 1 - recent) / 16));
            const std::int32_t sinks = std::min((sink + 15) / 16, begin);
            Ids musts = oracle::best_blocks(scores, first, sinks, begin, std::size_t(must_blocks));
            const Ids both = oracle::best_blocks(scores, first, sinks, begin, std::size_t(may_blocks));
            Ids mays;
            std::set_difference(both.begin(), both.end(), musts.begin(), musts.end(), std::back_inserter(mays));
            ASSERT_EQ(count[2 * s], std::int32_t(musts.size())) << "set " << s;
            ASSERT_EQ(count[2 * s + 1], std::int32_t(mays.size())) << "set " << s;
            musts.resize(std::size_t(must_blocks), -1);
            mays.resize(std::size_t(may_blocks), -1);
            ASSERT_EQ(must[s], musts) << "set " << s << " of " << scores.size() << " blocks";
            ASSERT_EQ(may[s], mays) << "set " << s << " of " << scores.size() << " blocks";
        }
    }

    /// Each score is the largest of the heads' log masses, NaN where all are.
    void expect_largest(std::size_t set, std::int32_t first, const std::vector<float>& scores) const
    {
        for (std::size_t i = 0; i < scores.size(); ++i) {
            float largest = kNaN;
            for (std::size_t h = 0; h < std::size_t(group); ++h) {
                const float x = mass[(set * std::size_t(group) + h) * std::size_t(stride) + std::size_t(first) + i];
                if (!(x <= largest)) { largest = std::isnan(x) ? largest : x; }
            }
            ASSERT_TRUE(scores[i] == largest || (std::isnan(scores[i]) && std::isnan(largest)))
                << "set " << set << " block " << std::size_t(first) + i << " has " << scores[i] << ", not " << largest;
        }
    }
};

/// One row of given scores.
inline SelectWorld plain(std::vector<float> scores, std::int32_t must, std::int32_t may)
{
    SelectWorld world{.must_blocks = must, .may_blocks = may};
    world.position = {TokenIndex(scores.size()) * 16 - 1};
    world.stride = std::max(4, std::int32_t(scores.size() + 3) / 4 * 4);
    scores.resize(std::size_t(world.stride), 1e30F);
    world.mass = std::move(scores);
    return world;
}

class CudaSelect : public CudaTest {
protected:
    void expect_right(SelectWorld world)
    {
        world.select(queue());
        world.expect_sorted();
    }
};

} // namespace oasis::cuda::test
