// SPDX-License-Identifier: Apache-2.0
//
// Everything about a cache's memory that follows from its configuration alone.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/step.hpp>
#include <oasis/pool/head_block.hpp>
#include <oasis/score/summary_layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace oasis {

struct PoolShape {
    CacheConfig config;
    HeadBlockLayout head_block;
    SummaryLayout summary;
    std::int32_t sets = 0;            ///< selection sets per layer: kv_heads, or 1 in layer scope
    std::int32_t heads_per_set = 0;
    std::size_t unit_bytes = 0;       ///< coded bytes of one (layer, set, block)
    std::size_t native_cell_bytes = 0;///< native bytes of one block, all layers and heads
    std::int32_t blocks_per_sequence = 0;
    std::int32_t group_blocks = 0;    ///< blocks of a summary group
    std::int64_t blocks = 0;          ///< block ids of the pool
    std::int64_t landing_slots = 0;   ///< places a step needs beyond the logical sets

    PoolShape(const CacheConfig& c, const SummaryLayout& s)
        : config(c), head_block{c.dtype, c.block_code, c.block_tokens, c.shape.head_dim}, summary(s),
          sets(c.scope == SelectionScope::kKvHead ? c.shape.kv_heads : 1), heads_per_set(c.shape.kv_heads / sets),
          unit_bytes(head_block.coded_bytes() * std::size_t(heads_per_set)),
          native_cell_bytes(head_block.native_bytes() * std::size_t(c.shape.layers) * std::size_t(c.shape.kv_heads)),
          blocks_per_sequence(blocks_of(c.limits.max_context)), group_blocks(std::max(1, s.group_tokens() / c.block_tokens))
    {
        const std::int64_t most = std::int64_t{blocks_per_sequence + 1} * c.limits.max_sequences;
        blocks = c.slow_bytes == 0 ? most : std::min<std::int64_t>(most, static_cast<std::int64_t>(c.slow_bytes / slow_block_bytes()));
        landing_slots = std::int64_t{sets} * landing_rows() * most_blocks(c.budgets.fetch);
        landing_slots += std::int64_t{c.limits.max_sequences} * c.shape.layers * sets * most_blocks(c.prefetch_cap);
    }

    /// Rows whose missing must blocks fit beside the logical sets at one time.
    std::int32_t landing_rows() const noexcept
    {
        return std::min(config.limits.max_rows, std::max(kMaxVerifyRows + kMaxLookaheadRows, config.limits.max_sequences));
    }
    std::int32_t blocks_of(std::int64_t tokens) const noexcept
    {
        return static_cast<std::int32_t>((tokens + config.block_tokens - 1) / config.block_tokens);
    }
    /// The same for a budget, of which no more can be used than a sequence has blocks.
    std::int32_t most_blocks(std::int64_t tokens) const noexcept { return std::min(blocks_of(tokens), blocks_per_sequence + 1); }
    std::int32_t groups_of(std::int64_t tokens) const noexcept
    {
        return static_cast<std::int32_t>((tokens + group_tokens() - 1) / group_tokens());
    }
    std::int32_t group_tokens() const noexcept { return group_blocks * config.block_tokens; }
    std::int32_t units() const noexcept { return config.shape.layers * sets; }
    std::size_t slow_block_bytes() const noexcept { return unit_bytes * std::size_t(units()); }

    /// A row at `position` reads blocks (groups) below this in coded form, from it on in native form: the last `recent` tokens' blocks are native.
    std::int32_t first_native_block(TokenIndex position) const noexcept
    {
        return static_cast<std::int32_t>(std::max<TokenIndex>(0, position + 1 - config.budgets.recent) / config.block_tokens);
    }
    std::int32_t first_native_group(TokenIndex position) const noexcept
    {
        return static_cast<std::int32_t>(std::max<TokenIndex>(0, position + 1 - config.budgets.recent) / group_tokens());
    }

    bool is_dense_layer(LayerId layer) const noexcept
    {
        return std::find(config.dense_layers.begin(), config.dense_layers.end(), layer) != config.dense_layers.end();
    }
    std::int64_t dense_below(std::int64_t asked) const noexcept
    {
        const std::int64_t tokens = asked >= 0 ? asked : config.dense_below >= 0 ? config.dense_below : config.budgets.attend;
        return std::min(tokens, config.limits.max_context);
    }
    /// Blocks a sequence may keep resident per set while its rows are dense: what dense rows read again and again.
    std::int32_t dense_capacity(LayerId layer, std::int32_t logical_blocks, std::int64_t dense_below) const noexcept
    {
        if (is_dense_layer(layer)) { return blocks_per_sequence; }
        return std::min(blocks_per_sequence, std::max(logical_blocks, blocks_of(dense_below)));
    }
    std::int64_t reserved_slots(std::int32_t logical_blocks, std::int64_t dense_below) const noexcept
    {
        std::int64_t slots = 0;
        for (LayerId layer = 0; layer < config.shape.layers; ++layer) { slots += std::int64_t{sets} * dense_capacity(layer, logical_blocks, dense_below); }
        return slots;
    }
    /// Native blocks and native groups that the recent window of one sequence can touch.
    std::size_t window_bytes(std::size_t native_group_bytes) const noexcept
    {
        const std::int32_t tail = config.budgets.recent + kMaxVerifyRows + kMaxLookaheadRows;
        return std::size_t(blocks_of(tail) + 1) * native_cell_bytes + std::size_t(groups_of(tail) + 1) * native_group_bytes;
    }
};

} // namespace oasis
