// SPDX-License-Identifier: Apache-2.0
//
// Log masses of the device against the float64 oracle and, with the selection, against the CPU backend.
#include "score_fixture.hpp"

#include <oasis/cuda/select.hpp>
#include <oasis/score/selection.hpp>

#include <cmath>
#include <cstring>
#include <limits>

namespace oasis::cuda::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kTolerance = 4e-3; ///< of log masses of the size that these keys give

class CudaScore : public CudaTest {
protected:
    /// Every written log mass against the oracle.
    void expect_oracle(ScoreWorld& world, const std::vector<float>& got)
    {
        const auto row_stride = std::size_t(world.q_heads()) * std::size_t(world.stride);
        for (std::size_t row = 0; row < world.positions.size(); ++row) {
            for (int h = 0; h < world.c.kv_heads; ++h) {
                auto& sequence = world.sequence(row / std::size_t(world.c.rows), h);
                const TokenIndex position = world.positions[row];
                const auto summaries =
                    position < 0 ? std::vector<oracle::SubBlock>{} : oracle::summaries(sequence.shape(), sequence.exact_keys(), position);
                for (int i = 0; i < world.c.group; ++i) {
                    const float* mass = got.data() + row * row_stride + std::size_t(h * world.c.group + i) * std::size_t(world.stride);
                    const auto expected =
                        oracle::log_masses(sequence.shape(), summaries, world.query(row, h * world.c.group + i), world.scale());
                    compare(mass, std::size_t(world.stride), expected, world.layout(), position);
                    if (HasFatalFailure()) {
                        FAIL() << world.c.text() << " row " << row << " head " << h << " query " << i << " position " << position;
                    }
                }
            }
        }
    }

private:
    static void compare(const float* mass, std::size_t stride, const oracle::Row& expected, const SummaryLayout& layout,
                        TokenIndex position)
    {
        const auto written = std::size_t((position + layout.group_tokens()) / layout.group_tokens() * layout.blocks_per_group());
        for (std::size_t b = 0; b < stride; ++b) {
            if (b >= expected.size()) {
                if (position >= 0 && b < written) {
                    ASSERT_EQ(mass[b], -kInf) << "block " << b;
                } else {
                    std::uint32_t bits;
                    std::memcpy(&bits, mass + b, 4);
                    ASSERT_EQ(bits, 0xFFFFFFFFU) << "block " << b << " was written";
                }
            } else if (std::isnan(expected[b])) {
                ASSERT_TRUE(std::isnan(mass[b])) << "block " << b;
            } else if (std::isinf(expected[b])) {
                ASSERT_EQ(mass[b], float(expected[b])) << "block " << b;
            } else {
                ASSERT_NEAR(mass[b], expected[b], kTolerance + 5e-4 * std::abs(expected[b])) << "block " << b;
            }
        }
    }
};

struct Layout {
    SummaryKind kind;
    SummaryCode code;
    int head_dim;
    std::vector<std::pair<int, int>> shapes; ///< block, sub-block
};

TEST_F(CudaScore, EveryLayoutGroupAndRowCount)
{
    const std::vector<std::pair<int, int>> some{{16, 2}, {16, 4}, {32, 4}, {64, 8}};
    const std::vector<std::pair<int, int>> all{{16, 1}, {16, 2}, {16, 4}, {32, 2}, {32, 4}, {32, 8}, {64, 4}, {64, 8}, {64, 16}};
    const Layout layouts[] = {{SummaryKind::kSpread, SummaryCode::kInt4, 64, all},  {SummaryKind::kSpread, SummaryCode::kInt4, 128, all},
                              {SummaryKind::kSpread, SummaryCode::kInt8, 64, some}, {SummaryKind::kSpread, SummaryCode::kInt8, 128, some},
                              {SummaryKind::kSpread, SummaryCode::kF16, 64, some},  {SummaryKind::kSpread, SummaryCode::kF16, 128, some},
                              {SummaryKind::kCuboid, SummaryCode::kInt4, 64, some}, {SummaryKind::kCuboid, SummaryCode::kInt4, 128, some},
                              {SummaryKind::kMinMax, SummaryCode::kInt4, 64, some}, {SummaryKind::kMinMax, SummaryCode::kInt4, 128, some},
                              {SummaryKind::kMean, SummaryCode::kInt4, 128, some}};
    unsigned seed = 1;
    const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 16};
    const int rows[] = {1, 2, 4, 8, 10};
    const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
    for (const Layout& layout : layouts) {
        for (const auto& [block, tokens] : layout.shapes) {
            for (int i = 0; i < 3; ++i, ++seed) {
                ScoreCase c{.options = {layout.kind, tokens, layout.code}, .head_dim = layout.head_dim, .block_tokens = block};
                c.kv_heads = 1 + int(seed % 2);
                c.group = groups[seed % 9];
                c.rows = rows[seed / 2 % 5];
                c.recent = int(seed * 13 % 100);
                c.dtype = dtypes[seed % 3];
                if (layout.head_dim == 128 && (layout.kind == SummaryKind::kCuboid || layout.kind == SummaryKind::kMinMax)) {
                    c.rows = std::min(c.rows, 64 / c.group);
                }
                const int g = 64 * tokens;
                c.lengths = {1, g - 1, 2 * g + c.rows, 0, 3 * g + int(seed % 7) * block, g + 1};
                c.seed = seed;
                ScoreWorld world(c);
                world.upload(queue());
                expect_oracle(world, world.score(queue()));
                if (HasFatalFailure()) { return; }
            }
        }
    }
}

