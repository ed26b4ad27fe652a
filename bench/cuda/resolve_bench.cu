// SPDX-License-Identifier: Apache-2.0
//
// Resolve of one layer: steps of a batch whose selections drift, each a graph replay after the L2 was flushed.
#include "cuda/harness.hpp"

#include <oasis/cuda/resolve.hpp>

#include <algorithm>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace oasis::cuda::bench {
namespace {

struct Shape {
    std::int32_t batch;
    std::int32_t context;
    std::int32_t verify;
    std::int32_t lookahead;
};

/// One layer with 8 KV heads and the default budgets: 1,024 and 2,048 tokens in blocks of 16, logical sets of 2,048.
class World {
public:
    static constexpr std::int32_t kHeads = 8, kMust = 64, kMay = 128, kCap = 16, kRing = 32, kSpare = 16, kDrift = 4;

    World(Queue queue, const Shape& shape, int steps)
        : queue_(queue),
          rows_(shape.verify + shape.lookahead),
          blocks_((shape.context + steps * shape.verify) / 16 + 2),
          units_(shape.batch * kHeads),
          slots_(resolve_slots(kMay, rows_, kMust, kCap) + kSpare),
          members_(std::size_t(units_ * (rows_ + 1) * kMay)),
          lists_(std::size_t(units_ * rows_ * kMay)),
          list_counts_(std::size_t(units_)),
          demand_(std::size_t(units_ * slots_)),
          guess_(std::size_t(units_ * kCap)),
          plan_counts_(2)
    {
        const auto all = std::size_t(units_ * slots_);
        std::vector<OwnedSlot> owned(all);
        for (std::size_t i = 0; i < all; ++i) { owned[i].slot = std::int32_t(i); }
        owned_ = upload(queue, owned);
        guarded_ = upload(queue, std::vector<std::int32_t>(std::size_t(units_)));
        member_counts_ = upload(queue, std::vector<std::int32_t>(std::size_t(units_ * (rows_ + 1)), -1));
        generation_ = upload(queue, std::vector<std::uint32_t>(all));
        marks_ = upload(queue, std::vector<std::uint32_t>(all));
        counters_ = upload(queue, std::vector<ResolveCounters>(1));
        ticket_ = upload(queue, std::vector<ResolveTicket>(1));
        std::vector<std::int32_t> starts{0}, cells;
        for (std::int32_t s = 0; s < shape.batch; ++s) {
            cells.push_back(s);
            starts.push_back(starts.back() + rows_);
        }
        starts_ = upload(queue, starts);
        cells_ = upload(queue, cells);
        verify_ = upload(queue, std::vector<std::int32_t>(cells.size(), shape.verify));
        tier_ = upload(queue, std::vector<std::int32_t>(cells.size() * std::size_t(blocks_), 1));
        native_ = upload(queue, std::vector<std::int64_t>(cells.size() * kRing));
        make_steps(shape, steps);
    }

