// SPDX-License-Identifier: Apache-2.0
//
// The step of one layer on the CPU: append, seal, score, select, resolve, fetch, attend. Sequences of a step go through one after
// another, the rows and heads of one in parallel. What a row computes depends on its sequence alone.
#pragma once

#include <oasis/core/half.hpp>
#include <oasis/core/open_step.hpp>
#include <oasis/cpu/attend_kernels.hpp>
#include <oasis/cpu/executor.hpp>
#include <oasis/pool/kv_pool.hpp>
#include <oasis/prefetch/prefetch_engine.hpp>
#include <oasis/score/block_scorer.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace oasis::cpu {

/// Opens a span of the telemetry for as long as it lives; nothing when the sink is disabled.
template <Telemetry Sink>
class SpanGuard {
public:
    SpanGuard(Sink& sink, Stage stage, LayerId layer) : sink_(sink), stage_(stage), layer_(layer)
    {
        if constexpr (Sink::enabled) { sink_.begin_span(stage_, layer_); }
    }
    SpanGuard(const SpanGuard&) = delete;
    SpanGuard& operator=(const SpanGuard&) = delete;
    ~SpanGuard()
    {
        if constexpr (Sink::enabled) { sink_.end_span(stage_, layer_); }
    }

private:
    Sink& sink_;
    Stage stage_;
    LayerId layer_;
};

template <class Policies>
class Pipeline {
public:
    using Eviction = typename Policies::Eviction;
    using Store = typename Policies::Store;
    using Pool = KVPool<Eviction, Store>;
    using Scorer = BlockScorer<typename Policies::Scorer>;
    using Selection = typename Policies::Selection;
    using Lookahead = typename Policies::Lookahead;
    using Sink = typename Policies::Telemetry;
    using Engine = PrefetchEngine<Eviction, typename Pool::Blocks>;

    Pipeline(Pool& pool, Scorer scorer, Selection selection, Lookahead& lookahead, Sink& sink)
        : pool_(pool), shape_(pool.shape()), config_(shape_.config), model_(config_.shape), format_{config_.dtype, config_.block_code, config_.block_tokens, model_.head_dim},
          scorer_(std::move(scorer)), selection_(std::move(selection)), lookahead_(lookahead), sink_(sink), engine_(pool.slots(), pool.blocks(), config_.transfer_threads),
          kernels_(attend_kernels())
    {
        allocate_scratch();
    }

    /// One layer of an open step. Throws `StoreError` when the slow tier refuses a block that is being sealed: the step can then be destroyed, and
    /// nothing is lost; or when it does not deliver one that a prefill chunk must read: then the sequence is.
    void layer(Queue queue, OpenStep& step, LayerId layer, const AttendArgs& args, Journal& journal)
    {
        release_selection();
        const HoldGuard guard{*this};
        for (const StepGroup& group : step.groups) {
            append(queue, group, layer, args);
            seal(queue, group, layer, journal);
            if (group.is_prefill()) {
                if (args.out.data) { prefill(queue, group, layer, args, journal); }
            } else {
                decode(queue, step, group, layer, args, journal);
            }
        }
    }

    /// The same without the attention: what each (row, KV head) is to read, in fast memory and pinned until the next layer or the step's end.
    SelectedSlots select_layer(Queue queue, OpenStep& step, LayerId layer, const AttendArgs& args, Journal& journal)
    {
        selecting_ = true;
        selected_refs_.clear();
        selected_positions_.clear();
        selected_starts_.assign(1, 0);
        try {
            this->layer(queue, step, layer, args, journal);
        } catch (...) {
            selecting_ = false;
            release_selection();
            throw;
        }
        selecting_ = false;
        return {selected_refs_, selected_positions_, selected_starts_};
    }
    void release_selection() { release(selected_pins_); }

