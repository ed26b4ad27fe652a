// SPDX-License-Identifier: Apache-2.0
#include "app/setup.hpp"

#include "app/report.hpp"
#include "app/table.hpp"
#include "app/terminal.hpp"
#include "model/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace oasis_decode {

namespace {

struct Weights {
    std::size_t bytes = 0;
    std::string types;
};

/// About what the tensors take once loaded, and "210 Q4_1, 61 F32, 1 Q8_0".
Weights weights_of(const TensorSource& source, Compute compute)
{
    Weights out;
    std::map<StorageType, std::size_t> counts;
    for (const auto& name : source.names()) {
        const TensorView& tensor = *source.find(name);
        const std::int64_t in = tensor.shape.empty() ? 1 : tensor.shape.back();
        // Only matrices stay coded.
        const Matrix::Code code =
            tensor.shape.size() == 2 ? Matrix::code_for(tensor.type, in, compute) : Matrix::Code::kF32;
        const auto rows = static_cast<std::size_t>(in > 0 ? tensor.elements() / in : 0);
        out.bytes += rows * Matrix::row_bytes(code, in);
        ++counts[tensor.type];
    }
    std::vector<std::pair<StorageType, std::size_t>> order(counts.begin(), counts.end());
    std::ranges::stable_sort(order, std::ranges::greater(), &std::pair<StorageType, std::size_t>::second);
    for (const auto& [type, count] : order) {
        out.types += fmt::format("{}{} {}", out.types.empty() ? "" : ", ", count, name(type));
    }
    return out;
}

/// A draft head and its K and V, fast and slow; 0 without one.
std::size_t drafting_bytes(const Settings& settings, const std::filesystem::path& model, const ModelConfig& config,
                           std::int64_t context)
{
    const std::filesystem::path path = head_path(settings, model);
    if (path.empty()) { return 0; }
    const MappedFile head(path);
    const auto row = std::int64_t{config.kv_heads} * config.head_dim * 2 * std::int64_t{sizeof(float)};
    return static_cast<std::size_t>(head.size()) + static_cast<std::size_t>(2 * row * context);
}

} // namespace

ModelHead read_head(const std::filesystem::path& path, Compute compute)
{
    constexpr std::uint64_t most_bytes = 100'000'000;
    if (is_folder(path)) {
        const auto config_path = path / "config.json";
        Weights weights = weights_of(SafetensorsFolder(path), compute);
        return {config_from_json(read_json(config_path, most_bytes), config_path.string()), Tokenizer::from_folder(path),
                weights.bytes, std::move(weights.types)};
    }
    const GgufFile file(path);
    Weights weights = weights_of(file, compute);
    ModelHead out{config_from_gguf(file), Tokenizer::from_gguf(file), weights.bytes, std::move(weights.types)};
    if (out.config.vocab == 0) { out.config.vocab = static_cast<std::int32_t>(out.tokenizer.vocabulary()); }
    return out;
}

ModelHead head_of(const LoadedModel& model, const std::filesystem::path& path)
{
    Weights weights = is_folder(path) ? weights_of(SafetensorsFolder(path), model.compute)
                                      : weights_of(GgufFile(path), model.compute);
    return {model.config, model.tokenizer, weights.bytes, std::move(weights.types)};
}

std::string model_text(const ModelHead& head)
{
    const ModelConfig& c = head.config;
    return fmt::format("architecture   {}\n"
                       "layers         {}\n"
                       "hidden         {} (MLP {})\n"
                       "heads          {} query on {} KV heads of {}\n"
                       "vocabulary     {} ({} in the tokenizer)\n"
                       "context        {} tokens\n"
                       "RoPE           {}\n"
                       "window         {}\n"
                       "weights        {} (about {} in memory)\n",
                       c.architecture, c.layers, c.hidden, c.intermediate, c.q_heads, c.kv_heads, c.head_dim, c.vocab,
                       head.tokenizer.vocabulary(), c.context, c.rope.text(), c.window_text(), head.weight_types,
                       bytes(static_cast<double>(head.weight_bytes)));
}

std::unique_ptr<Engine> open_engine(const Command& command, const CacheMaker& maker)
{
    auto model = load_model(command.model, command.compute);
    for (const auto& warning : model->warnings) { complain("warning: " + warning); }
    auto engine = std::make_unique<Engine>(std::move(model), static_cast<std::size_t>(command.threads), maker);
    // A head that is not there should be said before the prompt, not after it.
    for (const Settings& settings : expand(command.settings, command.sweeps)) {
        if (const auto head = head_path(settings, command.model); !head.empty()) {
            static_cast<void>(engine->head(head));
        }
    }
    return engine;
}

SparseCache sparse_cache(const Command& command, const Settings& settings, const CacheMaker& maker,
                         const oasis::ModelShape& shape, std::int64_t context)
{
    SparseCache out{to_config(settings, shape, context, kChunkRows)};
    if (settings.slow.kind != SlowTierSpec::Kind::kRam) { out.store = settings.slow.factory(); }
    out.config.measure_mass = command.measure_mass.value_or(command.verb == Verb::kCompare);
    if (settings.fast_memory == FastMemory::kAuto) {
        const oasis::Footprint footprint = maker.footprint(out.config);
        out.config.fast_bytes = prefill_fast_bytes(footprint, out.config);
        out.decode_fast_bytes = needed_fast_bytes(footprint, out.config);
    }
    return out;
}

void print_memory_plan(const Command& command, const CacheMaker& maker, const ModelHead& head, std::int64_t context,
                       bool dense)
{
    const ModelConfig& model = head.config;
    std::size_t weights = head.weight_bytes;
    std::size_t most = 0;
    std::size_t drafting = 0;
    Table table({"configuration", "fast memory", "slow tier", "working memory"});
    const auto add = [&](const std::string& name, const oasis::CacheConfig& config, bool everything_fast) {
        const oasis::Footprint f = maker.footprint(config);
        const std::size_t tokens = static_cast<std::size_t>(config.limits.max_context);
        const std::size_t fast = config.fast_bytes ? config.fast_bytes
                                 : everything_fast
                                     ? f.kv_bytes_per_token * tokens
                                     : (f.slow_bytes_per_token + f.summary_bytes_per_token) * tokens + f.landing_bytes;
        const std::size_t slow = f.slow_bytes_per_token * tokens;
        table.add({name, bytes(static_cast<double>(fast)), bytes(static_cast<double>(slow)),
                   bytes(static_cast<double>(f.scratch_bytes))});
        return fast + slow + f.scratch_bytes;
    };
    for (const Settings& settings : expand(command.settings, command.sweeps)) {
        most = std::max(most, add(short_name(settings),
                                  sparse_cache(command, settings, maker, model.shape(), context).config, false));
        drafting = std::max(drafting, drafting_bytes(settings, command.model, model, context));
    }
    weights += drafting;
    if (dense) { most += add("dense", dense_config(command.settings, model.shape(), context, kChunkRows), true); }
    const std::size_t total = weights + most;
    const std::size_t available = available_memory();
    put(fmt::format("{}\nMemory for {} tokens of context\n\n{}\nweights {}{}, in all at most {}", model_text(head),
                    context, table.text(), bytes(static_cast<double>(weights)),
                    drafting > 0 ? " with the draft head and its K and V" : "", bytes(static_cast<double>(total))));
    if (available == 0) {
        put(".\n");
    } else {
        put(fmt::format("; {} are available: it {}.\n", bytes(static_cast<double>(available)),
                        total <= available ? "fits" : "does not fit"));
    }
}

} // namespace oasis_decode
