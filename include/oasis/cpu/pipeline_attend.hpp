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
    selected_pins_.insert(selected_pins_.end(), pinned_.begin(), pinned_.end());
    pinned_.clear();
}

/// Rows go in passes that bound the scratch: a pass holds at least one row and at most about 64K block references.
template <class Policies>
void Pipeline<Policies>::attend(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args)
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
        attend_rows(queue, group, layer, args, begin, end);
        begin = end;
    }
}

/// Tasks are chunks of a (row, head)'s set; the chunks of one are merged in position order, whoever computed them.
template <class Policies>
void Pipeline<Policies>::attend_rows(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args, std::int32_t begin, std::int32_t end)
{
    const auto kv = std::size_t(model_.kv_heads);
    const auto chunk_blocks = std::size_t(kChunkTokens / config_.block_tokens);
    const std::size_t head_floats = std::size_t(model_.group()) * std::size_t(model_.head_dim);
    const std::size_t chunk_floats = head_floats + std::size_t(model_.group());
    refs_.clear();
    chunks_.clear();
    std::vector<std::size_t>& starts = chunk_starts_;
    starts.assign(1, 0);
    for (std::int32_t row = begin; row < end; ++row) {
        for (std::int32_t head = 0; head < model_.kv_heads; ++head) {
            const RowPlan& plan = rows_[std::size_t(row)];
            const auto& reads = plan.reads[std::size_t(head / shape_.heads_per_set)];
            for (const Read& read : reads) { refs_.push_back(block_ref(group, layer, head, plan, read, args.window)); }
            starts.push_back(starts.back() + std::max<std::size_t>(1, (reads.size() + chunk_blocks - 1) / chunk_blocks));
        }
    }
    partial_.resize(starts.back() * chunk_floats);
    std::size_t ref = 0;
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
        const RowPlan& plan = rows_[std::size_t(begin) + i / kv];
        const std::size_t count = plan.reads[i % kv / std::size_t(shape_.heads_per_set)].size();
        const float* q = q_scaled_.data() + (std::size_t(begin) * kv + i) * head_floats;
        for (std::size_t c = starts[i]; c < starts[i + 1]; ++c) {
            const std::size_t first = (c - starts[i]) * chunk_blocks;
            float* out = partial_.data() + c * chunk_floats;
            chunks_.push_back({format_, q, model_.group(), {refs_.data() + ref + first, std::min(chunk_blocks, count - std::min(first, count))}, out, out + head_floats});
        }
        ref += count;
    }
    queue.executor().parallel_for(chunks_.size(), [&](std::size_t task) { kernels_.attend_chunk(chunks_[task]); });
    queue.executor().parallel_for(starts.size() - 1, [&](std::size_t i) {
        float* out = partial_.data() + starts[i] * chunk_floats;
        for (std::size_t c = starts[i] + 1; c < starts[i + 1]; ++c) {
            const float* other = partial_.data() + c * chunk_floats;
            merge_states(model_.group(), model_.head_dim, other, other + head_floats, out, out + head_floats);
        }
        write_row(args, group.first_row + begin + static_cast<std::int32_t>(i / kv), static_cast<std::int32_t>(i % kv), out, out + head_floats);
    });
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
void Pipeline<Policies>::captured_mass(const StepGroup& group, Journal& journal)
{
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
        }
    }
}

} // namespace oasis::cpu
