// SPDX-License-Identifier: Apache-2.0
#include "app/command.hpp"
#include "app/decoding.hpp"
#include "app/report.hpp"
#include "app/sampler.hpp"
#include "app/setup.hpp"
#include "app/stats.hpp"
#include "app/table.hpp"
#include "app/tasks.hpp"
#include "app/terminal.hpp"
#include "model/chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>

namespace oasis_decode {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The model's chat form, if the command asks for it.
std::optional<Chat> chat_of(const Command& command, const Tokenizer& tokenizer, const ModelConfig& config)
{
    if (!command.chat) { return std::nullopt; }
    return Chat(tokenizer, command.chat_template, config.architecture);
}

std::vector<oasis::TokenId> prompt_ids(const Command& command, const Tokenizer& tokenizer, const std::optional<Chat>& chat,
                                       std::int64_t context)
{
    std::string text;
    if (!command.file.empty()) {
        text = read_text(command.file);
        if (command.tokens > 0) {
            std::vector<oasis::TokenId> ids = tokenizer.encode(text);
            ids.resize(std::min(ids.size(), static_cast<std::size_t>(command.tokens)));
            text = tokenizer.decode(ids);
        }
        if (!command.prompt.empty()) { text += "\n\n"; }
    }
    text += command.prompt;
    const std::vector<ChatMessage> messages{{"user", text}};
    std::vector<oasis::TokenId> ids = chat ? chat->encode(messages) : tokenizer.encode_prompt(text);
    if (text.empty() || ids.empty()) { throw oasis::Error("the prompt is empty: there is nothing to continue"); }
    if (static_cast<std::int64_t>(ids.size()) >= context) {
        throw oasis::Error(fmt::format("the prompt has {} tokens, the model's context is {}: cut it with --tokens",
                                       ids.size(), context));
    }
    return ids;
}

/// What was written and what it took.
struct Written {
    std::vector<oasis::TokenId> tokens; ///< all chosen tokens, the end mark included
    Usage usage;                        ///< of the steps that fed all but the last
    double prefill_seconds = 0;
    bool ended = false;   ///< by the model's end mark
    bool stopped = false; ///< by Ctrl-C
    std::size_t peak_bytes = 0;
};

class Writer {
public:
    Writer(Engine& engine, const Command& command, const std::optional<Chat>& chat, Session& session)
        : ends_(engine.config().eos),
          sampler_(command.temperature, command.top_p, command.seed),
          session_(session),
          prompt_(session.length()),
          stream_(engine.model->tokenizer)
    {
        if (chat) { ends_.push_back(chat->end()); }
    }

    /// Chooses from `logits`, prints, and says whether to go on.
    bool choose(std::span<const float> logits, Written& out)
    {
        const oasis::TokenId token = sampler_.pick(logits, prompt_ + static_cast<std::int64_t>(out.tokens.size()));
        out.tokens.push_back(token);
        out.ended = std::find(ends_.begin(), ends_.end(), token) != ends_.end();
        if (!out.ended) { put(stream_.push(token)); }
        return !out.ended;
    }

