// SPDX-License-Identifier: Apache-2.0
//
// The attention kernel in CUDA graphs: 32 query heads on 8 KV heads of 128 channels, lists of random slots of a pool four
// times larger than what is read, L2 flushed by reading. `us`: one launch from event to event; `us_in_chain`: a node among
// others of its kind, each with lists of its own. gbps counts the bytes of K, V and scales that a launch has to read.
#include "cuda/harness.hpp"

#include <oasis/cuda/attend.hpp>
#include <oasis/pool/head_block.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace oasis::cuda::bench {
namespace {

constexpr std::int32_t kQHeads = 32;
constexpr std::int32_t kKvHeads = 8;
constexpr std::int32_t kHeadDim = 128;

__device__ std::uint32_t hash(std::uint64_t x)
{
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDULL;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ULL;
    return static_cast<std::uint32_t>(x >> 32);
}

/// bf16 in [-2, 2).
__global__ void fill_native(std::uint16_t* elements, std::size_t count)
{
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count; i += std::size_t{gridDim.x} * blockDim.x) {
        const float x = static_cast<float>(hash(i)) * 0x1p-30F - 2.0F;
        elements[i] = static_cast<std::uint16_t>(__float_as_uint(x) >> 16);
    }
}

/// Random codes, scales of 2/127.
__global__ void fill_int8(std::uint8_t* bytes, std::size_t count, std::size_t stride, std::size_t scales, std::size_t tag)
{
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count; i += std::size_t{gridDim.x} * blockDim.x) {
        const std::size_t at = i % stride;
        bytes[i] = at >= scales && at < tag ? (at % 2 ? 0x24 : 0x08) : static_cast<std::uint8_t>(hash(i));
    }
}

struct Case {
    std::string name{};
    BlockCode code = BlockCode::kNative;
    std::int32_t block_tokens = 16;
    std::int32_t batch = 1;
    std::int32_t rows = 1;
    std::int32_t tokens_low = 2048; ///< of a list, drawn between the two
    std::int32_t tokens_high = 2048;
    std::int32_t row_tokens = 0; ///< of the list that each row reads; 0: all
    std::int32_t lists = 1;      ///< nodes of a chain
    std::int32_t ring_depth = 0;
    std::int32_t ctas_per_sm = 0;
};

/// The pool, the lists and the plan of a case.
class Setup {
public:
    Setup(Queue queue, const Case& c)
        : case_(c), layout_{DType::kBF16, c.code, c.block_tokens, kHeadDim}, plan_(config()), workspace_(plan_.workspace_bytes())
    {
        make_lists(queue);
        pool_ = DeviceBuffer<>(slots_ * layout_.coded_bytes());
        if (c.code == BlockCode::kNative) {
            fill_native<<<1024, 256, 0, queue.stream()>>>(reinterpret_cast<std::uint16_t*>(pool_.data()), pool_.bytes() / 2);
        } else {
            fill_int8<<<1024, 256, 0, queue.stream()>>>(reinterpret_cast<std::uint8_t*>(pool_.data()), pool_.bytes(), layout_.int8_bytes(),
                                                        layout_.int8_scales_offset(), layout_.int8_tag_offset());
        }
        check_launch("fill");
        const std::size_t rows = std::size_t(c.batch) * std::size_t(c.rows);
        q_ = DeviceBuffer<std::uint16_t>(rows * kQHeads * kHeadDim);
        fill_native<<<64, 256, 0, queue.stream()>>>(q_.data(), q_.size());
        out_ = DeviceBuffer<std::uint16_t>(q_.size());
        plan_.enqueue_prepare(queue, workspace_.data());
        queue.synchronize();
    }

