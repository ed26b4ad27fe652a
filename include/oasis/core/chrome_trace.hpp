// SPDX-License-Identifier: Apache-2.0
//
// A step as a picture: which stages of which layers ran when, and what moved meanwhile.
#pragma once

#include <oasis/core/telemetry.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace oasis {

/// Spans, transfers and events as JSON of the Trace Event Format, which Perfetto and chrome://tracing open. Lanes, from
/// the top: "compute" with the stages of the driving thread ("compute 1" and on for others), "demand 0" and on,
/// "prefetch 0" and on with the transfers of each worker, "residency" with the events. Thread-safe; keeps `capacity`
/// records and counts what came after. `Clock` is for tests.
template <class Clock = std::chrono::steady_clock> class BasicChromeTrace {
    static_assert(std::same_as<typename Clock::time_point, std::chrono::steady_clock::time_point>,
                  "BasicChromeTrace: transfers carry steady_clock's time points, so the clock must count in them.");

public:
    /// See the concept `Telemetry`.
    static constexpr bool enabled = true;

    /// Reserves room for `capacity` records at once.
    explicit BasicChromeTrace(std::size_t capacity = 65536) : capacity_(capacity), start_(Clock::now())
    {
        records_.reserve(capacity);
    }

    /// A stage of a layer begins on this thread.
    void begin_span(Stage stage, LayerId layer)
    {
        const std::scoped_lock lock(mutex_);
        open_.push_back({stage, layer, std::this_thread::get_id(), now()});
    }

    /// Ends the latest span of this stage and layer, of this thread when it began one. An end without a begin is
    /// ignored.
    void end_span(Stage stage, LayerId layer)
    {
        const std::scoped_lock lock(mutex_);
        const auto same = [&](const Open& span) { return span.stage == stage && span.layer == layer; };
        auto found = std::find_if(open_.rbegin(), open_.rend(), [&](const Open& span) {
            return same(span) && span.thread == std::this_thread::get_id();
        });
        if (found == open_.rend()) { found = std::find_if(open_.rbegin(), open_.rend(), same); }
        if (found == open_.rend()) { return; }
        Record record{};
        record.stage = stage;
        record.event.layer = layer;
        record.begin_ns = found->begin_ns;
        record.duration_ns = now() - found->begin_ns;
        record.lane = lane_of(found->thread);
        open_.erase(std::next(found).base());
        keep(record);
    }

    /// Goes to the lane of residency.
    void on_event(const Event& event)
    {
        const std::scoped_lock lock(mutex_);
        Record record{};
        record.kind = Kind::kEvent;
        record.event = event;
        record.begin_ns = now();
        record.lane = kEventLanes;
        keep(record);
    }

    /// What a transfer did before the trace began is cut off.
    void on_transfer(const TransferSpan& transfer)
    {
        const std::scoped_lock lock(mutex_);
        Record record{};
        record.kind = Kind::kTransfer;
        record.delivered = transfer.delivered;
        record.event.block = transfer.block;
        record.event.layer = transfer.layer;
        record.event.set = transfer.set;
        record.event.bytes = transfer.bytes;
        record.begin_ns = std::max<std::int64_t>(since_start(transfer.begin), 0);
        record.duration_ns = std::max<std::int64_t>(since_start(transfer.end) - record.begin_ns, 0);
        const std::int32_t group = transfer.demand ? kDemandLanes : kPrefetchLanes;
        record.lane = group + std::clamp(transfer.worker, -1, kLanesPerGroup - 2) + 1;
        std::string& text = lanes_[record.lane];
        if (text.empty()) { text = lane_text(transfer.demand ? "demand" : "prefetch", transfer.worker); }
        keep(record);
    }

    /// Records beyond the capacity.
    std::uint64_t dropped() const
    {
        const std::scoped_lock lock(mutex_);
        return dropped_;
    }

    /// Writes everything that has ended so far.
    void write(std::ostream& out) const
    {
        const std::scoped_lock lock(mutex_);
        std::string text = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped\":" + std::to_string(dropped_) +
                           "},\"traceEvents\":[\n";
        text += "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"OasisKV\"}}";
        text += lane_name(kEventLanes, "residency");
        for (const auto& [lane, lane_title] : lanes_) { text += lane_name(lane, lane_title); }
        for (const Record& record : records_) {
            text += record.kind == Kind::kEvent ? json_event(record) : json_span(record);
        }
        out << text << "\n]}\n";
    }

private:
    static constexpr std::int32_t kLanesPerGroup = 1000;
    static constexpr std::int32_t kComputeLanes = kLanesPerGroup;
    static constexpr std::int32_t kDemandLanes = 2 * kLanesPerGroup;
    static constexpr std::int32_t kPrefetchLanes = 3 * kLanesPerGroup;
    static constexpr std::int32_t kEventLanes = 4 * kLanesPerGroup;

    enum class Kind : std::uint8_t { kStage, kTransfer, kEvent };

    struct Open {
        Stage stage;
        LayerId layer;
        std::thread::id thread;
        std::int64_t begin_ns;
    };
    struct Record {
        Kind kind = Kind::kStage;
        Stage stage{};
        bool delivered = true;
        Event event{}; ///< of a stage the layer alone; of a transfer its unit and bytes
        std::int32_t lane = 0;
        std::int64_t begin_ns = 0;
        std::int64_t duration_ns = 0;
    };

    std::int64_t since_start(std::chrono::steady_clock::time_point time) const
    {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(time - start_).count();
    }
    std::int64_t now() const { return since_start(Clock::now()); }

    /// The first thread to compute is taken for the one that drives the cache.
    std::int32_t lane_of(std::thread::id thread)
    {
        const auto found = threads_.find(thread);
        if (found != threads_.end()) { return found->second; }
        const auto n = static_cast<std::int32_t>(threads_.size());
        const std::int32_t lane = kComputeLanes + std::min(n, kLanesPerGroup - 1);
        threads_.emplace(thread, lane);
        lanes_.try_emplace(lane, n == 0 ? std::string("compute") : lane_text("compute", n));
        return lane;
    }

    static std::string lane_text(const char* group, std::int32_t worker)
    {
        return std::string(group) + " " + (worker < 0 ? std::string("driver") : std::to_string(worker));
    }

    void keep(const Record& record)
    {
        if (records_.size() < capacity_) {
            records_.push_back(record);
        } else {
            ++dropped_;
        }
    }

    /// Nanoseconds as the format's microseconds, whatever the stream's locale.
    static std::string micros(std::int64_t ns)
    {
        std::string fraction = std::to_string(ns % 1000);
        fraction.insert(0, 3 - fraction.size(), '0');
        return std::to_string(ns / 1000) + "." + fraction;
    }
    static std::string head(const char* phase, std::int32_t lane)
    {
        return std::string(",\n{\"ph\":\"") + phase + "\",\"pid\":1,\"tid\":" + std::to_string(lane);
    }
    static std::string lane_name(std::int32_t lane, const std::string& text)
    {
        return head("M", lane) + ",\"name\":\"thread_name\",\"args\":{\"name\":\"" + text + "\"}}" + head("M", lane) +
               ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" + std::to_string(lane) + "}}";
    }
    static std::string unit(const Event& e)
    {
        return "\"block\":" + std::to_string(raw(e.block)) + ",\"layer\":" + std::to_string(e.layer) +
               ",\"set\":" + std::to_string(e.set) + ",\"bytes\":" + std::to_string(e.bytes);
    }
    /// A transfer is named by its layer: then a layer's transfers have one colour, and one sees how far ahead they run.
    static std::string json_span(const Record& r)
    {
        const std::string layer = std::to_string(r.event.layer);
        const bool stage = r.kind == Kind::kStage;
        return head("X", r.lane) + ",\"ts\":" + micros(r.begin_ns) + ",\"dur\":" + micros(r.duration_ns) +
               ",\"name\":\"" + (stage ? std::string(name(r.stage)) : "layer " + layer) + "\",\"args\":{" +
               (stage ? "\"layer\":" + layer
                      : unit(r.event) + ",\"delivered\":" + (r.delivered ? "true" : "false")) +
               "}}";
    }
    static std::string json_event(const Record& r)
    {
        const Event& e = r.event;
        return head("i", r.lane) + ",\"s\":\"t\",\"ts\":" + micros(r.begin_ns) + ",\"name\":\"" +
               std::string(name(e.kind)) + "\",\"args\":{\"reason\":\"" + std::string(name(e.reason)) +
               "\",\"tier\":\"" + std::string(name(e.tier)) + "\"," + unit(e) + "}}";
    }

    mutable std::mutex mutex_;
    std::size_t capacity_;
    typename Clock::time_point start_;
    std::vector<Record> records_;
    std::vector<Open> open_;
    std::map<std::thread::id, std::int32_t> threads_; ///< lanes of threads that compute
    std::map<std::int32_t, std::string> lanes_;       ///< texts of lanes in use
    std::uint64_t dropped_ = 0;
};

/// By the steady clock.
using ChromeTrace = BasicChromeTrace<>;

} // namespace oasis
