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
#include <cmath>
#include <map>
#include <utility>

namespace oasis_decode {
namespace {

/// Answers of one kind of item under one configuration.
struct Tally {
    std::size_t items = 0;
    std::size_t exact = 0;    ///< every row's likeliest token is the answer's, end mark included
    std::size_t as_dense = 0; ///< every row's likeliest token is the dense run's
    std::size_t tokens = 0;
    std::size_t right_tokens = 0;

    void add(const Tally& other)
    {
        items += other.items;
        exact += other.exact;
        as_dense += other.as_dense;
        tokens += other.tokens;
        right_tokens += other.right_tokens;
    }
    double accuracy() const noexcept { return ratio(static_cast<double>(right_tokens), static_cast<double>(tokens)); }
};

using Cell = std::pair<std::string, std::int64_t>; ///< task, length

/// One configuration over all items; means are over items, so that long answers do not outweigh short ones.
struct Score {
    std::map<Cell, Tally> cells{};
    Mean kl{}, top1{}, log_ratio{}, captured{}, attended{}, fetched{}, resident{}, late{}, skipped{}, agreement{};
    Mean stall_p50{}, stall_p99{}, stall_share{};
    std::uint64_t demand_bytes = 0;
    std::uint64_t prefetch_bytes = 0;
    std::int64_t rows = 0;
    std::int64_t steps = 0;
    double seconds = 0;
    std::size_t fast_bytes = 0;
    std::size_t slow_bytes = 0;
    DraftStats drafts{};

    Tally total() const
    {
        Tally out;
        for (const auto& [cell, tally] : cells) { out.add(tally); }
        return out;
    }
    void add(const Cell& cell, const Tally& tally, const Usage& usage)
    {
        cells[cell].add(tally);
        for (const auto& [mean, value] : {std::pair{&captured, usage.captured_mass},
                                          {&attended, usage.attended_tokens},
                                          {&fetched, usage.fetched_tokens},
                                          {&resident, usage.resident_at_use},
                                          {&late, usage.late_tokens},
                                          {&skipped, usage.skipped_mass},
                                          {&agreement, usage.agreement},
                                          {&stall_p50, usage.stall.p50_us},
                                          {&stall_p99, usage.stall.p99_us},
                                          {&stall_share, usage.stall.share}}) {
            if (value == value) { mean->add(value); }
        }
        rows += usage.rows;
        steps += usage.steps;
        seconds += usage.seconds;
        demand_bytes += usage.demand_bytes;
        prefetch_bytes += usage.prefetch_bytes;
        fast_bytes = std::max(fast_bytes, usage.fast_bytes);
        slow_bytes = std::max(slow_bytes, usage.slow_bytes);
        drafts.add(usage.drafts);
    }
};

struct Item {
    Cell cell;
    std::vector<oasis::TokenId> prefix;   ///< the prompt without its last token
    std::vector<oasis::TokenId> rows;     ///< its last token, then the answer
    std::vector<oasis::TokenId> expected; ///< the answer, then the end mark

