// SPDX-License-Identifier: Apache-2.0
//
// A random schedule over one cache beside its model: every sequence has a shadow, a cache of its own with all the memory it wants, which
// runs the same history one row at a time. What stands must be equal in every bit, and the books must balance after every operation.
#pragma once

#include "cache_fixture.hpp"
#include "random_world_store.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace oasis::test {

struct WorldOptions {
    CacheConfig config{};
    std::vector<std::int32_t> windows{};  ///< [layers]; 0: none
    std::size_t threads = 1;
    bool forks = true;
    bool deep_truncates = true;           ///< below what the sequence holds in native form
    bool pressure = false;                ///< the engine removes sequences when fast memory is short
    bool long_lived = false;              ///< long prompts, few removals, shallow cuts: most rows are sparse
    bool slow_store = false;              ///< calls of the slow tier take their time
    bool read_failures = false;           ///< reads of the slow tier fail: sequences are lost, cut and computed again
    bool write_failures = false;          ///< writes fail: steps are repeated
    bool preempts = false;                ///< sequences leave fast memory and come back
    bool outsiders = false;               ///< another thread cancels, removes and asks for statistics while a step runs
    bool compare = true;                  ///< outputs are the shadow's in every bit: not where the miss policy skips
};

/// Runs rows whose content is a function of (token id, position), so that equal prefixes have equal K and V.
template <class Cache>
class RowRunner {
public:
    RowRunner(Cache& cache, const std::vector<std::int32_t>& windows, std::size_t threads) : cache_(cache), windows_(windows), pool_(threads) {}

    Queue queue() { return Queue(pool_); }

    /// Layers [0, layers) of an open step; returns [rows][layers * q_heads * head_dim].
    std::vector<std::vector<float>> run(Step& step, const std::vector<TokenId>& ids, const std::vector<TokenIndex>& positions, LayerId layers, bool attend = true)
    {
        const ModelShape& shape = cache_.config().shape;
        const auto d = std::size_t(shape.head_dim);
        std::vector<std::vector<float>> out(ids.size());
        std::vector<float> q(ids.size() * std::size_t(shape.q_heads) * d), k(ids.size() * std::size_t(shape.kv_heads) * d), v(k.size()), o(q.size());
        const auto fill = [&](std::vector<float>& to, Kind kind, LayerId layer, std::int32_t heads) {
            for (std::size_t row = 0; row < ids.size(); ++row) {
                for (std::int32_t h = 0; h < heads; ++h) {
                    fill_vector(std::uint64_t(ids[row]), kind, layer, h, positions[row], {to.data() + (row * std::size_t(heads) + std::size_t(h)) * d, d});
                }
            }
        };
        for (LayerId layer = 0; layer < layers; ++layer) {
            fill(q, Kind::kQ, layer, shape.q_heads);
            fill(k, Kind::kK, layer, shape.kv_heads);
            fill(v, Kind::kV, layer, shape.kv_heads);
            AttendArgs args{.q = q.data(), .k = k.data(), .v = v.data(), .out = o.data()};
            if (!attend) { args.out = {}; }
            args.window = windows_[std::size_t(layer)];
            cache_.enqueue_attend(queue(), step, layer, args);
            const std::size_t n = std::size_t(shape.q_heads) * d;
            for (std::size_t r = 0; r < ids.size(); ++r) { out[r].insert(out[r].end(), o.begin() + std::ptrdiff_t(r * n), o.begin() + std::ptrdiff_t((r + 1) * n)); }
        }
        return out;
    }

private:
    Cache& cache_;
    std::vector<std::int32_t> windows_;
    ThreadPool pool_;
};

/// The undisturbed run of one sequence.
class Shadow {
public:
    Shadow(CacheConfig c, const std::vector<std::int32_t>& windows, const SequenceOptions& options) : cache_(make_cache(alone(std::move(c)))), runner_(*cache_, windows, 1)
    {
        id_ = cache_->create({.prompt = {}, .salt = 0, .logical_resident = options.logical_resident, .dense_below = options.dense_below}).id;
    }

