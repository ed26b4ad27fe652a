// SPDX-License-Identifier: Apache-2.0
//
// Random steps of a batch through `enqueue_resolve`, beside a model of the rules and of what is in every slot.
#pragma once

#include "oracle/residency.hpp"
#include "support.hpp"

#include <oasis/cuda/resolve.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace oasis::cuda::test {

struct ResolveShape {
    std::int32_t cells = 3;
    std::int32_t layers = 2;
    std::int32_t kv_heads = 2;
    std::int32_t max_rows = 4;
    std::int32_t must = 8;
    std::int32_t may = 16;
    std::int32_t logical = 16;
    std::int32_t cap = 4;
    std::int32_t spare = 3; ///< slots of a unit beyond what it must have
    std::int32_t recent = 48;
    std::int32_t dense_below = 0;
    std::int32_t max_blocks = 300;
    std::int32_t length = 1500; ///< tokens of a new sequence, about
    std::int32_t steps_a_cut = 20; ///< on average
    bool may_none = false;
    bool ranked = false;
};

using Blocks = std::set<std::int32_t>;

struct SequenceStep {
    std::int32_t cell = -1;
    std::int32_t verify = 0;
    std::int32_t rows = 0;
    TokenIndex first = 0;
};

/// Host side of everything; the fixture moves it.
class ResolveWorld {
public:
    static constexpr std::int32_t kBlockTokens = 16;
    static constexpr std::int64_t kUnitBytes = 4224;
    static constexpr std::int64_t kNativeBytes = 8192;
    static constexpr std::int32_t kRing = 32;

    ResolveWorld(Queue queue, ResolveShape shape, std::uint64_t seed);

    ResolveParams params(LayerId layer) const;
    /// Chooses the batch, its rows and what they select, and uploads that.
    void begin_step();
    /// After `enqueue_resolve`: checks everything against the model, lets copies land.
    void check_layer(LayerId layer);
    /// Accepts some of the rows, or cuts, or begins another sequence in a cell.
    void end_step();
    /// Leaves every unit so many slots.
    void take_slots(std::size_t left)
    {
        auto lists = download(queue_, owned_);
        for (std::size_t i = 0; i < lists.size(); ++i) {
            if (i % std::size_t(owned_slots()) >= left) { lists[i] = {}; }
        }
        enqueue_copy(queue_, owned_.data(), lists);
        queue_.synchronize();
    }
    ResolveCounters counters() const { return download(queue_, counters_)[0]; }
    /// Everything that may not depend on how the kernel was launched.
    std::vector<std::int64_t> digest() const;

    ResolveShape shape;
    std::vector<SequenceStep> batch;

private:
    struct Slot {
        std::int64_t unit = -1;  ///< whose it is
        std::int32_t block = -1; ///< of which it has bytes, or will have
        std::int64_t version = -1;
        bool flying = false;
    };
    struct Row {
        Blocks must, may, best;
    };

    std::int64_t unit(std::int32_t cell, LayerId layer, std::int32_t head) const
    {
        return (std::int64_t{cell} * shape.layers + layer) * shape.kv_heads + head;
    }
    std::int32_t owned_slots() const { return resolve_slots(shape.logical, shape.max_rows, shape.must, shape.cap) + shape.spare + 2; }
    std::int32_t first_native(TokenIndex position) const
    {
        return std::int32_t(std::max<TokenIndex>(0, position + 1 - shape.recent) / kBlockTokens);
    }
    std::int32_t draw(std::int32_t below) { return std::int32_t(random_() % std::uint64_t(below)); }
    std::int32_t place_of(std::int32_t sequence, std::int32_t block) const
    {
        return tier_blocks_[std::size_t(sequence * shape.max_blocks + block)];
    }
    Row select(std::int64_t unit, TokenIndex position);
    void new_sequence(std::int32_t cell);
    std::vector<Blocks> apply_model(LayerId layer, std::size_t sequence, std::int32_t head);
    std::int32_t check_plan(LayerId layer, const ResolvePlan& plan, std::map<std::int64_t, Blocks>& planned, std::set<std::int32_t>& taken);
    void check_list(LayerId layer, std::size_t sequence, std::int32_t head, const std::vector<Blocks>& reads,
                    const std::vector<char>& landed);
    void check_unit(LayerId layer, std::size_t sequence, std::int32_t head);
    void land();

