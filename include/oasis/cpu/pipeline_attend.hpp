// SPDX-License-Identifier: Apache-2.0
//
// Pipeline: attention of decode rows over their sets, and the exact masses that studies ask for.
#pragma once

#include <oasis/cpu/pipeline.hpp>

namespace oasis::cpu {

template <class Policies>
BlockRef Pipeline<Policies>::block_ref(const StepGroup& group, LayerId layer, std::int32_t head, const RowPlan& row, const Read& read, std::int32_t window)
{
    const TokenIndex first = TokenIndex{read.block} * config_.block_tokens;
    BlockRef ref;
    ref.end = static_cast<std::int16_t>(tokens_read(row, read.block));
    if (window > 0) { ref.begin = static_cast<std::int16_t>(std::clamp<TokenIndex>(row.position + 1 - window - first, 0, ref.end)); }
    if (read.slot == SlotId::kNone) {
        ref.data = pool_.native(group.sequence->blocks[std::size_t(read.block)], layer, head);
    } else {
        ref.data = pool_.slots().data(read.slot) + std::size_t(head % shape_.heads_per_set) * shape_.head_block.coded_bytes();
        ref.coded = config_.block_code != BlockCode::kNative;
    }
    return ref;
}

/// For engines with their own attention: the rows' sets, and the pins that keep them.
template <class Policies>
void Pipeline<Policies>::keep_selection(const StepGroup& group, LayerId layer, std::int32_t window)
{
    for (std::int32_t row = 0; row < row_count_; ++row) {
        const RowPlan& plan = rows_[std::size_t(row)];
        for (std::int32_t head = 0; head < model_.kv_heads; ++head) {
            for (const Read& read : plan.reads[std::size_t(head / shape_.heads_per_set)]) {
                selected_refs_.push_back(block_ref(group, layer, head, plan, read, window));
                selected_positions_.push_back(read.block);
            }
            selected_starts_.push_back(static_cast<std::int64_t>(selected_refs_.size()));
        }
    }
    selected_pins_.insert(selected_pins_.end(), pinned_.begin(), pinned_.end()); // generations tell which still hold
    pinned_.clear();
}

/// Rows go in passes that bound the scratch: a pass holds at least one row and at most about 64K block references.
template <class Policies>
void Pipeline<Policies>::attend(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args, Journal& journal)
{
    const SpanGuard span(sink_, Stage::kAttend, layer);
    constexpr std::size_t kRefsPerPass = std::size_t{1} << 16;
    for (std::int32_t begin = 0; begin < row_count_;) {
        std::size_t refs = 0;
        std::int32_t end = begin;
        while (end < row_count_ && (end == begin || refs < kRefsPerPass)) {
            for (const auto& reads : rows_[std::size_t(end)].reads) { refs += reads.size() * std::size_t(shape_.heads_per_set); }
            ++end;
        }
        attend_rows(queue, group, layer, args, begin, end, journal);
        begin = end;
    }
}

/// Tasks are chunks of a (row, head)'s set; the chunks of one are merged in position order, whoever computed them and whenever their blocks came.
template <class Policies>
void Pipeline<Policies>::attend_rows(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args, std::int32_t begin, std::int32_t end, Journal& journal)
{
    const auto kv = std::size_t(model_.kv_heads);
    const std::size_t head_floats = std::size_t(model_.group()) * std::size_t(model_.head_dim);
    const std::size_t chunk_floats = head_floats + std::size_t(model_.group());
    plan_chunks(group, layer, args.window, begin, end);
    ready_chunks_.clear();
    late_chunks_.clear();
    for (std::size_t c = 0; c < chunks_.size(); ++c) { (settle_chunk(c) ? ready_chunks_ : late_chunks_).push_back(c); }
    queue.executor().parallel_for(ready_chunks_.size(), [&](std::size_t task) { kernels_.attend_chunk(chunks_[ready_chunks_[task]]); });
    if (!late_chunks_.empty()) { finish_late_chunks(queue, begin, journal); }
    const std::vector<std::size_t>& starts = chunk_starts_;
    queue.executor().parallel_for(starts.size() - 1, [&](std::size_t i) {
        float* out = partial_.data() + starts[i] * chunk_floats;
        for (std::size_t c = starts[i] + 1; c < starts[i + 1]; ++c) {
            const float* other = partial_.data() + c * chunk_floats;
            merge_states(model_.group(), model_.head_dim, other, other + head_floats, out, out + head_floats);
        }
        write_row(args, group.first_row + begin + static_cast<std::int32_t>(i / kv), static_cast<std::int32_t>(i % kv), out, out + head_floats);
    });
}

/// Cuts the sets of rows [begin, end) into chunks, each with its place for output and log-sum-exp.
template <class Policies>
void Pipeline<Policies>::plan_chunks(const StepGroup& group, LayerId layer, std::int32_t window, std::int32_t begin, std::int32_t end)
{
    const auto chunk_blocks = std::size_t(kChunkTokens / config_.block_tokens);
    const std::size_t head_floats = std::size_t(model_.group()) * std::size_t(model_.head_dim);
    const std::size_t chunk_floats = head_floats + std::size_t(model_.group());
    refs_.clear();
    ref_reads_.clear();
    chunks_.clear();
    chunk_places_.clear();
    chunk_starts_.assign(1, 0);
    for (std::int32_t row = begin; row < end; ++row) {
        for (std::int32_t head = 0; head < model_.kv_heads; ++head) {
            const RowPlan& plan = rows_[std::size_t(row)];
            const auto& reads = plan.reads[std::size_t(head / shape_.heads_per_set)];
            const std::size_t first_ref = refs_.size();
            for (const Read& read : reads) {
                refs_.push_back(block_ref(group, layer, head, plan, read, window));
                ref_reads_.push_back(read);
            }
            const std::size_t chunks = std::max<std::size_t>(1, (reads.size() + chunk_blocks - 1) / chunk_blocks);
            for (std::size_t c = 0; c < chunks; ++c) {
                const std::size_t first = c * chunk_blocks;
                chunk_places_.push_back({row, head, first_ref + first, std::min(chunk_blocks, reads.size() - std::min(first, reads.size()))});
            }
            chunk_starts_.push_back(chunk_places_.size());
        }
    }
    skipped_.assign(refs_.size(), 0);
    partial_.resize(chunk_places_.size() * chunk_floats);
    for (std::size_t c = 0; c < chunk_places_.size(); ++c) {
        const ChunkPlace& place = chunk_places_[c];
        const float* q = q_scaled_.data() + (std::size_t(place.row) * std::size_t(model_.kv_heads) + std::size_t(place.head)) * head_floats;
        float* out = partial_.data() + c * chunk_floats;
        chunks_.push_back({format_, q, model_.group(), {refs_.data() + place.ref, place.count}, out, out + head_floats});
    }
}

/// Whether all blocks of the chunk are there; one that will not come, or is not waited for, counts no token.
template <class Policies>
bool Pipeline<Policies>::settle_chunk(std::size_t chunk)
{
    const ChunkPlace& place = chunk_places_[chunk];
    for (std::size_t i = place.ref; i < place.ref + place.count; ++i) {
        const ReadState state = state_of(ref_reads_[i]);
        if (state == ReadState::kGone || skipped_[i]) {
            refs_[i].end = refs_[i].begin;
        } else if (state == ReadState::kFlying) {
            return false;
        }
    }
    return true;
}

/// Chunks whose blocks were on their way, as these come.
template <class Policies>
void Pipeline<Policies>::finish_late_chunks(Queue queue, std::int32_t begin, Journal& journal)
{
    const bool bounded = config_.miss == MissPolicy::kBounded;
    std::optional<Transfer::Clock::time_point> deadline;
    if (bounded && config_.miss_deadline_us > 0) { deadline = Transfer::Clock::now() + std::chrono::microseconds(config_.miss_deadline_us); }
    bool overdue = false;
    while (!late_chunks_.empty()) {
        if (bounded) { skip_negligible(begin, overdue, journal); }
        ready_chunks_.clear();
        std::erase_if(late_chunks_, [&](std::size_t chunk) {
            if (!settle_chunk(chunk)) { return false; }
            ready_chunks_.push_back(chunk);
            return true;
        });
        if (!ready_chunks_.empty()) {
            queue.executor().parallel_for(ready_chunks_.size(), [&](std::size_t task) { kernels_.attend_chunk(chunks_[ready_chunks_[task]]); });
            collect(journal);
        } else if (!wait(journal, overdue ? std::nullopt : deadline)) {
            if (overdue || !deadline) { throw Error("attend: a block is neither in fast memory nor on its way"); }
            overdue = true;
        }
    }
}

/// Whether a late chunk still waits for the slot: another row or head may, after one gave it up.
template <class Policies>
bool Pipeline<Policies>::awaited(SlotId slot) const noexcept
{
    return std::any_of(late_chunks_.begin(), late_chunks_.end(), [&](std::size_t chunk) {
        const ChunkPlace& place = chunk_places_[chunk];
        for (std::size_t i = place.ref; i < place.ref + place.count; ++i) {
            if (!skipped_[i] && ref_reads_[i].slot == slot) { return true; }
        }
        return false;
    });
}

/// Gives up blocks that are on their way: those whose share of the softmax mass is below epsilon for every query head of the KV head, by their
/// upper bound against the log-sum-exp of what has been read; when the wait is overdue, all. They land later and may serve then.
template <class Policies>
void Pipeline<Policies>::skip_negligible(std::int32_t begin, bool overdue, Journal& journal)
{
    const auto group_heads = std::size_t(model_.group());
    const std::size_t head_floats = group_heads * std::size_t(model_.head_dim);
    const std::size_t chunk_floats = head_floats + group_heads;
    const std::int32_t rows = row_count_ - first_sparse_;
    float read[kMaxGroup];
    for (const std::size_t chunk : late_chunks_) {
        const ChunkPlace& place = chunk_places_[chunk];
        if (place.row < first_sparse_) { continue; } // a dense row has no bounds, and reads everything
        const std::size_t of_row = std::size_t(place.row - begin) * std::size_t(model_.kv_heads) + std::size_t(place.head);
        std::fill_n(read, group_heads, -std::numeric_limits<float>::infinity());
        for (std::size_t c = chunk_starts_[of_row]; c < chunk_starts_[of_row + 1]; ++c) {
            if (std::find(late_chunks_.begin(), late_chunks_.end(), c) != late_chunks_.end()) { continue; }
            const float* lse = partial_.data() + c * chunk_floats + head_floats;
            for (std::size_t h = 0; h < group_heads; ++h) {
                const float high = std::max(read[h], lse[h]);
                if (std::isfinite(high)) { read[h] = high + std::log(std::exp(read[h] - high) + std::exp(lse[h] - high)); }
            }
        }
        const float* bounds = log_mass_.data() + mass_at(place.head, place.row - first_sparse_, rows);
        for (std::size_t i = place.ref; i < place.ref + place.count; ++i) {
            if (skipped_[i] || state_of(ref_reads_[i]) != ReadState::kFlying) { continue; }
            float share = 0;
            for (std::size_t h = 0; h < group_heads; ++h) {
                const float bound = bounds[h * std::size_t(mass_stride()) + std::size_t(ref_reads_[i].block)];
                share = std::max(share, std::exp(std::min(0.0F, bound - read[h])));
            }
            if (!overdue && !(share < config_.miss_epsilon)) { continue; }
            skipped_[i] = 1;
            if (!awaited(ref_reads_[i].slot)) { engine_.demote(ref_reads_[i].slot); }
            journal.counters.skipped_mass += double(share);
            ++journal.counters.skipped_blocks;
            journal.counters.skipped_tokens += std::uint64_t(tokens_read(rows_[std::size_t(place.row)], ref_reads_[i].block));
        }
    }
}

template <class Policies>
void Pipeline<Policies>::write_row(const AttendArgs& args, std::int64_t row, std::int32_t head, const float* out, const float* lse)
{
    const std::int64_t first_head = row * model_.q_heads + std::int64_t{head} * model_.group();
    auto* to = static_cast<std::byte*>(args.out.data) + std::size_t(first_head) * std::size_t(model_.head_dim) * size_of(config_.dtype);
    kernels_.from_float(config_.dtype, out, std::size_t(model_.group()) * std::size_t(model_.head_dim), to);
    if (args.lse) { std::copy_n(lse, model_.group(), args.lse + first_head); }
}

/// Coded bytes of a head-block wherever they are: its slot, else read from the slow tier into `staging` (a unit).
template <class Policies>
const std::byte* Pipeline<Policies>::coded_bytes_of(const Sequence& sequence, LayerId layer, std::int32_t head, std::int32_t block, std::byte* staging)
{
    const std::int32_t set = head / shape_.heads_per_set;
    const std::size_t at = std::size_t(head % shape_.heads_per_set) * shape_.head_block.coded_bytes();
    const SlotId slot = pool_.slots().slot_of(unit_of(sequence, layer, set, block));
    if (slot != SlotId::kNone && pool_.slots().landed(slot)) { return pool_.slots().data(slot) + at; }
    const BlockId id = sequence.blocks[std::size_t(block)];
    if (!pool_.blocks().store().read({id, layer, set, staging})) {
        throw StoreError(oasis::detail::text("slow tier: read of block ", raw(id), " layer ", layer, " set ", set, " of sequence ", raw(sequence.id), " (", shape_.unit_bytes,
                                      " bytes) failed"));
    }
    return staging + at;
}

/// Log of the true mass of every block for the sparse rows, from the keys each row would read. Same layout as the estimates.
template <class Policies>
void Pipeline<Policies>::exact_mass(Queue queue, const StepGroup& group, LayerId layer, float* mass)
{
    const Sequence& sequence = *group.sequence;
    const std::int32_t rows = row_count_ - first_sparse_;
    const std::int32_t blocks = blocks_at(rows_[std::size_t(row_count_ - 1)].position);
    queue.executor().parallel_for(std::size_t(model_.kv_heads), [&](std::size_t task) {
        const auto head = static_cast<std::int32_t>(task);
        thread_local std::vector<std::byte> staging;
        thread_local std::vector<const std::byte*> coded;
        thread_local std::vector<BlockRef> refs;
        thread_local std::vector<float> out;
        staging.resize(std::size_t(blocks) * shape_.unit_bytes);
        coded.assign(std::size_t(blocks), nullptr);
        const TokenIndex last = rows_[std::size_t(row_count_ - 1)].position;
        for (std::int32_t block = 0; block < blocks; ++block) {
            if (!reads_native(sequence, last, block)) {
                coded[std::size_t(block)] = coded_bytes_of(sequence, layer, head, block, staging.data() + std::size_t(block) * shape_.unit_bytes);
            }
        }
        for (std::int32_t i = 0; i < rows; ++i) {
            const RowPlan& row = rows_[std::size_t(first_sparse_ + i)];
            refs.clear();
            for (std::int32_t block = 0; block < blocks_at(row.position); ++block) {
                BlockRef ref{nullptr, 0, static_cast<std::int16_t>(tokens_read(row, block)), false};
                ref.data = reads_native(sequence, row.position, block) ? pool_.native(sequence.blocks[std::size_t(block)], layer, head) : coded[std::size_t(block)];
                ref.coded = config_.block_code != BlockCode::kNative && !reads_native(sequence, row.position, block);
                refs.push_back(ref);
            }
            out.resize(std::size_t(model_.group()) * refs.size());
            const float* q = q_scaled_.data() +
                             (std::size_t(first_sparse_ + i) * std::size_t(model_.q_heads) + std::size_t(head) * std::size_t(model_.group())) * std::size_t(model_.head_dim);
            kernels_.block_mass({format_, q, model_.group(), refs, out.data()});
            for (std::int32_t g = 0; g < model_.group(); ++g) {
                std::copy_n(out.data() + std::size_t(g) * refs.size(), refs.size(), mass + mass_at(head, i, rows) + std::size_t(g) * std::size_t(mass_stride()));
            }
        }
    });
}

/// What share of the true softmax mass the verify rows' sets hold, per query head.
template <class Policies>
void Pipeline<Policies>::captured_mass(const StepGroup& group, LayerId layer, Journal& journal)
{
    LayerStats& at_layer = journal.layers[std::size_t(layer)];
    const bool oracle = config_.summary.kind == SummaryKind::kOracle;
    const float* mass = oracle ? log_mass_.data() : true_mass_.data();
    const std::int32_t rows = row_count_ - first_sparse_;
    for (std::int32_t row = first_sparse_; row < group.rows.verify_rows; ++row) {
        const RowPlan& plan = rows_[std::size_t(row)];
        for (std::int32_t head = 0; head < model_.q_heads; ++head) {
            const std::int32_t kv_head = head / model_.group();
            const float* m = mass + mass_at(kv_head, row - first_sparse_, rows) + std::size_t(head % model_.group()) * std::size_t(mass_stride());
            const float high = *std::max_element(m, m + blocks_at(plan.position));
            double all = 0;
            double read = 0;
            for (std::int32_t block = 0; block < blocks_at(plan.position); ++block) { all += std::exp(double(m[block]) - high); }
            for (const Read& r : plan.reads[std::size_t(kv_head / shape_.heads_per_set)]) { read += std::exp(double(m[r.block]) - high); }
            journal.counters.captured_mass += read / all;
            ++journal.counters.captured_heads;
            at_layer.captured_mass += read / all;
            ++at_layer.captured_heads;
        }
    }
}

} // namespace oasis::cpu
