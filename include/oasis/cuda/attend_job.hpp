// SPDX-License-Identifier: Apache-2.0
//
// What the host passes to the attention kernels, and where it finds them.
#pragma once

#include <oasis/cuda/attend.hpp>

#include <cstdint>

namespace oasis::cuda::detail {

inline constexpr int kAttendThreads = 192; ///< four warps that compute, one that loads, one that plans
inline constexpr int kAttendComputeThreads = 128;
inline constexpr int kAttendMaxDepth = 8;      ///< of a ring
inline constexpr int kAttendChunkTokens = 256; ///< of a row's set: the unit of work and of the merge
inline constexpr int kAttendGroupTokens = 16;  ///< the tokens that one matrix instruction reduces
inline constexpr int kAttendMaxRows = 8;
inline constexpr int kAttendMaxGroup = 16; ///< query heads of a KV head

/// The kernel's only argument.
struct AttendJob {
    AttendParams params;
    std::int32_t groups = 0; ///< sequences * kv_heads
    std::int32_t kv_heads = 0;
    std::int32_t heads = 0;         ///< query heads of a KV head
    std::int32_t heads_inverse = 0; ///< 2^16 / heads, rounded up
    std::int32_t block_tokens = 0;
    std::int32_t chunk_shift = 0; ///< log2 of the blocks of a chunk
    std::int32_t max_blocks = 0;
    std::int32_t max_rows = 0;
    std::int32_t tiles = 0;
    std::int32_t ring_depth = 0;
    float scale_log2 = 0.0F;           ///< scale * log2(e)
    bool drawn = false;                ///< work is drawn by ticket; else there is at most one unit for each CTA, its own
    std::uint32_t* ticket = nullptr;   ///< the next unit of work
    std::uint32_t* arrivals = nullptr; ///< [groups] units done
    float2* states = nullptr;          ///< [chunks, max_rows * heads] maximum (log2 domain) and sum of a chunk
    float* sums = nullptr;             ///< [chunks, max_rows * heads, head_dim] its weighted sum of V
};

/// A compiled kernel: its handle and what it needs.
struct AttendKernel {
    const void* handle = nullptr; ///< void(AttendJob)
    std::int32_t queries = 0;     ///< (row, query head) pairs of a tile
    std::int32_t fixed_bytes = 0; ///< of shared memory
    std::int32_t stage_bytes = 0; ///< of the K of a stage, and of its V
    std::int32_t ctas_per_sm = 0; ///< that registers allow
};

/// The kernel for up to `queries` queries of a (sequence, KV head). Instantiated in src/cuda/attend_<dtype>_d<head_dim>.cu.
template <class Element, int kHeadDim> AttendKernel attend_kernel(BlockCode code, std::int32_t queries);

} // namespace oasis::cuda::detail
