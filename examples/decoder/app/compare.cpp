// SPDX-License-Identifier: Apache-2.0
#include "app/command.hpp"
#include "app/report.hpp"
#include "app/setup.hpp"
#include "app/stats.hpp"
#include "app/table.hpp"
#include "app/tasks.hpp"
#include "app/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace oasis_decode {
namespace {

constexpr std::int64_t kDefaultTokens = 7600;

/// The text as ids, cut to its length.
std::vector<oasis::TokenId> read_ids(const Command& command, const Tokenizer& tokenizer, std::int64_t context)
{
    std::vector<oasis::TokenId> ids = tokenizer.encode_prompt(read_text(command.file));
    const auto found = static_cast<std::int64_t>(ids.size());
    if (command.tokens > found) {
        throw oasis::Error(
            fmt::format("{}: has {} tokens, --tokens asks for {}", command.file.string(), found, command.tokens));
    }
    const std::int64_t wanted = command.tokens > 0 ? command.tokens : std::min({found, kDefaultTokens, context});
    if (wanted > context) {
        throw oasis::Error(fmt::format("--tokens {}: the model's context is {} tokens", wanted, context));
    }
    if (command.last >= wanted) {
        throw oasis::Error(fmt::format("--last {}: must be less than the text's {} tokens", command.last, wanted));
    }
    ids.resize(static_cast<std::size_t>(wanted));
    return ids;
}

/// The dense run: what every configuration is held against.
struct Reference {
    KvStore prompt;
    std::vector<oasis::TokenId> rows; ///< the tokens that are decoded
    std::vector<float> logits;        ///< [rows, vocabulary]
    Usage usage;
};

/// `hidden`: the width of the residuals that are kept of the prompt, for draft heads; 0: none.
Reference run_dense(Engine& engine, const Command& command, const std::vector<oasis::TokenId>& ids, std::int32_t hidden)
{
    const auto context = static_cast<std::int64_t>(ids.size());
    const std::span<const oasis::TokenId> all(ids);
    const std::size_t prefix = ids.size() - static_cast<std::size_t>(command.last);
    Reference out{KvStore(engine.config().shape(), static_cast<std::int64_t>(prefix), hidden),
                  {all.begin() + static_cast<std::ptrdiff_t>(prefix), all.end()},
                  {},
                  {}};
    Session session(engine, dense_config(command.settings, engine.config().shape(), context, kChunkRows));
    Progress progress("dense: token", context);
    session.prefill(all.first(prefix), &out.prompt, [&](std::int64_t tokens) { progress.advance(tokens); });
    out.logits.resize(out.rows.size() * engine.vocabulary());
    out.usage = decode_forced(session, out.rows, command.rows, [&](std::size_t row, std::span<const float> logits) {
        std::copy(logits.begin(), logits.end(), out.logits.begin() + static_cast<std::ptrdiff_t>(row * logits.size()));
        progress.advance();
    });
    return out;
}

struct Outcome {
    RowComparison rows;
    Usage usage;
};

Outcome run_sparse(Engine& engine, const SparseCache& cache, const Command& command, Drafting drafting,
                   const Reference& reference, Progress& progress)
{
    Outcome out;
    Session session(engine, cache, std::move(drafting));
    session.ingest(reference.prompt);
    out.usage =
        decode_forced(session, reference.rows, command.rows, [&](std::size_t row, std::span<const float> logits) {
            const std::int32_t next = row + 1 < reference.rows.size() ? reference.rows[row + 1] : -1;
            out.rows.add(std::span(reference.logits).subspan(row * logits.size(), logits.size()), logits, next);
            progress.advance();
        });
    return out;
}

std::vector<std::string> table_row(const Settings& s, const Outcome& o)
{
    return {s.summary,
            std::to_string(s.block),
            std::to_string(s.attend_budget),
            std::to_string(s.resolved_fetch()),
            number(o.rows.perplexity_ratio(), 4),
            small_number(o.rows.kl()),
            percent(o.rows.top1()),
            number(o.usage.captured_mass, 3),
            number(o.usage.attended_tokens, 0),
            number(o.usage.fetched_tokens, 1),
            percent(o.usage.resident_at_use),
            s.draft == DraftSource::kNone ? "-" : word(s.draft),
            number(o.usage.drafts.tokens_per_verification(), 2)};
}

/// How far the dense run of the same rows in another arithmetic strays from the reference.
RowComparison compare_rows(const Reference& reference, const Reference& other, std::size_t width)
{
    RowComparison out;
    for (std::size_t row = 0; row < reference.rows.size(); ++row) {
        const std::int32_t next = row + 1 < reference.rows.size() ? reference.rows[row + 1] : -1;
        out.add(std::span(reference.logits).subspan(row * width, width),
                std::span(other.logits).subspan(row * width, width), next);
    }
    return out;
}

Report to_report(const Settings& settings, const Outcome& outcome, std::size_t fast_capacity)
{
    Report out = Report::object();
    out["options"] = to_json(settings);
    out["ppl_ratio"] = outcome.rows.perplexity_ratio();
    out["kl"] = outcome.rows.kl();
    out["top1"] = outcome.rows.top1();
    add_usage(out, outcome.usage);
    out["fast_capacity"] = fast_capacity;
    return out;
}

Command in_floats(Command command)
{
    command.compute = Compute::kF32;
    return command;
}

/// The dense run in floats, which is what `engine` computes in. With another arithmetic `engine` is then replaced, one model at
/// a time in memory: its dense run is measured against the first, and the prompt is its own.
Reference run_reference(std::unique_ptr<Engine>& engine, const Command& command, const CacheMaker& maker,
                        const std::vector<oasis::TokenId>& ids, std::int32_t hidden, Report& report)
{
    const auto usage = [](const Reference& run) {
        Report out = Report::object();
        add_usage(out, run.usage);
        return out;
    };
    Reference reference = run_dense(*engine, command, ids, hidden);
    report["dense"] = usage(reference);
    if (command.compute == Compute::kF32) { return reference; }
    engine.reset();
    engine = open_engine(command, maker);
    Reference own = run_dense(*engine, command, ids, hidden);
    const RowComparison rows = compare_rows(reference, own, engine->vocabulary());
    Report& rounded = report["dense_q8"] = usage(own);
    rounded["ppl_ratio"] = rows.perplexity_ratio();
    rounded["kl"] = rows.kl();
    rounded["top1"] = rows.top1();
    put(fmt::format("dense attention, --compute q8 against f32: perplexity ratio {}, KL {}, same top-1 {}\n",
                    number(rows.perplexity_ratio(), 4), small_number(rows.kl()), percent(rows.top1())));
    reference.prompt = std::move(own.prompt);
    return reference;
}

} // namespace