TEST_F(CudaScore, EveryLengthOfASequence)
{
    for (const int tokens : {2, 4}) {
        ScoreCase c{.options = {SummaryKind::kSpread, tokens, SummaryCode::kInt4}, .kv_heads = 1, .group = 1, .rows = 2, .recent = 20};
        for (std::int64_t n = 0; n < 300; ++n) { c.lengths.push_back(n); }
        ScoreWorld world(c);
        world.upload(queue());
        expect_oracle(world, world.score(queue()));
        if (HasFatalFailure()) { return; }
    }
}

TEST_F(CudaScore, ManyTiles)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4},
                .kv_heads = 1,
                .group = 4,
                .rows = 2,
                .recent = 128,
                .lengths = {6000, 128, 9001, 4096}};
    ScoreWorld world(c);
    world.upload(queue());
    expect_oracle(world, world.score(queue()));
}

TEST_F(CudaScore, SCORE_02_UnusedSlotsHoldGarbage)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .lengths = {1, 5, 15, 17}}; // the storage beyond is NaN
    ScoreWorld world(c);
    world.upload(queue());
    expect_oracle(world, world.score(queue()));
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
    world.upload(queue());
    expect_oracle(world, world.score(queue()));
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
    world.upload(queue());
    expect_oracle(world, world.score(queue()));
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
    world.upload(queue());
    expect_oracle(world, world.score(queue()));
}

/// A log mass is the same bits whatever sequences and rows share the launch.
TEST_F(CudaScore, BatchAndRowsChangeNoBit)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4},
                .head_dim = 128,
                .kv_heads = 1,
                .group = 5,
                .rows = 6,
                .lengths = {3000, 700, 129, 6}};
    ScoreWorld world(c);
    world.upload(queue());
    const auto together = world.score(queue());
    const auto per_row = std::size_t(world.q_heads()) * std::size_t(world.stride);
    for (std::size_t row = 0; row < world.positions.size(); row += 5) {
        auto params = world.params();
        const std::size_t s = row / 6;
        auto mass = poisoned<float>(queue(), per_row);
        params.q = static_cast<const float*>(params.q) + std::int64_t(row) * params.q_row_stride;
        params.position += row;
        params.coded.id += s * std::size_t(world.groups);
        params.native.id += s * std::size_t(world.groups);
        params.tail += row * world.layout().tail_bytes();
        params.log_mass = mass.data();
        params.sequences = 1;
        params.rows = 1;
        enqueue_score(queue(), world.layout(), params);
        const auto alone = download(queue(), mass);
        ASSERT_EQ(0, std::memcmp(alone.data(), together.data() + row * per_row, per_row * sizeof(float))) << "row " << row;
    }
}

TEST_F(CudaScore, GraphReplaysEqualEager)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 4, SummaryCode::kInt4}, .group = 4, .rows = 3, .lengths = {2000, 40, 900}};
    ScoreWorld world(c);
    world.upload(queue());
    const auto eager = world.score(queue());
    const auto params = world.params();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check(cudaStreamBeginCapture(queue().stream(), cudaStreamCaptureModeThreadLocal), "capture");
    enqueue_score(queue(), world.layout(), params);
    check(cudaStreamEndCapture(queue().stream(), &graph), "capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    for (int i = 0; i < 3; ++i) {
        enqueue_fill(queue(), params.log_mass, eager.size(), 0xFF);
        check(cudaGraphLaunch(replay, queue().stream()), "launch");
        const auto again = world.masses(queue());
        ASSERT_EQ(0, std::memcmp(eager.data(), again.data(), eager.size() * sizeof(float))) << i;
        ASSERT_EQ(download(queue(), static_cast<const std::uint32_t*>(params.counter), 2), (std::vector<std::uint32_t>{0, 0}));
    }
    check(cudaGraphExecDestroy(replay), "destroy");
    check(cudaGraphDestroy(graph), "destroy");
}

