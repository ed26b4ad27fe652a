// SPDX-License-Identifier: Apache-2.0
//
// Numbers and modes of a cache: aggregates with designated initialisers. `validate` (core/validate.hpp) refuses what can never work.
#pragma once

#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace oasis {

/// How a block is coded, the same bytes in every tier.
enum class BlockCode : std::uint8_t {
    kNative, ///< the cache's element type
    kInt8,   ///< int8 with one f16 scale per token for K and for V
};

/// What a sub-block's summary holds (design/score.md of the documentation has the definitions).
enum class SummaryKind : std::uint8_t {
    kSpread, ///< mean per channel and one scalar: the sum of the channels' variances
    kCuboid, ///< hi = (max + mean) / 2 and lo = (min + mean) / 2 per channel
    kMinMax, ///< max and min per channel: the upper bound of Quest
    kMean,   ///< mean per channel
    kOracle, ///< no summary: the true mass from the keys themselves, for comparison (reads every key)
};

/// How a closed summary group is coded.
enum class SummaryCode : std::uint8_t { kF32, kF16, kInt8, kInt4 };

/// What a block is scored by.
struct SummaryOptions {
    SummaryKind kind = SummaryKind::kSpread; ///< what is kept of a sub-block's keys
    std::int32_t tokens = 2;                 ///< tokens of a sub-block: 1, 2, 4, 8, 16 or block_tokens
    SummaryCode code = SummaryCode::kInt4;   ///< of closed groups
    /// Field by field.
    friend constexpr bool operator==(const SummaryOptions&, const SummaryOptions&) = default;
};

/// How the scores of a GQA group's query heads become one score of the KV head.
enum class GroupReduction : std::uint8_t {
    kSoftmaxMax, ///< share of the head's estimated mass, then the maximum over heads (default)
    kMax,        ///< raw log mass, maximum over heads
    kMean,       ///< share of the head's estimated mass, mean over heads
};

/// Whether the sets are chosen per KV head or once for all heads of a layer.
enum class SelectionScope : std::uint8_t { kKvHead, kLayer };

/// Which of the blocks ranked between the fetch and the attend budget are read.
enum class MayRule : std::uint8_t {
    kNone,     ///< none: only what is fetched
    kLogical,  ///< those logically resident (default; reproducible)
    kPhysical, ///< whatever happens to be in fast memory; not reproducible, for study
};

/// What happens when a must block is not in fast memory.
enum class MissPolicy : std::uint8_t {
    kExact,        ///< fetched on demand
    kBounded,      ///< fetched on demand, but given up when the upper bound of its mass is small or the deadline has passed
    kResidentOnly, ///< skipped and reported; for study
};

/// Where the guess of the next step's must set comes from.
enum class LookaheadSource : std::uint8_t {
    kRows, ///< the lookahead rows' sets; without such a row the last verify row's
    kSame, ///< the last verify row's set
    kNone, ///< no guess
};

/// Tokens per KV head. fetch <= attend <= logical_resident.
struct Budgets {
    std::int32_t attend = 2048;           ///< read at most this much of the context
    std::int32_t fetch = 1024;            ///< of that, fetched when missing
    std::int32_t logical_resident = 2048; ///< size of the logical resident set
    std::int32_t sink = 64;               ///< first tokens, always read
    std::int32_t recent = 128;            ///< last tokens, always read and still in native form
    float top_p = 1.0F;                   ///< below 1: stop once the estimated mass of the chosen blocks reaches it
    /// Field by field.
    friend constexpr bool operator==(const Budgets&, const Budgets&) = default;
};

/// What scratch memory and tables are sized for, once, at construction.
struct Limits {
    std::int32_t max_sequences = 16;  ///< live sequences; preempted ones do not count
    std::int32_t max_rows = 512;      ///< rows of one step over all its sequences (a prefill chunk counts its tokens)
    std::int64_t max_context = 32768; ///< tokens of one sequence
};

/// Everything a cache is made from. See `make_cache` and `KVCache`.
struct CacheConfig {
    ModelShape shape{};                                     ///< layers, heads and head_dim
    DType dtype = DType::kF32;                              ///< element type of q, k, v, out and of native blocks
    std::int32_t block_tokens = 16;                         ///< 16, 32 or 64
    BlockCode block_code = BlockCode::kNative;              ///< of sealed blocks, the same bytes in every tier
    SummaryOptions summary{};                               ///< what blocks are scored by
    GroupReduction reduction = GroupReduction::kSoftmaxMax; ///< from query heads' scores to the KV head's
    SelectionScope scope = SelectionScope::kKvHead;         ///< a set per KV head or per layer
    Budgets budgets{};                                      ///< how much is read, fetched and kept
    MayRule may = MayRule::kLogical;                        ///< what is read beyond the fetch budget
    MissPolicy miss = MissPolicy::kExact;                   ///< what is done about a must block that is not there
    std::int64_t dense_below = -1;                          ///< contexts up to this attend densely; -1: budgets.attend
    std::size_t fast_bytes = 0;                             ///< for slots, native blocks and summaries; 0: grows and shrinks with what the live sequences need, and no more
    std::size_t slow_bytes = 0;                             ///< slow tier; 0: as much as `limits` could need (preempted sequences take from it too)
    float miss_epsilon = 0.001F;                            ///< kBounded: a miss is skipped when no head can give it more than this share of the softmax mass
    std::int64_t miss_deadline_us = 0;                      ///< kBounded: longest wait of a sequence in a layer, in microseconds; 0: none
    std::int32_t transfer_threads = 0;                      ///< threads that copy from the slow tier in the background; 0: copies are made at once, on the step's queue
    std::int32_t prefetch_cap = 0;                          ///< tokens per KV head that lookahead may keep beside the logical set for the next step; 0: no prefetch
    bool live_cap = false;                                  ///< lower the cap to what the link can bring within a step, from measured rates
    LookaheadSource lookahead = LookaheadSource::kRows;     ///< guess that prefetch follows
    bool share_prefixes = true;                             ///< reuse sealed blocks of equal prompts
    bool measure_mass = false;                              ///< compute the true attention mass each row captured (reads every key; for study)
    std::vector<LayerId> dense_layers{};                    ///< layers that attend to everything, whatever the context
    Limits limits{};                                        ///< what tables are sized for
};

} // namespace oasis
