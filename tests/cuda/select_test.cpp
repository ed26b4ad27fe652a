// SPDX-License-Identifier: Apache-2.0
//
// Selection of the device against a full sort of the same scores, and the cases that broke others.
#include "select_fixture.hpp"

namespace oasis::cuda::test {
namespace {

TEST_F(CudaSelect, RandomRowsOfEveryLength)
{
    std::mt19937 random(1);
    for (const std::int32_t blocks : {40, 2048, 2049, 4096, 8192, 8193, 16384, 16388, 65536}) {
        SelectWorld world{
            .heads = 3, .group = 2, .stride = (blocks + 3) / 4 * 4, .must_blocks = 1 + std::int32_t(random() % 80)};
        world.may_blocks = world.must_blocks + std::int32_t(random() % 200);
        world.sink = world.must_blocks > 20 ? 64 : 0;
        world.recent = world.must_blocks > 20 ? 128 : 0;
        world.position = {TokenIndex(blocks) * 16 - 1, -1,  TokenIndex(random() % unsigned(blocks * 16)), 0, 15, 16,
                          TokenIndex(blocks) * 8,      -100};
        world.mass.resize(world.sets() * std::size_t(world.group * world.stride));
        std::normal_distribution<float> normal(-12.0F, 4.0F);
        for (float& x : world.mass) { x = normal(random); }
        expect_right(world);
        if (HasFatalFailure()) { FAIL() << blocks << " blocks"; }
    }
}

/// logZ and the maximum over heads, in float64.
TEST_F(CudaSelect, SCORE_17_ScoresOfAGroup)
{
    std::mt19937 random(5);
    for (const std::int32_t group : {1, 3, 5, 6, 7, 8, 16, 32}) {
        for (const std::int32_t blocks : {700, 2500, 9000}) {
            SelectWorld world{.heads = 2,
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
    SelectWorld world{.group = 4, .stride = 65536, .reduction = GroupReduction::kSoftmaxMax, .position = {1999 * 16}};
    world.mass.resize(4 * 65536);
    for (float& x : world.mass) { x = float(random() % 100000) / 5000.0F; }
    world.max_blocks = 2000;
    world.select(queue());
    const SelectWorld small = world;
    for (const std::int32_t blocks : {4000, 8000, 16000, 65536}) {
        world.max_blocks = blocks;
        world.select(queue());
        ASSERT_EQ(0, std::memcmp(small.score.data(), world.score.data(), 2000 * sizeof(float))) << blocks;
        ASSERT_EQ(small.must, world.must) << blocks;
        ASSERT_EQ(small.may, world.may) << blocks;
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
