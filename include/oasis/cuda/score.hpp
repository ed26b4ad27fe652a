// SPDX-License-Identifier: Apache-2.0
//
// Scoring on the device: one pass over the summaries of every sequence of a step, shared by all its rows and query
// heads. Summary groups have the bytes of the CPU backend (score/summary_layout.hpp), so a copy is all it takes to move
// them. docs/design/cuda-score.md has the kernel.
#pragma once

#include <oasis/core/types.hpp>
#include <oasis/cuda/queue.hpp>
#include <oasis/score/summary_layout.hpp>

#include <cstddef>
#include <cstdint>

namespace oasis::cuda {

/// Where the groups of one form lie: group g of sequence s, KV head h at
/// base + id[s * id_stride + g] * group_bytes + h * head_bytes. Multiples of 128 bytes; `base` has the layer added.
struct SummaryTable {
    const std::byte* base = nullptr;
    const std::int32_t* id = nullptr; ///< [sequences, id_stride]; read only where a row needs the form
    std::int64_t id_stride = 0;
    std::int64_t group_bytes = 0;
    std::int64_t head_bytes = 0;
};

/// One layer of a step. All pointers are device memory. A row at position p reads a group in coded form exactly if the
/// group's last position is <= p - recent, else in native form, and of that the sub-blocks that are complete at p; its
/// incomplete sub-block comes from its tail.
struct ScoreParams {
    const void* q = nullptr;       ///< [sequences * rows, kv_heads * group, head_dim] of `dtype`, not scaled
    std::int64_t q_row_stride = 0; ///< elements between rows
    DType dtype = DType::kBF16;
    const TokenIndex* position = nullptr; ///< [sequences * rows], below 2^30; negative: padding, nothing is written
    SummaryTable coded{};
    SummaryTable native{};
    const std::byte* tail =
        nullptr;               ///< [sequences * rows, kv_heads, tail_bytes]; read where (position + 1) is not a multiple of the sub-block
    float* log_mass = nullptr; ///< [sequences * rows, kv_heads * group, mass_stride]: estimated log mass of each block
    std::int64_t mass_stride = 0;     ///< at least the blocks of the groups up to the last position
    std::uint32_t* counter = nullptr; ///< [2], zero before the first launch; every launch leaves zeros
    std::int32_t sequences = 0;       ///< up to `kMaxScoreSequences`
    std::int32_t rows = 0;            ///< of each sequence
    std::int32_t kv_heads = 0;
    std::int32_t group = 0; ///< query heads of a KV head; rows * group is at most `kMaxScoreColumns`
    float scale = 0.0F;
    std::int32_t recent = 0; ///< tokens
    std::int32_t window = 0; ///< tokens; groups before every row's window are not read. 0: none
};

inline constexpr std::int32_t kMaxScoreSequences = 1024;
inline constexpr std::int32_t kMaxScoreColumns = 160;

/// Writes the log masses of all rows' blocks, those of a row's last group beyond its position as -inf. Log masses equal
/// those of `BlockScorer` but for rounding: queries and query-times-scale are f16, sums float. One kernel, capturable; the
/// grid depends on the device alone. Throws `Unsupported` for a layout that has no kernel, with the list of those that have.
void enqueue_score(Queue queue, const SummaryLayout& layout, const ScoreParams& params);

} // namespace oasis::cuda