    Queue queue_;
    std::mt19937_64 random_;
    std::vector<TokenIndex> length_;                  ///< [cells]
    std::vector<std::int32_t> accepted_;              ///< [cells]
    std::vector<oracle::LogicalModel> models_;        ///< [units]
    std::vector<Blocks> hot_;                         ///< [units] blocks that selections favour
    std::vector<std::vector<std::int64_t>> versions_; ///< [cells][blocks] what a coded block holds: it may be cut and written again
    std::vector<Slot> slots_;
    std::vector<Blocks> guarded_; ///< [units] guesses of the step before
    std::vector<std::int32_t> tier_blocks_;
    std::vector<std::int64_t> native_cells_;
    std::vector<Row> rows_; ///< [layers][rows][kv_heads]
    std::vector<std::uint32_t> generation_now_, marks_now_, expected_[2];
    std::set<std::int32_t> needed_; ///< slots that the layer's lists name
    ResolveCounters seen_;
    std::int32_t total_rows() const { return std::int32_t(batch.size()) * shape.max_rows; }
    const Row& row(LayerId layer, std::int32_t row, std::int32_t head) const
    {
        return rows_[std::size_t((layer * total_rows() + row) * shape.kv_heads + head)];
    }
    std::int32_t first_row(std::size_t sequence) const
    {
        std::int32_t first = 0;
        for (std::size_t s = 0; s < sequence; ++s) { first += batch[s].rows; }
        return first;
    }

    DeviceBuffer<OwnedSlot> owned_;
    DeviceBuffer<LogicalMember> members_;
    DeviceBuffer<std::int32_t> guarded_counts_, member_counts_, must_, may_, ranked_, starts_, verify_, cells_, accepted_device_, tier_,
        counts_, plan_counts_;
    DeviceBuffer<std::uint32_t> generation_, marks_, expected_device_;
    DeviceBuffer<TokenIndex> position_;
    DeviceBuffer<std::int64_t> native_;
    DeviceBuffer<AttendBlock> blocks_;
    DeviceBuffer<TransferPiece> demand_, guess_;
    DeviceBuffer<ResolveCounters> counters_;
    DeviceBuffer<ResolveTicket> ticket_;
};

inline ResolveWorld::ResolveWorld(Queue queue, ResolveShape of, std::uint64_t seed)
    : shape(of), batch(std::size_t(of.cells) + 1), queue_(queue), random_(seed)
{
    const auto units = std::size_t(shape.cells * shape.layers * shape.kv_heads);
    const auto owned = std::size_t(owned_slots());
    slots_.resize(units * owned);
    std::vector<std::int32_t> order(slots_.size());
    for (std::size_t i = 0; i < order.size(); ++i) { order[i] = std::int32_t(i); }
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<OwnedSlot> lists(units * owned);
    for (std::size_t u = 0; u < units; ++u) {
        for (std::size_t i = 0; i + 2 < owned; ++i) { // the last two places have no slot
            lists[u * owned + i].slot = order[u * owned + i];
            slots_[std::size_t(order[u * owned + i])].unit = std::int64_t(u);
        }
    }
    owned_ = upload(queue, lists);
    guarded_counts_ = poisoned<std::int32_t>(queue, units);
    const std::size_t versions = units * std::size_t(shape.max_rows + 1);
    members_ = poisoned<LogicalMember>(queue, versions * std::size_t(shape.logical));
    member_counts_ = DeviceBuffer<std::int32_t>(versions);
    generation_ = upload(queue, std::vector<std::uint32_t>(slots_.size(), 7));
    marks_ = upload(queue, std::vector<std::uint32_t>(slots_.size(), 7));
    generation_now_.assign(slots_.size(), 7);
    marks_now_ = generation_now_;
    const std::size_t sequences = batch.size();
    const auto ids = std::size_t(shape.layers * total_rows() * shape.kv_heads);
    must_ = DeviceBuffer<std::int32_t>(ids * std::size_t(shape.must));
    may_ = DeviceBuffer<std::int32_t>(ids * std::size_t(shape.may));
    ranked_ = DeviceBuffer<std::int32_t>(sequences * std::size_t(shape.layers * shape.kv_heads * shape.logical));
    starts_ = DeviceBuffer<std::int32_t>(sequences + 1);
    verify_ = DeviceBuffer<std::int32_t>(sequences);
    cells_ = DeviceBuffer<std::int32_t>(sequences);
    position_ = DeviceBuffer<TokenIndex>(std::size_t(total_rows()));
    tier_ = DeviceBuffer<std::int32_t>(sequences * std::size_t(shape.max_blocks));
    native_ = DeviceBuffer<std::int64_t>(sequences * kRing);
    blocks_ = DeviceBuffer<AttendBlock>(sequences * std::size_t(shape.kv_heads * shape.max_rows * shape.may));
    counts_ = DeviceBuffer<std::int32_t>(sequences * std::size_t(shape.kv_heads));
    plan_counts_ = poisoned<std::int32_t>(queue, 2);
    demand_ = DeviceBuffer<TransferPiece>(sequences * std::size_t(shape.kv_heads) * owned);
    guess_ = DeviceBuffer<TransferPiece>(sequences * std::size_t(shape.kv_heads * shape.cap) + 1);
    expected_device_ = upload(queue, std::vector<std::uint32_t>(std::size_t(4 * shape.layers)));
    for (auto& expected : expected_) { expected.resize(std::size_t(shape.layers)); }
    counters_ = upload(queue, std::vector<ResolveCounters>(1));
    ticket_ = upload(queue, std::vector<ResolveTicket>(1));
    length_.resize(std::size_t(shape.cells));
    accepted_.resize(std::size_t(shape.cells));
    accepted_device_ = DeviceBuffer<std::int32_t>(std::size_t(shape.cells));
    versions_.assign(std::size_t(shape.cells), std::vector<std::int64_t>(std::size_t(shape.max_blocks)));
    models_.assign(units, oracle::LogicalModel({kBlockTokens, std::size_t(shape.logical), shape.dense_below, shape.may_none}));
    hot_.resize(units);
    guarded_.resize(units);
    for (std::int32_t cell = 0; cell < shape.cells; ++cell) { new_sequence(cell); }
}