    std::vector<std::vector<float>> prefill(std::span<const TokenId> ids)
    {
        std::vector<std::vector<float>> out;
        while (!ids.empty()) {
            auto rows = append(ids.first(std::min<std::size_t>(64, ids.size())), true);
            ids = ids.subspan(rows.size());
            std::move(rows.begin(), rows.end(), std::back_inserter(out));
        }
        return out;
    }
    std::vector<std::vector<float>> decode(std::span<const TokenId> ids)
    {
        std::vector<std::vector<float>> out;
        for (const TokenId id : ids) { out.push_back(append({&id, 1}, false)[0]); }
        return out;
    }
    void truncate(TokenIndex length) { cache_->truncate(id_, length); }

private:
    static CacheConfig alone(CacheConfig c)
    {
        c.limits.max_sequences = 1;
        c.fast_bytes = c.slow_bytes = 0;
        c.share_prefixes = false;
        c.prefetch_cap = c.transfer_threads = 0;
        c.live_cap = false;
        c.miss = MissPolicy::kExact;
        return c;
    }
    std::vector<std::vector<float>> append(std::span<const TokenId> ids, bool is_prefill)
    {
        const auto n = std::int32_t(ids.size());
        std::vector<TokenIndex> positions;
        for (std::int32_t i = 0; i < n; ++i) { positions.push_back(cache_->length(id_) + i); }
        const RowGroup group{.sequence = id_, .verify_rows = is_prefill ? 0 : n, .prefill_tokens = is_prefill ? n : 0};
        Step step = cache_->begin_step(runner_.queue(), {&group, 1});
        auto out = runner_.run(step, {ids.begin(), ids.end()}, positions, cache_->config().shape.layers);
        const Accepted all{n, {}};
        cache_->commit(runner_.queue(), std::move(step), {&all, 1});
        return out;
    }

    std::unique_ptr<AnyKVCache> cache_;
    RowRunner<AnyKVCache> runner_;
    SequenceId id_{};
};

class World {
public:
    World(WorldOptions options, std::uint64_t seed)
        : o_(std::move(options)), random_(seed), residency_(o_.config.shape.layers, sets_of(o_.config)), dice_(seed * 31 + 7)
    {
        dice_.slow = o_.slow_store ? 100 : 0;
        Callbacks callbacks;
        callbacks.on_event = [this](const Event& e) { EXPECT_TRUE(residency_.apply(e)) << name(e.kind) << " " << name(e.reason) << " block " << raw(e.block); };
        if (o_.pressure) {
            callbacks.on_pressure = [this](std::size_t) { return relieve(); };
        }
        callbacks.on_failure = [this](SequenceId, std::string_view) { ++failures_told_; };
        PolicySet<DefaultPolicies<cpu::Backend, float>> policies;
        policies.store_factory = [this](const StoreOptions& store_options) {
            auto watched = std::make_unique<WatchedStore>(store_options);
            store_ = watched.get();
            return erase_store(std::make_unique<fault::FailingStore<WatchedStore>>(std::move(watched), store_options.unit_bytes, dice_.plan()));
        };
        cache_ = std::make_unique<Cache>(o_.config, std::move(callbacks), std::move(policies));
        runner_ = std::make_unique<RowRunner<Cache>>(*cache_, o_.windows, o_.threads);
        for (auto& book : books_) {
            for (TokenIndex p = 0; p < o_.config.limits.max_context; ++p) { book.push_back(TokenId(below(1000))); }
        }
        std::copy_n(books_[0].begin(), 70, books_[1].begin()); // prompts that part inside a block
    }

