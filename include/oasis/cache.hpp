// SPDX-License-Identifier: Apache-2.0
//
// KVCache: the facade. One pool, scorer, predictor and transfer engine, wired; the step in three calls: begin_step, enqueue_attend per layer, commit.
#pragma once

#include <oasis/any_cache.hpp>
#include <oasis/core/check.hpp>
#include <oasis/core/stall_meter.hpp>
#include <oasis/core/telemetry_sinks.hpp>
#include <oasis/core/validate.hpp>
#include <oasis/cpu/pipeline.hpp>
#include <oasis/lookahead/lookahead_predictor.hpp>
#include <oasis/pool/kv_pool.hpp>
#include <oasis/score/selection.hpp>
#include <oasis/tier/any_store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace oasis {
/// The CPU backend.
namespace cpu {

/// Names the CPU backend: its pipeline does the work of a layer.
struct Backend {
    /// For the policies of a cache.
    template <class Policies>
    using Pipeline = cpu::Pipeline<Policies>;
};

} // namespace cpu

/// The policies of a cache. Override some by deriving: `struct Mine : DefaultPolicies<cpu::Backend, float> { using Scorer = MyScorer; };`
template <class Backend, KVElement Element>
struct DefaultPolicies {
    /// One class per concept of concepts.hpp.
    ///@{
    using Scorer = StockSummary;
    using Selection = TopKSelection;
    using Eviction = LruEviction;
    using Store = AnyStore;
    using Lookahead = LookaheadPredictor;
    using Telemetry = NullTelemetry;
    ///@}
};

/// Instances of the policies; what is left out is made from the configuration.
template <class Policies>
struct PolicySet {
    std::unique_ptr<typename Policies::Scorer> scorer{};       ///< null: made from `summary`
    typename Policies::Selection selection{};                  ///< taken as it is
    typename Policies::Eviction eviction{};                    ///< taken as it is
    std::unique_ptr<typename Policies::Store> store{};         ///< null: made from the cache's sizes
    StoreFactory store_factory{};                              ///< without `store`, for `AnyStore`: makes the slow tier from the cache's sizes
    std::unique_ptr<typename Policies::Lookahead> lookahead{}; ///< null: made from `lookahead` of the configuration
    std::unique_ptr<typename Policies::Telemetry> telemetry{}; ///< null: default-constructed
};

/// The facade: one of each component, wired for a backend, an element type and policies.
///
/// See AnyKVCache for the calls. One thread drives a cache; `stats` may be called from any.
template <class Backend = cpu::Backend, KVElement Element = float, class Policies = DefaultPolicies<Backend, Element>>
class KVCache final : public AnyKVCache, private detail::StepOwner {
    static_assert(check_summary<typename Policies::Scorer>() && check_selection<typename Policies::Selection>() &&
                  check_eviction<typename Policies::Eviction>() && check_store<typename Policies::Store>() &&
                  check_lookahead<typename Policies::Lookahead>() && check_telemetry<typename Policies::Telemetry>() && check_miss<Policies>());

public:
    /// What the backend makes of the policies.
    ///@{
    using Pipeline = typename Backend::template Pipeline<Policies>;
    using Pool = typename Pipeline::Pool;
    ///@}

    /// Allocates tables and scratch for `config.limits`; throws `InvalidArgument` with the offending value.
    explicit KVCache(CacheConfig config, Callbacks callbacks = {}, PolicySet<Policies> policies = {})
        : config_(checked(std::move(config))), callbacks_(std::move(callbacks)), scorer_(make_scorer(config_, policies)),
          lookahead_(std::move(policies.lookahead)), telemetry_(std::move(policies.telemetry)),
          pool_(PoolShape(config_, scorer_.layout()), std::move(policies.eviction), make_store(config_, scorer_.layout(), policies))
    {
        if (!lookahead_) { lookahead_ = make_lookahead(); }
        if (!telemetry_) { telemetry_ = std::make_unique<typename Policies::Telemetry>(); }
        detail::expects(config_.miss != MissPolicy::kBounded || scorer_.is_upper_bound(),
                        "miss is kBounded, which needs summaries that are upper bounds (minmax); those of this cache are not.");
        journal_.layers.resize(std::size_t(config_.shape.layers));
        pipeline_ = std::make_unique<Pipeline>(pool_, scorer_, std::move(policies.selection), *lookahead_, *telemetry_);
        journal_.wants_events = bool(callbacks_.on_event) || Policies::Telemetry::enabled;
        pool_.record_events(journal_.wants_events);
        step_.groups.reserve(std::size_t(config_.limits.max_sequences));
        step_.undo.resize(std::size_t(config_.limits.max_rows));
        publish();
    }
    ~KVCache() override = default;

