// SPDX-License-Identifier: Apache-2.0
//
// A stock cache over a slow tier that fails, waits or stands still on request, with the log of what it tells.
#pragma once

#include "cache_fixture.hpp"
#include "fault/failing_store.hpp"

#include <oasis/tier/any_store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace oasis::test {

using StockCache = KVCache<cpu::Backend, float>;
using Outputs = std::vector<std::vector<float>>;
using fault::StoreFaults;
using fault::StoreOperation;

/// Holds calls up while it is closed; `let` lets some of them through all the same.
class Gate {
public:
    ~Gate() { open(); }

    void close()
    {
        const std::scoped_lock lock(mutex_);
        open_ = false;
    }
    void open()
    {
        const std::scoped_lock lock(mutex_);
        open_ = true;
        permits_ = 0;
        changed_.notify_all();
    }
    void let(std::size_t calls)
    {
        const std::scoped_lock lock(mutex_);
        permits_ += calls;
        changed_.notify_all();
    }
    void pass(BlockId block)
    {
        std::unique_lock lock(mutex_);
        begun_.push_back(block);
        ++held_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_ || permits_ > 0; });
        --held_;
        if (!open_) { --permits_; }
    }
    /// Calls that have come so far, those that wait included.
    std::vector<BlockId> begun() const
    {
        const std::scoped_lock lock(mutex_);
        return begun_;
    }
    bool is_open() const
    {
        const std::scoped_lock lock(mutex_);
        return open_;
    }
    void wait_begun(std::size_t calls)
    {
        wait_for("begun", [&] { return begun_.size() >= calls; });
    }
    /// Until so many calls stand before the closed gate.
    void wait_held(std::size_t calls)
    {
        wait_for("held", [&] { return held_ >= calls; });
    }

private:
    /// Fails, and opens the gate, when it takes longer than any loaded machine would.
    template <class Ready>
    void wait_for(const char* what, Ready&& ready)
    {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, std::chrono::seconds(10), ready)) { return; }
        ADD_FAILURE() << "calls that were waited for are not " << what;
        open_ = true;
        changed_.notify_all();
    }

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t held_ = 0;
    bool open_ = true;
    std::size_t permits_ = 0;
    std::vector<BlockId> begun_;
};

/// What the store does, changed while transfers are under way.
class StoreScript {
public:
    using Rule = std::function<bool(StoreOperation, const StorePiece&)>;

    StoreScript()
    {
        faults->when = [this](StoreOperation op, const StorePiece& piece) {
            if (op == StoreOperation::kRead) {
                if (const auto delay = read_delay_us.load(); delay > 0) { std::this_thread::sleep_for(std::chrono::microseconds(delay)); }
                gate.pass(piece.block);
            }
            const std::scoped_lock lock(mutex_);
            return rule_ && rule_(op, piece);
        };
    }

    /// Fails the operation for the pieces for which `which` holds.
    void fail(StoreOperation operation, std::function<bool(const StorePiece&)> which = [](const StorePiece&) { return true; })
    {
        set_rule([operation, which = std::move(which)](StoreOperation op, const StorePiece& piece) { return op == operation && which(piece); });
    }
    void repair() { set_rule({}); }
    void set_rule(Rule rule)
    {
        const std::scoped_lock lock(mutex_);
        rule_ = std::move(rule);
    }

    std::shared_ptr<StoreFaults> faults = std::make_shared<StoreFaults>();
    Gate gate; ///< of reads
    std::atomic<std::int64_t> read_delay_us{0};

private:
    std::mutex mutex_;
    Rule rule_;
};

class FaultyCache {
public:
    explicit FaultyCache(const CacheConfig& config, Callbacks callbacks = {}, std::size_t threads = 1)
        : map(config.shape.layers, config.scope == SelectionScope::kLayer ? 1 : config.shape.kv_heads), cache(config, told(std::move(callbacks)), policies()),
          engine(cache, threads)
    {
    }
    ~FaultyCache() { script.gate.open(); }