    Written write(std::span<const float> first_logits, std::int64_t limit)
    {
        Written out;
        Decoding decoding(session_);
        bool more = choose(first_logits, out);
        const auto begin = Clock::now();
        while (more && static_cast<std::int64_t>(out.tokens.size()) < limit) {
            if (interrupted()) {
                out.stopped = true;
                break;
            }
            const std::int64_t left = limit - static_cast<std::int64_t>(out.tokens.size());
            decoding.step(out.tokens.back(), left, [&](std::span<const float> logits) -> Decoding::Choice {
                more = choose(logits, out);
                return {out.tokens.back(), !more};
            });
        }
        put(stream_.finish() + "\n");
        const double seconds = seconds_since(begin);
        out.usage = decoding.usage();
        out.usage.seconds = seconds; // sampling and printing included
        return out;
    }

private:
    std::vector<oasis::TokenId> ends_; ///< what ends the text: the model's end marks, and the chat form's
    Sampler sampler_;
    Session& session_;
    std::int64_t prompt_;
    StreamDecoder stream_;
};

/// The same tokens again with dense attention.
struct DenseColumn {
    Usage usage;
    std::int64_t agreed = 0; ///< tokens that dense attention chooses too
};

DenseColumn run_dense(Engine& engine, const Command& command, const KvStore& prompt, const Written& written,
                      std::int64_t context)
{
    DenseColumn out;
    Session session(engine, dense_config(command.settings, engine.config().shape(), context, kChunkRows));
    session.ingest(prompt);
    Sampler sampler(command.temperature, command.top_p, command.seed);
    const std::span<const oasis::TokenId> fed(written.tokens.data(), static_cast<std::size_t>(written.usage.rows));
    Progress progress("dense, to compare: token", written.usage.rows);
    out.usage = decode_forced(session, fed, 1, [&](std::size_t row, std::span<const float> logits) {
        const std::int64_t position = prompt.tokens() + static_cast<std::int64_t>(row) + 1;
        if (sampler.pick(logits, position) == written.tokens[row + 1]) { ++out.agreed; }
        progress.advance();
    });
    return out;
}

struct Summary {
    std::int64_t prompt = 0;
    std::size_t dense_bytes = 0; ///< K and V of every token in native form
    double mean_context = 0;
};

/// "74, 71, 80 %": of the first drafts, of the second after right first ones, and so on.
/// Of the first, second, ... drafts of the chains, how many stood.
std::string accepted_text(const DraftStats& drafts)
{
    static constexpr const char* kPlaces[] = {"1st", "2nd", "3rd", "4th", "5th", "6th", "7th"};
    std::string out;
    const std::vector<double> shares = drafts.acceptance();
    for (std::size_t i = 0; i < std::min(shares.size(), std::size(kPlaces)); ++i) {
        out += fmt::format("{}{} {:.0f} %", out.empty() ? "" : ", ", kPlaces[i], 100 * shares[i]);
    }
    return out.empty() ? "-" : out;
}

std::string summary_table(const Summary& s, const Written& w, const std::optional<DenseColumn>& dense)
{
    Table table({"", "sparse", "dense"});
    const auto add = [&](const char* what, std::string sparse, std::string other) {
        table.add({what, std::move(sparse), dense ? std::move(other) : "-"});
    };
    const bool was_sparse = w.usage.attended_tokens == w.usage.attended_tokens;
    const double fast = static_cast<double>(w.usage.fast_bytes);
    add("tokens per second", number(w.usage.tokens_per_second(), 1),
        dense ? number(dense->usage.tokens_per_second(), 1) : "");
    add("KV bytes in fast memory", bytes(fast), bytes(static_cast<double>(s.dense_bytes)));
    add("KV bytes in all tiers", bytes(fast + static_cast<double>(w.usage.slow_bytes)),
        bytes(static_cast<double>(s.dense_bytes)));
    add("tokens read per row and KV head", number(was_sparse ? w.usage.attended_tokens : s.mean_context, 0),
        number(s.mean_context, 0));
    add("tokens fetched per row and KV head", number(was_sparse ? w.usage.fetched_tokens : 0.0, 1), "0");
    add("needed tokens already in fast memory", was_sparse ? percent(w.usage.resident_at_use) : "-", "-");
    const auto rate = [&](double bytes_moved) {
        return fmt::format("{}, {}", bytes(bytes_moved), w.usage.rows > 0 ? bytes(bytes_moved / static_cast<double>(w.usage.rows)) + " a token" : "-");
    };
    add("copied when a step needed it", rate(static_cast<double>(w.usage.demand_bytes)), "-");
    add("copied ahead", rate(static_cast<double>(w.usage.prefetch_bytes)), "-");
    add("wait of a step, P50 and P99", fmt::format("{:.2f} ms, {:.2f} ms", w.usage.stall.p50_us / 1e3, w.usage.stall.p99_us / 1e3), "-");
    add("share of the time spent waiting", percent(w.usage.stall.share), "-");
    const DraftStats& drafts = w.usage.drafts;
    add("tokens per verification", number(drafts.tokens_per_verification(), 2), "-");
    add("drafts accepted", accepted_text(drafts), "-");
    add("time to first token", fmt::format("{:.2f} s", w.prefill_seconds), fmt::format("{:.2f} s", w.prefill_seconds));
    const std::string prefill = number(static_cast<double>(s.prompt) / w.prefill_seconds, 0);
    add("prompt tokens per second", prefill, prefill);
    table.add({"peak memory of the program so far", bytes(static_cast<double>(w.peak_bytes)),
               dense ? bytes(static_cast<double>(peak_memory())) : "-"});
    return table.text();
}

std::string sentence(const Summary& s, const Written& w, const std::optional<DenseColumn>& dense)
{
    if (w.usage.rows == 0) { return "Nothing was decoded after the first token, so there is nothing to compare.\n"; }
    if (w.usage.attended_tokens != w.usage.attended_tokens) {
        return fmt::format("The {:.0f} tokens of context fit the attend budget, so every step read all of them; a "
                           "longer text (--file) or a smaller --attend-budget shows the difference.\n",
                           s.mean_context);
    }
    std::string out =
        fmt::format("Each step read {} of the context and kept {} of the KV bytes in fast memory",
                    percent(w.usage.attended_tokens / s.mean_context),
                    percent(static_cast<double>(w.usage.fast_bytes) / static_cast<double>(s.dense_bytes)));
    if (dense) {
        out += fmt::format("; reading all of it would have chosen the same token {} times of {}", dense->agreed,
                           w.usage.rows);
    }
    return out + ".\n";
}

Report configuration_json(const Command& command, const Summary& s, const Written& w,
                          const std::optional<DenseColumn>& dense)
{
    Report out = Report::object();
    out["options"] = to_json(command.settings);
    add_usage(out, w.usage);
    out["prompt_tokens"] = s.prompt;
    out["written_tokens"] = w.tokens.size();
    out["ended"] = w.ended;
    out["time_to_first_token"] = w.prefill_seconds;
    out["prefill_tokens_per_second"] = static_cast<double>(s.prompt) / w.prefill_seconds;
    out["peak_bytes"] = w.peak_bytes;
    out["dense_kv_bytes"] = s.dense_bytes;
    if (dense) {
        out["tokens_as_dense"] = dense->agreed;
        out["dense_tokens_per_second"] = dense->usage.tokens_per_second();
    }
    return out;
}

/// Null unless the command asks for a trace or for residency.
std::shared_ptr<Drawing> make_drawing(const Command& command, const oasis::CacheConfig& config)
{
    if (command.trace.empty() && command.residency.empty()) { return nullptr; }
    auto out = std::make_shared<Drawing>();
    if (!command.residency.empty()) { out->residency.emplace(config); }
    return out;
}

void write_drawing(const Command& command, const Engine& engine, const Drawing* drawing)
{
    if (!command.trace.empty()) { write_trace(*drawing, command.trace); }
    if (!command.residency.empty()) {
        Report report = new_report("run", command, engine);
        report["residency"] = drawing->residency->to_json();
        write_report(command.residency, report, "--residency", -1);
    }
}

} // namespace

