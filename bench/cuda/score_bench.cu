// SPDX-License-Identifier: Apache-2.0
//
// The scoring kernel alone and with the selection: groups scattered over a pool, L2 flushed before each replay of a graph.
#include "cuda/harness.hpp"

#include <oasis/cuda/score.hpp>
#include <oasis/cuda/select.hpp>

#include <cuda_fp16.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace oasis::cuda::bench {
namespace {

__device__ std::uint32_t hash(std::uint64_t x)
{
    x *= 0x9E3779B97F4A7C15ULL;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ULL;
    return std::uint32_t(x >> 32);
}

/// Groups as keys of unit variance give them: f16 from `affine` to `spread` and beyond `codes` random.
__global__ void fill_groups(std::byte* pool, std::size_t groups, SummaryLayout layout, bool native)
{
    const std::size_t bytes = native ? layout.native_bytes() : layout.coded_bytes();
    for (std::size_t g = blockIdx.x; g < groups; g += gridDim.x) {
        auto* const words = reinterpret_cast<std::uint32_t*>(pool + g * bytes);
        for (std::size_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) {
            const std::uint32_t random = hash(g * bytes / 4 + i);
            const float x = float(random % 4096) / 4096.0F;
            const std::size_t at = 4 * i;
            if (at < sizeof(SummaryHeader)) {
                words[i] = at == 16 ? 0x00002C00U : 0U; // spread scale 1/16
            } else if (native) {
                const __half2 pair = __floats2half2_rn(2.0F * x - 1.0F, 1.0F - 2.0F * x);
                words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
            } else if (at < layout.zeros_offset()) {
                const __half2 pair = __floats2half2_rn(0.3F + 0.1F * x, 0.4F - 0.1F * x);
                words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
            } else if (at < layout.coded_spread_offset()) {
                const __half2 pair = __floats2half2_rn(-2.5F - x, -3.5F + x);
                words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
            } else {
                words[i] = random;
            }
        }
    }
}

__global__ void fill_queries(__half* q, std::size_t count)
{
    for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += std::size_t(gridDim.x) * blockDim.x) {
        q[i] = __float2half(float(hash(i) % 4001) / 1000.0F - 2.0F);
    }
}

struct Shape {
    std::string name;
    std::int32_t batch;
    std::int64_t context;
    std::int32_t tokens; ///< of a sub-block
    std::int32_t rows;
    std::int32_t group;
    std::int32_t kv_heads = 8;
};

constexpr std::int32_t kBlockTokens = 16;
constexpr std::int32_t kRecent = 128;

class World {
public:
    World(Queue queue, const Shape& s)
        : shape(s),
          groups((s.context + layout().group_tokens() - 1) / layout().group_tokens()),
          stride(groups * layout().blocks_per_group()),
          coded_(std::size_t(s.batch) * std::size_t(groups * s.kv_heads) * layout().coded_bytes()),
          native_(std::size_t(s.batch) * 3 * std::size_t(s.kv_heads) * layout().native_bytes()),
          q_(std::size_t(s.batch * s.rows * s.kv_heads * s.group * 128)),
          mass_(std::size_t(s.batch * s.rows * s.kv_heads * s.group) * std::size_t(stride)),
          sets_(std::size_t(s.batch * s.rows * s.kv_heads)),
          must_(sets_ * 64),
          may_(sets_ * 128),
          count_(sets_ * 2)
    {
        fill_groups<<<4096, 256, 0, queue.stream()>>>(coded_.data(), coded_.bytes() / layout().coded_bytes(), layout(), false);
        fill_groups<<<256, 256, 0, queue.stream()>>>(native_.data(), native_.bytes() / layout().native_bytes(), layout(), true);
        fill_queries<<<256, 256, 0, queue.stream()>>>(q_.data(), q_.size());
        std::vector<std::int32_t> coded(std::size_t(s.batch) * std::size_t(groups));
        std::iota(coded.begin(), coded.end(), 0);
        std::shuffle(coded.begin(), coded.end(), std::mt19937(1));
        std::vector<std::int32_t> native(coded.size());
        for (std::size_t i = 0; i < native.size(); ++i) { native[i] = std::int32_t(i / std::size_t(groups) * 3 + i % 3); }
        std::vector<TokenIndex> position;
        for (std::int32_t i = 0; i < s.batch; ++i) {
            for (std::int32_t r = 0; r < s.rows; ++r) { position.push_back(s.context - s.rows + r); }
        }
        ids_ = upload(queue, coded);
        native_ids_ = upload(queue, native);
        position_ = upload(queue, position);
        counter_ = upload(queue, std::vector<std::uint32_t>{0, 0});
        tail_ = DeviceBuffer<>(position.size() * std::size_t(s.kv_heads) * layout().tail_bytes());
        enqueue_fill(queue, tail_.data(), tail_.size(), 0);
        queue.synchronize();
    }

