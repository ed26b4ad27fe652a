// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace oasis_decode {
namespace {

template <class Number> Number parse_number(std::string_view text, Number least, Number most, std::string_view what)
{
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
        throw UsageError(fmt::format("{} '{}': expected a whole number from {} to {}", what, text, least, most));
    }
    return value;
}

/// Looks a word up in a list of (word, value).
template <class Value, std::size_t N>
Value parse_word(std::string_view text, const std::array<std::pair<std::string_view, Value>, N>& words,
                 std::string_view what)
{
    std::string known;
    for (const auto& [word, value] : words) {
        if (word == text) { return value; }
        known += (known.empty() ? "" : ", ") + std::string(word);
    }
    throw UsageError(fmt::format("{} '{}': expected one of {}", what, text, known));
}

template <class Value, std::size_t N>
std::string word_of(Value value, const std::array<std::pair<std::string_view, Value>, N>& words)
{
    const auto it = std::find_if(words.begin(), words.end(), [&](const auto& entry) { return entry.second == value; });
    return it == words.end() ? "?" : std::string(it->first);
}

template <class Value> using Word = std::pair<std::string_view, Value>;

constexpr std::array scopes = {Word<oasis::SelectionScope>{"kv_head", oasis::SelectionScope::kKvHead},
                               Word<oasis::SelectionScope>{"layer", oasis::SelectionScope::kLayer}};
constexpr std::array may_rules = {Word<oasis::MayRule>{"none", oasis::MayRule::kNone},
                                  Word<oasis::MayRule>{"logical", oasis::MayRule::kLogical},
                                  Word<oasis::MayRule>{"physical", oasis::MayRule::kPhysical}};
constexpr std::array block_codes = {Word<oasis::BlockCode>{"native", oasis::BlockCode::kNative},
                                    Word<oasis::BlockCode>{"int8", oasis::BlockCode::kInt8}};
constexpr std::array dtypes = {Word<oasis::DType>{"f32", oasis::DType::kF32},
                               Word<oasis::DType>{"f16", oasis::DType::kF16},
                               Word<oasis::DType>{"bf16", oasis::DType::kBF16}};
constexpr std::array reductions = {Word<oasis::GroupReduction>{"softmax-max", oasis::GroupReduction::kSoftmaxMax},
                                   Word<oasis::GroupReduction>{"max", oasis::GroupReduction::kMax},
                                   Word<oasis::GroupReduction>{"mean", oasis::GroupReduction::kMean}};
constexpr std::array summary_kinds = {Word<oasis::SummaryKind>{"spread", oasis::SummaryKind::kSpread},
                                      Word<oasis::SummaryKind>{"cuboid", oasis::SummaryKind::kCuboid},
                                      Word<oasis::SummaryKind>{"minmax", oasis::SummaryKind::kMinMax},
                                      Word<oasis::SummaryKind>{"mean", oasis::SummaryKind::kMean}};
constexpr std::array summary_codes = {Word<oasis::SummaryCode>{"f32", oasis::SummaryCode::kF32},
                                      Word<oasis::SummaryCode>{"f16", oasis::SummaryCode::kF16},
                                      Word<oasis::SummaryCode>{"int8", oasis::SummaryCode::kInt8},
                                      Word<oasis::SummaryCode>{"int4", oasis::SummaryCode::kInt4}};

constexpr std::array lookaheads = {Word<oasis::LookaheadSource>{"rows", oasis::LookaheadSource::kRows},
                                   Word<oasis::LookaheadSource>{"same", oasis::LookaheadSource::kSame},
                                   Word<oasis::LookaheadSource>{"none", oasis::LookaheadSource::kNone}};
constexpr std::array misses = {Word<oasis::MissPolicy>{"exact", oasis::MissPolicy::kExact},
                               Word<oasis::MissPolicy>{"bounded", oasis::MissPolicy::kBounded},
                               Word<oasis::MissPolicy>{"resident-only", oasis::MissPolicy::kResidentOnly}};
constexpr std::array drafts = {Word<DraftSource>{"none", DraftSource::kNone},
                               Word<DraftSource>{"lookup", DraftSource::kLookup},
                               Word<DraftSource>{"mtp", DraftSource::kMtp},
                               Word<DraftSource>{"oracle", DraftSource::kOracle}};

constexpr std::int32_t kMostTokens = 1 << 30;
// A head says how sure it is: its chains may be long, because they end where they are likely to fail.
constexpr std::int32_t kDefaultHeadTokens = 7;
constexpr double kDefaultHeadFloor = 0.2;
constexpr std::int32_t kDefaultDraftTokens = 4;
constexpr std::int32_t kDefaultCap = 512;
constexpr std::int32_t kDefaultTransferThreads = 4;

