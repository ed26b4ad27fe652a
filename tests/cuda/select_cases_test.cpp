// SPDX-License-Identifier: Apache-2.0
//
// Selection on the device: the cases that broke others.
#include "select_fixture.hpp"

namespace oasis::cuda::test {
namespace {

TEST_F(CudaSelect, SCORE_01_MoreWantedThanThereAre)
{
    std::mt19937 random(2);
    for (const std::size_t n : {1U, 31U, 32U, 33U}) {
        for (const std::int32_t k : {1, 31, 32, 33, 64}) {
            std::vector<float> scores(n);
            for (float& x : scores) { x = float(random() % 100); }
            SelectWorld world = plain(scores, k, k + 1);
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
        SelectWorld world = plain(scores, 64, 200);
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
    SelectWorld world = plain(std::vector<float>(8), 4, 4);
    world.max_blocks = world.stride = kMaxSelectBlocks + 4;
    EXPECT_THROW(world.select(queue()), Unsupported);
}

/// Sinks, the recent window and the partly filled last block are in, whatever their scores.
TEST_F(CudaSelect, SCORE_18_ForcedBlocks)
{
    for (const TokenIndex p :
         {TokenIndex{0}, TokenIndex{15}, TokenIndex{100}, TokenIndex{191}, TokenIndex{192}, TokenIndex{1003}, TokenIndex{30000}}) {
        for (const std::int32_t window : {0, 512}) {
            SelectWorld world{
                .stride = 2048, .must_blocks = 16, .may_blocks = 24, .sink = 64, .recent = 128, .window = window, .position = {p}};
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
    SelectWorld world{.heads = 2, .stride = 16, .must_blocks = 20, .may_blocks = 40, .position = {200, -1, 0}};
    world.mass.assign(world.sets() * 16, 1.0F);
    world.select(queue());
    world.expect_sorted(); // compares the slots after the count with -1
}

/// Rows of log masses beyond 2^31 elements.
TEST_F(CudaSelect, SCORE_14_LargeOffsets)
{
    constexpr std::int64_t kStride = std::int64_t{1} << 30;
    constexpr std::size_t kMasses = 3 * std::size_t(kStride) + 256;
    if (const std::string why = lacks_gpu_memory(kMasses * sizeof(float) + (64 << 20)); !why.empty()) {
        GTEST_SKIP() << why;
    }
    const DeviceBuffer<float> mass(kMasses);
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

} // namespace
} // namespace oasis::cuda::test
