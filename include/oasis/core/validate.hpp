// SPDX-License-Identifier: Apache-2.0
//
// Refuses what can never work before anything is allocated: one sentence with the field, its value and what is allowed.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/core/options.hpp>
#include <oasis/core/step.hpp>
#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace oasis {

/// Blocks of `block_tokens` that hold the first `tokens` tokens.
constexpr std::int64_t blocks_for(std::int64_t tokens, std::int32_t block_tokens) noexcept
{
    return tokens / block_tokens + (tokens % block_tokens != 0 ? 1 : 0);
}

/// Tokens in the last block of a sequence: 0 when it is empty, else 1..block_tokens.
constexpr std::int32_t last_block_fill(TokenIndex length, std::int32_t block_tokens) noexcept
{
    return length == 0 ? 0 : static_cast<std::int32_t>((length - 1) % block_tokens) + 1;
}

/// The most blocks that `tokens` consecutive tokens can touch, wherever they begin.
constexpr std::int64_t blocks_touched(std::int64_t tokens, std::int32_t block_tokens) noexcept
{
    return tokens < 2 ? tokens : (tokens - 2) / block_tokens + 2;
}

/// Blocks that every row reads whatever its scores: sinks, and as many as the recent window can touch.
constexpr std::int64_t forced_blocks(const Budgets& budgets, std::int32_t block_tokens) noexcept
{
    return blocks_for(budgets.sink, block_tokens) + blocks_touched(budgets.recent, block_tokens);
}

/// Selection sets of a layer: its KV heads, or one in layer scope.
constexpr std::int32_t sets_of(const CacheConfig& config) noexcept
{
    return config.scope == SelectionScope::kLayer ? 1 : config.shape.kv_heads;
}

/// Smallest recent window: rows of one step (8 verify, 2 lookahead) and the block they end must still be in native
/// form.
inline constexpr std::int32_t kMinRecent = 16;

namespace detail {

inline constexpr std::int64_t kMaxIds = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int32_t kMaxSequences = 65535;     ///< what counts of logical sets hold
inline constexpr std::int64_t kMaxContext = kMaxIds - 1; ///< what stamps of logical sets hold

template <class Enum> void expect_enumerator(const char* field, Enum value, Enum last)
{
    expects(value <= last, field, " is ", +raw(value), ", which is no enumerator; the last one is ", +raw(last), ".");
}

inline void validate_shape(const ModelShape& shape)
{
    expects(shape.layers >= 1 && shape.layers <= 4096, "shape.layers is ", shape.layers,
            "; it must be from 1 to 4096.");
    expects(shape.kv_heads >= 1 && shape.kv_heads <= 65536, "shape.kv_heads is ", shape.kv_heads,
            "; it must be from 1 to 65536.");
    expects(shape.q_heads >= shape.kv_heads && shape.q_heads <= 65536 && shape.q_heads % shape.kv_heads == 0,
            "shape.q_heads is ", shape.q_heads, "; it must be a multiple of shape.kv_heads (", shape.kv_heads,
            ") and at most 65536.");
    expects(shape.q_heads / shape.kv_heads <= kMaxGroup, "shape.q_heads is ", shape.q_heads, " and shape.kv_heads ", shape.kv_heads,
            "; at most ", kMaxGroup, " query heads share a KV head.");
    expects(shape.head_dim >= 32 && shape.head_dim <= 256 && shape.head_dim % 16 == 0, "shape.head_dim is ",
            shape.head_dim, "; it must be from 32 to 256 and a multiple of 16.");
}

inline void validate_blocks(const CacheConfig& config)
{
    const std::int32_t block = config.block_tokens;
    const std::int32_t sub = config.summary.tokens;
    expects(block == 16 || block == 32 || block == 64, "block_tokens is ", block, "; it must be 16, 32 or 64.");
    expects(sub == 1 || sub == 2 || sub == 4 || sub == 8 || sub == 16 || sub == block, "summary.tokens is ", sub,
            "; it must be 1, 2, 4, 8, 16 or block_tokens (", block, ").");
    expect_enumerator("dtype", config.dtype, DType::kBF16);
    expect_enumerator("block_code", config.block_code, BlockCode::kInt8);
    expect_enumerator("summary.kind", config.summary.kind, SummaryKind::kOracle);
    expect_enumerator("summary.code", config.summary.code, SummaryCode::kInt4);
    expect_enumerator("reduction", config.reduction, GroupReduction::kMean);
    expect_enumerator("scope", config.scope, SelectionScope::kLayer);
    expect_enumerator("may", config.may, MayRule::kPhysical);
    expect_enumerator("miss", config.miss, MissPolicy::kResidentOnly);
}

inline void expect_whole_blocks(const char* field, std::int64_t tokens, std::int32_t block)
{
    expects(tokens > 0 && tokens % block == 0, field, " is ", tokens,
            " tokens; it must be a positive multiple of block_tokens (", block, ").");
}

inline void validate_budgets(const Budgets& b, std::int32_t block)
{
    expect_whole_blocks("budgets.fetch", b.fetch, block);
    expect_whole_blocks("budgets.attend", b.attend, block);
    expect_whole_blocks("budgets.logical_resident", b.logical_resident, block);
    expects(b.fetch <= b.attend, "budgets.fetch is ", b.fetch, " tokens; it must be at most budgets.attend (", b.attend,
            ").");
    expects(b.attend <= b.logical_resident, "budgets.attend is ", b.attend,
            " tokens; it must be at most budgets.logical_resident (", b.logical_resident, ").");
    expects(b.sink >= 0, "budgets.sink is ", b.sink, " tokens; it must be 0 or more.");
    expects(b.recent >= kMinRecent, "budgets.recent is ", b.recent, " tokens; it must be at least ", kMinRecent,
            ", so that the rows of a step are never coded before they stand.");
    const std::int64_t forced = forced_blocks(b, block);
    expects(forced <= b.fetch / block, "budgets.fetch is ", b.fetch, " tokens (", b.fetch / block, " blocks of ", block,
            "); it must hold the forced blocks: budgets.sink ", b.sink, " and budgets.recent ", b.recent, " can take ",
            forced, " blocks (", forced * block, " tokens).");
    expects(b.top_p > 0.0F && b.top_p <= 1.0F, "budgets.top_p is ", b.top_p, "; it must be above 0 and at most 1.");
}

inline void validate_limits(const CacheConfig& config)
{
    const Limits& limits = config.limits;
    expects(limits.max_sequences >= 1 && limits.max_sequences <= kMaxSequences, "limits.max_sequences is ", limits.max_sequences,
            "; it must be from 1 to ", kMaxSequences, ".");
    expects(limits.max_rows >= 1, "limits.max_rows is ", limits.max_rows, "; it must be at least 1.");
    expects(limits.max_context >= 1 && limits.max_context <= kMaxContext, "limits.max_context is ", limits.max_context,
            " tokens; it must be from 1 to ", kMaxContext, ".");
    const std::int64_t per_sequence = blocks_for(limits.max_context, config.block_tokens);
    expects(per_sequence + 1 <= kMaxIds / limits.max_sequences, "limits.max_sequences (", limits.max_sequences,
            ") times limits.max_context (", limits.max_context, " tokens) is more than 2^31 - 1 blocks of ",
            config.block_tokens, " tokens; lower one of them.");
    const std::int64_t units = per_sequence * limits.max_sequences * config.shape.layers * sets_of(config);
    expects(config.fast_bytes != 0 || units <= kMaxIds, "fast_bytes is 0 (everything that limits allow), which is ",
            units, " slots; at most 2^31 - 1 can be numbered: set fast_bytes or lower limits.");
}

} // namespace detail

