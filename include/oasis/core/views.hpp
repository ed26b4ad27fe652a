// SPDX-License-Identifier: Apache-2.0
//
// Small by-value views that policies and kernels get. None owns memory; all are trivially copyable.
#pragma once

#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis {

/// Keys of consecutive tokens, float, row-major: token t at data + t * stride.
struct KeyRows {
    const float* data = nullptr; ///< [tokens, head_dim]
    std::int32_t tokens = 0;     ///< rows
    std::int32_t head_dim = 0;   ///< columns
    std::int64_t stride = 0;     ///< floats between tokens

    /// The key of a token.
    const float* operator[](std::int32_t token) const noexcept { return data + token * stride; }
};

/// One sub-block's summary before it is coded: up to two vectors of head_dim and one scalar.
struct SummaryRow {
    float* plane[2] = {nullptr, nullptr}; ///< [head_dim] each; the second is null when `planes()` is 1
    float* spread = nullptr;              ///< one scalar, null when `has_spread()` is false
};

/// The query's side of the estimate: mass(sub-block) ~ sum over planes of weight . plane + spread_weight * spread + log n.
struct QueryWeights {
    float* plane[2] = {nullptr, nullptr}; ///< [head_dim] each
    float* spread = nullptr;              ///< one scalar
};

/// What a selection policy gets for one (row, set): scores of the blocks [first, first + scores.size()) of the sequence.
struct SelectionInput {
    std::span<const float> scores; ///< log domain; NaN ranks last, -inf is never chosen, +inf first
    std::int32_t first = 0;        ///< block position of scores[0] (0, or the first block of a window)
    std::int32_t sink_end = 0;     ///< blocks [first, sink_end) are forced
    std::int32_t recent_begin = 0; ///< blocks [recent_begin, first + size) are forced
    std::int32_t must_blocks = 0;  ///< fetch budget in blocks
    std::int32_t may_blocks = 0;   ///< attend budget in blocks
    std::int32_t rank_blocks = 0;  ///< when above 0: how many best blocks to list in `SelectionOutput::ranked`
    float top_p = 1.0F;            ///< as in `Budgets`
};

/// Ids are block positions of the sequence, ascending. Every slot of `ids` up to `count` is written, the rest holds -1.
struct SelectionOutput {
    std::span<std::int32_t> ids;    ///< [>= min(may_blocks, blocks)]; the may set, which contains the must set
    std::span<std::uint8_t> must;   ///< same length: 1 where the block is in the must set
    std::int32_t count = 0;         ///< blocks of the may set
    std::int32_t must_count = 0;    ///< of those, in the must set
    std::span<std::int32_t> ranked; ///< [>= min(rank_blocks, blocks)] ascending positions of the best rank_blocks, forced ones included
    std::int32_t ranked_count = 0;  ///< entries of `ranked`
};

/// One copy of a transfer plan: a coded unit (head-block, or all heads of a block in layer scope) into a slot.
struct CopyPiece {
    BlockId block = BlockId::kNone; ///< which block
    LayerId layer = 0;              ///< which layer of it
    std::int32_t set = 0;           ///< which KV head of that, or 0 in layer scope
    SlotId slot = SlotId::kNone;    ///< where it goes
    std::uint32_t generation = 0;   ///< of the slot when the plan was made; a mismatch at the end means: stale, never consumed
};

/// Copies of one layer and step: a flat array and a count in memory that kernels read.
struct CopyPlan {
    CopyPiece* pieces = nullptr; ///< in the order of the plan
    std::int32_t count = 0;      ///< pieces there are
    std::int32_t capacity = 0;   ///< pieces there is room for
};

/// A piece of a slow store: the units of one block and layer.
struct StorePiece {
    BlockId block = BlockId::kNone; ///< which block
    LayerId layer = 0;              ///< which layer of it
    std::int32_t set = 0;           ///< which KV head of that, or 0 in layer scope
    std::byte* data = nullptr;      ///< fast side: source of a write, target of a read; `unit_bytes` long
};

} // namespace oasis
