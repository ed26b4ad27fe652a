// SPDX-License-Identifier: Apache-2.0
//
// A cache whose steps are drawn: stages, demand and prefetch transfers as lanes that Perfetto shows.
#pragma once

#include <oasis/any_cache.hpp>
#include <oasis/core/chrome_trace.hpp>
#include <oasis/tier/slow_tier.hpp>

#include <filesystem>
#include <memory>

namespace oasis_decode {

/// What is drawn, while `on`; shared by a cache and whoever writes the file.
struct Drawing {
    oasis::ChromeTrace trace{};
    bool on = false;
};

std::unique_ptr<oasis::AnyKVCache> make_traced_cache(const oasis::CacheConfig& config, const oasis::StoreFactory& store,
                                                     std::shared_ptr<Drawing> drawing);

/// Throws `oasis::Error` that names the file when it cannot be written.
void write_trace(const Drawing& drawing, const std::filesystem::path& path);

} // namespace oasis_decode
