// SPDX-License-Identifier: Apache-2.0
//
// Random tasks: records and values mean nothing, so an answer can only come from the prompt.
#include "app/random.hpp"
#include "app/tasks.hpp"
#include "app/words.hpp"

#include <oasis/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace oasis_decode {
namespace {

/// Records lie at least this far before the question, or a third of the prompt when it is short. What is counted line
/// by line is a little more than the whole, hence more than the 640 that are promised.
constexpr std::int64_t kDistance = 700;
/// Kept free for the header and the question.
constexpr std::int64_t kReserve = 200;

class Writer {
public:
    Writer(std::int64_t length, std::uint64_t seed, const TokenCount& count)
        : random(seed), count_(count), room_(length - kReserve), distance_(std::min(kDistance, length / 3))
    {
    }

    Random random;

    /// Tokens used so far, as counted line by line.
    std::int64_t used() const noexcept { return used_; }
    bool has_room() const noexcept { return used_ < room_; }
    /// Whether what is written now still lies far enough before the question.
    bool is_far() const noexcept { return used_ < room_ - distance_; }
    std::int64_t far_room() const noexcept { return std::max<std::int64_t>(1, room_ - distance_); }
    std::int64_t cost(std::string_view text) const { return static_cast<std::int64_t>(count_(text)); }

    /// Appends unless it would not fit.
    bool line(const std::string& text)
    {
        const std::int64_t tokens = cost(text + "\n");
        if (used_ + tokens > room_) { return false; }
        text_ += text + "\n";
        used_ += tokens;
        return true;
    }

    bool filler() { return line(paragraph(random) + "\n"); }

    /// Spreads `records` evenly over the far part, filler between and after them.
    void scatter(const std::vector<std::string>& records)
    {
        std::int64_t reserved = 0;
        for (const auto& record : records) { reserved += cost(record + "\n"); }
        const double gap = static_cast<double>(std::max<std::int64_t>(0, far_room() - reserved)) /
                           static_cast<double>(records.size() + 1);
        std::int64_t written = 0;
        for (std::size_t i = 0; i < records.size(); ++i) {
            while (static_cast<double>(used_ - written) + 60 < gap * static_cast<double>(i + 1) && filler()) {}
            const std::int64_t before = used_;
            oasis::detail::expects(line(records[i]), "generate_task: ", room_ + kReserve, " tokens are too few for ",
                                   records.size(), " records");
            written += used_ - before;
        }
        while (filler()) {}
    }

