// SPDX-License-Identifier: Apache-2.0
//
// A step as a picture: which stages of which layers ran when, and what moved meanwhile.
#pragma once

#include <oasis/core/telemetry.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace oasis {

/// Spans and events as JSON of the Trace Event Format, which Perfetto and chrome://tracing open. Stages that compute
/// and stages that move bytes have lanes of their own, one per thread that works there. Thread-safe; keeps `capacity`
/// records and counts what came after.
template <class Clock = std::chrono::steady_clock> class BasicChromeTrace {
public:
    static constexpr bool enabled = true;

    explicit BasicChromeTrace(std::size_t capacity = 65536) : capacity_(capacity), start_(Clock::now())
    {
        records_.reserve(capacity);
    }

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
        record.lane = lane_of(is_transfer(stage), found->thread);
        open_.erase(std::next(found).base());
        keep(record);
    }

    void on_event(const Event& event)
    {
        const std::scoped_lock lock(mutex_);
        Record record{};
        record.event = event;
        record.begin_ns = now();
        record.duration_ns = -1;
        keep(record);
    }

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
        text += lane_name(kEventLane, "residency");
        for (const auto& [key, lane] : lanes_) {
            const std::int32_t n = lane % kLanesPerGroup;
            text += ",\n" + lane_name(lane, std::string(key.first ? "transfer" : "compute") +
                                                (n > 0 ? " " + std::to_string(n + 1) : ""));
        }
        for (const Record& record : records_) {
            text += ",\n" + (record.duration_ns < 0 ? json_event(record) : json_span(record));
        }
        out << text << "\n]}\n";
    }

private:
    static constexpr std::int32_t kLanesPerGroup = 1000;
    static constexpr std::int32_t kEventLane = 3 * kLanesPerGroup;

    struct Open {
        Stage stage;
        LayerId layer;
        std::thread::id thread;
        std::int64_t begin_ns;
    };
    struct Record {
        Stage stage{};
        Event event{};
        std::int32_t lane = 0;
        std::int64_t begin_ns = 0;
        std::int64_t duration_ns = 0; ///< below 0: an event, not a span
    };

    static constexpr bool is_transfer(Stage stage) noexcept
    {
        return stage == Stage::kFetch || stage == Stage::kPrefetch || stage == Stage::kSeal;
    }

    std::int64_t now() const
    {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
    }

    std::int32_t lane_of(bool transfer, std::thread::id thread)
    {
        const auto found = lanes_.find({transfer, thread});
        if (found != lanes_.end()) { return found->second; }
        std::int32_t& used = lanes_used_[transfer ? 1 : 0];
        const std::int32_t lane = (transfer ? 2 : 1) * kLanesPerGroup + std::min(used, kLanesPerGroup - 1);
        ++used;
        lanes_.emplace(std::pair{transfer, thread}, lane);
        return lane;
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
    static std::string lane_name(std::int32_t lane, const std::string& text)
    {
        return "{\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(lane) +
               ",\"name\":\"thread_name\",\"args\":{\"name\":\"" + text + "\"}}";
    }
    static std::string json_span(const Record& r)
    {
        return "{\"ph\":\"X\",\"pid\":1,\"tid\":" + std::to_string(r.lane) + ",\"ts\":" + micros(r.begin_ns) +
               ",\"dur\":" + micros(r.duration_ns) + ",\"name\":\"" + std::string(name(r.stage)) +
               "\",\"args\":{\"layer\":" + std::to_string(r.event.layer) + "}}";
    }
    static std::string json_event(const Record& r)
    {
        const Event& e = r.event;
        return "{\"ph\":\"i\",\"s\":\"t\",\"pid\":1,\"tid\":" + std::to_string(kEventLane) +
               ",\"ts\":" + micros(r.begin_ns) + ",\"name\":\"" + std::string(name(e.kind)) +
               "\",\"args\":{\"reason\":\"" + std::string(name(e.reason)) + "\",\"tier\":\"" +
               std::string(name(e.tier)) + "\",\"block\":" + std::to_string(raw(e.block)) +
               ",\"layer\":" + std::to_string(e.layer) + ",\"set\":" + std::to_string(e.set) +
               ",\"bytes\":" + std::to_string(e.bytes) + "}}";
    }

    mutable std::mutex mutex_;
    std::size_t capacity_;
    typename Clock::time_point start_;
    std::vector<Record> records_;
    std::vector<Open> open_;
    std::map<std::pair<bool, std::thread::id>, std::int32_t> lanes_;
    std::int32_t lanes_used_[2] = {0, 0};
    std::uint64_t dropped_ = 0;
};

using ChromeTrace = BasicChromeTrace<>;

} // namespace oasis
