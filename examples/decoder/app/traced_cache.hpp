// SPDX-License-Identifier: Apache-2.0
//
// A cache whose steps are drawn: stages, demand and prefetch transfers as lanes that Perfetto shows, and residency.
#pragma once

#include "app/residency.hpp"

#include <oasis/any_cache.hpp>
#include <oasis/core/chrome_trace.hpp>
#include <oasis/tier/slow_tier.hpp>

#include <filesystem>
#include <memory>
#include <optional>

namespace oasis_decode {

/// What is drawn; shared by a cache and whoever writes the files.
struct Drawing {
    oasis::ChromeTrace trace{};
    bool on = false;                         ///< the trace; residency is followed from the beginning
    std::optional<ResidencyGrid> residency{};
};

std::unique_ptr<oasis::AnyKVCache> make_traced_cache(const oasis::CacheConfig& config, const oasis::StoreFactory& store,
                                                     std::shared_ptr<Drawing> drawing);

/// Throws `oasis::Error` that names the file when it cannot be written.
void write_trace(const Drawing& drawing, const std::filesystem::path& path);

} // namespace oasis_decode
