// SPDX-License-Identifier: Apache-2.0
//
// The settings of a cache as the command line names them. Every one of them can be swept.
#pragma once

#include "app/slow_tier.hpp"

#include <oasis/core/error.hpp>
#include <oasis/core/options.hpp>
#include <oasis/core/step.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

/// A command line that cannot work: exit code 2.
class UsageError : public oasis::InvalidArgument {
public:
    using InvalidArgument::InvalidArgument;
};

enum class FastMemory : std::uint8_t {
    kAuto, ///< what admission needs for one sequence, and no more
    kAll,  ///< everything fits
    kBytes,
};

/// Where drafted tokens come from (app/drafts.hpp).
enum class DraftSource : std::uint8_t {
    kNone,
    kLookup, ///< earlier text that ends alike
    kMtp,    ///< a multi-token-prediction head
    kOracle, ///< the true text, where it is known
};

struct Settings {
    std::int32_t block = 16;
    std::string summary = "spread2-int4";
    std::int32_t attend_budget = 2048;
    std::optional<std::int32_t> fetch_budget{};     ///< default: the smaller of 1,024 and the attend budget
    std::optional<std::int32_t> logical_resident{}; ///< default: the attend budget
    oasis::SelectionScope scope = oasis::SelectionScope::kKvHead;
    oasis::MayRule may = oasis::MayRule::kLogical;
    std::optional<std::int64_t> dense_below{}; ///< default: the attend budget
    FastMemory fast_memory = FastMemory::kAuto;
    std::size_t fast_bytes = 0;
    oasis::BlockCode block_code = oasis::BlockCode::kNative;
    oasis::DType kv_dtype = oasis::DType::kF32;
    std::int32_t sink = 64;
    std::int32_t recent = 128;
    oasis::GroupReduction reduce = oasis::GroupReduction::kSoftmaxMax;
    DraftSource draft = DraftSource::kNone;
    std::string draft_file{};                    ///< of the head; empty: mtp.safetensors beside the model
    std::optional<std::int32_t> draft_tokens{};  ///< default: 7 of a head, else 4
    std::optional<double> draft_floor{};         ///< least confidence of a draft; default: 0.2 of a head, else 0
    std::int32_t draft_window = 0;               ///< tokens that a head attends to; 0: all
    oasis::LookaheadSource lookahead = oasis::LookaheadSource::kRows;
    std::int32_t lookahead_rows = 1;             ///< of them, where drafts go on
    bool live_cap = false;                       ///< the cap follows what the link brings within a step
    std::optional<std::int32_t> cap{};           ///< of prefetch; default: 256 where there is a guess to follow

    SlowTierSpec slow{};
    std::optional<std::int32_t> transfer_threads{}; ///< default: 4 where the slow tier is slow, else 0
    oasis::MissPolicy miss = oasis::MissPolicy::kExact;
    float miss_epsilon = 0.001F;
    std::int64_t miss_deadline_us = 0;

    std::int32_t resolved_transfer_threads() const noexcept;
    std::int32_t resolved_fetch() const noexcept;
    std::int32_t resolved_resident() const noexcept;
    std::int32_t resolved_draft_tokens() const noexcept;
    double resolved_draft_floor() const noexcept;
    std::int32_t resolved_cap() const noexcept;
};

/// One setting: its name with hyphens, what it does, and how it is read and written.
struct SettingInfo {
    const char* name;
    const char* form;
    const char* help;
    void (*set)(Settings&, std::string_view);
    std::string (*get)(const Settings&);
};

std::span<const SettingInfo> setting_infos();

/// "mtp"
std::string word(DraftSource source);

/// Sets by name; hyphens and underscores are the same. Throws `UsageError` with the name or the value.
void set(Settings& settings, std::string_view name, std::string_view value);

/// "512M" -> 536870912. Suffixes K, M, G, T, in powers of 1,024.
std::size_t parse_bytes(std::string_view text);

/// "spread2-int4" on blocks of `block_tokens`.
oasis::SummaryOptions parse_summary(std::string_view text, std::int32_t block_tokens);

/// One axis: "attend_budget=512,1024,2048".
struct Sweep {
    std::string name;
    std::vector<std::string> values;
};

Sweep parse_sweep(std::string_view text);

/// All combinations, the last sweep varying fastest. No sweeps: the base alone.
std::vector<Settings> expand(const Settings& base, std::span<const Sweep> sweeps);

/// The cache for one sequence of `context` tokens, `rows` at a time; `fast_bytes` is left at 0 unless given as a number.
oasis::CacheConfig to_config(const Settings& settings, const oasis::ModelShape& shape, std::int64_t context,
                             std::int32_t rows);

/// The dense cache beside it: the same element type, everything in fast memory, no selection at any length.
oasis::CacheConfig dense_config(const Settings& settings, const oasis::ModelShape& shape, std::int64_t context,
                                std::int32_t rows);

} // namespace oasis_decode
