// SPDX-License-Identifier: Apache-2.0
//
// The slow tier as the command line names it: "ram", "throttle:2GBps,20us", "file:/var/tmp".
#pragma once

#include <oasis/tier/slow_tier.hpp>
#include <oasis/tier/throttled_store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace oasis_decode {

struct SlowTierSpec {
    enum class Kind : std::uint8_t {
        kRam,
        kThrottled, ///< RAM behind a link
        kFile,
    };

    Kind kind = Kind::kRam;
    oasis::ThrottleOptions throttle{};
    std::string path{}; ///< a folder, or a file that does not exist

    /// The same in canonical form: `parse_slow_tier` reads it back.
    std::string text() const;
    /// What `make_cache` takes. A file is made, and may be refused, when the cache is.
    oasis::StoreFactory factory() const;
};

/// "ram", "throttle:RATE[,LATENCY]" with rates in Bps, kBps, MBps or GBps (powers of 1,000) and latencies in ns, us or
/// ms, or "file:PATH". Throws `UsageError` that names the part it cannot read.
SlowTierSpec parse_slow_tier(std::string_view text);

/// "20us": a number with ns, us or ms, at most 60000ms. Throws `UsageError` that begins with `option`.
std::chrono::nanoseconds parse_time(std::string_view text, std::string_view option, std::string_view what = "time");

} // namespace oasis_decode