    double bytes() const { return bytes_; }
    void enqueue(Queue queue, std::int32_t list)
    {
        const std::size_t n = std::size_t(case_.batch) * kKvHeads;
        plan_.enqueue(queue, {.q = q_.data(),
                              .blocks = blocks_.data() + std::size_t(list) * n * std::size_t(max_blocks()),
                              .block_counts = counts_.data() + std::size_t(list) * n,
                              .row_starts = starts_.data(),
                              .first_positions = positions_.data(),
                              .slots = pool_.data(),
                              .out = out_.data(),
                              .workspace = workspace_.data(),
                              .sequences = case_.batch,
                              .out_dtype = DType::kBF16});
    }
    const AttendConfig& planned() const { return plan_.config(); }

private:
    std::int32_t max_blocks() const { return case_.tokens_high / case_.block_tokens; }
    AttendConfig config() const
    {
        return {.dtype = DType::kBF16,
                .code = case_.code,
                .head_dim = kHeadDim,
                .q_heads = kQHeads,
                .kv_heads = kKvHeads,
                .block_tokens = case_.block_tokens,
                .max_sequences = case_.batch,
                .max_rows = case_.rows,
                .max_blocks = max_blocks(),
                .ring_depth = case_.ring_depth,
                .ctas_per_sm = case_.ctas_per_sm};
    }

    void make_lists(Queue queue)
    {
        std::mt19937 random(1);
        const std::size_t lists = std::size_t(case_.lists * case_.batch) * kKvHeads;
        std::vector<AttendBlock> blocks(lists * std::size_t(max_blocks()));
        std::vector<std::int32_t> counts(lists);
        slots_ = 4 * blocks.size();
        std::vector<std::uint32_t> slots(slots_);
        std::iota(slots.begin(), slots.end(), 0U);
        std::shuffle(slots.begin(), slots.end(), random);
        std::size_t next = 0;
        std::size_t all = 0;
        for (std::size_t i = 0; i < lists; ++i) {
            counts[i] = std::uniform_int_distribution<std::int32_t>(case_.tokens_low, case_.tokens_high)(random) / case_.block_tokens;
            all += std::size_t(counts[i]);
            AttendBlock* list = blocks.data() + i * std::size_t(max_blocks());
            for (std::int32_t b = 0; b < counts[i]; ++b) {
                list[b] = {static_cast<std::int64_t>(slots[next++] * layout_.coded_bytes()), b,
                           static_cast<std::uint8_t>((1 << case_.rows) - 1), 0, 0};
            }
            if (case_.row_tokens) { choose_rows(list, counts[i], random); }
        }
        const std::size_t per_block = case_.code == BlockCode::kNative ? 2 * layout_.elements() * 2 : layout_.int8_tag_offset();
        bytes_ = double(all) / case_.lists * double(per_block);
        blocks_ = upload(queue, blocks);
        counts_ = upload(queue, counts);
        std::vector<std::int32_t> starts;
        for (std::int32_t s = 0; s <= case_.batch; ++s) { starts.push_back(s * case_.rows); }
        starts_ = upload(queue, starts);
        positions_ = upload(queue, std::vector<TokenIndex>(std::size_t(case_.batch), 1 << 20));
    }

    void choose_rows(AttendBlock* list, std::int32_t count, std::mt19937& random) const
    {
        std::vector<std::int32_t> order(static_cast<std::size_t>(count));
        std::iota(order.begin(), order.end(), 0);
        for (std::int32_t b = 0; b < count; ++b) { list[b].rows = 0; }
        for (std::int32_t row = 0; row < case_.rows; ++row) {
            std::shuffle(order.begin(), order.end(), random);
            for (std::int32_t b = 0; b < case_.row_tokens / case_.block_tokens; ++b) {
                list[order[std::size_t(b)]].rows |= static_cast<std::uint8_t>(1 << row);
            }
        }
    }

    Case case_;
    HeadBlockLayout layout_;
    AttendPlan plan_;
    DeviceBuffer<> workspace_;
    DeviceBuffer<> pool_{};
    DeviceBuffer<std::uint16_t> q_{};
    DeviceBuffer<std::uint16_t> out_{};
    DeviceBuffer<AttendBlock> blocks_{};
    DeviceBuffer<std::int32_t> counts_{};
    DeviceBuffer<std::int32_t> starts_{};
    DeviceBuffer<TokenIndex> positions_{};
    std::size_t slots_ = 0;
    double bytes_ = 0.0;
};