    const CacheConfig& config() const noexcept override { return config_; }
    CreateResult create(const SequenceOptions& options) override;
    ForkResult fork(SequenceId id) override;
    void truncate(SequenceId id, TokenIndex length) override;
    RemoveResult remove(SequenceId id) override;
    PreemptResult preempt(SequenceId id) override;
    PreemptResult resume(SequenceId id) override;
    TokenIndex length(SequenceId id) const override { return expect(id, "length").length; }
    SequenceState state(SequenceId id) const override
    {
        const Sequence& sequence = expect(id, "state");
        return {sequence.preempted.has_value(), sequence.first_lost};
    }
    Step begin_step(Queue queue, std::span<const RowGroup> groups) override;
    void enqueue_attend(Queue queue, Step& step, LayerId layer, const AttendArgs& args) override;
    SelectedSlots enqueue_select(Queue queue, Step& step, LayerId layer, const AttendArgs& args) override;
    CommitResult commit(Queue queue, Step&& step, std::span<const Accepted> accepted) override;
    void request_remove(SequenceId id) override
    {
        const std::scoped_lock lock(requests_mutex_);
        requests_.push_back(id);
    }
    std::size_t resize_fast(std::size_t bytes) override;
    void drop_cached_prefixes() override;
    void request_cancel(SequenceId id) override
    {
        const std::scoped_lock lock(requests_mutex_);
        cancels_.push_back(id);
    }
    Stats stats() const override
    {
        Stats stats;
        {
            const std::scoped_lock lock(stats_mutex_);
            stats = published_;
        }
        stats.stall = stalls_.summary();
        return stats;
    }
    std::vector<LayerStats> layer_stats() const override
    {
        const std::scoped_lock lock(stats_mutex_);
        return published_layers_;
    }

    /// The pool, for tests and tools: `pool().check()` compares books and tables.
    Pool& pool() noexcept { return pool_; }
    /// The policies at work, for tools.
    ///@{
    typename Policies::Lookahead& lookahead() noexcept { return *lookahead_; }
    typename Policies::Telemetry& telemetry() noexcept { return *telemetry_; }
    ///@}

private:
    /// Refuses overlapping calls from other threads, and re-entrant ones from callbacks where they could not work.
    class Entry {
    public:
        /// `in_callback`: where the call would not be possible from a callback, the flag that says one runs.
        Entry(std::atomic<bool>& busy, const char* call, const std::atomic<bool>* in_callback = nullptr) : busy_(busy)
        {
            if (in_callback && in_callback->load(std::memory_order_relaxed)) {
                throw InvalidArgument(detail::text(call, ": called from a callback; one may call remove, drop_cached_prefixes, stats, length and state"));
            }
            if (busy_.exchange(true, std::memory_order_acquire)) {
                throw InvalidArgument(detail::text(call, ": another call on this cache is in progress; one thread drives a cache"));
            }
        }
        Entry(const Entry&) = delete;
        Entry& operator=(const Entry&) = delete;
        ~Entry() { busy_.store(false, std::memory_order_release); }

    private:
        std::atomic<bool>& busy_;
    };

    /// Says for as long as it lives that a callback runs.
    class CallbackGuard {
    public:
        explicit CallbackGuard(std::atomic<bool>& flag) : flag_(flag), before_(flag.exchange(true)) {}
        CallbackGuard(const CallbackGuard&) = delete;
        CallbackGuard& operator=(const CallbackGuard&) = delete;
        ~CallbackGuard() { flag_.store(before_); }

    private:
        std::atomic<bool>& flag_;
        bool before_;
    };

    static CacheConfig checked(CacheConfig config)
    {
        if constexpr (requires { Policies::kMiss; }) { config.miss = Policies::kMiss; }
        validate(config);
        detail::expects(config.dtype == dtype_of<Element>::value, "KVCache: config.dtype is ", name(config.dtype), ", the cache's element type is ",
                        name(dtype_of<Element>::value));
        if (config.dense_below < 0) { config.dense_below = config.budgets.attend; }
        return config;
    }
    static typename Pipeline::Scorer make_scorer(const CacheConfig& config, PolicySet<Policies>& policies)
    {
        using Scorer = typename Policies::Scorer;
        if (!policies.scorer) {
            if constexpr (std::constructible_from<Scorer, SummaryKind>) {
                policies.scorer = std::make_unique<Scorer>(config.summary.kind);
            } else {
                policies.scorer = std::make_unique<Scorer>();
            }
        }
        return {*policies.scorer, config.summary, config.shape.head_dim, config.block_tokens};
    }
    static std::unique_ptr<typename Policies::Store> make_store(const CacheConfig& config, const SummaryLayout& layout,
                                                                PolicySet<Policies>& policies)
    {
        if (policies.store) { return std::move(policies.store); }
        const PoolShape shape(config, layout);
        const std::size_t all = std::size_t(shape.blocks) * shape.slow_block_bytes();
        const StoreOptions options{shape.unit_bytes, config.shape.layers, shape.sets, config.slow_bytes ? config.slow_bytes : all};
        if constexpr (std::constructible_from<typename Policies::Store, std::unique_ptr<SlowTier>>) {
            if (policies.store_factory) { return std::make_unique<typename Policies::Store>(policies.store_factory(options)); }
        }
        if constexpr (std::constructible_from<typename Policies::Store, const StoreOptions&>) {
            return std::make_unique<typename Policies::Store>(options);
        } else {
            throw InvalidArgument("KVCache: PolicySet::store is empty and the Store policy cannot be made from StoreOptions");
        }
    }
    std::unique_ptr<typename Policies::Lookahead> make_lookahead() const
    {
        const PoolShape& shape = pool_.shape();
        if constexpr (std::constructible_from<typename Policies::Lookahead, const LookaheadOptions&>) {
            return std::make_unique<typename Policies::Lookahead>(
                LookaheadOptions{config_.shape.layers, shape.sets, shape.most_blocks(config_.budgets.fetch), config_.lookahead});
        } else {
            return std::make_unique<typename Policies::Lookahead>();
        }
    }

