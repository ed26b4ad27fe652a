// SPDX-License-Identifier: Apache-2.0
//
// Scoring and selection beside a copy of the bytes that the score reads; one thread, one row, one KV head.
#include <oasis/score/block_scorer.hpp>
#include <oasis/score/selection.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace {

using namespace oasis;

constexpr int kHeadDim = 64;
constexpr int kGroup = 3;
constexpr int kBlock = 16;
constexpr std::int32_t kRecent = 128;

struct AlignedBytes {
    explicit AlignedBytes(std::size_t n)
        : size(n), data(static_cast<std::byte*>(std::aligned_alloc(128, (n + 127) / 128 * 128)), &std::free)
    {
        std::memset(data.get(), 0, n);
    }
    std::size_t size;
    std::unique_ptr<std::byte, void (*)(void*)> data;
};

/// A sequence of random keys with its summaries, all closed but the last two groups.
struct Scene {
    Scene(SummaryOptions options, std::int32_t context)
        : scorer(StockSummary(options.kind), options, kHeadDim, kBlock),
          groups(std::size_t(context / scorer.layout().group_tokens())),
          native(groups * scorer.layout().native_bytes()),
          coded(groups * scorer.layout().coded_bytes()),
          stride(context / kBlock),
          log_mass(std::size_t(stride) * kGroup),
          scores(std::size_t(stride)),
          position(context - 1)
    {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        keys.resize(std::size_t(options.tokens) * kHeadDim);
        q.resize(kGroup * kHeadDim);
        for (auto& x : q) { x = normal(random); }
        for (std::size_t g = 0; g < groups; ++g) {
            SummaryGroupRef ref{native.data.get() + g * scorer.layout().native_bytes(), nullptr};
            for (std::int32_t s = 0; s < 64; ++s) {
                for (auto& x : keys) { x = normal(random); }
                scorer.write_sub_block(const_cast<std::byte*>(ref.native), s, rows());
            }
            if (TokenIndex(g + 1) * scorer.layout().group_tokens() - 1 <= position - kRecent) {
                std::byte* to = coded.data.get() + g * scorer.layout().coded_bytes();
                scorer.close_group(ref.native, 64, to);
                ref.coded = to;
            }
            refs.push_back(ref);
        }
    }

    KeyRows rows() const { return {keys.data(), std::int32_t(keys.size()) / kHeadDim, kHeadDim, kHeadDim}; }

    ScoreJob job()
    {
        return {.q = q.data(),
                .q_row_stride = kGroup * kHeadDim,
                .rows = 1,
                .group = kGroup,
                .scale = 0.125F,
                .position = &position,
                .groups = refs,
                .recent = kRecent,
                .log_mass = log_mass.data(),
                .stride = stride};
    }

    std::size_t bytes_read() const
    {
        std::size_t bytes = 0;
        for (const auto& ref : refs) {
            bytes += ref.coded ? scorer.layout().coded_bytes() : scorer.layout().native_bytes();
        }
        return bytes;
    }

    BlockScorer<> scorer;
    std::size_t groups;
    AlignedBytes native;
    AlignedBytes coded;
    std::int64_t stride;
    std::vector<float> keys;
    std::vector<float> q;
    std::vector<SummaryGroupRef> refs;
    std::vector<float> log_mass;
    std::vector<float> scores;
    TokenIndex position;
};

constexpr SummaryOptions kStock[] = {
    {SummaryKind::kSpread, 2, SummaryCode::kInt4}, {SummaryKind::kSpread, 4, SummaryCode::kInt4},
    {SummaryKind::kSpread, 2, SummaryCode::kInt8}, {SummaryKind::kSpread, 2, SummaryCode::kF16},
    {SummaryKind::kCuboid, 4, SummaryCode::kInt4}, {SummaryKind::kMinMax, 16, SummaryCode::kF16},
    {SummaryKind::kMean, 16, SummaryCode::kF32}};
constexpr const char* kNames[] = {"spread2-int4", "spread4-int4", "spread2-int8", "spread2-f16",
                                  "cuboid4-int4", "minmax16-f16", "mean16-f32"};

struct Chosen {
    explicit Chosen(std::size_t blocks) : ids(blocks), must(blocks), ranked(blocks) {}
    SelectionOutput output() { return {.ids = ids, .must = must, .ranked = ranked}; }
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> must;
    std::vector<std::int32_t> ranked;
};

SelectionInput input(const std::vector<float>& scores)
{
    const auto n = std::int32_t(scores.size());
    return {.scores = scores,
            .sink_end = 4,
            .recent_begin = n - 8,
            .must_blocks = 64,
            .may_blocks = 128,
            .rank_blocks = 128};
}

