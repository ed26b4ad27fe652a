// SPDX-License-Identifier: Apache-2.0
#include "app/command.hpp"

#include "app/report.hpp"
#include "app/tasks.hpp"
#include "app/terminal.hpp"
#include "model/chat.hpp"

#include <oasis/core/validate.hpp>
#include <oasis/version.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <stdexcept>

namespace oasis_decode {
namespace {

constexpr const char* kExamples = R"(
Examples
  oasis-decode inspect MODEL
      what the model is and what its KV cache takes
  oasis-decode run MODEL --chat --prompt "Why is the sky blue?"
      write an answer, then compare the sparse cache with a dense one
  oasis-decode run MODEL --file book.txt --prompt "Who opens the door?" --attend-budget 512
      the same after a long text, reading 512 tokens of it per step
  oasis-decode run MODEL --chat --prompt "Why is the sky blue?" --draft mtp
      the same answer, several tokens a step: the model's draft head guesses, the model verifies
  oasis-decode compare MODEL --file book.txt --sweep attend_budget=512,1024,2048
      how far sparse decoding strays from dense decoding, for three budgets
  oasis-decode eval MODEL --generate all:4096:2
      questions about random records, answered with dense and with sparse attention

MODEL is a GGUF file or a folder with config.json, tokenizer.json and safetensors.

Exit codes: 0 done; 1 failed; 2 a wrong command line; 130 ended by Ctrl-C; 141 nobody reads standard output any more.
Errors are one line on standard error.
)";

void add_settings(CLI::App& app, Settings& settings)
{
    for (const SettingInfo& info : setting_infos()) {
        app.add_option_function<std::string>(
               fmt::format("--{}", info.name),
               [&settings, &info](const std::string& value) { info.set(settings, value); }, info.help)
            ->type_name(info.form)
            ->default_str(info.get(Settings{}))
            ->group("Cache");
    }
}

void set_compute(Command& command, const std::string& text)
{
    if (text != "f32" && text != "q8") { throw UsageError(fmt::format("--compute '{}': expected f32 or q8", text)); }
    command.compute = text == "q8" ? Compute::kQ8 : Compute::kF32;
}

void add_common(CLI::App& app, Command& command)
{
    app.add_option("MODEL", command.model, "GGUF file or model folder")->required();
    add_settings(app, command.settings);
    app.add_option("--threads", command.threads, "threads; 0: one per processor")
        ->check(CLI::Range(0, 1024))
        ->type_name("N");
    app.add_option_function<std::string>(
           "--compute", [&command](const std::string& text) { set_compute(command, text); },
           "arithmetic of the model's matrices: f32, or q8 (weights and activations in 8 bits or less: faster, not quite "
           "the same logits)")
        ->type_name("f32|q8")
        ->default_str("f32");
    app.add_option("--json", command.json, "write every option and result there")->type_name("FILE");
    app.add_flag("--dry-run", command.dry_run, "say what memory it would take, and end");
}

void add_measure(CLI::App& app, Command& command)
{
    app.add_option_function<std::vector<std::string>>(
           "--sweep",
           [&command](const std::vector<std::string>& texts) {
               for (const auto& text : texts) { command.sweeps.push_back(parse_sweep(text)); }
           },
           "try several values of a cache option; several sweeps multiply")
        ->type_name("NAME=V,V")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_option("--rows", command.rows, "tokens per step without drafts, 1 to 8")
        ->check(CLI::Range(1, static_cast<int>(oasis::kMaxVerifyRows)))
        ->type_name("N");
    app.add_option_function<std::string>(
           "--measure-mass",
           [&command](const std::string& text) {
               if (text != "on" && text != "off") {
                   throw UsageError(fmt::format("--measure-mass '{}': expected on or off", text));
               }
               command.measure_mass = text == "on";
           },
           "compute the true attention mass that was read: exact and slow; on, off")
        ->type_name("ON|OFF");
}

void add_run(CLI::App& app, Command& command)
{
    add_common(app, command);
    app.add_option("--prompt", command.prompt, "the prompt; after --file, what follows the text")->type_name("TEXT");
    app.add_option("--file", command.file, "a text that the prompt begins with; - is standard input")
        ->type_name("FILE");
    app.add_option("--tokens", command.tokens, "cut the file's text to N tokens")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
        ->type_name("N");
    CLI::Option* const chat = app.add_flag("--chat", command.chat, "put the prompt into the model's chat form");
    app.add_option_function<std::string>(
           "--chat-template",
           [&command](const std::string& name) {
               if (!chat_template_named(name)) {
                   throw UsageError(fmt::format("--chat-template '{}': expected one of {}", name, chat_template_names()));
               }
               command.chat_template = name;
           },
           "the chat form, where the model's files do not tell: " + chat_template_names())
        ->needs(chat)
        ->type_name("NAME");
    app.add_option("--seed", command.seed, "seed of the sampling")->type_name("N");
    app.add_option("--temp", command.temperature, "temperature; 0: the likeliest token")
        ->check(CLI::Range(0.0, 100.0))
        ->type_name("T");
    app.add_option("--top-p", command.top_p, "sample from the likeliest tokens that make up this share")
        ->check(CLI::Range(0.0, 1.0))
        ->type_name("P");
    app.add_option("--max-tokens", command.max_tokens, "tokens to write at most")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
        ->type_name("N");
    app.add_option("--trace", command.trace,
                   "draw the decoding (compute, demand and prefetch lanes) for ui.perfetto.dev into FILE")
        ->type_name("FILE");
    app.add_option("--residency", command.residency,
                   "write into FILE, as JSON, which blocks were in fast memory after each step")
        ->type_name("FILE");
    app.add_option_function<std::string>(
           "--dense-column",
           [&command](const std::string& text) {
               if (text != "on" && text != "off") {
                   throw UsageError(fmt::format("--dense-column '{}': expected on or off", text));
               }
               command.dense_column = text == "on";
           },
           "repeat the decoding with dense attention, to compare; on, off")
        ->type_name("ON|OFF");
}

void add_compare(CLI::App& app, Command& command)
{
    add_common(app, command);
    add_measure(app, command);
    app.add_option("--file", command.file, "the text; - is standard input")->required()->type_name("FILE");
    app.add_option("--tokens", command.tokens,
                   "length of the text in tokens; default 7600, or the whole text if shorter")
        ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 40))
        ->type_name("N");
    app.add_option("--last", command.last, "tokens at its end that are decoded step by step")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
        ->type_name("N");
}