void compare(const Command& command, const CacheMaker& maker)
{
    const std::vector<Settings> settings = expand(command.settings, command.sweeps);
    if (command.dry_run) {
        // Whatever it computes in, a model in floats goes first, and is the larger one.
        const ModelHead head = read_head(command.model, Compute::kF32);
        const auto ids = read_ids(command, head.tokenizer, head.config.context);
        print_memory_plan(command, maker, head, static_cast<std::int64_t>(ids.size()), true);
        return;
    }
    std::unique_ptr<Engine> engine = open_engine(in_floats(command), maker);
    const auto ids = read_ids(command, engine->model->tokenizer, engine->config().context);
    Report report = new_report("compare", command, *engine);
    report["options"]["tokens"] = ids.size();
    Table table({"summary", "block", "attend", "fetch", "ppl ratio", "KL", "top-1", "captured", "attended", "fetched",
                 "resident", "draft", "tokens/step"});
    double dense_perplexity = 0;
    try {
        const std::int32_t width = residual_width(settings, engine->config());
        const Reference reference = run_reference(engine, command, maker, ids, width, report);
        Progress progress("sparse: token", static_cast<std::int64_t>(settings.size()) * command.last);
        for (const Settings& s : settings) {
            progress.note(short_name(s));
            const SparseCache cache =
                sparse_cache(command, s, maker, engine->config().shape(), static_cast<std::int64_t>(ids.size()));
            Drafting drafting = make_drafting(*engine, s, command.model, static_cast<std::int64_t>(ids.size()), ids);
            const Outcome outcome = run_sparse(*engine, cache, command, std::move(drafting), reference, progress);
            dense_perplexity = outcome.rows.dense_perplexity();
            table.add(table_row(s, outcome));
            report["configurations"].push_back(to_report(s, outcome, cache.fast_bytes()));
        }
        report["dense"]["perplexity"] = dense_perplexity;
    } catch (const Interrupted&) {
        report["partial"] = true;
    }
    put(fmt::format("{}: {} tokens, the last {} decoded{}\n", command.file.string(), ids.size(), command.last,
                    dense_perplexity > 0 ? fmt::format("; dense perplexity {:.3f}", dense_perplexity) : ""));
    put(table.text());
    if (report["partial"].get<bool>()) { put("interrupted: the table is not complete\n"); }
    write_report(command.json, report);
}

} // namespace oasis_decode
