// SPDX-License-Identifier: Apache-2.0
//
// KVCache: sequences come and go, a step is opened, committed, rolled back. Included by cache.hpp.
#pragma once

#include <oasis/cache.hpp>

#include <algorithm>
#include <exception>

namespace oasis {

template <class Backend, KVElement Element, class Policies>
CreateResult KVCache<Backend, Element, Policies>::create(const SequenceOptions& options)
{
    validate(config_, options);
    CreateResult result;
    for (;;) {
        {
            const Entry entry(busy_, "create", &in_callback_);
            expect_no_step("create");
            Sequence* sequence = nullptr;
            do {
                result.full = pool_.try_create(options, sequence);
            } while (result.full && waited_for_room());
            if (!result.full) {
                result.id = sequence->id;
                if (config_.share_prefixes && !options.prompt.empty()) {
                    result.cached_tokens = share(*sequence, options.prompt);
                    journal_.counters.prefix_query_tokens += options.prompt.size();
                    journal_.counters.prefix_hit_tokens += std::uint64_t(result.cached_tokens);
                }
                publish();
            }
        }
        deliver_or_remove(result.full ? SequenceId::kNone : result.id);
        if (!result.full || !relieve(*result.full)) { return result; }
    }
}

/// The longest prefix that is there and can be read. What the slow tier does not deliver is a miss: it is not found again.
template <class Backend, KVElement Element, class Policies>
TokenIndex KVCache<Backend, Element, Policies>::share(Sequence& sequence, std::span<const TokenId> prompt)
{
    InlineExecutor here;
    for (;;) {
        Reopened reopened;
        const TokenIndex cached = pool_.share_prefix(sequence, prompt, reopened);
        const BlockId failed = pipeline_->reopen(Queue(here), sequence, reopened);
        if (failed == BlockId::kNone) { return cached; }
        pool_.shrink(sequence, 0);
        sequence.keys.clear();
        sequence.length = 0;
        journal_.lost.emplace_back(sequence.id, failed);
        pool_.mark_lost(failed);
    }
}

template <class Backend, KVElement Element, class Policies>
ForkResult KVCache<Backend, Element, Policies>::fork(SequenceId id)
{
    ForkResult result;
    for (;;) {
        {
            const Entry entry(busy_, "fork", &in_callback_);
            expect_no_step("fork");
            Sequence* child = nullptr;
            do {
                result.full = pool_.try_fork(expect_active(id, "fork"), child);
            } while (result.full && waited_for_room());
            if (!result.full) {
                result.id = child->id;
                lookahead_->copy(id, result.id);
            }
            publish();
        }
        deliver_or_remove(result.full ? SequenceId::kNone : result.id);
        if (!result.full || !relieve(*result.full)) { return result; }
    }
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::truncate(SequenceId id, TokenIndex length)
{
    {
        const Entry entry(busy_, "truncate", &in_callback_);
        expect_no_step("truncate");
        Sequence& sequence = expect_active(id, "truncate");
        detail::expects(length >= 0 && length <= sequence.length, "truncate: length ", length, " of sequence ", raw(id), " which has ", sequence.length, " tokens");
        if (length == sequence.length) { return; }
        // The copy of a shared last block may need a block that the cut frees: it must not be kept by a transfer.
        if (pool_.blocks().available() == pool_.blocks().cached()) { pipeline_->finish_transfers(journal_); }
        Reopened reopened;
        pool_.truncate(sequence, length, reopened);
        pipeline_->collect(journal_);
        InlineExecutor here;
        const BlockId failed = pipeline_->reopen(Queue(here), sequence, reopened);
        if (failed != BlockId::kNone) {
            pool_.lose(sequence, failed);
            journal_.lost.emplace_back(id, failed);
        }
        lookahead_->forget(id);
        publish();
    }
    deliver();
}

template <class Backend, KVElement Element, class Policies>
RemoveResult KVCache<Backend, Element, Policies>::remove(SequenceId id)
{
    bool removed = false;
    {
        const Entry entry(busy_, "remove");
        if (!pool_.find(id)) { return RemoveResult::kNotFound; }
        for (const StepGroup& group : step_.groups) {
            detail::expects(group.sequence->id != id, "remove: sequence ", raw(id), " is in the open step ", step_.serial);
        }
        removed = forget(id);
        publish();
    }
    deliver();
    return removed ? RemoveResult::kRemoved : RemoveResult::kNotFound;
}

template <class Backend, KVElement Element, class Policies>
PreemptResult KVCache<Backend, Element, Policies>::preempt(SequenceId id)
{
    PreemptResult result;
    try {
        const Entry entry(busy_, "preempt", &in_callback_);
        expect_no_step("preempt");
        Sequence& sequence = expect_active(id, "preempt");
        pipeline_->cancel(id, journal_);
        do {
            result.full = pool_.try_preempt(sequence);
        } while (result.full && waited_for_room());
        journal_.counters.preempted_sequences += !result.full;
        publish();
    } catch (const StoreError&) {
        publish(); // of the transfers that ended meanwhile
        deliver();
        throw;
    }
    deliver();
    return result;
}

template <class Backend, KVElement Element, class Policies>
PreemptResult KVCache<Backend, Element, Policies>::resume(SequenceId id)
{
    PreemptResult result;
    for (;;) {
        try {
            const Entry entry(busy_, "resume", &in_callback_);
            expect_no_step("resume");
            Sequence& sequence = expect(id, "resume");
            detail::expects(sequence.preempted.has_value(), "resume: sequence ", raw(id), " is not preempted");
            do {
                result.full = pool_.try_resume(sequence);
            } while (result.full && waited_for_room());
            journal_.counters.resumed_sequences += !result.full;
            publish();
        } catch (const StoreError&) {
            publish();
            deliver();
            throw;
        }
        deliver();
        if (!result.full || !relieve(*result.full)) { return result; }
    }
}

template <class Backend, KVElement Element, class Policies>
std::size_t KVCache<Backend, Element, Policies>::resize_fast(std::size_t bytes)
{
    std::size_t reached = 0;
    {
        const Entry entry(busy_, "resize_fast", &in_callback_);
        expect_no_step("resize_fast");
        pipeline_->collect(journal_);
        reached = pool_.resize_fast(bytes);
        publish();
    }
    deliver();
    return reached;
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::drop_cached_prefixes()
{
    {
        const Entry entry(busy_, "drop_cached_prefixes");
        pool_.drop_cached_prefixes();
        publish();
    }
    deliver();
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::check_groups(std::span<const RowGroup> groups) const
{
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const RowGroup& g = groups[i];
        const Sequence& sequence = expect(g.sequence, "begin_step");
        detail::expects(!sequence.preempted, "begin_step: sequence ", raw(g.sequence), " is preempted; resume it first");
        for (std::size_t k = 0; k < i; ++k) {
            detail::expects(groups[k].sequence != g.sequence, "begin_step: sequence ", raw(g.sequence), " is in groups ", k, " and ", i);
        }
        detail::expects(g.prefill_tokens >= 0 && g.verify_rows >= 0 && g.lookahead_rows >= 0, "begin_step: group ", i, " has a negative count of rows: ",
                        g.prefill_tokens, " prefill tokens, ", g.verify_rows, " verify and ", g.lookahead_rows, " lookahead rows");
        if (g.prefill_tokens > 0) {
            detail::expects(g.verify_rows == 0 && g.lookahead_rows == 0, "begin_step: group ", i, " mixes ", g.prefill_tokens, " prefill tokens with decode rows");
        } else {
            detail::expects(g.verify_rows >= 1 && g.verify_rows <= kMaxVerifyRows, "begin_step: group ", i, " has ", g.verify_rows,
                            " verify rows, expected 1 to ", kMaxVerifyRows, " (tree drafts are not supported)");
            detail::expects(g.lookahead_rows <= kMaxLookaheadRows, "begin_step: group ", i, " has ", g.lookahead_rows, " lookahead rows, at most ", kMaxLookaheadRows);
        }
        detail::expects(sequence.length + g.prefill_tokens + g.verify_rows <= config_.limits.max_context, "begin_step: sequence ", raw(g.sequence), " of ",
                        sequence.length, " tokens and ", g.rows(), " rows exceeds limits.max_context ", config_.limits.max_context);
        rows += g.rows();
    }
    detail::expects(rows <= config_.limits.max_rows, "begin_step: ", rows, " rows exceed limits.max_rows ", config_.limits.max_rows);
}

template <class Backend, KVElement Element, class Policies>
std::optional<Full> KVCache<Backend, Element, Policies>::open_groups(std::span<const RowGroup> groups)
{
    const auto close = [this] {
        for (StepGroup& opened : step_.groups) { pool_.shrink(*opened.sequence, opened.sequence->length); }
        step_.groups.clear();
    };
    step_.groups.clear();
    step_.rows = 0;
    try {
        for (const RowGroup& rows : groups) {
            Sequence& sequence = *pool_.find(rows.sequence);
            if (const auto full = pool_.try_grow(sequence, sequence.length + rows.rows()); full) {
                close();
                return full;
            }
            step_.groups.push_back({&sequence, rows, step_.rows, sequence.length});
            step_.rows += rows.rows();
        }
    } catch (...) { // a store, or no memory
        close();
        throw;
    }
    return std::nullopt;
}

template <class Backend, KVElement Element, class Policies>
Step KVCache<Backend, Element, Policies>::begin_step(Queue, std::span<const RowGroup> groups)
{
    for (;;) {
        std::optional<Full> full;
        {
            const Entry entry(busy_, "begin_step", &in_callback_);
            expect_no_step("begin_step");
            pipeline_->begin_step(next_serial_, journal_);
            carry_out_requests();
            check_groups(groups);
            do {
                full = open_groups(groups);
            } while (full && waited_for_room());
            if (!full) {
                step_begin_ = std::chrono::steady_clock::now();
                fetched_before_ = journal_.counters.fetched_bytes;
                step_.serial = next_serial_++;
                step_.next_layer = 0;
                ++journal_.counters.steps;
                publish();
                return Step::open(*this, step_.serial, step_.rows);
            }
            journal_.event({EventKind::kRefused, EventReason::kPressure, full->tier, BlockId::kNone, -1, -1, full->needed_bytes});
            publish();
        }
        deliver();
        if (!relieve(*full)) { return Step::refused(*full); }
    }
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::check_args(const AttendArgs& args, const char* call) const
{
    if (step_.rows == 0) { return; } // a step without rows comes with empty arrays
    detail::expects(args.q.data && args.k.data && args.v.data, call, ": q, k or v is null");
    for (const auto& [what, dtype] : {std::pair{"q", args.q.dtype}, {"k", args.k.dtype}, {"v", args.v.dtype}}) {
        detail::expects(dtype == config_.dtype, call, ": ", what, " is ", name(dtype), ", the cache is ", name(config_.dtype));
    }
    detail::expects(!args.out.data || args.out.dtype == config_.dtype, call, ": out is ", name(args.out.dtype), ", the cache is ", name(config_.dtype));
    detail::expects(args.window >= 0 && std::isfinite(args.scale), call, ": window ", args.window, " or scale ", args.scale, " is out of range");
}

/// Checks a layer's call and marks the step as failed until the layer is done: what one that threw left behind cannot be gone on with.
template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::open_layer(const Step& step, LayerId layer, const AttendArgs& args, const char* call)
{
    expect_step(step, call);
    detail::expects(step_.next_layer >= 0, call, ": step ", step_.serial, " failed in an earlier layer; destroy it");
    detail::expects(layer == step_.next_layer && layer < config_.shape.layers, call, ": layer ", layer, ", expected ", step_.next_layer, " of ",
                    config_.shape.layers);
    check_args(args, call);
    step_.next_layer = -1;
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::enqueue_attend(Queue queue, Step& step, LayerId layer, const AttendArgs& args)
{
    {
        const Entry entry(busy_, "enqueue_attend", &in_callback_);
        open_layer(step, layer, args, "enqueue_attend");
        for (const StepGroup& group : step_.groups) {
            if (args.out.data || group.is_prefill()) { continue; }
            step_.next_layer = layer;
            throw InvalidArgument(detail::text("enqueue_attend: out is null, but sequence ", raw(group.sequence->id), " has decode rows"));
        }
        pipeline_->layer(queue, step_, layer, args, journal_);
        step_.next_layer = layer + 1;
        publish();
    }
    deliver();
}

template <class Backend, KVElement Element, class Policies>
SelectedSlots KVCache<Backend, Element, Policies>::enqueue_select(Queue queue, Step& step, LayerId layer, const AttendArgs& args)
{
    SelectedSlots selected;
    {
        const Entry entry(busy_, "enqueue_select", &in_callback_);
        detail::expects(step_.rows <= pool_.shape().landing_rows(), "enqueue_select: ", step_.rows, " rows are selected at a time, at most ", pool_.shape().landing_rows(),
                        " can be held");
        open_layer(step, layer, args, "enqueue_select");
        for (const StepGroup& group : step_.groups) {
            if (!group.is_prefill()) { continue; }
            step_.next_layer = layer;
            throw InvalidArgument(detail::text("enqueue_select: sequence ", raw(group.sequence->id), " is prefilled in this step; selection is for decode rows"));
        }
        selected = pipeline_->select_layer(queue, step_, layer, args, journal_);
        step_.next_layer = layer + 1;
        publish();
    }
    deliver();
    return selected;
}

template <class Backend, KVElement Element, class Policies>
bool KVCache<Backend, Element, Policies>::forget(SequenceId id)
{
    lookahead_->forget(id);
    pipeline_->cancel(id, journal_);
    const bool removed = pool_.remove(id);
    pipeline_->collect(journal_);
    return removed;
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::carry_out_requests()
{
    std::vector<SequenceId> cancels;
    std::vector<SequenceId> removals;
    {
        const std::scoped_lock lock(requests_mutex_);
        cancels.swap(cancels_);
        removals.swap(requests_);
    }
    for (const SequenceId id : cancels) { pipeline_->cancel(id, journal_); }
    for (const SequenceId id : removals) { forget(id); }
}

/// What was freed may be kept by transfers that are not over: then a tier is not full yet.
template <class Backend, KVElement Element, class Policies>
bool KVCache<Backend, Element, Policies>::waited_for_room()
{
    const bool waited = pipeline_->drain(journal_);
    if (waited) { pool_.trim(); }
    return waited;
}

template <class Backend, KVElement Element, class Policies>
std::int32_t KVCache<Backend, Element, Policies>::check_accepted(const StepGroup& group, const Accepted& accepted) const
{
    const std::int32_t most = group.is_prefill() ? group.rows.prefill_tokens : group.rows.verify_rows;
    detail::expects(accepted.rows >= 0 && accepted.rows <= most, "commit: ", accepted.rows, " rows accepted of ", most, " of sequence ", raw(group.sequence->id));
    detail::expects(accepted.tokens.empty() || accepted.tokens.size() == std::size_t(accepted.rows), "commit: ", accepted.tokens.size(), " token ids for ",
                    accepted.rows, " rows of sequence ", raw(group.sequence->id));
    return accepted.rows;
}

template <class Backend, KVElement Element, class Policies>
CommitResult KVCache<Backend, Element, Policies>::commit(Queue, Step&& step, std::span<const Accepted> accepted)
{
    CommitResult result;
    {
        const Entry entry(busy_, "commit", &in_callback_);
        expect_step(step, "commit");
        detail::expects(step_.next_layer >= 0, "commit: step ", step_.serial, " failed in a layer; destroy it");
        detail::expects(step_.next_layer == config_.shape.layers, "commit: layer ", step_.next_layer, " of ", config_.shape.layers, " was not attended");
        detail::expects(accepted.size() == step_.groups.size(), "commit: ", accepted.size(), " entries for ", step_.groups.size(), " groups");
        for (std::size_t i = 0; i < accepted.size(); ++i) { result.committed_rows += check_accepted(step_.groups[i], accepted[i]); }
        pipeline_->release_selection();
        const std::uint64_t sealed = journal_.counters.sealed_blocks;
        for (std::size_t i = 0; i < accepted.size(); ++i) {
            settle(step_.groups[i], accepted[i].rows);
            take_tokens(*step_.groups[i].sequence, accepted[i]);
        }
        measure_step();
        result.sealed_blocks = static_cast<std::int64_t>(journal_.counters.sealed_blocks - sealed);
        step_.serial = 0;
        step_.groups.clear();
        step.release();
        carry_out_requests();
        add_agreement();
        publish();
    }
    deliver();
    return result;
}

/// Steps that decode are what the stall and the live cap are about.
template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::measure_step()
{
    if (std::all_of(step_.groups.begin(), step_.groups.end(), [](const StepGroup& group) { return group.is_prefill(); })) { return; }
    const auto time = std::chrono::steady_clock::now() - step_begin_;
    stalls_.add(journal_.stall, time);
    pipeline_->measure_step(time, journal_.counters.fetched_bytes - fetched_before_);
}

/// The first `rows` rows of the group stand, the others never were.
template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::settle(StepGroup& group, std::int32_t rows)
{
    Sequence& sequence = *group.sequence;
    const PoolShape& shape = pool_.shape();
    if (!group.is_prefill()) { pipeline_->end_step(group, rows); }
    const auto observer = pool_.logical_observer(sequence);
    for (std::int32_t row = group.rows.rows(); row-- > 0;) {
        auto& undo = step_.undo[std::size_t(group.first_row + row)];
        if (row >= rows) { sequence.logical.undo_row(undo, observer); }
        undo.clear();
    }
    sequence.length = group.begin + rows;
    const bool all_layers = step_.next_layer == config_.shape.layers;
    const std::int32_t sealed_end = std::min(static_cast<std::int32_t>(group.end() / config_.block_tokens), shape.first_native_block(group.end()));
    for (std::int32_t block = sequence.native_begin; block < sealed_end; ++block) {
        const bool stands = all_layers && TokenIndex{block + 1} * config_.block_tokens <= sequence.length;
        journal_.counters.sealed_blocks += pool_.settle_sealed(sequence, block, stands);
    }
    const std::int32_t closed_end = std::min(static_cast<std::int32_t>(group.end() / shape.group_tokens()), shape.first_native_group(group.end()));
    for (std::int32_t g = sequence.native_group_begin; g < closed_end; ++g) {
        if (all_layers && TokenIndex{g + 1} * shape.group_tokens() <= sequence.length) { pool_.close_group(sequence, g); }
    }
    pool_.shrink(sequence, sequence.length);
    pool_.advance(sequence);
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::take_tokens(Sequence& sequence, const Accepted& accepted)
{
    if (sequence.tokens.size() + accepted.tokens.size() != std::size_t(sequence.length)) { return; } // a gap: not findable from here on
    sequence.tokens.insert(sequence.tokens.end(), accepted.tokens.begin(), accepted.tokens.end());
    if (config_.share_prefixes) { pool_.index_blocks(sequence); }
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::roll_back(std::uint64_t serial) noexcept
{
    if (serial != step_.serial || step_.serial == 0) { return; }
    pipeline_->release_selection();
    for (StepGroup& group : step_.groups) { settle(group, 0); }
    step_.serial = 0;
    step_.groups.clear();
    publish();
}

template <class Backend, KVElement Element, class Policies>
bool KVCache<Backend, Element, Policies>::relieve(const Full& full)
{
    if (!callbacks_.on_pressure) { return false; }
    const CallbackGuard guard(in_callback_);
    return callbacks_.on_pressure(full.needed_bytes - std::min(full.needed_bytes, full.available_bytes)) > 0;
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::publish()
{
    for (const auto& lost : journal_.lost) {
        pool_.mark_lost(lost.second);
        undelivered_lost_.push_back(lost);
    }
    journal_.lost.clear();
    pool_.drain_events(journal_);
    Stats stats;
    stats.counters = journal_.counters;
    stats.slots = pool_.slots().counts();
    stats.fast_bytes = pool_.fast_bytes_in_use();
    stats.fast_capacity = pool_.fast_capacity();
    stats.native_bytes = pool_.blocks().native().bytes_in_use();
    stats.summary_bytes = pool_.groups().native_bytes() + pool_.groups().coded_bytes();
    stats.slow_bytes = pool_.blocks().store().bytes_used();
    stats.slow_capacity = pool_.blocks().store().capacity_bytes();
    if constexpr (requires { std::uint64_t{pool_.blocks().store().bytes_read()}; }) {
        stats.slow_bytes_read = pool_.blocks().store().bytes_read();
        stats.slow_bytes_written = pool_.blocks().store().bytes_written();
    }
    stats.sequences = pool_.sequences();
    stats.blocks = pool_.blocks().live();
    const std::scoped_lock lock(stats_mutex_);
    published_ = stats;
    published_layers_.assign(journal_.layers.begin(), journal_.layers.end());
}

template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::add_agreement()
{
    if constexpr (requires { lookahead_->agreement(LayerId{}).terms; }) {
        for (LayerId layer = 0; layer < config_.shape.layers; ++layer) {
            const auto agreement = lookahead_->agreement(layer);
            journal_.layers[std::size_t(layer)].agreement = agreement.mean;
            journal_.layers[std::size_t(layer)].agreement_terms = agreement.terms;
        }
    }
}

/// The same after a sequence was made, which nobody would know of if a callback's exception took the place of its id.
template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::deliver_or_remove(SequenceId made)
{
    try {
        deliver();
    } catch (...) {
        const std::exception_ptr error = std::current_exception();
        if (made != SequenceId::kNone) {
            try {
                remove(made);
            } catch (...) { // of a callback again: it is removed
            }
        }
        std::rethrow_exception(error);
    }
}

/// Hands on what happened, in order: no lock is held, and the cache may be called. What a callback's own calls cause comes after.
/// The first exception of a callback is thrown on when all is delivered.
template <class Backend, KVElement Element, class Policies>
void KVCache<Backend, Element, Policies>::deliver()
{
    if (delivering_.load()) { return; } // the outer delivery goes on with it
    const CallbackGuard delivering(delivering_);
    const CallbackGuard guard(in_callback_);
    std::exception_ptr error;
    const auto call = [&error](const auto& callback, auto&&... arguments) {
        if (!callback) { return; }
        try {
            callback(arguments...);
        } catch (...) {
            if (!error) { error = std::current_exception(); }
        }
    };
    while (!undelivered_.empty() || !journal_.events.empty() || !undelivered_lost_.empty()) {
        if (undelivered_.empty()) {
            undelivered_.swap(journal_.events);
            std::reverse(undelivered_.begin(), undelivered_.end());
        }
        while (!undelivered_.empty()) {
            const Event event = undelivered_.back();
            undelivered_.pop_back();
            if constexpr (Policies::Telemetry::enabled) { telemetry_->on_event(event); }
            call(callbacks_.on_event, event);
        }
        const auto lost = std::exchange(undelivered_lost_, {});
        for (const auto& [id, block] : lost) {
            call(callbacks_.on_failure, id, detail::text("slow tier: read of block ", raw(block), " of sequence ", raw(id), " (units of ", pool_.shape().unit_bytes,
                                                         " bytes) failed and no other tier holds it"));
        }
    }
    if (error) { std::rethrow_exception(error); }
}

} // namespace oasis
