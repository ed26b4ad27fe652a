// SPDX-License-Identifier: Apache-2.0
// One thread: decode attention beside a plain read of the same bytes, and prefill.
#include <oasis/core/half.hpp>
#include <oasis/cpu/attend_kernels.hpp>
#include <oasis/pool/head_block.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace {

using namespace oasis;
using namespace oasis::cpu;

/// Head-blocks of several KV heads and layers in one arena, more than the caches hold, as a decode step meets them.
struct Arena {
    BlockFormat format;
    std::int32_t tokens = 0;
    std::size_t stride = 0;
    std::vector<std::vector<BlockRef>> heads; ///< one set of `tokens` tokens each
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;

    Arena(BlockFormat block_format, std::int32_t set_tokens, std::size_t at_least)
        : format(block_format), tokens(set_tokens)
    {
        const HeadBlockLayout layout{format.dtype, format.code, format.block_tokens, format.head_dim};
        stride = layout.coded_bytes();
        const std::size_t blocks = std::size_t(tokens / format.block_tokens);
        const std::size_t sets = std::max<std::size_t>(1, at_least / (blocks * stride));
        size = sets * blocks * stride;
        bytes = std::make_unique<std::byte[]>(size + kStrideAlign);
        std::byte* base = bytes.get() + (kStrideAlign - reinterpret_cast<std::uintptr_t>(bytes.get()) % kStrideAlign);
        const HeadBlockLayout native{format.dtype, BlockCode::kNative, format.block_tokens, format.head_dim};
        std::vector<float> x(2 * layout.elements());
        std::vector<std::byte> block(native.native_bytes());
        std::mt19937 random(1);
        std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
        for (float& value : x) { value = uniform(random); }
        attend_kernels().from_float(format.dtype, x.data(), x.size(), block.data());
        heads.resize(sets);
        for (std::size_t i = 0; i < sets * blocks; ++i) {
            if (format.code == BlockCode::kNative) {
                std::memcpy(base + i * stride, block.data(), stride);
            } else {
                attend_kernels().encode_int8(format, block.data(), format.block_tokens, base + i * stride);
            }
            heads[i / blocks].push_back(
                {base + i * stride, 0, std::int16_t(format.block_tokens), format.code == BlockCode::kInt8});
        }
    }

    std::size_t bytes_of_set() const { return std::size_t(tokens / format.block_tokens) * stride; }
};

constexpr std::size_t kBeyondCaches = std::size_t{768} << 20; ///< more than any last-level cache

void set_rates(benchmark::State& state, std::size_t bytes)
{
    state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(bytes));
    state.counters["bytes"] = double(bytes);
}

void attend_set(const Arena& arena, const std::vector<BlockRef>& refs, std::int32_t group, const std::vector<float>& q,
                std::vector<float>& out)
{
    const std::size_t n = std::size_t(group) * std::size_t(arena.format.head_dim);
    float* part = out.data() + n;
    std::vector<float> lse(2 * std::size_t(group), -std::numeric_limits<float>::infinity());
    const std::size_t step = std::size_t(kChunkTokens / arena.format.block_tokens);
    for (std::size_t i = 0; i < refs.size(); i += step) {
        attend_kernels().attend_chunk({arena.format, q.data(), group,
                                       std::span(refs).subspan(i, std::min(step, refs.size() - i)), part,
                                       &lse[std::size_t(group)]});
        merge_states(group, arena.format.head_dim, part, &lse[std::size_t(group)], out.data(), lse.data());
    }
}

/// args: tokens, group, head_dim, dtype, int8
void attend(benchmark::State& state)
{
    const BlockFormat format{DType(state.range(3)), state.range(4) ? BlockCode::kInt8 : BlockCode::kNative, 16,
                             std::int32_t(state.range(2))};
    const Arena arena(format, std::int32_t(state.range(0)), kBeyondCaches);
    const auto group = std::int32_t(state.range(1));
    const std::vector<float> q(std::size_t(group) * std::size_t(format.head_dim), 0.05F);
    std::vector<float> out(2 * q.size());
    std::size_t head = 0;
    for (auto _ : state) {
        attend_set(arena, arena.heads[head], group, q, out);
        benchmark::DoNotOptimize(out.data());
        head = (head + 1) % arena.heads.size();
    }
    set_rates(state, arena.bytes_of_set());
    state.SetLabel(attend_kernels().name);
}
BENCHMARK(attend)
    ->ArgNames({"tokens", "group", "d", "dtype", "int8"})
    ->ArgsProduct({{2048, 8192, 32768}, {3, 4}, {64}, {0}, {0}})
    ->ArgsProduct({{2048}, {4}, {64}, {1, 2}, {0}})
    ->Args({2048, 4, 64, 0, 1})
    ->Args({2048, 8, 128, 0, 0})
    ->Args({2048, 8, 128, 2, 1});