    /// Books whatever is under way.
    void quiesce()
    {
        while (cache.pool().slots().counts().in_flight > 0) {
            cache.resize_fast(cache.stats().fast_capacity);
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }

    /// Prefills up to `length` without attention, so that nothing is read; `opened` is called in every open step. False when a tier was full.
    bool take_in(SequenceId id, std::uint64_t stream, TokenIndex length, std::int32_t chunk = 128, const std::function<void()>& opened = {})
    {
        const ModelShape& shape = cache.config().shape;
        const auto d = std::size_t(shape.head_dim);
        while (cache.length(id) < length) {
            const TokenIndex begin = cache.length(id);
            const RowGroup group{.sequence = id, .prefill_tokens = std::int32_t(std::min<TokenIndex>(chunk, length - begin))};
            const std::size_t heads = std::size_t(group.prefill_tokens) * std::size_t(shape.kv_heads);
            std::vector<float> q(std::size_t(group.prefill_tokens) * std::size_t(shape.q_heads) * d), k(heads * d), v(heads * d);
            Step step = cache.begin_step(engine.queue(), {&group, 1});
            if (!step) { return false; }
            if (opened) { opened(); }
            for (LayerId layer = 0; layer < shape.layers; ++layer) {
                for (std::size_t i = 0; i < heads; ++i) {
                    const auto head = std::int32_t(i % std::size_t(shape.kv_heads));
                    const TokenIndex position = begin + TokenIndex(i / std::size_t(shape.kv_heads));
                    fill_vector(stream, Kind::kK, layer, head, position, {k.data() + i * d, d});
                    fill_vector(stream, Kind::kV, layer, head, position, {v.data() + i * d, d});
                }
                cache.enqueue_attend(engine.queue(), step, layer, {.q = q.data(), .k = k.data(), .v = v.data()});
            }
            const Accepted all{group.prefill_tokens, {}};
            cache.commit(engine.queue(), std::move(step), {&all, 1});
        }
        return true;
    }

    /// The map that the events lead to is the one that the tables hold.
    void expect_map(const std::string& after)
    {
        cache.pool().check();
        ASSERT_EQ(contradictions, 0) << after << ": of " << log.events().size() << " events";
        for_each_unit([&](BlockId block, LayerId layer, std::int32_t set, const std::byte* data) {
            ASSERT_EQ(map.resident(Tier::kFast, block, layer, set), data != nullptr) << after << ": fast, block " << raw(block) << " layer " << layer << " set " << set;
            ASSERT_EQ(map.resident(Tier::kSlow, block, layer, set), cache.pool().blocks()[block].sealed) << after << ": slow, block " << raw(block);
        });
    }

    /// Whatever fast memory holds is what the slow tier holds.
    void expect_bytes(const std::string& after)
    {
        std::vector<std::byte> slow(cache.pool().shape().unit_bytes);
        for_each_unit([&](BlockId block, LayerId layer, std::int32_t set, const std::byte* data) {
            if (!data || !cache.pool().blocks()[block].sealed) { return; }
            ASSERT_TRUE(ram->read({block, layer, set, slow.data()})) << after;
            ASSERT_EQ(std::memcmp(slow.data(), data, slow.size()), 0) << after << ": block " << raw(block) << " layer " << layer << " set " << set;
        });
    }

    /// `call(block, layer, set, bytes)`; null for what is not resident.
    template <class Call>
    void for_each_unit(Call&& call)
    {
        const PoolShape& shape = cache.pool().shape();
        auto& slots = cache.pool().slots();
        for (std::int32_t b = 0; b < shape.blocks; ++b) {
            for (LayerId layer = 0; layer < shape.config.shape.layers; ++layer) {
                for (std::int32_t set = 0; set < shape.sets; ++set) {
                    const SlotId slot = slots.slot_of(slots.unit(layer, set, BlockId{b}));
                    call(BlockId{b}, layer, set, slot != SlotId::kNone && slots.landed(slot) ? slots.data(slot) : nullptr);
                }
            }
        }
    }

    std::vector<Event> events_of(EventKind kind) const
    {
        std::vector<Event> found;
        for (const Event& e : log.events()) {
            if (e.kind == kind) { found.push_back(e); }
        }
        return found;
    }

    StoreScript script;
    EventLog log;
    ResidencyMap map;       ///< that the events lead to
    int contradictions = 0; ///< events that did not fit those before them
    std::vector<std::pair<SequenceId, std::string>> failures;
    RamStore* ram = nullptr; ///< behind the faults
    StockCache cache;
    Engine engine;

private:
    Callbacks told(Callbacks callbacks)
    {
        callbacks.on_event = [this, also = std::move(callbacks.on_event)](const Event& e) {
            log.on_event(e);
            contradictions += !map.apply(e);
            if (also) { also(e); }
        };
        callbacks.on_failure = [this](SequenceId id, std::string_view what) { failures.emplace_back(id, what); };
        return callbacks;
    }
    PolicySet<DefaultPolicies<cpu::Backend, float>> policies()
    {
        PolicySet<DefaultPolicies<cpu::Backend, float>> set;
        set.store_factory = [this](const StoreOptions& options) {
            auto inner = std::make_unique<RamStore>(options);
            ram = inner.get();
            return erase_store(std::make_unique<fault::FailingStore<RamStore>>(std::move(inner), options.unit_bytes, script.faults));
        };
        return set;
    }
};

/// Rows of stream 1 that nobody disturbs.
inline Outputs undisturbed(const CacheConfig& c, TokenIndex prompt, std::int32_t rows, std::uint64_t stream = 1)
{
    const auto cache = make_cache(c);
    Engine engine(*cache);
    const SequenceId id = cache->create({}).id;
    engine.prefill(id, stream, prompt);
    return engine.decode(id, stream, rows);
}

inline void expect_fields(const std::string& text, const std::vector<std::string>& fields)
{
    for (const std::string& field : fields) { EXPECT_NE(text.find(field), std::string::npos) << "no '" << field << "' in: " << text; }
}

} // namespace oasis::test
