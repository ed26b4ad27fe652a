// SPDX-License-Identifier: Apache-2.0
//
// Random pieces of a pinned pool into slots: rate of the gather kernel by grid and piece, alone and beside a kernel that reads
// HBM as fast as it can (and what that one loses); write-through; copy engines.
#include "cuda/harness.hpp"

#include <oasis/cuda/dma.hpp>
#include <oasis/cuda/fetch.hpp>
#include <oasis/cuda/host_tier.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

namespace oasis::cuda::bench {
namespace {

constexpr std::size_t kTierBytes = std::size_t{8} << 30;
constexpr std::size_t kMoved = std::size_t{256} << 20; ///< by one launch
constexpr std::size_t kLong = std::size_t{1} << 30;    ///< beside another kernel

/// Pieces at random places into slots at random.
class Plan {
public:
    Plan(Queue queue, HostTier& tier, DeviceBuffer<>& slots, std::uint32_t unit, std::size_t bytes)
        : count_(std::int32_t(bytes / unit)),
          pieces_(std::size_t(count_)),
          words_(2 * std::size_t(count_) + 1),
          number_(1),
          counters_(1),
          ticket_(1)
    {
        std::mt19937_64 random(unit);
        std::vector<std::uint32_t> places(tier.size() / unit);
        std::iota(places.begin(), places.end(), 0U);
        std::shuffle(places.begin(), places.end(), random);
        std::vector<std::int32_t> order(std::size_t(count_), 0);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<TransferPiece> pieces(std::size_t(count_), TransferPiece{});
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            pieces[i] = {.place = std::uint64_t(places[i % places.size()]) * unit, .slot = order[i]};
        }
        enqueue_copy(queue, pieces_.data(), pieces);
        enqueue_copy(queue, number_.data(), std::span(&count_, 1));
        enqueue_fill(queue, words_.data(), words_.size(), 0);
        enqueue_fill(queue, counters_.data(), 1, 0);
        enqueue_fill(queue, ticket_.data(), 1, 0);
        queue.synchronize();
        params = {.tier = tier.data(),
                  .tier_bytes = tier.size(),
                  .slots = slots.data(),
                  .slot_stride = unit,
                  .slot_count = count_,
                  .unit_bytes = unit,
                  .pieces = pieces_.data(),
                  .count = number_.data(),
                  .first = 0,
                  .most = count_,
                  .generation = words_.data(),
                  .marks = words_.data() + count_,
                  .layer_over = words_.data() + 2 * std::size_t(count_),
                  .layers = 1,
                  .counters = counters_.data(),
                  .ticket = ticket_.data()};
    }
    double bytes() const { return double(count_) * params.unit_bytes; }

