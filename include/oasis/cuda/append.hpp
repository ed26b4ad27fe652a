// SPDX-License-Identifier: Apache-2.0
//
// Append and seal on the device: rows enter native blocks, their sub-blocks are summarised, and what leaves the recent window is
// coded once. The bytes are those of the CPU backend, to the last bit (docs/design/cuda.md says how), so a cache can move
// between backends and one set of tests speaks for both.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/cuda/queue.hpp>
#include <oasis/pool/head_block.hpp>
#include <oasis/score/summary_layout.hpp>

#include <cstddef>
#include <cstdint>

namespace oasis::cuda {

/// Where one row of a step goes. Cells hold all layers and heads: (layer, head) at (layer * kv_heads + head) * bytes of the form.
struct AppendRow {
    std::int64_t block = 0;       ///< byte offset of the native cell of the row's block
    std::int64_t group = 0;       ///< byte offset of the native cell of the row's summary group
    std::int64_t position = 0;    ///< of the row in its sequence
    std::int32_t rows_before = 0; ///< rows of the same sequence just ahead of it in this step
    std::int32_t tail = -1;       ///< where its incomplete sub-block is summarised to; -1: nowhere (prefill)
};
static_assert(sizeof(AppendRow) == 32);

struct AppendParams {
    const void* k = nullptr; ///< [rows, kv_heads, head_dim] after RoPE, 16-byte aligned
    const void* v = nullptr;
    HeadBlockLayout head_block{}; ///< its dtype is that of k and v
    std::int32_t kv_heads = 0;
    LayerId layer = 0;
    const AppendRow* rows = nullptr;         ///< [max_rows], device memory
    const std::int32_t* row_count = nullptr; ///< device memory
    std::int32_t max_rows = 0;               ///< fixes the grid
    std::byte* native = nullptr;             ///< native blocks
    SummaryLayout summary{};                 ///< planes 0: no summaries
    std::byte* groups = nullptr;             ///< native summary groups
    std::byte* tails = nullptr;              ///< [tails, kv_heads, tail_bytes]
    float log_tokens[64] = {};               ///< filled by the call
};

/// K and V of every row into its block; summaries of the sub-blocks that are complete with it, and tails. One kernel.
void enqueue_append(Queue queue, const AppendParams& params);

/// A head-block that leaves the recent window: byte offsets of its (layer, head).
struct SealJob {
    std::int64_t native = 0;
    std::int64_t coded = 0;
    std::int64_t group = -1;          ///< native-form group that gets the summaries of the coded keys; -1: none
    std::int32_t first_sub_block = 0; ///< of the block within its group
    std::int32_t reserved = 0;
};
static_assert(sizeof(SealJob) == 32);

struct SealParams {
    HeadBlockLayout head_block{};
    SummaryLayout summary{};
    const SealJob* jobs = nullptr;           ///< [max_jobs], device memory
    const std::int32_t* job_count = nullptr; ///< device memory
    std::int32_t max_jobs = 0;
    const std::byte* native = nullptr;
    std::byte* coded = nullptr; ///< slots or staging
    std::byte* groups = nullptr;
};

/// Codes whole head-blocks (a copy when the code is native) and, for int8, summarises the keys as they will be read.
void enqueue_seal(Queue queue, const SealParams& params);

/// A summary group that no row reads in native form any more.
struct CloseJob {
    std::int64_t native = 0;
    std::int64_t coded = 0;
    std::int32_t sub_blocks = SummaryLayout::kGroupSubBlocks;
    std::int32_t reserved = 0;
};
static_assert(sizeof(CloseJob) == 24);

struct CloseParams {
    SummaryLayout summary{};
    const CloseJob* jobs = nullptr;          ///< [max_jobs], device memory
    const std::int32_t* job_count = nullptr; ///< device memory
    std::int32_t max_jobs = 0;
    const std::byte* native = nullptr;
    std::byte* coded = nullptr;
};

/// Codes groups: int4 or int8, affine per channel, bounds rounded outwards; a copy for f16 and f32.
void enqueue_close_groups(Queue queue, const CloseParams& params);

} // namespace oasis::cuda
