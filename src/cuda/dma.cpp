// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/dma.hpp>
#include <oasis/cuda/fetch.hpp>
#include <oasis/cuda/memory.hpp>

#include <algorithm>
#include <cmath>

namespace oasis::cuda {

void CopyBatch::add(void* target, const void* source, const void* host, std::size_t bytes)
{
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(host) % kMostBytes;
    for (std::size_t at = 0; at < bytes;) {
        const std::size_t size = std::min(kMostBytes - (offset + at) % kMostBytes, bytes - at);
        targets_.push_back(static_cast<std::byte*>(target) + at);
        sources_.push_back(static_cast<const std::byte*>(source) + at);
        sizes_.push_back(size);
        at += size;
    }
}

void CopyBatch::clear() noexcept
{
    targets_.clear();
    sources_.clear();
    sizes_.clear();
}

void CopyBatch::enqueue(Queue queue)
{
    if (sizes_.empty()) { return; }
#if CUDART_VERSION >= 13000
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream; // earlier work of the queue may still write the sources
    std::size_t first = 0;
    check(::cudaMemcpyBatchAsync(targets_.data(), sources_.data(), sizes_.data(), sizes_.size(), &attributes, &first, 1, queue.stream()),
          "cudaMemcpyBatchAsync of ", sizes_.size(), " pieces, the first of ", sizes_.front(), " bytes");
#else
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
        check(::cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], cudaMemcpyDefault, queue.stream()), "cudaMemcpyAsync of ", sizes_[i],
              " bytes");
    }
#endif
}

namespace {

/// A plan in device memory that fetches `count` units from places `stride` apart into consecutive slots.
class GatherPlan {
public:
    GatherPlan(Queue queue, std::size_t count) : queue_(queue), pieces_(count), count_(1), words_(2 * count + 1), counters_(1), ticket_(1)
    {
        enqueue_fill(queue_, words_.data(), words_.size(), 0);
        enqueue_fill(queue_, counters_.data(), 1, 0);
        enqueue_fill(queue_, ticket_.data(), 1, 0);
    }
    TransferParams params(std::byte* tier, std::size_t tier_bytes, std::byte* slots, std::uint32_t unit_bytes)
    {
        const auto count = std::int32_t(pieces_.size());
        return {.tier = tier,
                .tier_bytes = tier_bytes,
                .slots = slots,
                .slot_stride = unit_bytes,
                .slot_count = count,
                .unit_bytes = unit_bytes,
                .pieces = pieces_.data(),
                .count = count_.data(),
                .first = 0,
                .most = count,
                .generation = words_.data(),
                .marks = words_.data() + count,
                .layer_over = words_.data() + 2 * count,
                .layers = 1,
                .counters = counters_.data(),
                .ticket = ticket_.data()};
    }
    void plan(std::size_t count, std::size_t run_units, std::size_t stride, std::uint32_t unit_bytes)
    {
        host_.resize(count);
        for (std::size_t i = 0; i < count; ++i) {
            host_[i] = {.place = i / run_units * stride + i % run_units * unit_bytes, .slot = std::int32_t(i)};
        }
        const auto number = std::int32_t(count);
        enqueue_copy(queue_, pieces_.data(), host_);
        enqueue_copy(queue_, count_.data(), std::span(&number, 1));
        queue_.synchronize();
    }

private:
    Queue queue_;
    DeviceBuffer<TransferPiece> pieces_;
    DeviceBuffer<std::int32_t> count_;
    DeviceBuffer<std::uint32_t> words_; ///< generations, marks, one layer
    DeviceBuffer<TransferCounters> counters_;
    DeviceBuffer<TransferTicket> ticket_;
    std::vector<TransferPiece> host_;
};

/// Best of three after one to warm up, in seconds.
template <class Enqueue> double seconds(Queue queue, Enqueue&& enqueue)
{
    Event begin(Event::Kind::kTimed);
    Event end(Event::Kind::kTimed);
    double best = INFINITY;
    for (int i = 0; i < 4; ++i) {
        begin.record(queue);
        enqueue();
        end.record(queue);
        end.synchronize();
        if (i > 0) { best = std::min(best, 1e-3 * Event::milliseconds(begin, end)); }
    }
    return best;
}

template <std::size_t n> std::size_t nearest(const std::array<std::size_t, n>& values, std::size_t wanted)
{
    const auto distance = [&](std::size_t v) {
        return std::abs(std::log2(double(v)) - std::log2(double(std::max<std::size_t>(1, wanted))));
    };
    return std::size_t(
        std::min_element(values.begin(), values.end(), [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); }) -
        values.begin());
}

} // namespace

TransferTable TransferTable::measure(Queue queue, std::byte* tier, std::size_t tier_bytes, std::byte* slots, std::size_t slot_bytes,
                                     std::uint32_t unit_bytes)
{
    detail::expects(unit_bytes > 0 && unit_bytes % 16 == 0, "TransferTable: units of ", unit_bytes,
                    " bytes; they must be multiples of 16.");
    const std::size_t room = std::min(tier_bytes, slot_bytes);
    detail::expects(room >= unit_bytes && room >= kRunBytes.front(), "TransferTable: a tier of ", tier_bytes, " and slots of ", slot_bytes,
                    " bytes are too small to measure with.");
    TransferTable table;
    GatherPlan gather(queue, std::min(room / unit_bytes, kRuns.back() * (kRunBytes.back() / unit_bytes + 1)));
    CopyBatch batch;
    for (std::size_t b = 0; b < kRunBytes.size(); ++b) {
        for (std::size_t r = 0; r < kRuns.size(); ++r) {
            const std::size_t run_units = (kRunBytes[b] + unit_bytes - 1) / unit_bytes;
            const std::size_t bytes = run_units * unit_bytes;
            const std::size_t runs = kRuns[r];
            if (runs * bytes > room) {
                table.gather_[b][r] = r ? table.gather_[b][r - 1] : table.gather_[b - 1][r];
                table.dma_[b][r] = r ? table.dma_[b][r - 1] : table.dma_[b - 1][r];
                continue;
            }
            const std::size_t stride = tier_bytes / runs / 128 * 128; // runs apart, so that they are no longer run
            gather.plan(runs * run_units, run_units, stride, unit_bytes);
            batch.clear();
            for (std::size_t i = 0; i < runs; ++i) { batch.add_to_device(slots + i * bytes, tier + i * stride, bytes); }
            const double total = 1e-9 * double(runs * bytes);
            table.gather_[b][r] = total / seconds(queue, [&] { enqueue_fetch(queue, gather.params(tier, tier_bytes, slots, unit_bytes)); });
            table.dma_[b][r] = total / seconds(queue, [&] { batch.enqueue(queue); });
        }
    }
    return table;
}

TransferPath TransferTable::choose(std::size_t run_bytes, std::size_t runs) const noexcept
{
    return gbps(TransferPath::kGather, run_bytes, runs) >= gbps(TransferPath::kDma, run_bytes, runs) ? TransferPath::kGather
                                                                                                     : TransferPath::kDma;
}

double TransferTable::gbps(TransferPath path, std::size_t run_bytes, std::size_t runs) const noexcept
{
    return (path == TransferPath::kGather ? gather_ : dma_)[nearest(kRunBytes, run_bytes)][nearest(kRuns, runs)];
}

} // namespace oasis::cuda