    /// A step begins; guesses and deadlines are counted in steps.
    void begin_step(std::uint64_t serial, Journal& journal);
    /// It is over: `rows` verify rows of the group stand.
    void end_step(const StepGroup& group, std::int32_t rows) { lookahead_.accepted(group.sequence->id, rows); }
    /// The step's whole time and the bytes it had to fetch, for the live cap.
    void measure_step(std::chrono::nanoseconds time, std::size_t fetched_bytes) noexcept;
    /// Books transfers that are over, and frees what they kept.
    void collect(Journal& journal);
    /// Guesses for the sequence are not wanted any more.
    void cancel(SequenceId sequence, Journal& journal) { journal.counters.cancelled_copies += std::uint64_t(engine_.cancel_sequence(sequence)); }
    /// Waits for the transfers that keep freed blocks and slots; false when there are none.
    bool drain(Journal& journal);
    /// Gives up guesses and waits for every transfer: what is freed from then on is free at once.
    void finish_transfers(Journal& journal)
    {
        engine_.finish_all();
        collect(journal);
    }
    std::int64_t transfers_under_way() const { return engine_.outstanding(); }

    /// Makes native forms again after a truncation or at a shared prefix. Returns the first block that could not be read, or none; what does
    /// not depend on it is made all the same.
    BlockId reopen(Queue queue, Sequence& sequence, const Reopened& reopened);

    /// Working memory, for `footprint`.
    static std::size_t scratch_bytes(const PoolShape& shape);

private:
    static constexpr std::int32_t kDecodeRows = kMaxVerifyRows + kMaxLookaheadRows;
    static constexpr std::int32_t kWaveTokens = 2048;       ///< of slow blocks that prefill streams through at a time
    static constexpr std::int32_t kScoreTaskTokens = 4096;

    /// A block one (row, set) reads, and where its bytes are.
    struct Read {
        std::int32_t block = 0;        ///< position
        SlotId slot = SlotId::kNone;   ///< none: native form
        std::uint32_t generation = 0;  ///< of the slot
    };
    enum class ReadState : std::uint8_t {
        kReady,
        kFlying, ///< its transfer is under way
        kGone,   ///< the transfer failed
    };
    struct Pin {
        SlotId slot = SlotId::kNone;
        std::uint32_t generation = 0;
    };
    struct RowPlan {
        TokenIndex position = 0;
        bool dense = false;
        bool lookahead = false;
        std::int32_t first_block = 0;  ///< of the window
        std::vector<std::vector<Read>> reads; ///< [sets], ascending
    };

    /// Whatever ends a layer early: no slot stays pinned or in flight.
    struct HoldGuard {
        Pipeline& pipeline;
        ~HoldGuard()
        {
            pipeline.release(pipeline.pinned_);
            pipeline.engine_.abandon_planned();
        }
    };

    /// Of an attention chunk: its row and KV head, and where its references begin.
    struct ChunkPlace {
        std::int32_t row = 0;
        std::int32_t head = 0;
        std::size_t ref = 0;
        std::size_t count = 0;
    };

    void allocate_scratch();
    void append(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args);
    void summarise_head(const StepGroup& group, LayerId layer, std::int32_t head);
    void seal(Queue queue, const StepGroup& group, LayerId layer, Journal& journal);
    bool seal_unit(const Sequence& sequence, std::int32_t block, LayerId layer, std::int32_t set, std::byte* staging);
    /// Whether the slow tier lacks this layer of the block; another group of the step may have written it.
    bool is_new(BlockId id, LayerId layer) noexcept { return !pool_.blocks()[id].sealed && pool_.blocks()[id].coded_layers <= layer; }
    void mark_coded(BlockId id, LayerId layer) noexcept
    {
        if (!pool_.blocks()[id].sealed) { pool_.blocks()[id].coded_layers = layer + 1; }
    }
    void summarise_sealed(const Sequence& sequence, std::int32_t block, LayerId layer, std::int32_t head, const std::byte* coded);
    bool read_native(BlockId block, LayerId layer, std::int32_t head, std::byte* to);
    BlockId rebuild_group(const Sequence& sequence, std::int32_t g, LayerId layer, std::int32_t head, bool close);
    void place_sealed(Sequence& sequence, std::int32_t block, LayerId layer, std::int32_t set, const std::byte* coded, Journal& journal);

