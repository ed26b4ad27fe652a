// SPDX-License-Identifier: Apache-2.0
//
// Selection of the device against a full sort of the same scores, and the cases that broke others.
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
namespace {

using Ids = std::vector<std::int32_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Rows of log masses, and what became of them.
struct World {
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

    /// The sets are those of a full sort of the scores that the device wrote.
    void expect_sorted() const
    {
        for (std::size_t s = 0; s < sets(); ++s) {
            const TokenIndex p = position[s / std::size_t(heads)];
            const auto end = std::int32_t(p < 0 ? 0 : p / 16 + 1);
            const auto first = std::int32_t(window > 0 ? std::max<TokenIndex>(0, p + 1 - window) / 16 : 0);
            const std::vector<float> scores(score.begin() + std::ptrdiff_t(s) * stride + first,
                                            score.begin() + std::ptrdiff_t(s) * stride + std::max(first, end));
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
};

/// One row of given scores.
World plain(std::vector<float> scores, std::int32_t must, std::int32_t may)
{
    World world{.must_blocks = must, .may_blocks = may};
    world.position = {TokenIndex(scores.size()) * 16 - 1};
    world.stride = std::max(4, std::int32_t(scores.size() + 3) / 4 * 4);
    scores.resize(std::size_t(world.stride), 1e30F);
    world.mass = std::move(scores);
    return world;
}

class CudaSelect : public CudaTest {
protected:
    void expect_right(World world)
    {
        world.select(queue());
        world.expect_sorted();
    }
};

TEST_F(CudaSelect, RandomRowsOfEveryLength)
{
    std::mt19937 random(1);
    for (const std::int32_t blocks : {40, 2048, 2049, 4096, 8192, 8193, 16384, 16388, 65536}) {
        World world{.heads = 3, .stride = (blocks + 3) / 4 * 4, .must_blocks = 1 + std::int32_t(random() % 80)};
        world.may_blocks = world.must_blocks + std::int32_t(random() % 200);
        world.sink = world.must_blocks > 20 ? 64 : 0;
        world.recent = world.must_blocks > 20 ? 128 : 0;
        world.position = {TokenIndex(blocks) * 16 - 1, -1,  TokenIndex(random() % unsigned(blocks * 16)), 0, 15, 16,
                          TokenIndex(blocks) * 8,      -100};
        world.mass.resize(world.sets() * std::size_t(world.stride));
        std::normal_distribution<float> normal(-12.0F, 4.0F);
        for (float& x : world.mass) { x = normal(random); }
        expect_right(world);
        if (HasFatalFailure()) { FAIL() << blocks << " blocks"; }
    }
}

TEST_F(CudaSelect, SCORE_01_MoreWantedThanThereAre)
{
    std::mt19937 random(2);
    for (const std::size_t n : {1U, 31U, 32U, 33U}) {
        for (const std::int32_t k : {1, 31, 32, 33, 64}) {
            std::vector<float> scores(n);
            for (float& x : scores) { x = float(random() % 100); }
            World world = plain(scores, k, k + 1);
            world.select(queue());
            world.expect_sorted();
            ASSERT_EQ(world.count[0], std::min(k, std::int32_t(n)));
        }
    }
}

TEST_F(CudaSelect, SCORE_05_TiesGoToTheLowerPosition)
{
    for (const std::size_t n : {4096U, 8192U, 20000U, 65536U}) {
        std::vector<float> scores(n, 1.5F);
        World world = plain(scores, 64, 200);
        for (int round = 0; round < 100; ++round) {
            world.select(queue());
            for (std::int32_t i = 0; i < 64; ++i) { ASSERT_EQ(world.must[0][std::size_t(i)], i); }
            for (std::int32_t i = 64; i < 200; ++i) { ASSERT_EQ(world.may[0][std::size_t(i - 64)], i); }
        }
        for (std::size_t i = 0; i < 32; ++i) { scores[n - 1 - i * 100] = 2.0F; }
        scores[5] = -0.0F;
        expect_right(plain(scores, 64, 200));
    }
    expect_right(plain({-0.0F, 0.0F, -0.0F, 0.0F}, 2, 3));
}

TEST_F(CudaSelect, SCORE_07_NaNLastMinusInfinityNever)
{
    std::vector<float> scores(16);
    for (std::size_t i = 0; i < 16; ++i) { scores[i] = -float(i); }
    scores[7] = kNaN;
    scores[9] = kInf;
    scores[11] = -kInf;
    for (const std::int32_t k : {1, 4, 13, 14, 15, 16}) { expect_right(plain(scores, k, k)); }
    for (const float x : {kNaN, -kNaN, -kInf, kInf}) { expect_right(plain(std::vector<float>(9, x), 3, 5)); }
    std::vector<float> mixed(8192, -5.0F);
    for (std::size_t i = 0; i < mixed.size(); i += 2) { mixed[i] = i % 4 == 0 ? kNaN : -kInf; }
    expect_right(plain(mixed, 4096 + 100, 4096 + 2000));
}

TEST_F(CudaSelect, SCORE_08_VeryLowScoresAreNotPadding)
{
    std::mt19937 random(3);
    for (const std::size_t n : {1U, 31U, 33U, 1023U, 1025U}) {
        std::vector<float> scores(n);
        for (float& x : scores) { x = -std::pow(10.0F, 4.85F + float(random() % 1000) / 1000.0F * 25.0F); }
        expect_right(plain(scores, 16, 16));
    }
}

TEST_F(CudaSelect, SCORE_10_ManyScoresShareTheirHighDigits)
{
    std::mt19937 random(4);
    for (const std::size_t n : {8192U, 65536U}) {
        std::vector<float> scores(n);
        for (float& x : scores) { x = -7.0F - float(random() % 600) * 0x1p-20F; }
        scores[n / 2] = -1e30F;
        scores[n / 3] = 1e30F;
        expect_right(plain(scores, 1000, 2048));
        expect_right(plain(scores, 2000, std::int32_t(n)));
    }
    World world = plain(std::vector<float>(8), 4, 4);
    world.max_blocks = world.stride = kMaxSelectBlocks + 4;
    EXPECT_THROW(world.select(queue()), Unsupported);
}

/// Sinks, the recent window and the partly filled last block are in, whatever their scores.
TEST_F(CudaSelect, SCORE_18_ForcedBlocks)
{
    for (const TokenIndex p :
         {TokenIndex{0}, TokenIndex{15}, TokenIndex{100}, TokenIndex{191}, TokenIndex{192}, TokenIndex{1003}, TokenIndex{30000}}) {
        for (const std::int32_t window : {0, 512}) {
            World world{.stride = 2048, .must_blocks = 16, .may_blocks = 24, .sink = 64, .recent = 128, .window = window, .position = {p}};
            world.mass.resize(2048);
            for (std::size_t i = 0; i < 2048; ++i) { world.mass[i] = -std::abs(float(i) - 1000.0F); }
            world.mass[0] = -kInf;
            world.mass[std::size_t(p / 16)] = kNaN;
            expect_right(world);
            if (HasFatalFailure()) { FAIL() << "position " << p << " window " << window; }
        }
    }
}

TEST_F(CudaSelect, SCORE_21_EverySlotIsWritten)
{
    World world{.heads = 2, .stride = 16, .must_blocks = 20, .may_blocks = 40, .position = {200, -1, 0}};
    world.mass.assign(world.sets() * 16, 1.0F);
    world.select(queue());
    world.expect_sorted(); // compares the slots after the count with -1
}

/// logZ and the maximum over heads, in float64.
TEST_F(CudaSelect, SCORE_17_ScoresOfAGroup)
{
    std::mt19937 random(5);
    for (const std::int32_t group : {1, 3, 5, 6, 7, 8, 16, 32}) {
        for (const std::int32_t blocks : {700, 2500, 9000}) {
            World world{.heads = 2,
                        .group = group,
                        .stride = blocks,
                        .recent = 128,
                        .window = group == 3 ? 4000 : 0,
                        .reduction = GroupReduction::kSoftmaxMax};
            world.position = {TokenIndex(blocks) * 16 - 1, TokenIndex(blocks) * 9 + 3};
            world.mass.resize(world.sets() * std::size_t(group * blocks));
            std::normal_distribution<float> normal(40.0F * float(group), 5.0F);
            for (float& x : world.mass) { x = normal(random); }
            world.mass[10] = kNaN;
            world.mass[11] = kInf;
            world.mass[12] = -kInf;
            for (std::int32_t h = 0; h < group; ++h) { world.mass[std::size_t(h * blocks) + 13] = kNaN; }
            world.select(queue());
            world.expect_sorted();
            for (std::size_t s = 0; s < world.sets(); ++s) {
                const TokenIndex p = world.position[s / 2];
                const std::size_t end = std::size_t(p / 16 + 1);
                const std::size_t first = world.window > 0 ? std::size_t(std::max<TokenIndex>(0, p + 1 - world.window) / 16) : 0;
                std::vector<double> expected(end, double(kNaN));
                for (std::int32_t h = 0; h < group; ++h) {
                    const float* x = world.mass.data() + (s * std::size_t(group) + std::size_t(h)) * std::size_t(blocks);
                    double total = 0.0;
                    for (std::size_t b = first; b < end; ++b) {
                        total += std::isfinite(x[b]) ? std::exp(double(x[b]) - 40.0 * group) : 0.0;
                    }
                    const double log_z = std::log(total) + 40.0 * group;
                    for (std::size_t b = first; b < end; ++b) { expected[b] = std::fmax(expected[b], double(x[b]) - log_z); }
                }
                for (std::size_t b = first; b < end; ++b) {
                    const float got = world.score[s * std::size_t(blocks) + b];
                    if (std::isnan(expected[b])) {
                        ASSERT_TRUE(std::isnan(got)) << b;
                    } else if (std::isinf(expected[b])) {
                        ASSERT_EQ(got, float(expected[b])) << b;
                    } else {
                        ASSERT_NEAR(got, expected[b], 3e-7 * 40.0 * group + 1e-5) << "set " << s << " block " << b;
                    }
                }
            }
        }
    }
}

/// Scores are the same bits whichever kernel the longest row asks for.
TEST_F(CudaSelect, KernelsAgreeBitForBit)
{
    std::mt19937 random(6);
    World world{.group = 4, .stride = 65536, .reduction = GroupReduction::kSoftmaxMax, .position = {1999 * 16}};
    world.mass.resize(4 * 65536);
    for (float& x : world.mass) { x = float(random() % 100000) / 5000.0F; }
    world.max_blocks = 2000;
    world.select(queue());
    const World small = world;
    for (const std::int32_t blocks : {4000, 8000, 16000, 65536}) {
        world.max_blocks = blocks;
        world.select(queue());
        ASSERT_EQ(0, std::memcmp(small.score.data(), world.score.data(), 2000 * sizeof(float))) << blocks;
        ASSERT_EQ(small.must, world.must) << blocks;
        ASSERT_EQ(small.may, world.may) << blocks;
    }
}

/// Rows of log masses beyond 2^31 elements.
TEST_F(CudaSelect, SCORE_14_LargeOffsets)
{
    constexpr std::int64_t kStride = std::int64_t{1} << 30;
    const DeviceBuffer<float> mass(std::size_t(3 * kStride + 256));
    std::vector<float> scores(256);
    for (std::size_t i = 0; i < 256; ++i) { scores[i] = float(i * 37 % 256); }
    for (std::int64_t row = 0; row < 4; ++row) { enqueue_copy(queue(), mass.data() + row * kStride, std::span<const float>(scores)); }
    queue().synchronize();
    const auto position = upload(queue(), std::vector<TokenIndex>(4, 4095));
    const auto must = poisoned<std::int32_t>(queue(), 4 * 8);
    const auto may = poisoned<std::int32_t>(queue(), 4 * 8);
    const auto count = poisoned<std::int32_t>(queue(), 4 * 2);
    enqueue_select(queue(), {.log_mass = mass.data(),
                             .mass_stride = kStride,
                             .position = position.data(),
                             .must = must.data(),
                             .may = may.data(),
                             .count = count.data(),
                             .rows = 4,
                             .kv_heads = 1,
                             .group = 1,
                             .max_blocks = 256,
                             .block_tokens = 16,
                             .must_blocks = 8,
                             .may_blocks = 8,
                             .reduction = GroupReduction::kMax});
    const auto ids = download(queue(), must);
    const auto expected = oracle::best_blocks(scores, 0, 0, 256, 8);
    for (std::size_t row = 0; row < 4; ++row) {
        ASSERT_EQ(Ids(ids.begin() + std::ptrdiff_t(row) * 8, ids.begin() + std::ptrdiff_t(row + 1) * 8), expected) << row;
    }
}

TEST(CudaSelectRefuses, BudgetsBelowTheForcedBlocksAndOtherReductions)
{
    const Queue queue(reinterpret_cast<cudaStream_t>(0x1000)); // never reached
    SelectParams params{.mass_stride = 2048,
                        .rows = 1,
                        .kv_heads = 8,
                        .group = 4,
                        .max_blocks = 2048,
                        .block_tokens = 16,
                        .sink = 64,
                        .recent = 128,
                        .must_blocks = 12,
                        .may_blocks = 128};
    EXPECT_THROW(enqueue_select(queue, params), InvalidArgument);
    params.must_blocks = 13;
    params.may_blocks = 12;
    EXPECT_THROW(enqueue_select(queue, params), InvalidArgument);
    params.may_blocks = 128;
    params.mass_stride = 2050;
    EXPECT_THROW(enqueue_select(queue, params), InvalidArgument);
    params.mass_stride = 2048;
    params.reduction = GroupReduction::kMean;
    EXPECT_THROW(enqueue_select(queue, params), Unsupported);
}

} // namespace
} // namespace oasis::cuda::test
