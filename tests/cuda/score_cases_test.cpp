// SPDX-License-Identifier: Apache-2.0
//
// Scoring on the device: the cases that broke others, and what is refused.
#include "score_fixture.hpp"

namespace oasis::cuda::test {
namespace {

TEST_F(CudaScore, SCORE_02_UnusedSlotsHoldGarbage)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .lengths = {1, 5, 15, 17}}; // the storage beyond is NaN
    expect_right(c);
}

TEST_F(CudaScore, SCORE_07_KeysThatAreNotNumbers)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .group = 3, .rows = 2, .lengths = {500, 129}};
    ScoreWorld world(c);
    std::vector<float> keys(world.sequence(0, 0).key(0), world.sequence(0, 0).key(0) + 500 * 64);
    keys[7 * 64 + 3] = std::numeric_limits<float>::quiet_NaN(); // block 0, coded
    keys[485 * 64] = kInf;                                      // block 30, native
    keys[499 * 64 + 63] = -kInf;                                // in the last row's sub-block
    world.sequence(0, 0).set_keys(keys);
    expect_right(world);
}

/// Bounds beyond f16 make a block's log mass +inf, keys that are no numbers NaN.
TEST_F(CudaScore, SCORE_07_UnboundedAndPoisonedBounds)
{
    ScoreCase c{.options = {SummaryKind::kMinMax, 2, SummaryCode::kInt4}, .group = 3, .rows = 2, .lengths = {500}};
    ScoreWorld world(c);
    std::vector<float> keys(world.sequence(0, 0).key(0), world.sequence(0, 0).key(0) + 500 * 64);
    keys[7 * 64 + 3] = std::numeric_limits<float>::quiet_NaN();
    keys[40 * 64 + 5] = 1e6F;   // block 2, coded
    keys[490 * 64 + 1] = -1e6F; // block 30, native
    world.sequence(0, 0).set_keys(keys);
    expect_right(world);
}

/// Keys and queries of any size: accumulators are float, queries f16 over a power of two.
TEST_F(CudaScore, SCORE_09_LargeAndSmallValues)
{
    for (const float size : {1e-3F, 30.0F, 300.0F}) {
        ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .head_dim = 128, .kv_heads = 1, .lengths = {400}};
        ScoreWorld world(c);
        std::vector<float> keys(world.sequence(0, 0).key(0), world.sequence(0, 0).key(0) + 400 * 128);
        for (float& x : keys) { x *= size; }
        world.sequence(0, 0).set_keys(keys);
        for (float& x : world.q) { x *= 3e4F / size; }
        world.upload(queue());
        const auto got = world.score(queue());
        const auto expected = world.cpu_masses(0, 0);
        for (std::size_t i = 0; i < 25; ++i) {
            ASSERT_NEAR(got[i], expected[i], 2e-3F * 3e4F + 1e-6F * std::abs(expected[i])) << "block " << i << " of " << expected[i];
        }
    }
}

TEST_F(CudaScore, SCORE_12_PaddingRowsWriteNothing)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .rows = 4, .lengths = {400, 300, 20}};
    ScoreWorld world(c);
    world.positions = {399, -1, 350, -7, -1, -1, -1, -1, 3, 19, -1, 8};
    expect_right(world);
}

/// Elements of log masses and bytes of groups beyond 2^32.
TEST_F(CudaScore, SCORE_14_LargeOffsets)
{
    constexpr std::int64_t kStride = std::int64_t{1} << 30;
    constexpr std::size_t kMasses = 4 * std::size_t(kStride) + 64;
    constexpr std::size_t kPool = (std::size_t{5} << 30) + (1 << 20);
    if (const std::string why = lacks_gpu_memory(kMasses * sizeof(float) + kPool + (64 << 20)); !why.empty()) {
        GTEST_SKIP() << why;
    }
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .kv_heads = 1, .group = 5, .recent = 0, .lengths = {256}};
    ScoreWorld world(c);
    world.upload(queue());
    const auto expected = world.score(queue());
    auto params = world.params();
    const DeviceBuffer<float> mass(kMasses);
    const DeviceBuffer<> pool(kPool);
    const auto ids = upload(queue(), std::vector<std::int32_t>{5, 2});
    for (std::size_t g = 0; g < 2; ++g) {
        const std::vector<std::byte> bytes(world.sequence(0, 0).coded(g), world.sequence(0, 0).coded(g) + world.layout().coded_bytes());
        enqueue_copy(queue(), pool.data() + (g == 0 ? std::size_t{5} << 30 : std::size_t{2} << 30), std::span<const std::byte>(bytes));
        queue().synchronize();
    }
    params.coded = {pool.data(), ids.data(), 2, std::int64_t{1} << 30, 0};
    params.log_mass = mass.data();
    params.mass_stride = kStride;
    enqueue_score(queue(), world.layout(), params);
    for (std::int64_t h = 0; h < 5; ++h) {
        const auto got = download(queue(), static_cast<const float*>(mass.data()) + h * kStride, 16);
        ASSERT_EQ(0, std::memcmp(got.data(), expected.data() + h * world.stride, 16 * sizeof(float))) << h;
    }
}

TEST(CudaScoreRefuses, WhatHasNoKernelOrDoesNotFit)
{
    const Queue queue(reinterpret_cast<cudaStream_t>(0x1000)); // never reached
    const SummaryLayout layout{
        .options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .planes = 1, .head_dim = 128, .block_tokens = 16, .spread = true};
    ScoreParams params{.q_row_stride = 4096, .mass_stride = 8, .sequences = 1, .rows = 1, .kv_heads = 8, .group = 4};
    SummaryLayout other = layout;
    other.options.code = SummaryCode::kF32;
    try {
        enqueue_score(queue, other, params);
        FAIL() << "must throw";
    } catch (const Unsupported& error) {
        EXPECT_NE(std::string(error.what()).find("128 channels in f32"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("128 channels in int4 with spread, 8 blocks"), std::string::npos) << error.what();
    }
    params.rows = 41;
    EXPECT_THROW(enqueue_score(queue, layout, params), InvalidArgument);
    params.rows = 1;
    params.sequences = kMaxScoreSequences + 1;
    EXPECT_THROW(enqueue_score(queue, layout, params), InvalidArgument);
    params.sequences = 1;
    params.coded.group_bytes = 4736 + 16;
    EXPECT_THROW(enqueue_score(queue, layout, params), InvalidArgument);
}

} // namespace
} // namespace oasis::cuda::test