/// Throws `InvalidArgument` for the first field of `config` that can never work. Whether the memory suffices is the
/// cache's to say.
inline void validate(const CacheConfig& config)
{
    detail::validate_shape(config.shape);
    detail::validate_blocks(config);
    detail::validate_budgets(config.budgets, config.block_tokens);
    detail::validate_limits(config);
    detail::expects(config.dense_below >= -1, "dense_below is ", config.dense_below,
                    " tokens; it must be 0 or more, or -1 for budgets.attend.");
    detail::expect_enumerator("lookahead", config.lookahead, LookaheadSource::kNone);
    detail::expects(config.transfer_threads >= 0 && config.transfer_threads <= 256, "transfer_threads is ",
                    config.transfer_threads, "; it must be from 0 to 256.");
    detail::expects(config.miss_epsilon >= 0 && config.miss_epsilon <= 1, "miss_epsilon is ", config.miss_epsilon,
                    "; it is a share of the softmax mass, from 0 to 1.");
    detail::expects(config.miss_deadline_us >= 0, "miss_deadline_us is ", config.miss_deadline_us,
                    "; it must be 0 (none) or more.");
    detail::expects(config.prefetch_cap >= 0 && config.prefetch_cap % config.block_tokens == 0, "prefetch_cap is ",
                    config.prefetch_cap, " tokens; it must be 0 or a positive multiple of block_tokens (",
                    config.block_tokens, ").");
    for (const LayerId layer : config.dense_layers) {
        detail::expects(layer >= 0 && layer < config.shape.layers, "dense_layers holds ", layer,
                        "; layers go from 0 to ", config.shape.layers - 1, ".");
    }
}

/// The same for one sequence of a valid `config`.
inline void validate(const CacheConfig& config, const SequenceOptions& sequence)
{
    if (sequence.logical_resident != 0) {
        detail::expect_whole_blocks("logical_resident", sequence.logical_resident, config.block_tokens);
        detail::expects(sequence.logical_resident >= config.budgets.attend, "logical_resident is ",
                        sequence.logical_resident, " tokens; it must be at least budgets.attend (",
                        config.budgets.attend, "), or 0 for the cache's.");
    }
    detail::expects(sequence.dense_below >= -1, "dense_below is ", sequence.dense_below,
                    " tokens; it must be 0 or more, or -1 for the cache's.");
    const auto tokens = static_cast<std::int64_t>(sequence.prompt.size());
    detail::expects(tokens <= config.limits.max_context, "prompt has ", tokens, " tokens; limits.max_context is ",
                    config.limits.max_context, ".");
}

} // namespace oasis