    TransferParams params{};

private:
    std::int32_t count_;
    DeviceBuffer<TransferPiece> pieces_;
    DeviceBuffer<std::uint32_t> words_;
    DeviceBuffer<std::int32_t> number_;
    DeviceBuffer<TransferCounters> counters_;
    DeviceBuffer<TransferTicket> ticket_;
};

using Enqueue = std::function<void(Queue)>;

struct Beside {
    double fetch_gbps = 0;
    double hbm_gbps = 0;
};

/// Both begin together; `covering` readings outlast the fetch, and the fetch outlasts the few that are timed.
Beside beside(Queue high, Queue low, StreamRead& read, const Enqueue& fetch, double fetch_bytes, int covering, int timed, int repetitions)
{
    std::vector<double> fetch_rates;
    std::vector<double> read_rates;
    Event start;
    for (int i = 0; i < repetitions; ++i) {
        for (const int reads : {covering, timed}) {
            Event begin_fetch(Event::Kind::kTimed), end_fetch(Event::Kind::kTimed), begin_read(Event::Kind::kTimed),
                end_read(Event::Kind::kTimed);
            read.enqueue(high);
            start.record(high);
            start.enqueue_wait(low);
            begin_fetch.record(low);
            fetch(low);
            end_fetch.record(low);
            begin_read.record(high);
            for (int r = 0; r < reads; ++r) { read.enqueue(high); }
            end_read.record(high);
            end_fetch.synchronize();
            end_read.synchronize();
            if (reads == covering) {
                fetch_rates.push_back(1e-6 * fetch_bytes / Event::milliseconds(begin_fetch, end_fetch));
            } else {
                read_rates.push_back(1e-6 * double(read.bytes()) * reads / Event::milliseconds(begin_read, end_read));
            }
        }
    }
    return {median(fetch_rates), median(read_rates)};
}

std::string grid_name(const char* what, std::uint32_t unit, int ctas, int threads)
{
    return std::string(what) + "/" + std::to_string(unit) + "/" + std::to_string(ctas) + "x" + std::to_string(threads);
}

void run(const Options& options)
{
    Report report(options);
    const Stream stream;
    const Stream background(Stream::Priority::kLow);
    const Queue queue = stream.queue();
    PinFailure failure;
    auto tier = HostTier::try_create({.bytes = kTierBytes, .check_available = false}, failure);
    if (!tier) { throw Error(failure.reason); }
    DeviceBuffer<> slots(kLong);
    const auto rate = [&](double bytes, const auto& enqueue) {
        return bytes / 1e3 / median_us(queue, options.repetitions, enqueue, [](int) {});
    };
    report.add("hbm_read", {{"gbps", hbm_read_gbps(queue, options.repetitions)}});
    double hbm = 0;
    std::optional<StreamRead> fastest; // the neighbour of the fetch
    for (const auto& [batches, per_sm] : kStreamShapes) {
        StreamRead reader(std::size_t{8} << 30, batches, per_sm);
        const double gbps = rate(double(reader.bytes()), [&] { reader.enqueue(queue); });
        report.add("neighbour/tile" + std::to_string(4 * batches) + "KiB/ctas" + std::to_string(per_sm), {{"gbps", gbps}});
        if (gbps > hbm) {
            hbm = gbps;
            fastest = std::move(reader);
        }
    }
    StreamRead& read = *fastest;
    for (const std::size_t bytes : {std::size_t{4} << 20, std::size_t{256} << 20}) {
        const std::string name = std::to_string(bytes >> 20) + "MiB";
        report.add(
            "engine_h2d/" + name,
            {{"gbps", rate(double(bytes), [&] { enqueue_copy(queue, slots.data(), std::span<const std::byte>(tier->data(), bytes)); })}});
        report.add(
            "engine_d2h/" + name,
            {{"gbps", rate(double(bytes), [&] { enqueue_copy(queue, tier->data(), std::span<const std::byte>(slots.data(), bytes)); })}});
    }
    for (const std::uint32_t unit : {4224U, 8192U, 33792U}) {
        Plan plan(queue, *tier, slots, unit, kMoved);
        Plan large(queue, *tier, slots, unit, kLong);
        for (const auto& [ctas, threads] :
             {std::pair{2, 512}, {4, 256}, {4, 512}, {4, 1024}, {8, 256}, {8, 512}, {8, 1024}, {12, 512}, {16, 256}, {16, 512}}) {
            const std::string name = grid_name("gather", unit, ctas, threads);
            if (!options.runs(name)) { continue; }
            const TransferGrid grid{ctas, threads};
            const double alone = rate(plan.bytes(), [&] { enqueue_fetch(queue, plan.params, grid); });
            constexpr int kBeside = 5; // repetitions
            const Beside b = beside(
                queue, background.queue(), read, [&](Queue q) { enqueue_fetch(q, large.params, grid); }, large.bytes(),
                36, 6, kBeside);
            report.add(name, {{"gbps", alone},
                              {"gbps_beside", b.fetch_gbps},
                              {"hbm_gbps_beside", b.hbm_gbps},
                              {"hbm_loss", 1 - b.hbm_gbps / hbm},
                              {"repetitions_beside", kBeside}});
        }
        for (const int ctas : {4, 8}) {
            const std::string name = grid_name("write_through", unit, ctas, 512);
            if (options.runs(name)) {
                report.add(name, {{"gbps", rate(plan.bytes(), [&] { enqueue_write_through(queue, plan.params, {ctas, 512}); })}});
            }
        }
    }
    if (!options.runs("crossover")) { return; }
    const auto table = TransferTable::measure(queue, tier->data(), tier->size(), slots.data(), slots.size(), 4224);
    for (const std::size_t bytes : TransferTable::kRunBytes) {
        for (const std::size_t runs : TransferTable::kRuns) {
            report.add("crossover/" + std::to_string(bytes) + "x" + std::to_string(runs),
                       {{"gather_gbps", table.gbps(TransferPath::kGather, bytes, runs)},
                        {"dma_gbps", table.gbps(TransferPath::kDma, bytes, runs)}});
        }
    }
}

} // namespace
} // namespace oasis::cuda::bench

int main(int argc, char** argv) { return oasis::cuda::bench::run_bench(argc, argv, oasis::cuda::bench::run); }