    void resolve() const
    {
        ResolveParams p;
        p.residency = {owned_.data(),
                       guarded_.data(),
                       members_.data(),
                       member_counts_.data(),
                       generation_.data(),
                       marks_.data(),
                       1,
                       kHeads,
                       slots_,
                       kMay,
                       rows_};
        p.must = must_.data();
        p.may = may_.data();
        p.must_blocks = kMust;
        p.may_blocks = kMay;
        p.row_starts = starts_.data();
        p.verify_rows = verify_.data();
        p.position = position_.data();
        p.cells = cells_.data();
        p.accepted = verify_.data();
        p.sequences = units_ / kHeads;
        p.tier_blocks = tier_.data();
        p.native_cells = native_.data();
        p.tier_block_bytes = 4224 * kHeads;
        p.unit_bytes = p.slot_stride = 4224;
        p.native_unit_bytes = 8192;
        p.native_ring = kRing;
        p.max_blocks = blocks_;
        p.block_tokens = 16;
        p.recent = 128;
        p.prefetch_cap = kCap;
        p.blocks = lists_.data();
        p.block_counts = list_counts_.data();
        p.list_blocks = rows_ * kMay;
        p.demand = {demand_.data(), plan_counts_.data(), std::int32_t(demand_.size()), nullptr};
        p.guess = {guess_.data(), plan_counts_.data() + 1, std::int32_t(guess_.size()), nullptr};
        p.counters = counters_.data();
        p.ticket = ticket_.data();
        enqueue_resolve(queue_, p);
    }
    /// The next step's inputs; everything that was planned has landed.
    void enqueue_step(int step)
    {
        const auto copy = [&](auto& to, const auto& from) {
            enqueue_copy(queue_, to.data(), std::span(from.data() + std::size_t(step) * to.size(), to.size()));
        };
        copy(must_, all_must_);
        copy(may_, all_may_);
        copy(position_, all_positions_);
        enqueue_copy(queue_, marks_.data(), std::span<const std::uint32_t>(generation_.data(), generation_.size()));
    }
    ResolveCounters counters() const
    {
        std::vector<ResolveCounters> now(1);
        enqueue_copy(queue_, now.data(), std::span<const ResolveCounters>(counters_.data(), 1));
        queue_.synchronize();
        return now[0];
    }

private:
    /// The first blocks, the recent window, and the best of a list in which `kDrift` blocks change with every row.
    void make_steps(const Shape& shape, int steps)
    {
        std::mt19937 random(1);
        const auto ids = std::size_t(units_ * rows_);
        std::vector<std::int32_t> must(std::size_t(steps) * ids * kMust, -1), may(std::size_t(steps) * ids * kMay, -1);
        std::vector<TokenIndex> positions(std::size_t(steps * rows_ * shape.batch));
        for (std::int32_t u = 0; u < units_; ++u) {
            std::vector<std::int32_t> hot(kMay);
            for (auto& b : hot) { b = 4 + std::int32_t(random() % unsigned(shape.context / 16 - 16)); }
            for (std::int32_t i = 0; i < steps * rows_; ++i) {
                const std::int32_t step = i / rows_, s = u / kHeads, r = s * rows_ + i % rows_;
                const TokenIndex position = shape.context + step * shape.verify + i % rows_;
                positions[std::size_t(step * rows_ * shape.batch + r)] = position;
                for (int d = 0; d < kDrift; ++d) {
                    hot[random() % unsigned(kMay)] = 4 + std::int32_t(random() % unsigned(shape.context / 16 - 16));
                }
                std::set<std::int32_t> chosen{0, 1, 2, 3};
                for (auto b = std::int32_t((position - 127) / 16); b <= position / 16; ++b) { chosen.insert(b); }
                const std::size_t at = std::size_t(step) * ids + std::size_t(r * kHeads + u % kHeads);
                std::size_t next = 0;
                for (; chosen.size() < kMust && next < hot.size(); ++next) { chosen.insert(hot[next]); }
                std::copy(chosen.begin(), chosen.end(), must.begin() + std::ptrdiff_t(at) * kMust);
                std::set<std::int32_t> more;
                for (; chosen.size() + more.size() < kMay && next < hot.size(); ++next) {
                    if (chosen.count(hot[next]) == 0) { more.insert(hot[next]); }
                }
                std::copy(more.begin(), more.end(), may.begin() + std::ptrdiff_t(at) * kMay);
            }
        }
        all_must_ = upload(queue_, must);
        all_may_ = upload(queue_, may);
        all_positions_ = upload(queue_, positions);
        must_ = DeviceBuffer<std::int32_t>(ids * kMust);
        may_ = DeviceBuffer<std::int32_t>(ids * kMay);
        position_ = DeviceBuffer<TokenIndex>(positions.size() / std::size_t(steps));
    }

    Queue queue_;
    std::int32_t rows_, blocks_, units_, slots_;
    DeviceBuffer<OwnedSlot> owned_;
    DeviceBuffer<LogicalMember> members_;
    DeviceBuffer<AttendBlock> lists_;
    DeviceBuffer<std::int32_t> list_counts_;
    DeviceBuffer<TransferPiece> demand_, guess_;
    DeviceBuffer<std::int32_t> plan_counts_, guarded_, member_counts_, starts_, cells_, verify_, tier_, must_, may_, all_must_, all_may_;
    DeviceBuffer<std::uint32_t> generation_, marks_;
    DeviceBuffer<std::int64_t> native_;
    DeviceBuffer<TokenIndex> position_, all_positions_;
    DeviceBuffer<ResolveCounters> counters_;
    DeviceBuffer<ResolveTicket> ticket_;
};

void run(const Options& options)
{
    const Stream stream;
    const Queue queue = stream.queue();
    Report report(options);
    L2Flush flush;
    const Shape shapes[] = {{8, 131072, 1, 0}, {8, 131072, 1, 1}, {8, 131072, 4, 1}, {8, 131072, 8, 0},
                            {64, 32768, 1, 0}, {64, 32768, 1, 1}, {64, 32768, 4, 1}, {64, 32768, 8, 0}};
    for (const Shape& shape : shapes) {
        const std::string name = "b" + std::to_string(shape.batch) + "_" + std::to_string(shape.context / 1024) + "k_verify" +
                                 std::to_string(shape.verify) + "_lookahead" + std::to_string(shape.lookahead);
        if (!options.runs(name)) { continue; }
        World world(queue, shape, options.repetitions + 2);
        ResolveCounters first;
        const double us = median_graph_us(
            queue, options.repetitions, [&] { world.resolve(); },
            [&](int step) {
                if (step == 2) { first = world.counters(); }
                world.enqueue_step(step);
                flush.enqueue(queue);
            });
        const ResolveCounters last = world.counters();
        const double units = double(shape.batch) * World::kHeads * options.repetitions;
        report.add(name, {{"resolve_us", us},
                          {"read_blocks", double(last.read - first.read) / units},
                          {"fetched_blocks", double(last.fetched - first.fetched) / units},
                          {"guessed_blocks", double(last.guessed - first.guessed) / units},
                          {"unserved_blocks", double(last.unserved)}});
    }
}

} // namespace
} // namespace oasis::cuda::bench

int main(int argc, char** argv) { return oasis::cuda::bench::run_bench(argc, argv, oasis::cuda::bench::run); }