void score(benchmark::State& state)
{
    Scene scene(kStock[state.range(0)], std::int32_t(state.range(1)));
    const ScoreJob job = scene.job();
    for (auto _ : state) {
        scene.scorer.score(job);
        benchmark::ClobberMemory();
    }
    state.SetLabel(kNames[state.range(0)]);
    state.SetBytesProcessed(state.iterations() * std::int64_t(scene.bytes_read()));
}

void copy_of_the_same_bytes(benchmark::State& state)
{
    const Scene scene(kStock[state.range(0)], std::int32_t(state.range(1)));
    std::vector<std::byte> from(scene.bytes_read(), std::byte{1});
    std::vector<std::byte> to(from.size());
    for (auto _ : state) {
        std::memcpy(to.data(), from.data(), from.size());
        benchmark::ClobberMemory();
    }
    state.SetLabel(kNames[state.range(0)]);
    state.SetBytesProcessed(state.iterations() * std::int64_t(from.size()));
}

/// The whole of it: what a sparse step adds per (row, KV head).
void score_reduce_select(benchmark::State& state)
{
    Scene scene(kStock[state.range(0)], std::int32_t(state.range(1)));
    const ScoreJob job = scene.job();
    Chosen chosen(scene.scores.size());
    SelectionOutput out = chosen.output();
    for (auto _ : state) {
        scene.scorer.score(job);
        reduce_scores(GroupReduction::kSoftmaxMax, job.log_mass, kGroup, job.stride, int(job.stride), kBlock,
                      scene.scores.data());
        TopKSelection().select(input(scene.scores), out);
        benchmark::ClobberMemory();
    }
    state.SetLabel(kNames[state.range(0)]);
}

/// Eight verify rows and two lookahead rows share the pass.
void score_ten_rows(benchmark::State& state)
{
    Scene scene(kStock[0], 32768);
    ScoreJob job = scene.job();
    const std::vector<float> q(10 * kGroup * kHeadDim, 0.5F);
    const std::vector<TokenIndex> positions(10, scene.position);
    std::vector<float> log_mass(std::size_t(job.stride) * kGroup * 10);
    job.q = q.data();
    job.rows = 10;
    job.position = positions.data();
    job.log_mass = log_mass.data();
    for (auto _ : state) {
        scene.scorer.score(job);
        benchmark::ClobberMemory();
    }
}

void reduce(benchmark::State& state)
{
    Scene scene(kStock[0], 32768);
    const ScoreJob job = scene.job();
    scene.scorer.score(job);
    for (auto _ : state) {
        reduce_scores(GroupReduction(state.range(0)), job.log_mass, kGroup, job.stride, int(job.stride), kBlock,
                      scene.scores.data());
        benchmark::ClobberMemory();
    }
}

void select(benchmark::State& state)
{
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> scores(std::size_t(state.range(0)));
    for (auto& x : scores) { x = normal(random); }
    Chosen chosen(scores.size());
    SelectionOutput out = chosen.output();
    SelectionInput in = input(scores);
    in.top_p = state.range(1) ? 0.9F : 1.0F;
    for (auto _ : state) {
        TopKSelection().select(in, out);
        benchmark::DoNotOptimize(out);
    }
    state.SetLabel(state.range(1) ? "top_p" : "");
}

void close_group(benchmark::State& state)
{
    Scene scene(kStock[state.range(0)], 2048);
    for (auto _ : state) {
        scene.scorer.close_group(scene.refs[0].native, 64, scene.coded.data.get());
        benchmark::ClobberMemory();
    }
    state.SetLabel(kNames[state.range(0)]);
}

void write_sub_block(benchmark::State& state)
{
    Scene scene(kStock[state.range(0)], 2048);
    for (auto _ : state) {
        scene.scorer.write_sub_block(scene.native.data.get(), 5, scene.rows());
        benchmark::ClobberMemory();
    }
    state.SetLabel(kNames[state.range(0)]);
}

void contexts(benchmark::internal::Benchmark* bench)
{
    for (int kind = 0; kind < int(std::size(kStock)); ++kind) {
        for (const int context : {8192, 32768}) { bench->Args({kind, context}); }
    }
}

} // namespace

BENCHMARK(score)->Apply(contexts);
BENCHMARK(copy_of_the_same_bytes)->Apply(contexts);
BENCHMARK(score_reduce_select)->Apply(contexts);
BENCHMARK(score_ten_rows);
BENCHMARK(reduce)->DenseRange(0, 2);
BENCHMARK(select)->Args({2048, 0})->Args({2048, 1})->Args({65536, 0})->Args({1048577, 0});
BENCHMARK(close_group)->DenseRange(0, 6);
BENCHMARK(write_sub_block)->DenseRange(0, 6);
