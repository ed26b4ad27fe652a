// SPDX-License-Identifier: Apache-2.0
//
// Where residency events, spans and transfers go: nowhere, into a log, into a trace file, or to two sinks at once.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/chrome_trace.hpp>
#include <oasis/core/error.hpp>
#include <oasis/core/telemetry.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace oasis {

/// Compiles to nothing.
struct NullTelemetry {
    /// See the concept `Telemetry`.
    ///@{
    static constexpr bool enabled = false;
    void on_event(const Event&) const noexcept {}
    void begin_span(Stage, LayerId) const noexcept {}
    void end_span(Stage, LayerId) const noexcept {}
    void on_transfer(const TransferSpan&) const noexcept {}
    ///@}
};

/// Both sinks, in order; transfers reach those that take them. `A` and `B` may be references:
/// `Fanout<EventLog&, ChromeTrace&>{log, trace}`.
template <class A, class B> struct Fanout {
    /// If one of them is.
    static constexpr bool enabled = std::remove_reference_t<A>::enabled || std::remove_reference_t<B>::enabled;
    /// The sinks.
    ///@{
    A first;
    B second;
    ///@}

    /// To both.
    ///@{
    void on_event(const Event& event)
    {
        each([&](auto& sink) { sink.on_event(event); });
    }
    void begin_span(Stage stage, LayerId layer)
    {
        each([&](auto& sink) { sink.begin_span(stage, layer); });
    }
    void end_span(Stage stage, LayerId layer)
    {
        each([&](auto& sink) { sink.end_span(stage, layer); });
    }
    void on_transfer(const TransferSpan& transfer)
    {
        each([&](auto& sink) {
            if constexpr (TransferTelemetry<decltype(sink)>) { sink.on_transfer(transfer); }
        });
    }
    ///@}

private:
    template <class F> void each(F call)
    {
        if constexpr (std::remove_reference_t<A>::enabled) { call(first); }
        if constexpr (std::remove_reference_t<B>::enabled) { call(second); }
    }
};

/// Which units (layer, set) of which blocks are in which tier, as the events say. Takes room for live blocks alone.
class ResidencyMap {
public:
    /// Of an empty cache.
    ResidencyMap(std::int32_t layers, std::int32_t sets) : layers_(layers), sets_(sets)
    {
        detail::expects(layers >= 1 && sets >= 1, "ResidencyMap: ", layers, " layers x ", sets,
                        " sets; both must be at least 1.");
    }

    /// Returns false, and changes nothing, when one named unit appears twice or disappears without having been there:
    /// then the stream is out of order or incomplete. Refusals change nothing and are always in order.
    bool apply(const Event& event)
    {
        if (event.kind == EventKind::kRefused) { return true; }
        detail::expects(event.layer >= -1 && event.layer < layers_ && event.set >= -1 && event.set < sets_,
                        "ResidencyMap: event of layer ", event.layer, " set ", event.set, " outside ", layers_,
                        " layers x ", sets_, " sets.");
        const bool there = event.kind == EventKind::kStored || event.kind == EventKind::kPromoted;
        const bool one = event.layer >= 0 && event.set >= 0;
        if (one && resident(event.tier, event.block, event.layer, event.set) == there) { return false; }
        const Key key{event.tier, event.block};
        auto& units = map_[key];
        units.resize(std::size_t(layers_) * std::size_t(sets_), false);
        for (std::int32_t layer = std::max(event.layer, 0); layer < (event.layer < 0 ? layers_ : event.layer + 1);
             ++layer) {
            for (std::int32_t set = std::max(event.set, 0); set < (event.set < 0 ? sets_ : event.set + 1); ++set) {
                units[index(layer, set)] = there;
            }
        }
        if (std::find(units.begin(), units.end(), true) == units.end()) { map_.erase(key); }
        return true;
    }

    /// Whether the unit is in the tier.
    bool resident(Tier tier, BlockId block, LayerId layer, std::int32_t set) const
    {
        const auto found = map_.find(Key{tier, block});
        return found != map_.end() && found->second[index(layer, set)];
    }

    /// Units of a tier, over all blocks.
    std::size_t units(Tier tier) const
    {
        std::size_t n = 0;
        for (const auto& [key, units] : map_) {
            if (key.first == tier) { n += static_cast<std::size_t>(std::count(units.begin(), units.end(), true)); }
        }
        return n;
    }

    /// The same units in the same tiers.
    friend bool operator==(const ResidencyMap&, const ResidencyMap&) = default;

private:
    using Key = std::pair<Tier, BlockId>;
    std::size_t index(LayerId layer, std::int32_t set) const
    {
        return std::size_t(layer) * std::size_t(sets_) + std::size_t(set);
    }

    std::int32_t layers_;
    std::int32_t sets_;
    std::map<Key, std::vector<bool>> map_;
};

/// Keeps residency events in order, up to a bound. Thread-safe.
class EventLog {
public:
    /// See the concept `Telemetry`.
    static constexpr bool enabled = true;

    /// Keeps the first `capacity` events and counts the others.
    explicit EventLog(std::size_t capacity = std::numeric_limits<std::size_t>::max()) : capacity_(capacity) {}

    /// See the concept `Telemetry`.
    ///@{
    void on_event(const Event& event)
    {
        const std::scoped_lock lock(mutex_);
        if (events_.size() < capacity_) {
            events_.push_back(event);
        } else {
            ++dropped_;
        }
    }
    void begin_span(Stage, LayerId) const noexcept {}
    void end_span(Stage, LayerId) const noexcept {}
    void on_transfer(const TransferSpan&) const noexcept {}
    ///@}

    /// In the order in which they happened.
    std::vector<Event> events() const
    {
        const std::scoped_lock lock(mutex_);
        return events_;
    }
    /// Events beyond the capacity.
    std::uint64_t dropped() const
    {
        const std::scoped_lock lock(mutex_);
        return dropped_;
    }

    /// The residency map that the events lead to. Throws `Error` when events were dropped or contradict each other.
    ResidencyMap replay(std::int32_t layers, std::int32_t sets) const
    {
        const std::scoped_lock lock(mutex_);
        if (dropped_ != 0) {
            throw Error(detail::text("EventLog::replay: ", dropped_, " events beyond the capacity of ", capacity_,
                                     " are missing."));
        }
        ResidencyMap map(layers, sets);
        for (std::size_t i = 0; i < events_.size(); ++i) {
            const Event& e = events_[i];
            if (!map.apply(e)) {
                throw Error(detail::text("EventLog::replay: event ", i, " (", name(e.kind), ", ", name(e.reason), ", ",
                                         name(e.tier), " tier, block ", raw(e.block), ", layer ", e.layer, ", set ",
                                         e.set, ") contradicts the events before it."));
            }
        }
        return map;
    }

private:
    mutable std::mutex mutex_;
    std::vector<Event> events_;
    std::size_t capacity_;
    std::uint64_t dropped_ = 0;
};

static_assert(check_telemetry<NullTelemetry>() && check_telemetry<EventLog>() && check_telemetry<ChromeTrace>());
static_assert(check_telemetry<Fanout<EventLog&, ChromeTrace&>>());
static_assert(TransferTelemetry<NullTelemetry> && TransferTelemetry<EventLog> && TransferTelemetry<ChromeTrace>);

} // namespace oasis