    void decode(Queue queue, OpenStep& step, const StepGroup& group, LayerId layer, const AttendArgs& args, Journal& journal);
    void plan_rows(const StepGroup& group, LayerId layer, const AttendArgs& args);
    void score(Queue queue, const StepGroup& group, LayerId layer, float scale);
    void select(Queue queue, const StepGroup& group, LayerId layer);
    void reduce_set(std::int32_t row, std::int32_t set, std::int32_t first, std::int32_t blocks, float* scores, float* one);
    void resolve(OpenStep& step, const StepGroup& group, LayerId layer, Journal& journal);
    void resolve_dense(const StepGroup& group, LayerId layer, std::int32_t row, std::int32_t set, Journal& journal);
    void resolve_sparse(std::vector<LogicalUndo>& undo, const StepGroup& group, LayerId layer, std::int32_t row, std::int32_t set, Journal& journal);
    void fill(std::vector<LogicalUndo>& undo, const StepGroup& group, LayerId layer, std::int32_t row, std::int32_t set, Journal& journal);
    bool reads_native(const Sequence& sequence, TokenIndex position, std::int32_t block) const noexcept;
    Read require(const Sequence& sequence, LayerId layer, std::int32_t set, std::int32_t block, Journal& journal);
    SlotId plan_copy(TransferKind kind, const Sequence& sequence, LayerId layer, std::int32_t set, std::int32_t block, Journal& journal);
    void prefetch(const StepGroup& group, LayerId layer, Journal& journal);
    std::int64_t live_allowance(LayerId layer) const noexcept;
    void wait_for_all(const StepGroup& group, Journal& journal);
    void report(const Settled& settled, Journal& journal);
    ReadState state_of(const Read& read) const noexcept
    {
        if (read.slot == SlotId::kNone) { return ReadState::kReady; }
        if (pool_.slots().generation(read.slot) != read.generation) { return ReadState::kGone; }
        return pool_.slots().landed(read.slot) ? ReadState::kReady : ReadState::kFlying;
    }
    /// What failed in flight was unpinned with its slot.
    void release(std::vector<Pin>& pins)
    {
        for (const Pin& pin : pins) {
            if (pool_.slots().generation(pin.slot) == pin.generation) { pool_.slots().unpin(pin.slot); }
        }
        pins.clear();
    }

    void attend(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args, Journal& journal);
    void attend_rows(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args, std::int32_t begin, std::int32_t end, Journal& journal);
    void plan_chunks(const StepGroup& group, LayerId layer, std::int32_t window, std::int32_t begin, std::int32_t end);
    bool settle_chunk(std::size_t chunk);
    bool awaited(SlotId slot) const noexcept;
    void finish_late_chunks(Queue queue, std::int32_t begin, Journal& journal);
    void skip_negligible(std::int32_t begin, bool overdue, Journal& journal);
    bool wait(Journal& journal, std::optional<Transfer::Clock::time_point> until = std::nullopt);
    void keep_selection(const StepGroup& group, LayerId layer, std::int32_t window);
    BlockRef block_ref(const StepGroup& group, LayerId layer, std::int32_t head, const RowPlan& row, const Read& read, std::int32_t window);
    void write_row(const AttendArgs& args, std::int64_t row, std::int32_t head, const float* out, const float* lse);
    void exact_mass(Queue queue, const StepGroup& group, LayerId layer, float* mass);
    void captured_mass(const StepGroup& group, LayerId layer, Journal& journal);
    void prefill(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args, Journal& journal);
    void bring_wave(Queue queue, const StepGroup& group, LayerId layer, std::int32_t first, std::int32_t last, Journal& journal);
    void prefill_wave(Queue queue, const StepGroup& group, LayerId layer, std::int32_t window, std::int32_t first, std::int32_t last, Journal& journal);
    const std::byte* coded_bytes_of(const Sequence& sequence, LayerId layer, std::int32_t head, std::int32_t block, std::byte* staging);