    std::int64_t context() const noexcept { return static_cast<std::int64_t>(prefix.size() + rows.size()); }
    std::vector<oasis::TokenId> text() const
    {
        std::vector<oasis::TokenId> out = prefix;
        out.insert(out.end(), rows.begin(), rows.end());
        return out;
    }
};

/// The end mark is part of the answer: a model that goes on has not answered.
Item tokenise(const Task& task, const Tokenizer& tokenizer, const ModelConfig& config)
{
    Item out{{task.task, task.length}, tokenizer.encode_prompt(task.prompt), {},
             tokenizer.encode(task.answer, Specials::kAsText, Tokenizer::Place::kContinues)};
    if (out.prefix.empty() || out.expected.empty()) {
        throw oasis::Error(fmt::format("{}: the prompt or the answer has no tokens", task.id));
    }
    out.rows.push_back(out.prefix.back());
    out.prefix.pop_back();
    out.rows.insert(out.rows.end(), out.expected.begin(), out.expected.end());
    if (!config.eos.empty()) {
        out.expected.push_back(config.eos.front());
    } else {
        out.rows.pop_back();
    }
    if (out.context() > config.context) {
        throw oasis::Error(fmt::format("{}: {} tokens with its answer, the model's context is {}", task.id,
                                       out.context(), config.context));
    }
    return out;
}

std::vector<Task> load_tasks(const Command& command, const Tokenizer& tokenizer)
{
    std::vector<Task> out;
    if (!command.tasks.empty()) {
        out = read_tasks(command.tasks);
    } else if (!command.items.empty()) {
        out = read_items(command.items);
    } else {
        const TokenCount count = [&](std::string_view text) { return tokenizer.encode(text).size(); };
        for (const GenerateSpec& spec : parse_generate(command.generate)) {
            for (std::int32_t i = 0; i < spec.items; ++i) {
                out.push_back(
                    generate_task(spec.task, spec.length, command.seed, static_cast<std::uint64_t>(i), count));
            }
        }
    }
    if (command.max_items > 0 && command.max_items < static_cast<std::int64_t>(out.size())) {
        out.resize(static_cast<std::size_t>(command.max_items));
    }
    return out;
}

struct Evaluation {
    Score dense{};
    std::vector<Score> sparse{};
    std::int64_t items = 0;
};

void add_row(Tally& tally, std::size_t choice, std::size_t dense_choice, oasis::TokenId expected, bool& exact,
             bool& as_dense)
{
    const bool right = choice == static_cast<std::size_t>(expected);
    ++tally.tokens;
    tally.right_tokens += right ? 1 : 0;
    exact = exact && right;
    as_dense = as_dense && choice == dense_choice;
}

/// `check` gets the logits of each row beside the dense ones.
template <class Check>
void score_item(Session& session, const Command& command, const Item& item,
                const std::vector<std::size_t>& dense_choices, Score& score, const Check& check)
{
    Tally tally{.items = 1};
    bool exact = true;
    bool as_dense = true;
    const Usage usage =
        decode_forced(session, item.rows, command.rows, [&](std::size_t row, std::span<const float> logits) {
            const std::size_t choice = argmax(logits);
            check(row, logits);
            add_row(tally, choice, dense_choices.empty() ? choice : dense_choices[row], item.expected[row], exact,
                    as_dense);
        });
    tally.exact = exact ? 1 : 0;
    tally.as_dense = as_dense ? 1 : 0;
    score.add(item.cell, tally, usage);
}

void evaluate_item(Engine& engine, const Command& command, std::span<const Settings> settings, const CacheMaker& maker,
                   const Item& item, Evaluation& to, Progress& progress)
{
    const oasis::ModelShape shape = engine.config().shape();
    KvStore prompt(shape, static_cast<std::int64_t>(item.prefix.size()), residual_width(settings, engine.config()));
    const std::vector<oasis::TokenId> text = item.text();
    std::vector<float> reference(item.rows.size() * engine.vocabulary());
    std::vector<std::size_t> choices(item.rows.size());
    {
        Session session(engine, dense_config(command.settings, shape, item.context(), kChunkRows));
        session.prefill(item.prefix, &prompt, [&](std::int64_t tokens) { progress.advance(tokens); });
        score_item(session, command, item, {}, to.dense, [&](std::size_t row, std::span<const float> logits) {
            std::copy(logits.begin(), logits.end(),
                      reference.begin() + static_cast<std::ptrdiff_t>(row * logits.size()));
            choices[row] = argmax(logits);
        });
    }
    for (std::size_t i = 0; i < settings.size(); ++i) {
        const SparseCache cache = sparse_cache(command, settings[i], maker, shape, item.context());
        Session session(engine, cache,
                        make_drafting(engine, settings[i], command.model, item.context(), text));
        session.ingest(prompt);
        RowComparison rows;
        score_item(session, command, item, choices, to.sparse[i], [&](std::size_t row, std::span<const float> logits) {
            rows.add(std::span(reference).subspan(row * logits.size(), logits.size()), logits, item.expected[row]);
        });
        to.sparse[i].kl.add(rows.kl());
        to.sparse[i].top1.add(rows.top1());
        to.sparse[i].log_ratio.add(rows.sparse_nll() - rows.dense_nll());
    }
    ++to.items;
}

std::string share_of(std::size_t part, std::size_t whole) { return fmt::format("{}/{}", part, whole); }

std::string interval_text(const Tally& tally)
{
    const Interval interval = wilson(tally.exact, tally.items);
    return fmt::format("{:.0f}-{:.0f} %", 100 * interval.low, 100 * interval.high);
}

void print(const Evaluation& evaluation, std::span<const Settings> settings)
{
    Table totals({"configuration", "exact", "95 % interval", "as dense", "tokens", "KL", "captured", "attended",
                  "fetched", "resident", "tokens/step", "tokens/s"});
    const auto add = [&](const std::string& name, const Score& score) {
        const Tally t = score.total();
        totals.add({name, share_of(t.exact, t.items), interval_text(t), share_of(t.as_dense, t.items),
                    percent(t.accuracy()), small_number(score.kl.value()), number(score.captured.value(), 3),
                    number(score.attended.value(), 0), number(score.fetched.value(), 1),
                    percent(score.resident.value()), number(score.drafts.tokens_per_verification(), 2),
                    number(ratio(static_cast<double>(score.rows), score.seconds), 1)});
    };
    add("dense", evaluation.dense);
    for (std::size_t i = 0; i < settings.size(); ++i) { add(short_name(settings[i]), evaluation.sparse[i]); }
    put(fmt::format("\n{}\n", totals.text()));
    Table cells({"task", "length", "configuration", "exact", "95 % interval", "as dense", "tokens"});
    for (const auto& [cell, dense] : evaluation.dense.cells) {
        const auto add_cell = [&](const std::string& name, const Tally& t) {
            cells.add({cell.first, std::to_string(cell.second), name, share_of(t.exact, t.items), interval_text(t),
                       share_of(t.as_dense, t.items), percent(t.accuracy())});
        };
        add_cell("dense", dense);
        for (std::size_t i = 0; i < settings.size(); ++i) {
            const auto found = evaluation.sparse[i].cells.find(cell);
            if (found != evaluation.sparse[i].cells.end()) { add_cell(short_name(settings[i]), found->second); }
        }
    }
    put(cells.text());
}

Report to_report(const Tally& tally)
{
    const Interval interval = wilson(tally.exact, tally.items);
    return {{"items", tally.items},
            {"exact", tally.exact},
            {"exact_low", interval.low},
            {"exact_high", interval.high},
            {"exact_as_dense", tally.as_dense},
            {"answer_tokens", tally.tokens},
            {"answer_token_accuracy", tally.accuracy()}};
}

Report to_report(const Score& score)
{
    Report out = to_report(score.total());
    out["ppl_ratio"] = std::exp(score.log_ratio.value());
    out["kl"] = score.kl.value();
    out["top1"] = score.top1.value();
    add_usage(out, {.rows = score.rows,
                    .steps = score.steps,
                    .seconds = score.seconds,
                    .captured_mass = score.captured.value(),
                    .attended_tokens = score.attended.value(),
                    .fetched_tokens = score.fetched.value(),
                    .resident_at_use = score.resident.value(),
                    .fast_bytes = score.fast_bytes,
                    .slow_bytes = score.slow_bytes,
                    .demand_bytes = score.demand_bytes,
                    .prefetch_bytes = score.prefetch_bytes,
                    .late_tokens = score.late.value(),
                    .skipped_mass = score.skipped.value(),
                    .agreement = score.agreement.value(),
                    .stall = {.p50_us = score.stall_p50.value(),
                              .p99_us = score.stall_p99.value(),
                              .share = score.stall_share.value()},
                    .drafts = score.drafts});
    out["tasks"] = Report::array();
    for (const auto& [cell, tally] : score.cells) {
        Report entry = {{"task", cell.first}, {"length", cell.second}};
        entry.update(to_report(tally));
        out["tasks"].push_back(std::move(entry));
    }
    return out;
}

void dry_run(const Command& command, const CacheMaker& maker)
{
    const ModelHead head = read_head(command.model, command.compute);
    std::int64_t longest = 0;
    for (const Task& task : load_tasks(command, head.tokenizer)) {
        longest = std::max(longest, tokenise(task, head.tokenizer, head.config).context());
    }
    print_memory_plan(command, maker, head, longest, false);
}

} // namespace

void evaluate(const Command& command, const CacheMaker& maker)
{
    if (command.dry_run) {
        dry_run(command, maker);
        return;
    }
    const std::vector<Settings> settings = expand(command.settings, command.sweeps);
    const std::unique_ptr<Engine> engine = open_engine(command, maker);
    std::vector<Item> items;
    std::int64_t tokens = 0;
    for (const Task& task : load_tasks(command, engine->model->tokenizer)) {
        items.push_back(tokenise(task, engine->model->tokenizer, engine->config()));
        tokens += static_cast<std::int64_t>(items.back().prefix.size());
    }
    Report report = new_report("eval", command, *engine);
    Evaluation evaluation;
    evaluation.sparse.resize(settings.size());
    try {
        Progress progress("eval: prompt token", tokens);
        for (std::size_t i = 0; i < items.size(); ++i) {
            progress.note(fmt::format("item {} of {}, {}", i + 1, items.size(), items[i].cell.first));
            evaluate_item(*engine, command, settings, maker, items[i], evaluation, progress);
        }
    } catch (const Interrupted&) {
        report["partial"] = true;
    }
    put(fmt::format("{} of {} items\n", evaluation.items, items.size()));
    print(evaluation, settings);
    if (report["partial"].get<bool>()) { put("interrupted: the tables are not complete\n"); }
    report["items"] = evaluation.items;
    report["dense"] = to_report(evaluation.dense);
    for (std::size_t i = 0; i < settings.size(); ++i) {
        Report entry = {{"options", to_json(settings[i])}};
        entry.update(to_report(evaluation.sparse[i]));
        report["configurations"].push_back(std::move(entry));
    }
    write_report(command.json, report);
}

} // namespace oasis_decode
