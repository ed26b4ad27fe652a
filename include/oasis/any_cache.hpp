// SPDX-License-Identifier: Apache-2.0
//
// The cache with its types erased: one virtual call per layer. The decoder and language bindings use it.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/step.hpp>
#include <oasis/core/telemetry.hpp>
#include <oasis/cpu/attend_jobs.hpp>
#include <oasis/cpu/executor.hpp>
#include <oasis/tier/slow_tier.hpp>

#include <functional>
#include <memory>
#include <span>
#include <vector>

/// KV caches that are larger than fast memory, with sparse decode attention.
namespace oasis {

/// All optional. They run on the thread that is in `create`, `fork`, `truncate`, `remove`, `begin_step`, `enqueue_attend` or `commit`, never on a
/// worker and with no lock held. They may call `remove`, `drop_cached_prefixes`, `request_remove`, `request_cancel`, `stats`, `layer_stats`, `length` and
/// `state`; every other call throws `InvalidArgument`. Events that such calls cause are delivered after those that are being delivered. Those of a step that is
/// destroyed come with the next call. A callback must not destroy the cache. What `on_event` or `on_failure` throws leaves the call when its
/// work is done and everything is delivered; `create` and `fork` then made nothing.
struct Callbacks {
    /// A head-block came to a tier or left it.
    std::function<void(const Event&)> on_event;
    /// A tier, fast or slow, is short by `bytes`: the engine may remove sequences and returns what it freed; 0 means it cannot.
    std::function<std::size_t(std::size_t bytes)> on_pressure;
    /// The sequence lost blocks that no tier holds any more; `what` says which and why.
    std::function<void(SequenceId, std::string_view what)> on_failure;
};

/// What a cache of a configuration takes: before it is made.
struct Footprint {
    std::size_t kv_bytes_per_token = 0;      ///< native K and V of all layers
    std::size_t slow_bytes_per_token = 0;    ///< coded
    std::size_t summary_bytes_per_token = 0; ///< closed groups
    std::size_t fast_bytes_per_sequence = 0; ///< logical set, native window, open groups: what admission reserves, without closed summaries
    std::size_t landing_bytes = 0;           ///< landing slots of a step, once per cache
    std::size_t scratch_bytes = 0;           ///< working memory, allocated at construction
};

/// A cache whatever its types are, for one virtual call per layer.
///
/// One thread drives a cache; `stats`, `layer_stats`, `request_remove` and `request_cancel` may be called from any thread. Overlapping calls throw `InvalidArgument`.
class AnyKVCache {
public:
    virtual ~AnyKVCache() = default;

    /// What the cache was made from.
    virtual const CacheConfig& config() const noexcept = 0;

    /// An empty sequence, or one that begins with what others share of its prompt.
    virtual CreateResult create(const SequenceOptions&) = 0;
    /// Copy-on-write: whole blocks and closed summary groups are shared, the open ones copied.
    virtual ForkResult fork(SequenceId) = 0;
    /// Forgets positions >= length. Throws when length exceeds the sequence's, or, with nothing changed, when the new last block is shared and the
    /// slow tier has no room for a copy. Sealed tokens of the recent window are read back from the slow tier; where that fails `state` says lost.
    virtual void truncate(SequenceId, TokenIndex length) = 0;
    /// Gives back all that the sequence alone holds.
    virtual RemoveResult remove(SequenceId) = 0;
    /// `remove` from any thread: carried out when the driving thread next opens or commits a step. Unknown ids are ignored.
    virtual void request_remove(SequenceId) = 0;
    /// From any thread: what lookahead has planned for the sequence and not begun is given up when the driving thread next opens or commits a step.
    virtual void request_cancel(SequenceId) = 0;
    /// Gives the sequence's fast memory back: what only fast memory holds (native blocks, the open group, summaries, the logical sets with their
    /// stamps) goes to the slow tier. Nothing changes when that is full; `StoreError`, with nothing changed, when it fails. Until `resume` the
    /// sequence can only be removed, and asked for `length` and `state`.
    virtual PreemptResult preempt(SequenceId) = 0;
    /// Goes on as if `preempt` had never been. Nothing changes when fast memory has no room, or, with `StoreError`, when the slow tier does not deliver.
    virtual PreemptResult resume(SequenceId) = 0;
    /// Committed tokens.
    virtual TokenIndex length(SequenceId) const = 0;
    /// Whether every block is still held by some tier; if not, truncate to `first_lost` and compute from there again.
    virtual SequenceState state(SequenceId) const = 0;

    /// Opens a step over groups of different sequences. Allocates every block the rows need, or refuses with the full tier.
    virtual Step begin_step(Queue, std::span<const RowGroup>) = 0;
    /// Layers are called in order 0..layers-1, each once.
    virtual void enqueue_attend(Queue, Step&, LayerId, const AttendArgs&) = 0;
    /// Instead of `enqueue_attend`, for engines with their own attention kernel: takes in K and V, chooses and brings the blocks of decode rows,
    /// and says where they are (head-block layout: pool/head_block.hpp). `args.out` and `args.lse` are not used. Prefill groups throw.
    virtual SelectedSlots enqueue_select(Queue, Step&, LayerId, const AttendArgs&) = 0;
    /// One entry per group, in the groups' order. The rest of the rows is rolled back.
    virtual CommitResult commit(Queue, Step&&, std::span<const Accepted>) = 0;

    /// Changes the fast memory's size while sequences live; returns the size reached, which is larger than asked when logical sets need it.
    virtual std::size_t resize_fast(std::size_t bytes) = 0;

    /// Forgets blocks that are kept only because a later prompt might begin with them.
    virtual void drop_cached_prefixes() = 0;

    /// As of the last call that changed anything; from any thread.
    virtual Stats stats() const = 0;
    /// The same by layer, for verify rows.
    virtual std::vector<LayerStats> layer_stats() const = 0;

protected:
    AnyKVCache() = default;
    AnyKVCache(const AnyKVCache&) = delete;
    AnyKVCache& operator=(const AnyKVCache&) = delete;
};

/// Makes a CPU cache for `config` with the default policies. Throws `InvalidArgument` or `Unsupported` with the offending value. `make_store` is asked
/// once for the slow tier (tier/any_store.hpp: `erase_store`); without it that is RAM.
std::unique_ptr<AnyKVCache> make_cache(const CacheConfig& config, Callbacks callbacks = {}, const StoreFactory& make_store = {});

/// The same arithmetic as the constructor's, without allocating.
Footprint footprint(const CacheConfig& config);

} // namespace oasis