void run(const Command& command, const CacheMaker& maker)
{
    if (command.dry_run) {
        const ModelHead head = read_head(command.model, command.compute);
        const auto ids =
            prompt_ids(command, head.tokenizer, chat_of(command, head.tokenizer, head.config), head.config.context);
        print_memory_plan(command, maker, head,
                          std::min(static_cast<std::int64_t>(ids.size()) + command.max_tokens, head.config.context),
                          command.dense_column);
        return;
    }
    const std::unique_ptr<Engine> engine = open_engine(command, maker);
    const oasis::ModelShape shape = engine->config().shape();
    const auto chat = chat_of(command, engine->model->tokenizer, engine->config());
    const auto ids = prompt_ids(command, engine->model->tokenizer, chat, engine->config().context);
    const auto prompt = static_cast<std::int64_t>(ids.size());
    const std::int64_t context = std::min(prompt + command.max_tokens, engine->config().context);
    SparseCache cache = sparse_cache(command, command.settings, maker, shape, context);
    cache.drawing = make_drawing(command, cache.config);

    KvStore store(shape, command.dense_column ? prompt : 0);
    Written written;
    {
        Session session(*engine, cache, make_drafting(*engine, command.settings, command.model, context));
        const auto begin = Clock::now();
        {
            Progress progress("prompt: token", prompt);
            session.prefill(ids, command.dense_column ? &store : nullptr,
                            [&](std::int64_t tokens) { progress.advance(tokens); });
        }
        const std::span<const float> logits = session.last_logits();
        const std::vector<float> first(logits.begin(), logits.end());
        const double prefill_seconds = seconds_since(begin);
        if (cache.drawing) { cache.drawing->on = !command.trace.empty(); }
        written = Writer(*engine, command, chat, session).write(first, context - prompt);
        written.prefill_seconds = prefill_seconds;
        written.peak_bytes = peak_memory();
    }
    write_drawing(command, *engine, cache.drawing.get());
    std::optional<DenseColumn> dense;
    if (command.dense_column && written.usage.rows > 0 && !interrupted()) {
        try {
            dense = run_dense(*engine, command, store, written, context);
        } catch (const Interrupted&) {
            written.stopped = true;
        }
    }
    const std::int64_t length = prompt + written.usage.rows;
    const Summary summary{prompt, maker.footprint(cache.config).kv_bytes_per_token * static_cast<std::size_t>(length),
                          static_cast<double>(prompt) + static_cast<double>(written.usage.rows + 1) / 2};
    put("\n" + summary_table(summary, written, dense) + "\n" + sentence(summary, written, dense));
    Report report = new_report("run", command, *engine);
    report["partial"] = written.stopped || interrupted();
    if (chat) { report["chat_template"] = name_of(chat->chat_template()); }
    report["text"] = engine->model->tokenizer.decode(written.tokens);
    report["configurations"].push_back(configuration_json(command, summary, written, dense));
    write_report(command.json, report);
}

} // namespace oasis_decode