std::int32_t tokens(std::string_view text, std::string_view what)
{
    return parse_number<std::int32_t>(text, 0, kMostTokens, what);
}

void set_block(Settings& s, std::string_view v)
{
    s.block = parse_word<std::int32_t>(
        v, std::array{Word<std::int32_t>{"16", 16}, Word<std::int32_t>{"32", 32}, Word<std::int32_t>{"64", 64}},
        "--block");
}

void set_fast_bytes(Settings& s, std::string_view v)
{
    s.fast_memory = v == "auto" ? FastMemory::kAuto : v == "all" ? FastMemory::kAll : FastMemory::kBytes;
    s.fast_bytes = s.fast_memory == FastMemory::kBytes ? parse_bytes(v) : 0;
    if (s.fast_memory == FastMemory::kBytes && s.fast_bytes == 0) {
        throw UsageError("--fast-bytes '0': give a size such as 512M, or auto, or all");
    }
}

void set_draft(Settings& s, std::string_view v)
{
    constexpr std::string_view with_file = "mtp:";
    const bool has_file = v.starts_with(with_file) && v.size() > with_file.size();
    s.draft = has_file ? DraftSource::kMtp : parse_word(v, drafts, "--draft");
    s.draft_file = has_file ? v.substr(with_file.size()) : "";
}

std::string get_draft(const Settings& s)
{
    return word_of(s.draft, drafts) + (s.draft_file.empty() ? "" : ":" + s.draft_file);
}

void set_draft_floor(Settings& s, std::string_view v)
{
    double floor = 0;
    const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), floor);
    if (error != std::errc{} || end != v.data() + v.size() || !(floor >= 0 && floor <= 1)) {
        throw UsageError(fmt::format("--draft-floor '{}': expected a number from 0 to 1", v));
    }
    s.draft_floor = floor;
}

/// "rows", "rows:2", "same" or "none".
void set_lookahead(Settings& s, std::string_view v)
{
    const bool two = v == "rows:2";
    s.lookahead = two || v == "rows:1" ? oasis::LookaheadSource::kRows : parse_word(v, lookaheads, "--lookahead");
    s.lookahead_rows = two ? 2 : 1;
}

std::string get_lookahead(const Settings& s)
{
    return word_of(s.lookahead, lookaheads) +
           (s.lookahead == oasis::LookaheadSource::kRows && s.lookahead_rows == 2 ? ":2" : "");
}

/// "256", "live" or "live:256".
void set_cap(Settings& s, std::string_view v)
{
    constexpr std::string_view live = "live";
    s.live_cap = v.starts_with(live);
    if (!s.live_cap) {
        s.cap = tokens(v, "--cap");
    } else if (v.size() > live.size()) {
        if (v[live.size()] != ':') { throw UsageError(fmt::format("--cap '{}': expected TOKENS, live or live:TOKENS", v)); }
        s.cap = tokens(v.substr(live.size() + 1), "--cap live");
    }
}

/// "exact", "resident-only", "bounded", "bounded:0.001" or "bounded:0.001,2ms".
void set_miss(Settings& s, std::string_view v)
{
    constexpr std::string_view bounded = "bounded:";
    if (!v.starts_with(bounded)) {
        s.miss = parse_word(v, misses, "--miss");
        return;
    }
    s.miss = oasis::MissPolicy::kBounded;
    const std::string_view rest = v.substr(bounded.size());
    const std::size_t comma = rest.find(',');
    const std::string_view share = rest.substr(0, comma);
    const auto [end, error] = std::from_chars(share.data(), share.data() + share.size(), s.miss_epsilon);
    if (error != std::errc{} || end != share.data() + share.size() || !(s.miss_epsilon >= 0 && s.miss_epsilon <= 1)) {
        throw UsageError(fmt::format("--miss '{}': the share '{}' is not a number from 0 to 1", v, share));
    }
    s.miss_deadline_us = comma == std::string_view::npos ? 0 : parse_time(rest.substr(comma + 1), "--miss").count() / 1000;
}

std::string get_miss(const Settings& s)
{
    if (s.miss != oasis::MissPolicy::kBounded) { return word_of(s.miss, misses); }
    return fmt::format("bounded:{}{}", s.miss_epsilon, s.miss_deadline_us > 0 ? fmt::format(",{}us", s.miss_deadline_us) : "");
}

std::string get_fast_bytes(const Settings& s)
{
    return s.fast_memory == FastMemory::kAuto  ? "auto"
           : s.fast_memory == FastMemory::kAll ? "all"
                                               : std::to_string(s.fast_bytes);
}