/// Elements of log masses and bytes of groups beyond 2^32.
TEST_F(CudaScore, SCORE_14_LargeOffsets)
{
    ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4}, .kv_heads = 1, .group = 5, .recent = 0, .lengths = {256}};
    ScoreWorld world(c);
    world.upload(queue());
    const auto expected = world.score(queue());
    auto params = world.params();
    constexpr std::int64_t kStride = std::int64_t{1} << 30;
    const DeviceBuffer<float> mass(std::size_t(4 * kStride + 64));
    const DeviceBuffer<> pool((std::size_t{5} << 30) + (1 << 20));
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

/// The sets of the CPU backend, but for blocks whose scores lie within the tolerance of the cut.
TEST_F(CudaScore, SetsEqualTheCpuBackends)
{
    for (const int rows : {1, 4}) {
        ScoreCase c{.options = {SummaryKind::kSpread, 2, SummaryCode::kInt4},
                    .head_dim = 128,
                    .group = 4,
                    .rows = rows,
                    .recent = 128,
                    .lengths = {3000, 5007, 800, 90}};
        ScoreWorld world(c);
        world.upload(queue());
        const std::size_t sets = world.positions.size() * std::size_t(c.kv_heads);
        constexpr std::int32_t kMust = 40;
        constexpr std::int32_t kMay = 80;
        const auto must = poisoned<std::int32_t>(queue(), sets * kMust);
        const auto may = poisoned<std::int32_t>(queue(), sets * kMay);
        const auto count = poisoned<std::int32_t>(queue(), sets * 2);
        const auto params = world.params();
        enqueue_score(queue(), world.layout(), params);
        enqueue_select(queue(), {.log_mass = params.log_mass,
                                 .mass_stride = world.stride,
                                 .position = params.position,
                                 .must = must.data(),
                                 .may = may.data(),
                                 .count = count.data(),
                                 .rows = std::int32_t(world.positions.size()),
                                 .kv_heads = c.kv_heads,
                                 .group = c.group,
                                 .max_blocks = std::int32_t(world.stride),
                                 .block_tokens = 16,
                                 .sink = 64,
                                 .recent = 128,
                                 .must_blocks = kMust,
                                 .may_blocks = kMay});
        const auto chosen = download(queue(), must);
        const auto counts = download(queue(), count);
        for (std::size_t set = 0; set < sets; ++set) {
            const std::size_t row = set / std::size_t(c.kv_heads);
            const auto masses = world.cpu_masses(row, int(set % std::size_t(c.kv_heads)));
            const std::int32_t blocks = std::int32_t(world.positions[row] / 16) + 1;
            std::vector<float> scores(static_cast<std::size_t>(blocks));
            reduce_scores(GroupReduction::kSoftmaxMax, masses.data(), c.group, std::int64_t(masses.size()) / c.group, blocks, 16,
                          scores.data());
            const std::int32_t recent = std::int32_t(std::max<TokenIndex>(0, world.positions[row] + 1 - 128) / 16);
            const auto expected = oracle::best_blocks(scores, 0, std::min(4, recent), recent, kMust);
            const std::vector<std::int32_t> got(chosen.begin() + std::ptrdiff_t(set * kMust),
                                                chosen.begin() + std::ptrdiff_t(set * kMust) + counts[2 * set]);
            ASSERT_EQ(got.size(), expected.size());
            float cut = kInf; // the lowest chosen score
            for (const std::int32_t b : expected) {
                if (b >= 4 && b < recent) { cut = std::min(cut, scores[std::size_t(b)]); }
            }
            std::vector<std::int32_t> differing;
            std::set_symmetric_difference(got.begin(), got.end(), expected.begin(), expected.end(), std::back_inserter(differing));
            for (const std::int32_t b : differing) {
                ASSERT_NEAR(scores[std::size_t(b)], cut, 2 * kTolerance) << "set " << set << " block " << b;
            }
        }
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