/// args: tokens, head_dim: the same f32 bytes, summed and nothing else.
void plain_read(benchmark::State& state)
{
    const Arena arena({DType::kF32, BlockCode::kNative, 16, std::int32_t(state.range(1))}, std::int32_t(state.range(0)),
                      kBeyondCaches);
    std::size_t head = 0;
    for (auto _ : state) {
        std::uint64_t sums[16] = {};
        for (const BlockRef& ref : arena.heads[head]) {
            for (std::size_t i = 0; i < arena.stride; i += sizeof(sums)) {
                std::uint64_t words[16];
                std::memcpy(words, ref.data + i, sizeof(words));
                for (int l = 0; l < 16; ++l) { sums[l] += words[l]; }
            }
        }
        benchmark::DoNotOptimize(sums);
        head = (head + 1) % arena.heads.size();
    }
    set_rates(state, arena.bytes_of_set());
}
BENCHMARK(plain_read)->ArgNames({"tokens", "d"})->ArgsProduct({{2048, 8192, 32768}, {64}});

/// args: tokens, head_dim: the same f32 bytes copied to a buffer in the cache.
void plain_copy(benchmark::State& state)
{
    const Arena arena({DType::kF32, BlockCode::kNative, 16, std::int32_t(state.range(1))}, std::int32_t(state.range(0)),
                      kBeyondCaches);
    std::vector<std::byte> buffer(arena.stride);
    std::size_t head = 0;
    for (auto _ : state) {
        for (const BlockRef& ref : arena.heads[head]) {
            std::memcpy(buffer.data(), ref.data, arena.stride);
            benchmark::DoNotOptimize(buffer.data());
            benchmark::ClobberMemory();
        }
        head = (head + 1) % arena.heads.size();
    }
    set_rates(state, arena.bytes_of_set());
}
BENCHMARK(plain_copy)->ArgNames({"tokens", "d"})->ArgsProduct({{2048, 8192, 32768}, {64}});

/// args: context before the rows, rows, group, head_dim, dtype
void prefill(benchmark::State& state)
{
    const auto context = std::int32_t(state.range(0));
    const auto rows = std::int32_t(state.range(1));
    const auto group = std::int32_t(state.range(2));
    const BlockFormat format{DType(state.range(4)), BlockCode::kNative, 16, std::int32_t(state.range(3))};
    const Arena arena(format, context + rows, 1);
    std::vector<PrefillBlock> blocks;
    for (const BlockRef& ref : arena.heads[0]) { blocks.push_back({ref.data, nullptr}); }
    const std::size_t pairs = std::size_t(rows * group);
    const std::vector<float> q(pairs * std::size_t(format.head_dim), 0.05F);
    std::vector<float> out(q.size());
    std::vector<float> top(pairs);
    std::vector<float> sum(pairs);
    std::vector<float> scratch(prefill_scratch_floats(format, group));
    for (auto _ : state) {
        std::fill(out.begin(), out.end(), 0.0F);
        std::fill(top.begin(), top.end(), -std::numeric_limits<float>::infinity());
        std::fill(sum.begin(), sum.end(), 0.0F);
        PrefillJob job;
        job.format = format;
        job.q = q.data();
        job.rows = rows;
        job.group = group;
        job.first_position = context;
        job.blocks = blocks;
        job.out = out.data();
        job.max = top.data();
        job.sum = sum.data();
        job.scratch = scratch.data();
        attend_kernels().prefill(job);
        finish_prefill(rows, group, format.head_dim, top.data(), sum.data(), out.data(), nullptr);
        benchmark::DoNotOptimize(out.data());
    }
    const double flops = 4.0 * double(pairs) * double(format.head_dim) * (double(context) + double(rows + 1) / 2);
    state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
    set_rates(state, arena.size);
    state.SetLabel(attend_kernels().name);
}
BENCHMARK(prefill)
    ->ArgNames({"context", "rows", "group", "d", "dtype"})
    ->ArgsProduct({{0, 8192}, {32}, {3, 4}, {64}, {0}})
    ->Args({8192, 32, 4, 128, 0})
    ->Args({8192, 32, 4, 80, 0})
    ->Args({8192, 32, 3, 64, 1})
    ->Args({0, 512, 3, 64, 0})
    ->Unit(benchmark::kMicrosecond);

} // namespace