void add_eval(CLI::App& app, Command& command)
{
    add_common(app, command);
    add_measure(app, command);
    app.add_option("--tasks", command.tasks, "tasks with answers, .jsonl or .jsonl.xz")->type_name("FILE");
    app.add_option("--items", command.items, "a JSON list of {file, line} that picks tasks")->type_name("FILE");
    app.add_option("--generate", command.generate,
                   "random tasks: TASK[:LENGTH[:ITEMS]],...; TASK is kv_dense, vartrack, json, list, multikey or all")
        ->type_name("SPEC");
    app.add_option("--max-items", command.max_items, "stop after N tasks")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
        ->type_name("N");
    app.add_option("--seed", command.seed, "seed of the generated tasks")->type_name("N");
}

void check(const Command& command)
{
    const auto need = [](bool holds, const char* text) {
        if (!holds) { throw UsageError(text); }
    };
    if (command.verb == Verb::kRun) {
        need(!command.prompt.empty() || !command.file.empty(),
             "run needs a text: give --prompt TEXT or --file FILE (an empty prompt cannot be continued)");
        need(!command.chat || !command.prompt.empty(), "--chat needs --prompt TEXT");
        need(command.settings.draft != DraftSource::kOracle,
             "--draft oracle needs a text that is known: compare and eval have one, run has none");
    }
    if (command.verb == Verb::kEval) {
        const int sources = int{!command.tasks.empty()} + int{!command.items.empty()} + int{!command.generate.empty()};
        need(sources == 1, "eval needs one of --tasks FILE, --items FILE and --generate SPEC");
        if (!command.generate.empty()) { static_cast<void>(parse_generate(command.generate)); }
    }
    if (command.verb == Verb::kCompare && command.tokens > 0 && command.last >= command.tokens) {
        throw UsageError(fmt::format("--last {} must be less than --tokens {}", command.last, command.tokens));
    }
    // Whatever the model: budgets and summaries that cannot work are usage errors.
    for (const Settings& settings : expand(command.settings, command.sweeps)) {
        oasis::validate(to_config(settings, {.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 64}, 1, 1));
    }
}

