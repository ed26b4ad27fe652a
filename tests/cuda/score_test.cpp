// SPDX-License-Identifier: Apache-2.0
//
// Log masses of the device against the float64 oracle and, with the selection, against the CPU backend.
#include "graph.hpp"
#include "score_fixture.hpp"

#include <oasis/cuda/select.hpp>
#include <oasis/score/selection.hpp>

#include <cmath>
#include <cstring>
#include <limits>

namespace oasis::cuda::test {
namespace {

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
                    c.rows = std::min(c.rows, 64 / c.group); // shared memory
                }
                const int g = 64 * tokens;
                c.lengths = {1, g - 1, 2 * g + c.rows, 0, 3 * g + int(seed % 7) * block, g + 1};
                c.seed = seed;
                expect_right(c);
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
        expect_right(c);
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
    expect_right(c);
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
    const Graph graph(queue(), [&] { enqueue_score(queue(), world.layout(), params); });
    for (int i = 0; i < 3; ++i) {
        enqueue_fill(queue(), params.log_mass, eager.size(), 0xFF);
        graph.enqueue(queue());
        const auto again = world.masses(queue());
        ASSERT_EQ(0, std::memcmp(eager.data(), again.data(), eager.size() * sizeof(float))) << i;
        ASSERT_EQ(download(queue(), static_cast<const std::uint32_t*>(params.counter), 2), (std::vector<std::uint32_t>{0, 0}));
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

} // namespace
} // namespace oasis::cuda::test