std::vector<Case> cases()
{
    std::vector<Case> all;
    for (const std::int32_t block : {16, 32}) {
        for (const std::int32_t batch : {1, 4, 16, 64, 256}) {
            all.push_back({.name = "bf16/block" + std::to_string(block) + "/batch" + std::to_string(batch),
                           .block_tokens = block,
                           .batch = batch,
                           .lists = std::clamp(32 / batch, 1, 16)});
        }
    }
    for (const std::int32_t batch : {1, 16, 64, 256}) {
        all.push_back({.name = "int8/block16/batch" + std::to_string(batch),
                       .code = BlockCode::kInt8,
                       .batch = batch,
                       .lists = std::clamp(32 / batch, 1, 16)});
    }
    all.push_back({.name = "bf16/block16/batch64/1024-2048", .batch = 64, .tokens_low = 1024});
    all.push_back({.name = "bf16/block16/batch64/rows8/union2560",
                   .batch = 64,
                   .rows = 8,
                   .tokens_low = 2560,
                   .tokens_high = 2560,
                   .row_tokens = 2048});
    all.push_back({.name = "int8/block16/batch64/rows8/union2560",
                   .code = BlockCode::kInt8,
                   .batch = 64,
                   .rows = 8,
                   .tokens_low = 2560,
                   .tokens_high = 2560,
                   .row_tokens = 2048});
    for (const std::int32_t batch : {1, 4, 16, 64}) { // what the defaults were picked from
        for (const auto& [depth, ctas] : {std::pair{2, 1}, {2, 2}, {2, 3}, {3, 1}, {3, 2}, {3, 3}, {4, 1}, {4, 2}}) {
            const std::string suffix = "/batch" + std::to_string(batch) + "/depth" + std::to_string(depth) + "/ctas" + std::to_string(ctas);
            all.push_back({.name = "tune/bf16" + suffix, .batch = batch, .ring_depth = depth, .ctas_per_sm = ctas});
            if (batch == 64) {
                all.push_back(
                    {.name = "tune/int8" + suffix, .code = BlockCode::kInt8, .batch = batch, .ring_depth = depth, .ctas_per_sm = ctas});
            }
        }
    }
    return all;
}

__global__ void nothing() {}

void run(const Options& options)
{
    Report report(options);
    Stream stream;
    const Queue queue = stream.queue();
    const double hbm = hbm_read_gbps(queue, options.repetitions);
    report.add("hbm_read", {{"gbps", hbm}});
    StreamRead flush(4 * device_info(current_device()).l2_bytes);
    const auto before = [&](int) { flush.enqueue(queue); };
    report.add("empty_kernel", {{"us", median_graph_us(
                                           queue, options.repetitions, [&] { nothing<<<1, 32, 0, queue.stream()>>>(); }, before)}});
    for (const Case& c : cases()) {
        if (!options.runs(c.name)) { continue; }
        Setup setup(queue, c);
        const double us = median_graph_us(
            queue, options.repetitions, [&] { setup.enqueue(queue, 0); }, before);
        double chain = us;
        if (c.lists > 1) {
            const auto all = [&] {
                for (std::int32_t list = 0; list < c.lists; ++list) { setup.enqueue(queue, list); }
            };
            chain = median_graph_us(queue, options.repetitions, all, before) / c.lists;
        }
        const double gbps = setup.bytes() / 1e3 / us;
        report.add(c.name, {{"us", us},
                            {"us_in_chain", chain},
                            {"gbps", gbps},
                            {"hbm_share", gbps / hbm},
                            {"depth", double(setup.planned().ring_depth)},
                            {"ctas", double(setup.planned().ctas_per_sm)}});
    }
}

} // namespace
} // namespace oasis::cuda::bench

int main(int argc, char** argv) { return oasis::cuda::bench::run_bench(argc, argv, oasis::cuda::bench::run); }