    std::int64_t unit_of(const Sequence& sequence, LayerId layer, std::int32_t set, std::int32_t block) const noexcept
    {
        return pool_.slots().unit(layer, set, sequence.blocks[std::size_t(block)]);
    }
    std::int32_t blocks_at(TokenIndex position) const noexcept { return static_cast<std::int32_t>(position / config_.block_tokens) + 1; }
    std::int32_t tokens_read(const RowPlan& row, std::int32_t block) const noexcept
    {
        return static_cast<std::int32_t>(std::min<TokenIndex>(config_.block_tokens, row.position + 1 - TokenIndex{block} * config_.block_tokens));
    }
    std::int64_t mass_stride() const noexcept { return std::int64_t{shape_.groups_of(config_.limits.max_context + kDecodeRows)} * shape_.group_blocks; }
    /// Log masses of one (KV head, row): [group, mass_stride].
    std::size_t mass_at(std::int32_t head, std::int32_t row, std::int32_t rows) const noexcept
    {
        return (std::size_t(head) * std::size_t(rows) + std::size_t(row)) * std::size_t(model_.group()) * std::size_t(mass_stride());
    }

    Pool& pool_;
    const PoolShape& shape_;
    const CacheConfig& config_;
    const ModelShape& model_;
    BlockFormat format_;
    Scorer scorer_;
    Selection selection_;
    Lookahead& lookahead_;
    Sink& sink_;
    Engine engine_;
    const AttendKernels& kernels_;
    std::uint64_t now_ = 0;                  ///< grows with every layer of every step: the age of slots

    // Scratch. Sized once for the limits; vectors marked (grows) reach their size in the first steps.
    std::vector<float> keys_;                ///< [kv_heads, sub-block, head_dim]
    std::vector<std::byte> tails_;           ///< [kv_heads, decode rows, tail]
    std::vector<float> q_raw_;               ///< [rows, q_heads, head_dim]
    std::vector<float> q_scaled_;            ///< decode: [rows, q_heads, head_dim]; prefill: [kv_heads, rows, group, head_dim]
    std::vector<float> log_mass_;            ///< [kv_heads, sparse rows, group, mass_stride]
    std::vector<float> true_mass_;           ///< the same, with measure_mass
    std::vector<float> scores_;              ///< [tasks of select, 2, mass_stride]
    std::vector<SummaryGroupRef> group_refs_;///< [kv_heads, groups] (grows)
    std::vector<RowPlan> rows_;              ///< [decode rows]
    std::int32_t first_sparse_ = 0;          ///< rows_ from here on are sparse
    std::int32_t row_count_ = 0;
    std::vector<std::int32_t> may_ids_;      ///< [decode rows, sets, attend blocks]
    std::vector<std::uint8_t> must_;         ///< the same shape
    std::vector<SelectionOutput> selected_;  ///< [decode rows, sets]
    std::vector<std::int32_t> ranked_;       ///< [sets, logical blocks] (grows)
    std::vector<std::int32_t> read_ids_;     ///< one (row, set) (grows)
    std::vector<Pin> pinned_;                ///< (grows)
    std::vector<BlockRef> refs_;             ///< of one pass of attend (grows)
    std::vector<Read> ref_reads_;            ///< parallel to it (grows)
    std::vector<ChunkPlace> chunk_places_;   ///< parallel to chunks_ (grows)
    std::vector<std::size_t> ready_chunks_;  ///< (grows)
    std::vector<std::size_t> late_chunks_;   ///< (grows)
    std::vector<std::uint8_t> skipped_;      ///< parallel to refs_: not to be read (grows)
    std::vector<AttendChunk> chunks_;        ///< (grows)
    std::vector<std::size_t> chunk_starts_;  ///< first chunk of each (row, head) (grows)
    std::vector<float> partial_;             ///< [chunks, group, head_dim + 1] (grows)
    std::vector<float> state_;               ///< prefill: [kv_heads, rows, group, head_dim + 2]
    std::vector<std::byte> wave_;            ///< prefill: [kv_heads, wave blocks] coded head-blocks, and a unit for layer scope
    std::vector<PrefillBlock> wave_blocks_;  ///< [kv_heads, wave blocks]
    std::vector<std::byte> staging_;         ///< seal: [blocks of a batch, sets] units
    bool selecting_ = false;
    std::vector<BlockRef> selected_refs_;           ///< of select_layer (grows)
    std::vector<std::int32_t> selected_positions_;  ///< parallel to it (grows)
    std::vector<std::int64_t> selected_starts_;     ///< [rows, kv_heads] + 1 (grows)
    std::vector<Pin> selected_pins_;                ///< (grows)
    double step_seconds_ = 0;                       ///< of recent steps, smoothed
    double demand_bytes_ = 0;                       ///< the same
    std::int64_t live_pieces_ = 0;                  ///< copies that the link can still bring for the next step
    std::vector<std::uint8_t> failed_;       ///< (grows)
};