constexpr SettingInfo infos[] = {
    {"block", "TOKENS", "tokens of a block, the unit that moves: 16, 32 or 64", set_block,
     [](const Settings& s) { return std::to_string(s.block); }},
    {"summary", "KIND",
     "what scores a block: spread, cuboid, minmax or mean, tokens per summary, code (f32, f16, int8, int4); or oracle",
     [](Settings& s, std::string_view v) { s.summary = v; }, [](const Settings& s) { return s.summary; }},
    {"attend-budget", "TOKENS", "read at most this much of the context, per KV head",
     [](Settings& s, std::string_view v) { s.attend_budget = tokens(v, "--attend-budget"); },
     [](const Settings& s) { return std::to_string(s.attend_budget); }},
    {"fetch-budget", "TOKENS",
     "of that, fetched into fast memory when missing; default 1024, or the attend budget if that is less",
     [](Settings& s, std::string_view v) { s.fetch_budget = tokens(v, "--fetch-budget"); },
     [](const Settings& s) { return std::to_string(s.resolved_fetch()); }},
    {"logical-resident", "TOKENS", "size of the set that may be read without a fetch; default the attend budget",
     [](Settings& s, std::string_view v) { s.logical_resident = tokens(v, "--logical-resident"); },
     [](const Settings& s) { return std::to_string(s.resolved_resident()); }},
    {"scope", "SCOPE", "choose per kv_head or once per layer",
     [](Settings& s, std::string_view v) { s.scope = parse_word(v, scopes, "--scope"); },
     [](const Settings& s) { return word_of(s.scope, scopes); }},
    {"may", "RULE", "which blocks beyond the fetch budget are read: none, logical or physical",
     [](Settings& s, std::string_view v) { s.may = parse_word(v, may_rules, "--may"); },
     [](const Settings& s) { return word_of(s.may, may_rules); }},
    {"dense-below", "TOKENS", "contexts up to this attend to everything; default the attend budget",
     [](Settings& s, std::string_view v) {
         s.dense_below = parse_number<std::int64_t>(v, 0, std::int64_t{1} << 40, "--dense-below");
     },
     [](const Settings& s) { return std::to_string(s.dense_below.value_or(s.attend_budget)); }},
    {"fast-bytes", "SIZE", "fast memory for the cache, such as 64M; auto: just what is needed; all: everything fits",
     set_fast_bytes, get_fast_bytes},
    {"block-code", "CODE", "how blocks are stored: native or int8",
     [](Settings& s, std::string_view v) { s.block_code = parse_word(v, block_codes, "--block-code"); },
     [](const Settings& s) { return word_of(s.block_code, block_codes); }},
    {"kv-dtype", "TYPE", "element type of K and V: f32, f16 or bf16",
     [](Settings& s, std::string_view v) { s.kv_dtype = parse_word(v, dtypes, "--kv-dtype"); },
     [](const Settings& s) { return word_of(s.kv_dtype, dtypes); }},
    {"sink", "TOKENS", "first tokens, always read",
     [](Settings& s, std::string_view v) { s.sink = tokens(v, "--sink"); },
     [](const Settings& s) { return std::to_string(s.sink); }},
    {"recent", "TOKENS", "last tokens, always read",
     [](Settings& s, std::string_view v) { s.recent = tokens(v, "--recent"); },
     [](const Settings& s) { return std::to_string(s.recent); }},
    {"reduce", "HOW", "one score from a group's query heads: softmax-max, max or mean",
     [](Settings& s, std::string_view v) { s.reduce = parse_word(v, reductions, "--reduce"); },
     [](const Settings& s) { return word_of(s.reduce, reductions); }},
    {"draft", "SOURCE",
     "guess tokens and verify several in a step; the text stays the same: none, lookup (earlier text that ends alike), "
     "mtp (the model's draft head, mtp.safetensors beside it), mtp:FILE, or oracle (the true text; compare and eval)",
     set_draft, get_draft},
    {"draft-tokens", "N",
     "drafts to verify in a step, 0 to 7; default 7 of mtp, else 4; 0: a draft serves only to look ahead",
     [](Settings& s, std::string_view v) {
         s.draft_tokens = parse_number<std::int32_t>(v, 0, oasis::kMaxVerifyRows - 1, "--draft-tokens");
     },
     [](const Settings& s) { return std::to_string(s.resolved_draft_tokens()); }},
    {"draft-floor", "P",
     "use no draft that stands with less probability, as its source estimates it; default 0.2 of mtp, else 0. "
     "Above 0 there are pauses while drafts hardly stand",
     set_draft_floor, [](const Settings& s) { return fmt::format("{}", s.resolved_draft_floor()); }},
    {"draft-window", "TOKENS",
     "the draft head attends to the last tokens alone: heads trained on short texts guess better so in a long one; 0: to "
     "all",
     [](Settings& s, std::string_view v) { s.draft_window = tokens(v, "--draft-window"); },
     [](const Settings& s) { return std::to_string(s.draft_window); }},
    {"lookahead", "SOURCE",
     "guess of what the next step reads: rows (of one more draft, else of this step; rows:2 of two), same (of this step) "
     "or none",
     set_lookahead, get_lookahead},
    {"cap", "TOKENS",
     "brought in ahead at most, per KV head and step; default 512, or 0 where there are neither drafts nor --lookahead "
     "same",
     set_cap, [](const Settings& s) { return (s.live_cap ? "live:" : "") + std::to_string(s.resolved_cap()); }},
    {"slow", "TIER",
     "where the whole KV lives: ram, throttle:RATE[,LATENCY] such as throttle:2GBps,20us (memory behind a link), or "
     "file:PATH",
     [](Settings& s, std::string_view v) { s.slow = parse_slow_tier(v); },
     [](const Settings& s) { return s.slow.text(); }},
    {"transfer-threads", "N",
     "threads that copy from it in the background; 0: copies are made at once; default 4, or 0 of ram",
     [](Settings& s, std::string_view v) {
         s.transfer_threads = parse_number<std::int32_t>(v, 0, 256, "--transfer-threads");
     },
     [](const Settings& s) { return std::to_string(s.resolved_transfer_threads()); }},
    {"miss", "POLICY",
     "a needed block is not there: exact waits for it; bounded[:SHARE[,TIME]] skips it when it cannot hold more than a "
     "share of the attention, or after a time (needs --summary minmax); resident-only never waits",
     set_miss, get_miss},
};

