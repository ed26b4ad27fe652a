// SPDX-License-Identifier: Apache-2.0
//
// The selection of rows of scores, both ranks at once; beside it a segmented radix sort of the same rows (CUB).
#include "cuda/harness.hpp"

#include <oasis/cuda/select.hpp>

#include <cub/device/device_segmented_radix_sort.cuh>

#include <random>
#include <string>
#include <vector>

namespace oasis::cuda::bench {
namespace {

class World {
public:
    World(Queue queue, std::int32_t rows, std::int32_t blocks, std::int32_t group)
        : rows_(rows),
          blocks_(blocks),
          group_(group),
          must_(std::size_t(rows) * 64),
          may_(std::size_t(rows) * 128),
          count_(std::size_t(rows) * 2)
    {
        std::mt19937 random(1);
        std::normal_distribution<float> normal(-14.0F, 3.0F);
        std::vector<float> scores(std::size_t(rows) * std::size_t(blocks) * std::size_t(group));
        for (float& x : scores) { x = normal(random); }
        mass_ = upload(queue, scores);
        position_ = upload(queue, std::vector<TokenIndex>(std::size_t(rows), TokenIndex(blocks) * 16 - 1));
    }
    void select(Queue queue) const
    {
        enqueue_select(queue, {.log_mass = mass_.data(),
                               .mass_stride = blocks_,
                               .position = position_.data(),
                               .must = must_.data(),
                               .may = may_.data(),
                               .count = count_.data(),
                               .rows = rows_,
                               .kv_heads = 1,
                               .group = group_,
                               .max_blocks = blocks_,
                               .block_tokens = 16,
                               .sink = 64,
                               .recent = 128,
                               .must_blocks = 64,
                               .may_blocks = 128,
                               .reduction = group_ == 1 ? GroupReduction::kMax : GroupReduction::kSoftmaxMax});
    }
    double sort_us(Queue queue, int repetitions, L2Flush& flush) const
    {
        const std::size_t n = std::size_t(rows_) * std::size_t(blocks_);
        std::vector<std::int32_t> ids(n);
        std::vector<std::int32_t> begins(std::size_t(rows_) + 1);
        for (std::size_t i = 0; i < n; ++i) { ids[i] = std::int32_t(i % std::size_t(blocks_)); }
        for (std::size_t r = 0; r < begins.size(); ++r) { begins[r] = std::int32_t(r) * blocks_; }
        const auto values = upload(queue, ids);
        const auto offsets = upload(queue, begins);
        const DeviceBuffer<float> keys(n);
        const DeviceBuffer<std::int32_t> sorted(n);
        std::size_t bytes = 0;
        const auto sort = [&](void* space) {
            check(cub::DeviceSegmentedRadixSort::SortPairsDescending(space, bytes, mass_.data(), keys.data(), values.data(), sorted.data(),
                                                                     int(n), rows_, offsets.data(), offsets.data() + 1, 0, 32,
                                                                     queue.stream()),
                  "DeviceSegmentedRadixSort");
        };
        sort(nullptr);
        const DeviceBuffer<> space(bytes);
        return median_graph_us(
            queue, repetitions, [&] { sort(space.data()); }, [&](int) { flush.enqueue(queue); });
    }

private:
    std::int32_t rows_;
    std::int32_t blocks_;
    std::int32_t group_;
    DeviceBuffer<float> mass_;
    DeviceBuffer<TokenIndex> position_;
    DeviceBuffer<std::int32_t> must_;
    DeviceBuffer<std::int32_t> may_;
    DeviceBuffer<std::int32_t> count_;
};

void run(const Options& options)
{
    const Stream stream;
    const Queue queue = stream.queue();
    Report report(options);
    L2Flush flush;
    const std::int32_t shapes[][3] = {{8, 1024, 1},    {8, 4096, 1},    {8, 32768, 1},  {64, 1024, 1},  {64, 4096, 1},  {64, 8192, 1},
                                      {64, 32768, 1},  {512, 1024, 1},  {512, 2048, 1}, {512, 4096, 1}, {512, 8192, 1}, {512, 32768, 1},
                                      {2048, 4096, 1}, {4096, 8192, 1}, {64, 8192, 8},  {512, 2048, 4}};
    for (const auto& [rows, blocks, group] : shapes) {
        const std::string name = std::to_string(rows) + "x" + std::to_string(blocks) + (group > 1 ? "_group" + std::to_string(group) : "");
        if (!options.runs(name)) { continue; }
        const World world(queue, rows, blocks, group);
        const double us = median_graph_us(
            queue, options.repetitions, [&] { world.select(queue); }, [&](int) { flush.enqueue(queue); });
        if (group == 1 && std::int64_t(rows) * blocks <= 1 << 23) {
            report.add(name, {{"select_us", us}, {"segmented_sort_us", world.sort_us(queue, options.repetitions, flush)}});
        } else {
            report.add(name, {{"select_us", us}});
        }
    }
}

} // namespace
} // namespace oasis::cuda::bench

int main(int argc, char** argv) { return oasis::cuda::bench::run_bench(argc, argv, oasis::cuda::bench::run); }
