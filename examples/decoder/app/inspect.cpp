// SPDX-License-Identifier: Apache-2.0
#include "app/command.hpp"
#include "app/report.hpp"
#include "app/setup.hpp"
#include "app/table.hpp"
#include "app/terminal.hpp"

#include <fmt/format.h>

namespace oasis_decode {
namespace {

void print_contexts(const Command& command, const CacheMaker& maker, const ModelConfig& model)
{
    Table table({"context", "K and V", "fast memory needed", "share"});
    for (std::int64_t context = std::min<std::int64_t>(2048, model.context); context > 0;) {
        const oasis::CacheConfig config = to_config(command.settings, model.shape(), context, kChunkRows);
        const oasis::Footprint footprint = maker.footprint(config);
        const double all = static_cast<double>(footprint.kv_bytes_per_token) * static_cast<double>(context);
        const double fast = static_cast<double>(needed_fast_bytes(footprint, config));
        table.add({std::to_string(context), bytes(all), bytes(fast), percent(fast / all)});
        if (context == model.context) { break; }
        context = std::min(2 * context, model.context);
    }
    put(fmt::format("\nKV cache in {}, {}\n\n{}", oasis::name(command.settings.kv_dtype), short_name(command.settings),
                    table.text()));
}

} // namespace

void inspect(const Command& command, const CacheMaker& maker)
{
    if (command.dry_run) {
        const ModelHead head = read_head(command.model, command.compute);
        print_memory_plan(command, maker, head, head.config.context, false);
        return;
    }
    // The whole model is loaded, so that what is broken is said here.
    const std::unique_ptr<Engine> engine = open_engine(command, maker);
    put(fmt::format("model          {}\nhash           {}\n", command.model.string(), engine->model->id));
    const ModelHead head = head_of(*engine->model, command.model);
    put(model_text(head));
    print_contexts(command, maker, engine->config());
    Report report = new_report("inspect", command, *engine);
    report["warnings"] = engine->model->warnings;
    report["weight_bytes"] = head.weight_bytes;
    report["weight_types"] = head.weight_types;
    write_report(command.json, report);
}

} // namespace oasis_decode