std::string with_hyphens(std::string_view name)
{
    std::string out(name);
    std::replace(out.begin(), out.end(), '_', '-');
    return out;
}

} // namespace

std::int32_t Settings::resolved_fetch() const noexcept { return fetch_budget.value_or(std::min(1024, attend_budget)); }

std::int32_t Settings::resolved_transfer_threads() const noexcept
{
    return transfer_threads.value_or(slow.kind == SlowTierSpec::Kind::kRam ? 0 : kDefaultTransferThreads);
}

std::int32_t Settings::resolved_resident() const noexcept { return logical_resident.value_or(attend_budget); }

std::int32_t Settings::resolved_draft_tokens() const noexcept
{
    if (draft == DraftSource::kNone) { return 0; }
    return draft_tokens.value_or(draft == DraftSource::kMtp ? kDefaultHeadTokens : kDefaultDraftTokens);
}

double Settings::resolved_draft_floor() const noexcept
{
    return draft_floor.value_or(draft == DraftSource::kMtp ? kDefaultHeadFloor : 0.0);
}

std::int32_t Settings::resolved_cap() const noexcept
{
    const bool guesses = lookahead == oasis::LookaheadSource::kSame ||
                         (lookahead == oasis::LookaheadSource::kRows && draft != DraftSource::kNone);
    return cap.value_or(guesses ? kDefaultCap : 0);
}

std::string word(DraftSource source) { return word_of(source, drafts); }

std::span<const SettingInfo> setting_infos() { return infos; }

void set(Settings& settings, std::string_view name, std::string_view value)
{
    const std::string wanted = with_hyphens(name);
    std::string known;
    for (const auto& info : infos) {
        if (wanted == info.name) {
            info.set(settings, value);
            return;
        }
        known += (known.empty() ? "" : ", ") + std::string(info.name);
    }
    throw UsageError(fmt::format("unknown setting '{}': expected one of {}", name, known));
}

std::size_t parse_bytes(std::string_view text)
{
    constexpr std::string_view suffixes = "KMGT";
    std::string_view digits = text;
    std::size_t shift = 0;
    if (!digits.empty()) {
        const std::size_t suffix =
            suffixes.find(digits.back() >= 'a' ? static_cast<char>(digits.back() - 'a' + 'A') : digits.back());
        if (suffix != std::string_view::npos) {
            shift = 10 * (suffix + 1);
            digits.remove_suffix(1);
        }
    }
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() ||
        value > (std::uint64_t{1} << 62) >> shift) {
        throw UsageError(fmt::format("'{}' is no size: expected a number with K, M, G or T, such as 512M", text));
    }
    return static_cast<std::size_t>(value << shift);
}