    Sequence& expect(SequenceId id, const char* call)
    {
        Sequence* sequence = pool_.find(id);
        detail::expects(sequence != nullptr, call, ": there is no sequence ", raw(id));
        return *sequence;
    }
    const Sequence& expect(SequenceId id, const char* call) const { return const_cast<KVCache*>(this)->expect(id, call); }
    Sequence& expect_active(SequenceId id, const char* call)
    {
        Sequence& sequence = expect(id, call);
        detail::expects(!sequence.preempted, call, ": sequence ", raw(id), " is preempted; resume it first");
        return sequence;
    }
    void expect_no_step(const char* call) const
    {
        detail::expects(step_.serial == 0, call, ": step ", step_.serial, " is open; commit or destroy it first");
    }
    void expect_step(const Step& step, const char* call) const
    {
        detail::expects(bool(step) && step.serial() == step_.serial && step_.serial != 0, call, ": the step is not this cache's open one");
    }

    void check_groups(std::span<const RowGroup> groups) const;
    std::optional<Full> open_groups(std::span<const RowGroup> groups);
    void check_args(const AttendArgs& args, const char* call) const;
    void open_layer(const Step& step, LayerId layer, const AttendArgs& args, const char* call);
    bool forget(SequenceId id);
    void carry_out_requests();
    bool waited_for_room();
    void measure_step();
    void add_agreement();
    std::int32_t check_accepted(const StepGroup& group, const Accepted& accepted) const;
    void settle(StepGroup& group, std::int32_t rows);
    TokenIndex share(Sequence& sequence, std::span<const TokenId> prompt);
    void take_tokens(Sequence& sequence, const Accepted& accepted);
    void roll_back(std::uint64_t serial) noexcept override;
    /// Frees memory through the callback until it says it cannot; true when something was freed.
    bool relieve(const Full& full);
    void publish();
    void deliver_or_remove(SequenceId made);
    void deliver();

    CacheConfig config_;
    Callbacks callbacks_;
    typename Pipeline::Scorer scorer_;
    std::unique_ptr<typename Policies::Lookahead> lookahead_;
    std::unique_ptr<typename Policies::Telemetry> telemetry_;
    Pool pool_;
    std::unique_ptr<Pipeline> pipeline_;
    OpenStep step_;
    std::uint64_t next_serial_ = 1;
    Journal journal_;
    std::vector<Event> undelivered_;   ///< taken from the journal and not yet handed on, the next one last
    std::vector<std::pair<SequenceId, BlockId>> undelivered_lost_;
    std::atomic<bool> delivering_{false};
    std::atomic<bool> in_callback_{false};
    mutable std::atomic<bool> busy_{false};
    std::mutex requests_mutex_;
    std::vector<SequenceId> requests_; ///< to be removed
    std::vector<SequenceId> cancels_;  ///< whose guesses are not wanted any more
    std::chrono::steady_clock::time_point step_begin_{};
    std::uint64_t fetched_before_ = 0; ///< bytes, at the step's begin
    StallMeter stalls_;
    mutable std::mutex stats_mutex_;
    Stats published_;
    std::vector<LayerStats> published_layers_;
};

} // namespace oasis

#include <oasis/cache_step.hpp>

#ifdef OASIS_COMPILED
// The stock caches are compiled into the library once.
namespace oasis {
extern template class cpu::Pipeline<DefaultPolicies<cpu::Backend, float>>;
extern template class cpu::Pipeline<DefaultPolicies<cpu::Backend, f16>>;
extern template class cpu::Pipeline<DefaultPolicies<cpu::Backend, bf16>>;
extern template class KVCache<cpu::Backend, float>;
extern template class KVCache<cpu::Backend, f16>;
extern template class KVCache<cpu::Backend, bf16>;
} // namespace oasis
#endif