    std::string finish(const std::string& question) const { return text_ + question; }

private:
    const TokenCount& count_;
    std::int64_t room_;
    std::int64_t distance_;
    std::int64_t used_ = 0;
    std::string text_;
};

/// Values nobody has asked for before.
template <class Make> std::string fresh(std::set<std::string>& taken, const Make& make)
{
    for (;;) {
        std::string value = make();
        if (taken.insert(value).second) { return value; }
    }
}

struct Fact {
    std::string key;
    std::string value;
};

std::vector<std::string> keys_of(const std::vector<Fact>& facts)
{
    std::vector<std::string> out;
    for (const auto& fact : facts) { out.push_back(fact.key); }
    return out;
}

/// `take` of the first `far` facts in random order.
std::vector<Fact> choose(Random& random, std::vector<Fact> facts, std::size_t far, std::size_t take)
{
    oasis::detail::expects(far >= take, "generate_task: room for ", far, " records far enough before the question, ",
                           take, " are needed");
    facts.resize(far);
    random.shuffle(facts);
    facts.resize(take);
    return facts;
}

void kv_dense(Writer& w, Task& task)
{
    const std::string what = w.random.pick(attributes());
    const int form = static_cast<int>(w.random.below(4));
    const int key_kind = static_cast<int>(w.random.below(3));
    const int value_kind = static_cast<int>(w.random.below(2));
    std::set<std::string> taken;
    std::vector<Fact> facts;
    std::size_t far = 0;
    w.line(fmt::format("All {}s:", what));
    while (w.has_room()) {
        const Fact fact{fresh(taken, [&] { return make_key(w.random, key_kind); }), make_value(w.random, value_kind)};
        const std::array lines = {fmt::format("The {} of {} is {}.", what, fact.key, fact.value),
                                  fmt::format("Entry {}: {}", fact.key, fact.value),
                                  fmt::format("- {}: {}", fact.key, fact.value),
                                  fmt::format("{} {}: {}", what, fact.key, fact.value)};
        const bool is_far = w.is_far();
        if (!w.line(lines[static_cast<std::size_t>(form)])) { break; }
        facts.push_back(fact);
        if (is_far) { ++far; }
    }
    const std::vector<Fact> asked = choose(w.random, facts, far, std::min<std::size_t>(12, far));
    task.prompt =
        w.finish(fmt::format("Question: Report the {} for: {}\nAnswer:\n", what, fmt::join(keys_of(asked), ", ")));
    for (const auto& fact : asked) { task.answer += fmt::format("{}: {}\n", fact.key, fact.value); }
}

void vartrack(Writer& w, Task& task)
{
    constexpr int chains = 4;
    constexpr int hops = 5;
    const int form = static_cast<int>(w.random.below(3));
    const int key_kind = static_cast<int>(1 + w.random.below(2));
    std::set<std::string> taken;
    std::vector<std::string> records;
    std::string first;
    for (int chain = 0; chain < chains; ++chain) {
        std::vector<std::string> names;
        for (int i = 0; i <= hops; ++i) {
            names.push_back(fresh(taken, [&] { return make_key(w.random, key_kind); }));
        }
        names.push_back(make_value(w.random, 0));
        for (std::size_t i = 0; i + 1 < names.size(); ++i) {
            const std::array lines = {fmt::format("let {} = {}", names[i], names[i + 1]),
                                      fmt::format("field {} = {}", names[i], names[i + 1]),
                                      fmt::format("Define {} = {};", names[i], names[i + 1])};
            records.push_back(lines[static_cast<std::size_t>(form)]);
            if (chain == 0) { task.answer += fmt::format("{} = {}\n", names[i], names[i + 1]); }
        }
        if (chain == 0) {
            first = names.front();
            task.answer += fmt::format("So {} = {}\n", first, names.back());
        }
    }
    w.random.shuffle(records);
    w.scatter(records);
    task.prompt = w.finish(fmt::format("Question: Resolve {} step by step.\nAnswer:\n", first));
}

void json(Writer& w, Task& task)
{
    const std::array ids = {"id", "key", "sku"};
    const std::string id = ids[w.random.below(ids.size())];
    const int key_kind = static_cast<int>(1 + w.random.below(2));
    std::set<std::string> taken;
    std::vector<Fact> facts;
    std::size_t far = 0;
    while (w.has_room()) {
        const std::string key = fresh(taken, [&] { return make_key(w.random, key_kind); });
        const std::string record =
            fmt::format(R"({{"{}": "{}", "color": "{}", "code": "{}", "name": "{}"}})", id, key,
                        w.random.pick(adjectives()), make_value(w.random, 0), make_name(w.random));
        const bool is_far = w.is_far();
        if (!w.line(record)) { break; }
        facts.push_back({key, record});
        if (is_far) { ++far; }
    }
    const std::vector<Fact> asked = choose(w.random, facts, far, 3);
    task.prompt = w.finish(
        fmt::format("Question: Return the full records with {} {}.\nAnswer:\n", id, fmt::join(keys_of(asked), ", ")));
    for (const auto& fact : asked) { task.answer += fact.value + "\n"; }
}

void list(Writer& w, Task& task)
{
    const std::string what = w.random.pick(attributes());
    const int value_kind = static_cast<int>(w.random.below(3));
    std::vector<std::string> records;
    for (int i = 1; i <= 12; ++i) {
        const std::string value = value_kind == 2 ? make_key(w.random, 0) : make_value(w.random, value_kind);
        records.push_back(fmt::format("({}) The {} is {}.", i, what, value));
        task.answer += fmt::format("{}: {}\n", i, value);
    }
    w.scatter(records);
    task.prompt = w.finish(fmt::format("Question: List every {} in order.\nAnswer:\n", what));
}

void multikey(Writer& w, Task& task)
{
    const std::string what = w.random.pick(attributes());
    const int key_kind = static_cast<int>(w.random.below(3));
    const auto records = static_cast<std::size_t>(std::clamp<std::int64_t>(w.far_room() / 120, 12, 128));
    std::set<std::string> taken;
    std::vector<Fact> facts;
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < records; ++i) {
        facts.push_back({fresh(taken, [&] { return make_key(w.random, key_kind); }), make_value(w.random, 0)});
        lines.push_back(fmt::format("Entry {}: {}", facts.back().key, facts.back().value));
    }
    w.scatter(lines);
    const Fact& asked = facts[w.random.below(facts.size())];
    task.prompt =
        w.finish(fmt::format("Question: What is the {} of {}?\nAnswer:\nEntry {}:", what, asked.key, asked.key));
    task.answer = fmt::format(" {}\n", asked.value);
}

