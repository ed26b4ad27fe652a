// SPDX-License-Identifier: Apache-2.0
//
// Selection on the device: from log masses to the must and the may set of every (row, KV head), in one kernel.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/types.hpp>
#include <oasis/cuda/queue.hpp>

#include <cstdint>

namespace oasis::cuda {

/// One layer of a step. All pointers are device memory. The block of a row's position and those before it, back to the
/// window's first, are candidates.
struct SelectParams {
    const float* log_mass = nullptr;      ///< [rows, kv_heads * group, mass_stride], as `enqueue_score` writes them; aligned to 16 bytes
    std::int64_t mass_stride = 0;         ///< a multiple of 4
    const TokenIndex* position = nullptr; ///< [rows]; negative: padding, its sets are empty
    std::int32_t* must = nullptr;         ///< [rows, kv_heads, must_blocks]: positions of the must set, ascending, then -1
    std::int32_t* may = nullptr;          ///< [rows, kv_heads, may_blocks]: those of the may set that are not in the must set
    std::int32_t* count = nullptr;        ///< [rows, kv_heads, 2]: of either
    float* score = nullptr;               ///< [rows, kv_heads, mass_stride]; null: not wanted
    std::int32_t rows = 0;                ///< of all sequences
    std::int32_t kv_heads = 0;
    std::int32_t group = 0;      ///< up to `kMaxSelectGroup`
    std::int32_t max_blocks = 0; ///< no row has more; up to `kMaxSelectBlocks`. Picks the kernel
    std::int32_t block_tokens = 0;
    std::int32_t sink = 0; ///< tokens, as in `Budgets`
    std::int32_t recent = 0;
    std::int32_t window = 0;                                ///< tokens; 0: none
    std::int32_t must_blocks = 0;                           ///< fetch budget
    std::int32_t may_blocks = 0;                            ///< attend budget
    GroupReduction reduction = GroupReduction::kSoftmaxMax; ///< kSoftmaxMax, or kMax: log masses are scores
};

inline constexpr std::int32_t kMaxSelectBlocks = 65536;
inline constexpr std::int32_t kMaxSelectGroup = 32;

/// The sets that `TopKSelection` chooses: forced blocks (sinks, recent window), +inf, finite scores downwards, NaN; -inf
/// only if forced; ties to the lower position. A score is the maximum over the group's heads of log mass - logZ; logZ is
/// summed in an order that depends on nothing but the block's position. Every slot of the sets is written. One kernel,
/// capturable; the grid is (rows, KV heads). Throws `InvalidArgument` for budgets below the forced blocks and `Unsupported`
/// for rows that are too long.
void enqueue_select(Queue queue, const SelectParams& params);

} // namespace oasis::cuda
