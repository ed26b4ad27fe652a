// SPDX-License-Identifier: Apache-2.0
//
// Pipeline: which blocks each row reads (score, select) and where they are (resolve).
#pragma once

#include <oasis/cpu/pipeline.hpp>
#include <oasis/score/reduce.hpp>

namespace oasis::cpu {

template <class Policies>
void Pipeline<Policies>::decode(Queue queue, OpenStep& step, const StepGroup& group, LayerId layer, const AttendArgs& args, Journal& journal)
{
    ++now_;
    const float scale = args.scale != 0.0F ? args.scale : 1.0F / std::sqrt(static_cast<float>(model_.head_dim));
    plan_rows(group, layer, args);
    const std::size_t n = std::size_t(row_count_) * std::size_t(model_.q_heads) * std::size_t(model_.head_dim);
    const std::size_t from = std::size_t(group.first_row) * std::size_t(model_.q_heads) * std::size_t(model_.head_dim) * size_of(config_.dtype);
    kernels_.to_float(config_.dtype, static_cast<const std::byte*>(args.q.data) + from, n, 1.0F, q_raw_.data());
    for (std::size_t i = 0; i < n; ++i) { q_scaled_[i] = q_raw_[i] * scale; }
    const bool oracle = config_.summary.kind == SummaryKind::kOracle;
    if (first_sparse_ < row_count_) {
        ++journal.counters.score_passes;
        if (oracle) {
            exact_mass(queue, group, layer, log_mass_.data());
        } else {
            score(queue, group, layer, scale);
        }
        select(queue, group, layer);
    }
    collect(journal);
    resolve(step, group, layer, journal);
    journal.counters.cancelled_copies += std::uint64_t(engine_.cancel_overdue(group.sequence->id, layer));
    if (config_.prefetch_cap > 0) { prefetch(group, layer, journal); }
    if (!engine_.planned().empty()) {
        const SpanGuard span(sink_, Stage::kFetch, layer);
        engine_.start(queue);
    }
    collect(journal);
    const bool measure = config_.measure_mass && first_sparse_ < row_count_;
    if (measure || selecting_) { wait_for_all(group, journal); }
    if (measure) {
        if (!oracle) { exact_mass(queue, group, layer, true_mass_.data()); }
        captured_mass(group, layer, journal);
    }
    if (selecting_) {
        keep_selection(group, layer, args.window);
    } else {
        attend(queue, group, layer, args, journal);
    }
    release(pinned_);
}

template <class Policies>
void Pipeline<Policies>::plan_rows(const StepGroup& group, LayerId layer, const AttendArgs& args)
{
    row_count_ = group.rows.rows();
    first_sparse_ = row_count_;
    for (std::int32_t i = 0; i < row_count_; ++i) {
        RowPlan& row = rows_[std::size_t(i)];
        row.position = group.begin + i;
        row.lookahead = i >= group.rows.verify_rows;
        const TokenIndex context = args.window > 0 ? std::min<TokenIndex>(row.position + 1, args.window) : row.position + 1;
        row.first_block = static_cast<std::int32_t>((row.position + 1 - context) / config_.block_tokens);
        row.dense = shape_.is_dense_layer(layer) || context <= group.sequence->dense_below;
        if (!row.dense) { first_sparse_ = std::min(first_sparse_, i); }
        for (auto& reads : row.reads) { reads.clear(); }
    }
}

/// Estimated log masses of all blocks for the sparse rows: tasks of (KV head, some groups), one pass over the summaries for all rows.
template <class Policies>
void Pipeline<Policies>::score(Queue queue, const StepGroup& group, LayerId layer, float scale)
{
    const SpanGuard span(sink_, Stage::kScore, layer);
    const Sequence& sequence = *group.sequence;
    const std::int32_t rows = row_count_ - first_sparse_;
    const RowPlan& last = rows_[std::size_t(row_count_ - 1)];
    const std::int32_t first_group = rows_[std::size_t(first_sparse_)].first_block / shape_.group_blocks;
    const std::int32_t groups = shape_.groups_of(last.position + 1) - first_group;
    group_refs_.resize(std::size_t(model_.kv_heads) * std::size_t(groups));
    TokenIndex positions[kDecodeRows];
    for (std::int32_t i = 0; i < rows; ++i) { positions[i] = rows_[std::size_t(first_sparse_ + i)].position; }
    const std::int32_t per_task = std::max(1, kScoreTaskTokens / shape_.group_tokens());
    const std::int32_t parts = (groups + per_task - 1) / per_task;
    queue.executor().parallel_for(std::size_t(model_.kv_heads) * std::size_t(parts), [&](std::size_t task) {
        const auto head = static_cast<std::int32_t>(task / std::size_t(parts));
        const auto part = static_cast<std::int32_t>(task % std::size_t(parts));
        const std::int32_t begin = part * per_task;
        const std::int32_t end = std::min(groups, begin + per_task);
        SummaryGroupRef* refs = group_refs_.data() + std::size_t(head) * std::size_t(groups);
        for (std::int32_t g = begin; g < end; ++g) {
            const GroupId id = sequence.groups[std::size_t(first_group + g)];
            refs[g] = {pool_.native_group(id, layer, head), pool_.coded_group(id, layer, head)};
        }
        const std::byte* tails[kDecodeRows];
        for (std::int32_t i = 0; i < rows; ++i) {
            tails[i] = tails_.data() + (std::size_t(head) * kDecodeRows + std::size_t(first_sparse_ + i)) * shape_.summary.tail_bytes();
        }
        const std::size_t row_stride = std::size_t(model_.q_heads) * std::size_t(model_.head_dim);
        scorer_.score({.q = q_raw_.data() + std::size_t(first_sparse_) * row_stride + std::size_t(head) * std::size_t(model_.group()) * std::size_t(model_.head_dim),
                       .q_row_stride = static_cast<std::int64_t>(row_stride),
                       .rows = rows,
                       .group = model_.group(),
                       .scale = scale,
                       .position = positions,
                       .tail = tails,
                       .groups = {refs + begin, std::size_t(end - begin)},
                       .first_group = first_group + begin,
                       .recent = config_.budgets.recent,
                       .log_mass = log_mass_.data() + mass_at(head, 0, rows) + std::size_t(first_group + begin) * std::size_t(shape_.group_blocks),
                       .stride = mass_stride()});
    });
}

/// Scores of a set's blocks: over the heads of its KV head, in layer scope over all of them.
template <class Policies>
void Pipeline<Policies>::reduce_set(std::int32_t row, std::int32_t set, std::int32_t first, std::int32_t blocks, float* scores, float* one)
{
    const std::int32_t rows = row_count_ - first_sparse_;
    for (std::int32_t i = 0; i < shape_.heads_per_set; ++i) {
        const std::int32_t head = set * shape_.heads_per_set + i;
        const float* mass = log_mass_.data() + mass_at(head, row - first_sparse_, rows) + first;
        reduce_scores(config_.reduction, mass, model_.group(), mass_stride(), blocks, config_.block_tokens, i == 0 ? scores : one, first);
        if (i == 0) { continue; }
        for (std::int32_t j = 0; j < blocks; ++j) {
            if (std::isnan(one[j]) || std::isnan(scores[j])) {
                scores[j] = std::isnan(scores[j]) ? one[j] : scores[j];
            } else if (config_.reduction != GroupReduction::kMean) {
                scores[j] = std::max(scores[j], one[j]);
            } else { // of equally many heads each: the mean of all is monotonic in the sum of the means
                const float high = std::max(scores[j], one[j]);
                scores[j] = std::isfinite(high) ? high + std::log(std::exp(scores[j] - high) + std::exp(one[j] - high)) : high;
            }
        }
    }
}

template <class Policies>
void Pipeline<Policies>::select(Queue queue, const StepGroup& group, LayerId layer)
{
    const SpanGuard span(sink_, Stage::kSelect, layer);
    const std::int32_t sets = shape_.sets;
    const std::int32_t attend_blocks = shape_.most_blocks(config_.budgets.attend);
    const std::int32_t logical = group.sequence->logical_blocks;
    ranked_.resize(std::size_t(sets) * std::size_t(logical));
    queue.executor().parallel_for(std::size_t(row_count_ - first_sparse_) * std::size_t(sets), [&](std::size_t task) {
        const std::int32_t row = first_sparse_ + static_cast<std::int32_t>(task / std::size_t(sets));
        const auto set = static_cast<std::int32_t>(task % std::size_t(sets));
        const RowPlan& plan = rows_[std::size_t(row)];
        const std::int32_t first = plan.first_block;
        const std::int32_t blocks = blocks_at(plan.position) - first;
        const std::size_t row_set = std::size_t(row) * std::size_t(sets) + std::size_t(set);
        float* scores = scores_.data() + row_set * 2 * std::size_t(mass_stride());
        reduce_set(row, set, first, blocks, scores, scores + mass_stride());
        const std::int32_t recent = std::max(first, shape_.first_native_block(plan.position));
        SelectionInput in{.scores = {scores, std::size_t(blocks)},
                          .first = first,
                          .sink_end = std::clamp(shape_.blocks_of(config_.budgets.sink), first, recent),
                          .recent_begin = recent,
                          .must_blocks = shape_.most_blocks(config_.budgets.fetch),
                          .may_blocks = attend_blocks,
                          .rank_blocks = 0,
                          .top_p = config_.budgets.top_p};
        SelectionOutput& out = selected_[row_set];
        out = {};
        out.ids = {may_ids_.data() + row_set * std::size_t(attend_blocks), std::size_t(attend_blocks)};
        out.must = {must_.data() + row_set * std::size_t(attend_blocks), std::size_t(attend_blocks)};
        if (row == first_sparse_ && !group.sequence->logical.filled(layer * sets + set)) {
            in.rank_blocks = logical;
            out.ranked = {ranked_.data() + std::size_t(set) * std::size_t(logical), std::size_t(logical)};
        }
        selection_.select(in, out);
    });
}

template <class Policies>
void Pipeline<Policies>::resolve(OpenStep& step, const StepGroup& group, LayerId layer, Journal& journal)
{
    const SpanGuard span(sink_, Stage::kResolve, layer);
    for (std::int32_t row = 0; row < row_count_; ++row) {
        auto& undo = step.undo[std::size_t(group.first_row + row)];
        for (std::int32_t set = 0; set < shape_.sets; ++set) {
            if (rows_[std::size_t(row)].dense) {
                resolve_dense(group, layer, row, set, journal);
            } else {
                resolve_sparse(undo, group, layer, row, set, journal);
            }
        }
    }
}

/// A row reads a block in native form while it lies in the row's recent window; a native block code makes the forms equal, and whichever is at hand serves.
template <class Policies>
bool Pipeline<Policies>::reads_native(const Sequence& sequence, TokenIndex position, std::int32_t block) const noexcept
{
    if (block >= shape_.first_native_block(position)) { return true; }
    return config_.block_code == BlockCode::kNative && pool_.blocks()[sequence.blocks[std::size_t(block)]].native != nullptr;
}

/// Plans the copy of a unit without a slot. None for a guess that finds no place; anything else must find one.
template <class Policies>
SlotId Pipeline<Policies>::plan_copy(TransferKind kind, const Sequence& sequence, LayerId layer, std::int32_t set, std::int32_t block, Journal& journal)
{
    const BlockId id = sequence.blocks[std::size_t(block)];
    const auto slot = engine_.plan(kind, sequence.id, id, layer, set, unit_of(sequence, layer, set, block), now_, [&] { collect(journal); });
    if (slot) { return *slot; }
    if (kind == TransferKind::kPrefetch) { return SlotId::kNone; }
    const NoVictim why = pool_.slots().no_victim();
    throw Error(oasis::detail::text("fast tier: no slot for block ", raw(id), " layer ", layer, " set ", set, " of sequence ", raw(sequence.id), ": of ", why.capacity,
                                    " slots ", why.pinned, " are pinned, ", why.in_flight, " in flight, ", why.logical, " in logical sets"));
}

/// The unit's slot, pinned for this layer; what is not there is planned, and what is on its way is hurried.
template <class Policies>
auto Pipeline<Policies>::require(const Sequence& sequence, LayerId layer, std::int32_t set, std::int32_t block, Journal& journal) -> Read
{
    auto& slots = pool_.slots();
    SlotId slot = slots.slot_of(unit_of(sequence, layer, set, block));
    if (slot == SlotId::kNone) {
        slot = plan_copy(TransferKind::kDemand, sequence, layer, set, block, journal);
    } else if (slots.in_flight(slot)) {
        engine_.promote(slot);
    } else if (slots.take_prefetched(slot)) {
        journal.counters.useful_prefetch_tokens += std::uint64_t(config_.block_tokens);
    }
    slots.pin(slot, now_);
    pinned_.push_back({slot, slots.generation(slot)});
    return {block, slot, slots.generation(slot)};
}

/// A dense row reads everything it sees.
template <class Policies>
void Pipeline<Policies>::resolve_dense(const StepGroup& group, LayerId layer, std::int32_t row, std::int32_t set, Journal& journal)
{
    Sequence& sequence = *group.sequence;
    RowPlan& plan = rows_[std::size_t(row)];
    const std::int32_t unit = layer * shape_.sets + set;
    const std::int32_t room = shape_.dense_capacity(layer, sequence.logical_blocks, sequence.dense_below);
    if (row == 0 && !sequence.logical.filled(unit)) { sequence.logical.drop_below(unit, plan.first_block, pool_.logical_observer(sequence)); }
    for (std::int32_t block = plan.first_block; block < blocks_at(plan.position); ++block) {
        Read read{block};
        if (!reads_native(sequence, plan.position, block)) {
            if (!sequence.logical.filled(unit) && sequence.logical.size(unit) < room) {
                sequence.logical.insert_dense(unit, block, pool_.logical_observer(sequence));
            }
            read = require(sequence, layer, set, block, journal);
        }
        plan.reads[std::size_t(set)].push_back(read);
    }
    if (!plan.lookahead) { ++journal.counters.dense_row_sets; }
}

/// The sequence's first sparse row: its best blocks become the logical set, and come into fast memory.
template <class Policies>
void Pipeline<Policies>::fill(std::vector<LogicalUndo>& undo, const StepGroup& group, LayerId layer, std::int32_t row, std::int32_t set, Journal& journal)
{
    Sequence& sequence = *group.sequence;
    const RowPlan& plan = rows_[std::size_t(row)];
    const SelectionOutput& out = selected_[std::size_t(row) * std::size_t(shape_.sets) + std::size_t(set)];
    sequence.logical.fill(layer * shape_.sets + set, out.ranked.first(std::size_t(out.ranked_count)), plan.position, pool_.logical_observer(sequence), undo);
    for (const std::int32_t block : out.ranked.first(std::size_t(out.ranked_count))) {
        if (reads_native(sequence, plan.position, block) || pool_.slots().slot_of(unit_of(sequence, layer, set, block)) != SlotId::kNone) { continue; }
        plan_copy(TransferKind::kFill, sequence, layer, set, block, journal);
        journal.counters.initial_tokens += std::uint64_t(tokens_read(plan, block));
    }
}

template <class Policies>
void Pipeline<Policies>::resolve_sparse(std::vector<LogicalUndo>& undo, const StepGroup& group, LayerId layer, std::int32_t row, std::int32_t set,
                                        Journal& journal)
{
    Sequence& sequence = *group.sequence;
    RowPlan& plan = rows_[std::size_t(row)];
    const std::int32_t unit = layer * shape_.sets + set;
    const SelectionOutput& out = selected_[std::size_t(row) * std::size_t(shape_.sets) + std::size_t(set)];
    if (!plan.lookahead && !sequence.logical.filled(unit)) { fill(undo, group, layer, row, set, journal); }
    Counters& c = journal.counters;
    LayerStats& at_layer = journal.layers[std::size_t(layer)];
    const auto& slots = pool_.slots();
    read_ids_.clear();
    for (std::int32_t i = 0; i < out.count; ++i) {
        const std::int32_t block = out.ids[std::size_t(i)];
        const bool must = out.must[std::size_t(i)] != 0;
        const bool native = reads_native(sequence, plan.position, block);
        const SlotId slot = native ? SlotId::kNone : slots.slot_of(unit_of(sequence, layer, set, block));
        const bool resident = native || (slot != SlotId::kNone && slots.landed(slot));
        const auto tokens = std::uint64_t(tokens_read(plan, block));
        if (plan.lookahead) {
            if (!resident) { continue; }
        } else if (must) {
            // What another row of this step has asked for already is fetched once, and counted there.
            const bool counted = resident || (slot != SlotId::kNone && !slots.flies_from_before(slot));
            c.must_tokens += tokens;
            at_layer.must_tokens += tokens;
            if (counted) {
                c.resident_must_tokens += tokens;
                at_layer.resident_must_tokens += tokens;
            } else if (config_.miss == MissPolicy::kResidentOnly) {
                c.skipped_tokens += tokens;
                continue;
            } else if (slot != SlotId::kNone) {
                c.late_tokens += tokens;
            } else {
                c.fetched_tokens += tokens;
                at_layer.fetched_tokens += tokens;
            }
        } else if (config_.may == MayRule::kNone || (config_.may == MayRule::kLogical && !sequence.logical.contains(unit, block)) ||
                   (config_.may == MayRule::kPhysical && !resident)) {
            continue;
        }
        read_ids_.push_back(block);
        plan.reads[std::size_t(set)].push_back(native ? Read{block} : require(sequence, layer, set, block, journal));
        if (!plan.lookahead) { c.attended_tokens += tokens; }
    }
    if (!plan.lookahead) {
        ++c.sparse_row_sets;
        sequence.logical.apply_row(unit, read_ids_, plan.position, sequence.logical_blocks, pool_.logical_observer(sequence), undo);
    }
    if (config_.prefetch_cap > 0) {
        read_ids_.clear();
        for (std::int32_t i = 0; i < out.count; ++i) {
            if (out.must[std::size_t(i)]) { read_ids_.push_back(out.ids[std::size_t(i)]); }
        }
        lookahead_.observe_row(sequence.id, layer, set, row, read_ids_, plan.lookahead);
    }
}

} // namespace oasis::cpu