struct Generator {
    std::string_view name;
    void (*write)(Writer&, Task&);
};

constexpr std::array generators = {Generator{"kv_dense", kv_dense}, Generator{"vartrack", vartrack},
                                   Generator{"json", json}, Generator{"list", list}, Generator{"multikey", multikey}};

std::int64_t positive(std::string_view text, std::string_view whole)
{
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    oasis::detail::expects(error == std::errc{} && end == text.data() + text.size() && value > 0 && value <= (1 << 24),
                           "--generate '", whole, "': '", text, "' is no positive number");
    return value;
}

} // namespace

std::vector<std::string> generated_tasks()
{
    std::vector<std::string> out;
    for (const auto& generator : generators) { out.emplace_back(generator.name); }
    return out;
}

std::vector<GenerateSpec> parse_generate(std::string_view text)
{
    std::vector<GenerateSpec> out;
    for (std::string_view rest = text;;) {
        const std::size_t comma = rest.find(',');
        std::string_view part = rest.substr(0, comma);
        GenerateSpec spec;
        const std::size_t colon = part.find(':');
        spec.task = part.substr(0, colon);
        if (colon != std::string_view::npos) {
            part.remove_prefix(colon + 1);
            const std::size_t second = part.find(':');
            spec.length = positive(part.substr(0, second), text);
            if (second != std::string_view::npos) {
                spec.items = static_cast<std::int32_t>(positive(part.substr(second + 1), text));
            }
        }
        const std::vector<std::string> known = generated_tasks();
        const bool all = spec.task == "all";
        oasis::detail::expects(all || std::find(known.begin(), known.end(), spec.task) != known.end(), "--generate '",
                               text, "': unknown task '", spec.task, "': expected all or one of ",
                               fmt::format("{}", fmt::join(known, ", ")));
        for (const auto& name : known) {
            if (all || name == spec.task) { out.push_back({name, spec.length, spec.items}); }
        }
        if (comma == std::string_view::npos) { return out; }
        rest.remove_prefix(comma + 1);
    }
}

Task generate_task(std::string_view name, std::int64_t length, std::uint64_t seed, std::uint64_t index,
                   const TokenCount& count)
{
    oasis::detail::expects(length >= 1024, "generate_task: a prompt of ", length,
                           " tokens is too short, expected at least 1024");
    const auto it =
        std::find_if(generators.begin(), generators.end(), [&](const Generator& g) { return g.name == name; });
    oasis::detail::expects(it != generators.end(), "generate_task: unknown task '", name, "'");
    std::uint64_t mixed = mix(seed, index) ^ static_cast<std::uint64_t>(length);
    for (const char c : name) { mixed = mix(mixed, static_cast<unsigned char>(c)); }
    Writer writer(length, mixed, count);
    Task task;
    task.id = fmt::format("gen-{}-{}-{}-{}", name, length, seed, index);
    task.task = name;
    task.length = length;
    it->write(writer, task);
    return task;
}

} // namespace oasis_decode