inline void ResolveWorld::new_sequence(std::int32_t cell)
{
    length_[std::size_t(cell)] = 1 + shape.length / 2 + draw(shape.length);
    accepted_[std::size_t(cell)] = 0;
    for (std::int64_t u = unit(cell, 0, 0); u < unit(cell + 1, 0, 0); ++u) {
        models_[std::size_t(u)] = oracle::LogicalModel({kBlockTokens, std::size_t(shape.logical), shape.dense_below, shape.may_none});
        hot_[std::size_t(u)].clear();
        guarded_[std::size_t(u)].clear();
    }
    for (Slot& slot : slots_) {
        if (slot.unit >= unit(cell, 0, 0) && slot.unit < unit(cell + 1, 0, 0)) { slot.block = -1; }
    }
    enqueue_clear_cell(queue_, params(0).residency, cell);
}

inline ResolveParams ResolveWorld::params(LayerId layer) const
{
    ResolveParams p;
    p.residency = {owned_.data(), guarded_counts_.data(), members_.data(), member_counts_.data(), generation_.data(), marks_.data(),
                   shape.layers,  shape.kv_heads,         owned_slots(),   shape.logical,         shape.max_rows};
    const std::int64_t ids = std::int64_t{layer} * total_rows() * shape.kv_heads;
    p.must = must_.data() + ids * shape.must;
    p.may = may_.data() + ids * shape.may;
    if (shape.ranked) { p.ranked = ranked_.data() + std::int64_t{layer} * std::int64_t(batch.size()) * shape.kv_heads * shape.logical; }
    p.must_blocks = shape.must;
    p.may_blocks = shape.may;
    p.row_starts = starts_.data();
    p.verify_rows = verify_.data();
    p.position = position_.data();
    p.cells = cells_.data();
    p.accepted = accepted_device_.data();
    p.sequences = std::int32_t(batch.size());
    p.layer = layer;
    p.tier_blocks = tier_.data();
    p.native_cells = native_.data();
    p.tier_block_bytes = kUnitBytes * shape.layers * shape.kv_heads;
    p.unit_bytes = kUnitBytes;
    p.slot_stride = kUnitBytes;
    p.native_unit_bytes = kNativeBytes;
    p.native_ring = kRing;
    p.max_blocks = shape.max_blocks;
    p.block_tokens = kBlockTokens;
    p.recent = shape.recent;
    p.dense_below = shape.dense_below;
    p.prefetch_cap = shape.cap;
    p.may_rule_none = shape.may_none;
    p.blocks = blocks_.data();
    p.block_counts = counts_.data();
    p.list_blocks = shape.max_rows * shape.may;
    p.demand = {demand_.data(), plan_counts_.data(), std::int32_t(demand_.size()), expected_device_.data()};
    p.guess = {guess_.data(), plan_counts_.data() + 1, std::int32_t(guess_.size()), expected_device_.data() + 2 * shape.layers};
    p.counters = counters_.data();
    p.ticket = ticket_.data();
    return p;
}

} // namespace oasis::cuda::test