oasis::SummaryOptions parse_summary(std::string_view text, std::int32_t block_tokens)
{
    if (text == "oracle") {
        return {.kind = oasis::SummaryKind::kOracle, .tokens = block_tokens, .code = oasis::SummaryCode::kF32};
    }
    const std::size_t digits = text.find_first_of("0123456789");
    const std::size_t dash = text.find('-');
    if (digits == std::string_view::npos || dash == std::string_view::npos || dash <= digits) {
        throw UsageError(fmt::format("--summary '{}': expected a form like spread2-int4, or oracle", text));
    }
    oasis::SummaryOptions out;
    out.kind = parse_word(text.substr(0, digits), summary_kinds, "--summary kind");
    out.code = parse_word(text.substr(dash + 1), summary_codes, "--summary code");
    out.tokens = parse_number<std::int32_t>(text.substr(digits, dash - digits), 1, 64, "--summary tokens");
    if ((out.tokens & (out.tokens - 1)) != 0) {
        throw UsageError(fmt::format("--summary '{}': {} tokens is no power of two", text, out.tokens));
    }
    if (out.tokens > block_tokens || (out.tokens > 16 && out.tokens != block_tokens)) {
        throw UsageError(
            fmt::format("--summary '{}': {} tokens do not fit a block of {}; use 1, 2, 4, 8, 16 or --block {}", text,
                        out.tokens, block_tokens, out.tokens));
    }
    return out;
}

Sweep parse_sweep(std::string_view text)
{
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
        throw UsageError(fmt::format("--sweep '{}': expected NAME=VALUE,VALUE,...", text));
    }
    Sweep out{with_hyphens(text.substr(0, equals)), {}};
    for (std::string_view rest = text.substr(equals + 1);;) {
        const std::size_t comma = rest.find(',');
        out.values.emplace_back(rest.substr(0, comma));
        Settings probe;
        set(probe, out.name, out.values.back());
        if (comma == std::string_view::npos) { return out; }
        rest.remove_prefix(comma + 1);
    }
}

std::vector<Settings> expand(const Settings& base, std::span<const Sweep> sweeps)
{
    constexpr std::size_t most = 1000;
    std::vector<Settings> out{base};
    for (const Sweep& sweep : sweeps) {
        if (out.size() * sweep.values.size() > most) {
            throw UsageError(fmt::format("--sweep {}: the sweeps multiply to {} configurations, more than {}", sweep.name,
                                         out.size() * sweep.values.size(), most));
        }
        std::vector<Settings> next;
        for (const Settings& settings : out) {
            for (const std::string& value : sweep.values) {
                next.push_back(settings);
                set(next.back(), sweep.name, value);
            }
        }
        out = std::move(next);
    }
    return out;
}

oasis::CacheConfig to_config(const Settings& s, const oasis::ModelShape& shape, std::int64_t context, std::int32_t rows)
{
    const std::int32_t fetch = s.resolved_fetch();
    const std::int32_t resident = s.resolved_resident();
    if (fetch > s.attend_budget || s.attend_budget > resident) {
        throw UsageError(fmt::format("budgets must grow: fetch {} <= attend {} <= logical resident {}", fetch,
                                     s.attend_budget, resident));
    }
    oasis::CacheConfig config;
    config.shape = shape;
    config.dtype = s.kv_dtype;
    config.block_tokens = s.block;
    config.block_code = s.block_code;
    config.summary = parse_summary(s.summary, s.block);
    config.reduction = s.reduce;
    config.scope = s.scope;
    config.budgets = {
        .attend = s.attend_budget, .fetch = fetch, .logical_resident = resident, .sink = s.sink, .recent = s.recent};
    config.may = s.may;
    config.dense_below = s.dense_below.value_or(-1);
    config.fast_bytes = s.fast_bytes;
    config.lookahead = s.lookahead;
    config.prefetch_cap = s.resolved_cap();
    config.live_cap = s.live_cap;
    config.transfer_threads = s.resolved_transfer_threads();
    config.miss = s.miss;
    config.miss_epsilon = s.miss_epsilon;
    config.miss_deadline_us = s.miss_deadline_us;
    config.share_prefixes = false;
    config.limits = {.max_sequences = 1, .max_rows = rows, .max_context = context};
    return config;
}

oasis::CacheConfig dense_config(const Settings& s, const oasis::ModelShape& shape, std::int64_t context,
                                std::int32_t rows)
{
    oasis::CacheConfig config;
    config.shape = shape;
    config.dtype = s.kv_dtype;
    config.dense_below = context;
    config.share_prefixes = false;
    config.limits = {.max_sequences = 1, .max_rows = rows, .max_context = context};
    return config;
}

} // namespace oasis_decode