    SummaryLayout layout() const
    {
        return {.options = {SummaryKind::kSpread, shape.tokens, SummaryCode::kInt4},
                .planes = 1,
                .head_dim = 128,
                .block_tokens = kBlockTokens,
                .spread = true};
    }
    /// What a step has to read: every group's coded form, but for the native ones.
    double bytes() const
    {
        const std::int64_t coded = (shape.context - shape.rows + 1 - kRecent) / layout().group_tokens();
        return double(shape.batch) * shape.kv_heads *
               (double(coded) * double(layout().coded_bytes()) + double(groups - coded) * double(layout().native_bytes()));
    }
    void score(Queue queue)
    {
        const auto table = [&](const DeviceBuffer<>& pool, const DeviceBuffer<std::int32_t>& ids, std::size_t bytes) {
            return SummaryTable{pool.data(), ids.data(), groups, std::int64_t(bytes) * shape.kv_heads, std::int64_t(bytes)};
        };
        enqueue_score(queue, layout(),
                      {.q = q_.data(),
                       .q_row_stride = std::int64_t(shape.kv_heads) * shape.group * 128,
                       .dtype = DType::kF16,
                       .position = position_.data(),
                       .coded = table(coded_, ids_, layout().coded_bytes()),
                       .native = table(native_, native_ids_, layout().native_bytes()),
                       .tail = tail_.data(),
                       .log_mass = mass_.data(),
                       .mass_stride = stride,
                       .counter = counter_.data(),
                       .sequences = shape.batch,
                       .rows = shape.rows,
                       .kv_heads = shape.kv_heads,
                       .group = shape.group,
                       .scale = 0.0883883F,
                       .recent = kRecent});
    }
    void select(Queue queue)
    {
        enqueue_select(queue, {.log_mass = mass_.data(),
                               .mass_stride = stride,
                               .position = position_.data(),
                               .must = must_.data(),
                               .may = may_.data(),
                               .count = count_.data(),
                               .rows = shape.batch * shape.rows,
                               .kv_heads = shape.kv_heads,
                               .group = shape.group,
                               .max_blocks = std::int32_t(stride),
                               .block_tokens = kBlockTokens,
                               .sink = 64,
                               .recent = kRecent,
                               .must_blocks = 64,
                               .may_blocks = 128});
    }

    Shape shape;
    std::int64_t groups;
    std::int64_t stride;

private:
    DeviceBuffer<> coded_;
    DeviceBuffer<> native_;
    DeviceBuffer<__half> q_;
    DeviceBuffer<float> mass_;
    std::size_t sets_;
    DeviceBuffer<std::int32_t> must_;
    DeviceBuffer<std::int32_t> may_;
    DeviceBuffer<std::int32_t> count_;
    DeviceBuffer<> tail_;
    DeviceBuffer<std::int32_t> ids_;
    DeviceBuffer<std::int32_t> native_ids_;
    DeviceBuffer<TokenIndex> position_;
    DeviceBuffer<std::uint32_t> counter_;
};

void run(const Options& options)
{
    const Stream stream;
    const Queue queue = stream.queue();
    Report report(options);
    const double hbm = hbm_read_gbps(queue, 20);
    report.add("hbm_read", {{"gbps", hbm}});
    L2Flush flush;
    const std::int64_t k = 1024;
    const Shape shapes[] = {
        {"spread2_b64_128k_q8", 64, 128 * k, 2, 1, 8},  {"spread2_b64_128k_q16", 64, 128 * k, 2, 2, 8},
        {"spread2_b64_128k_q32", 64, 128 * k, 2, 4, 8}, {"spread4_b64_128k_q8", 64, 128 * k, 4, 1, 8},
        {"spread2_b8_128k_q8", 8, 128 * k, 2, 1, 8},    {"spread2_b8_128k_q32", 8, 128 * k, 2, 4, 8},
        {"spread2_b64_32k_q8", 64, 32 * k, 2, 1, 8},    {"spread2_b64_32k_q4", 64, 32 * k, 2, 1, 4},
        {"spread2_b1_128k_q8", 1, 128 * k, 2, 1, 8},    {"spread2_b1_32k_q4", 1, 32 * k, 2, 1, 4},
        {"spread2_b16_32k_q80", 16, 32 * k, 2, 10, 8},
    };
    for (const Shape& shape : shapes) {
        if (!options.runs(shape.name)) { continue; }
        World world(queue, shape);
        const auto before = [&](int) { flush.enqueue(queue); };
        const double score = median_graph_us(
            queue, options.repetitions, [&] { world.score(queue); }, before);
        const double select = median_graph_us(
            queue, options.repetitions, [&] { world.select(queue); }, before);
        const double both = median_graph_us(
            queue, options.repetitions,
            [&] {
                world.score(queue);
                world.select(queue);
            },
            before);
        const double rate = world.bytes() / 1e3 / score;
        report.add(shape.name,
                   {{"score_us", score}, {"gbps", rate}, {"hbm_share", rate / hbm}, {"select_us", select}, {"score_select_us", both}});
    }
}

} // namespace
} // namespace oasis::cuda::bench

int main(int argc, char** argv) { return oasis::cuda::bench::run_bench(argc, argv, oasis::cuda::bench::run); }
