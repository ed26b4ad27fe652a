// SPDX-License-Identifier: Apache-2.0
#include "app/traced_cache.hpp"

#include <oasis/cache.hpp>

#include <fmt/format.h>

#include <fstream>

namespace oasis_decode {
namespace {

struct TraceSink {
    static constexpr bool enabled = true;

    std::shared_ptr<Drawing> drawing;

    void on_event(const oasis::Event& event) const
    {
        if (drawing->residency) { drawing->residency->on_event(event); }
    }
    void begin_span(oasis::Stage stage, oasis::LayerId layer) const
    {
        if (drawing->on) { drawing->trace.begin_span(stage, layer); }
    }
    void end_span(oasis::Stage stage, oasis::LayerId layer) const
    {
        if (drawing->on) { drawing->trace.end_span(stage, layer); }
    }
    void on_transfer(const oasis::TransferSpan& transfer) const
    {
        if (drawing->on) { drawing->trace.on_transfer(transfer); }
    }
};

struct TracedPolicies : oasis::DefaultPolicies<oasis::cpu::Backend, float> {
    using Telemetry = TraceSink;
};

} // namespace

std::unique_ptr<oasis::AnyKVCache> make_traced_cache(const oasis::CacheConfig& config, const oasis::StoreFactory& store,
                                                     std::shared_ptr<Drawing> drawing)
{
    if (config.dtype != oasis::DType::kF32) {
        throw oasis::Unsupported(fmt::format("--trace and --residency follow caches of f32, not of {}", oasis::name(config.dtype)));
    }
    oasis::PolicySet<TracedPolicies> policies;
    policies.store_factory = store;
    policies.telemetry = std::make_unique<TraceSink>(std::move(drawing));
    return std::make_unique<oasis::KVCache<oasis::cpu::Backend, float, TracedPolicies>>(config, oasis::Callbacks{},
                                                                                       std::move(policies));
}

void write_trace(const Drawing& drawing, const std::filesystem::path& path)
{
    std::ofstream out(path, std::ios::binary);
    drawing.trace.write(out);
    out.close();
    if (!out) { throw oasis::Error(fmt::format("--trace: cannot write {}", path.string())); }
}

} // namespace oasis_decode