template <class Policies>
void Pipeline<Policies>::allocate_scratch()
{
    const auto kv = std::size_t(model_.kv_heads);
    const auto d = std::size_t(model_.head_dim);
    const auto rows = std::size_t(config_.limits.max_rows);
    keys_.resize(kv * std::size_t(config_.block_tokens) * d);
    tails_.resize(kv * kDecodeRows * shape_.summary.tail_bytes());
    q_raw_.resize(kDecodeRows * std::size_t(model_.q_heads) * d);
    q_scaled_.resize(std::max<std::size_t>(rows, kDecodeRows) * std::size_t(model_.q_heads) * d);
    log_mass_.resize(kv * kDecodeRows * std::size_t(model_.group()) * std::size_t(mass_stride()));
    if (config_.measure_mass) { true_mass_.resize(log_mass_.size()); }
    const auto row_sets = std::size_t(kDecodeRows) * std::size_t(shape_.sets);
    scores_.resize(row_sets * 2 * std::size_t(mass_stride()));
    rows_.resize(kDecodeRows);
    for (RowPlan& row : rows_) { row.reads.resize(std::size_t(shape_.sets)); }
    const auto attend_blocks = std::size_t(shape_.most_blocks(config_.budgets.attend));
    may_ids_.resize(row_sets * attend_blocks);
    must_.resize(may_ids_.size());
    selected_.resize(row_sets);
    state_.resize(rows * std::size_t(model_.q_heads) * (d + 2));
    const auto wave_blocks = std::size_t(kWaveTokens / config_.block_tokens);
    wave_.resize(wave_blocks * shape_.unit_bytes * std::size_t(shape_.sets));
    wave_blocks_.resize(wave_blocks * kv);
    staging_.resize(wave_blocks * shape_.unit_bytes * std::size_t(shape_.sets));
}

template <class Policies>
std::size_t Pipeline<Policies>::scratch_bytes(const PoolShape& shape)
{
    const CacheConfig& c = shape.config;
    const auto heads = std::size_t(c.shape.q_heads);
    const auto d = std::size_t(c.shape.head_dim);
    const auto rows = std::size_t(c.limits.max_rows);
    const auto stride = std::size_t(shape.groups_of(c.limits.max_context + kDecodeRows)) * std::size_t(shape.group_blocks);
    const std::size_t mass = heads * kDecodeRows * stride * (c.measure_mass ? 2 : 1);
    const std::size_t scores = std::size_t(kDecodeRows) * std::size_t(shape.sets) * 2 * stride;
    const std::size_t floats = (kDecodeRows + std::max<std::size_t>(rows, kDecodeRows)) * heads * d + mass + scores + rows * heads * (d + 2);
    return floats * sizeof(float) + 2 * std::size_t(kWaveTokens / c.block_tokens) * shape.unit_bytes * std::size_t(shape.sets);
}

} // namespace oasis::cpu

#include <oasis/cpu/pipeline_append.hpp>
#include <oasis/cpu/pipeline_attend.hpp>
#include <oasis/cpu/pipeline_prefill.hpp>
#include <oasis/cpu/pipeline_select.hpp>
#include <oasis/cpu/pipeline_transfer.hpp>