    void run(std::int32_t operations)
    {
        for (std::int32_t i = 0; i < operations && go(); ++i) {}
    }
    /// Until so many steps were tried, then an orderly end.
    void run_steps(std::int64_t steps)
    {
        while (steps_ < steps && go()) {}
        if (!testing::Test::HasFailure()) { finish(); }
    }
    std::int64_t rows_compared() const { return rows_compared_; }
    std::int64_t refusals() const { return refusals_; }
    std::int64_t losses() const { return losses_; }
    std::int64_t resumed() const { return resumed_; }
    std::int64_t store_errors() const { return store_errors_; }
    Counters counters() const { return cache_->stats().counters; }
    std::string describe() const
    {
        const CacheConfig& c = o_.config;
        return oasis::detail::text("block ", c.block_tokens, " code ", +raw(c.block_code), " summary ", +raw(c.summary.kind), "/", c.summary.tokens, "/", +raw(c.summary.code),
                                   " scope ", +raw(c.scope), " may ", +raw(c.may), " attend ", c.budgets.attend, " fetch ", c.budgets.fetch, " logical ",
                                   c.budgets.logical_resident, " recent ", c.budgets.recent, " dense_below ", c.dense_below, " prefetch ", c.prefetch_cap, " windows ",
                                   o_.windows[0], " ", o_.windows[1], " dense layers ", c.dense_layers.size(), " fast ", c.fast_bytes, " slow ", c.slow_bytes,
                                   " threads ", o_.threads, " forks ", o_.forks, " deep ", o_.deep_truncates, " transfer threads ", c.transfer_threads, " live cap ", c.live_cap,
                                   " lookahead ", +raw(c.lookahead), " miss ", +raw(c.miss), " slow ", o_.slow_store, " failing reads ", o_.read_failures, " writes ",
                                   o_.write_failures, " preempts ", o_.preempts, " outsiders ", o_.outsiders);
    }

private:
    using Cache = KVCache<cpu::Backend, float>;
    struct Happened {
        enum class What { kPrefill, kDecode, kTruncate } what;
        std::vector<TokenId> ids;
        TokenIndex length;
    };
    struct Live {
        SequenceId id{};
        SequenceOptions options{};
        std::size_t book = 0;
        std::vector<TokenId> tokens;
        std::vector<TokenId> pending; ///< of the prompt, not yet prefilled
        std::vector<Happened> history;
        std::unique_ptr<Shadow> shadow;
        bool preempted = false;
    };
    struct Part {
        Live* live = nullptr;
        RowGroup rows{};
        std::vector<TokenId> ids;
        std::int32_t accept = 0;
        bool tell_ids = true;
        bool lost = false; ///< a block of the sequence was not delivered in this step: its rows are not what they should be
    };

    std::uint32_t below(std::uint64_t n) { return n < 2 ? 0 : std::uint32_t(random_() % n); }
    bool chance(std::uint32_t percent) { return below(100) < percent; }
    Live& any() { return *live_[below(live_.size())]; }
    /// One that is in fast memory, or none.
    Live* any_active()
    {
        std::vector<Live*> active;
        for (const auto& live : live_) {
            if (!live->preempted) { active.push_back(live.get()); }
        }
        return active.empty() ? nullptr : active[below(active.size())];
    }

    bool go();
    const char* operate();
    const char* operate_on(std::uint32_t dice, bool dropped);
    void check();
    void check_bytes();
    void create();
    void fork(Live& parent);
    bool truncate(Live& live);
    bool cut(Live& live, TokenIndex to, bool compute_again);
    void remove(std::size_t i);
    bool preempt(Live& live);
    bool resume(Live& live);
    bool recover();
    void finish();
    void arm();
    void forget_removed();
    void make_way();
    void step(bool dropped);
    std::vector<Part> draw_parts();
    void meddle(const std::vector<Part>& parts);
    Part part_of(Live& live, std::int32_t room);
    void settle(const Part& part, std::span<const std::vector<float>> rows, bool attended);
    std::size_t relieve();
    /// Applies to the shadow and to the history that later forks replay.
    std::vector<std::vector<float>> happen(Live& live, Happened h)
    {
        auto out = replay(live, h);
        live.history.push_back(std::move(h));
        return out;
    }
    static std::vector<std::vector<float>> replay(Live& live, const Happened& h)
    {
        switch (h.what) {
        case Happened::What::kPrefill: return live.shadow->prefill(h.ids);
        case Happened::What::kDecode: return live.shadow->decode(h.ids);
        case Happened::What::kTruncate: live.shadow->truncate(h.length);
        }
        return {};
    }

    WorldOptions o_;
    std::mt19937_64 random_;
    ResidencyMap residency_;
    FaultDice dice_;
    WatchedStore* store_ = nullptr; ///< the cache's
    std::unique_ptr<Cache> cache_;
    std::unique_ptr<RowRunner<Cache>> runner_;
    std::vector<TokenId> books_[2];
    std::vector<std::unique_ptr<Live>> live_;
    std::vector<SequenceId> busy_; ///< not to be removed under pressure
    std::vector<SequenceId> leaving_; ///< asked to be removed with the next step that begins or is committed
    std::optional<std::thread> outsider_;
    std::int64_t operations_ = 0;
    std::int64_t barren_ = 0;      ///< creations refused by an empty cache
    std::int64_t steps_ = 0;
    std::int64_t rows_compared_ = 0;
    std::int64_t refusals_ = 0;
    std::int64_t losses_ = 0;
    std::int64_t failures_told_ = 0;
    std::int64_t store_errors_ = 0;
    std::int64_t resumed_ = 0;
    bool dropped_ = false;         ///< the last operation was a step that was not committed
};

} // namespace oasis::test

#include "random_world_operations.hpp"