bool is_command(const CLI::App& app, const std::string& name)
{
    const auto all = app.get_subcommands([](const CLI::App*) { return true; });
    return std::any_of(all.begin(), all.end(), [&](const CLI::App* sub) { return sub->get_name() == name; });
}

std::string first_line(std::string text)
{
    text.erase(std::min(text.find('\n'), text.size()));
    return text;
}

} // namespace

Parsed parse_command(std::span<const std::string> arguments)
{
    Command command;
    CLI::App app("oasis-decode: decode with a KV cache that is larger than fast memory.", "oasis-decode");
    app.set_version_flag("--version", fmt::format("oasis-decode {}.{}.{}", OASIS_VERSION_MAJOR, OASIS_VERSION_MINOR,
                                                  OASIS_VERSION_PATCH));
    app.footer(kExamples);
    app.require_subcommand(1);
    CLI::App* const inspect_app = app.add_subcommand("inspect", "what a model is and what its KV cache takes");
    add_common(*inspect_app, command);
    CLI::App* const run_app = app.add_subcommand("run", "write text, and say what the cache did");
    add_run(*run_app, command);
    CLI::App* const compare_app =
        app.add_subcommand("compare", "how far sparse decoding strays from dense decoding on a text");
    add_compare(*compare_app, command);
    CLI::App* const eval_app = app.add_subcommand("eval", "tasks with known answers, dense against sparse");
    add_eval(*eval_app, command);
    if (arguments.empty()) { return {.exit_code = 0, .text = app.help()}; }
    try {
        if (!arguments.front().starts_with("-") && !is_command(app, arguments.front())) {
            throw UsageError(
                fmt::format("unknown command '{}': expected inspect, run, compare or eval", arguments.front()));
        }
        std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
        app.parse(reversed);
        command.verb = *run_app ? Verb::kRun : *compare_app ? Verb::kCompare : *eval_app ? Verb::kEval : Verb::kInspect;
        check(command);
    } catch (const CLI::CallForHelp&) {
        for (const CLI::App* sub : app.get_subcommands()) { return {.exit_code = 0, .text = sub->help()}; }
        return {.exit_code = 0, .text = app.help()};
    } catch (const CLI::CallForVersion& e) {
        return {.exit_code = 0, .text = std::string(e.what()) + "\n"};
    } catch (const CLI::ParseError& e) {
        return {.exit_code = exit_code::kUsage, .text = first_line(e.what())};
    } catch (const oasis::InvalidArgument& e) {
        return {.exit_code = exit_code::kUsage, .text = first_line(e.what())};
    }
    return {.command = std::move(command)};
}

int run_program(std::span<const std::string> arguments, const CacheMaker& maker)
{
    try {
        const Parsed parsed = parse_command(arguments);
        if (!parsed.command) {
            if (parsed.exit_code == exit_code::kDone) {
                put(parsed.text);
            } else {
                complain(parsed.text);
            }
            return parsed.exit_code;
        }
        check_outputs(*parsed.command);
        switch (parsed.command->verb) {
        case Verb::kInspect: inspect(*parsed.command, maker); break;
        case Verb::kRun: run(*parsed.command, maker); break;
        case Verb::kCompare: compare(*parsed.command, maker); break;
        case Verb::kEval: evaluate(*parsed.command, maker); break;
        }
        return interrupted() ? exit_code::kInterrupted : exit_code::kDone;
    } catch (const BrokenPipe&) {
        return exit_code::kBrokenPipe;
    } catch (const Interrupted&) {
        return exit_code::kInterrupted;
    } catch (const UsageError& e) {
        complain(e.what());
        return exit_code::kUsage;
    } catch (const std::bad_alloc&) {
        complain("out of memory; --dry-run says what is needed");
    } catch (const std::length_error&) { // containers throw it where a size is beyond any memory
        complain("out of memory; --dry-run says what is needed");
    } catch (const std::exception& e) {
        complain(e.what());
    }
    return exit_code::kFailed;
}

} // namespace oasis_decode
