// SPDX-License-Identifier: Apache-2.0
//
// The kernels behind append.hpp. A summary needs the keys of its whole sub-block: of rows of this step they are read from the
// input, of earlier ones from the block, so rows need no order among themselves and one kernel does it all.
#pragma once

#include <oasis/cuda/append.hpp>
#include <oasis/cuda/summarise.cuh>

namespace oasis::cuda::kernels {

__device__ inline float element(const float* from, std::size_t i) { return from[i]; }
__device__ inline float element(const f16* from, std::size_t i) { return oasis::to_float(from[i]); }
__device__ inline float element(const bf16* from, std::size_t i) { return oasis::to_float(from[i]); }

/// A row of head_dim elements by 16 lanes.
__device__ inline void copy_row(const std::byte* from, std::byte* to, std::size_t bytes)
{
    for (std::size_t at = std::size_t(threadIdx.x % 16) * 16; at < bytes; at += 256) {
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
    }
}

/// Half a warp per (row, KV head).
template <class Element> __global__ void __launch_bounds__(256) append_rows(const AppendParams p)
{
    const std::int64_t item = (std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 16;
    const auto r = static_cast<std::int32_t>(item / p.kv_heads);
    const auto head = static_cast<std::int32_t>(item % p.kv_heads);
    const bool active = r < *p.row_count && r < p.max_rows;
    const AppendRow row = active ? p.rows[r] : AppendRow{};
    const int d = p.head_block.head_dim;
    const auto* k = static_cast<const Element*>(p.k);
    const std::size_t stride = std::size_t(p.kv_heads) * d; // between rows, in elements
    const std::size_t here = std::size_t(r) * stride + std::size_t(head) * d;
    const std::int64_t cell = std::int64_t(p.layer) * p.kv_heads + head;
    std::byte* block = p.native + row.block + cell * std::int64_t(p.head_block.native_bytes());
    const auto token = static_cast<int>(row.position % p.head_block.block_tokens);
    if (active) {
        const std::size_t at = std::size_t(token) * d * sizeof(Element);
        copy_row(reinterpret_cast<const std::byte*>(k + here), block + at, d * sizeof(Element));
        copy_row(reinterpret_cast<const std::byte*>(static_cast<const Element*>(p.v) + here), block + p.head_block.native_v_offset() + at,
                 d * sizeof(Element));
    }
    if (p.summary.planes == 0) { return; }
    const int size = p.summary.options.tokens;
    const auto in_sub_block = static_cast<int>(row.position % size) + 1;
    const bool whole = in_sub_block == size;
    const bool wanted = active && (whole || row.tail >= 0);
    if (!__any_sync(kAll, wanted)) { return; }
    const auto key = [&](int t, int c) {
        const int back = in_sub_block - 1 - t; // rows before this one
        if (!wanted) { return 0.0F; }
        if (back <= row.rows_before) { return element(k, here - std::size_t(back) * stride + c); }
        return element(reinterpret_cast<const Element*>(block), std::size_t(token - back) * d + c);
    };
    SubBlockSummary summary;
    summarise(p.summary, in_sub_block, key, summary);
    if (!wanted) { return; }
    if (whole) {
        const auto s = static_cast<int>(row.position / size % SummaryLayout::kGroupSubBlocks);
        store_sub_block(p.summary, p.groups + row.group + cell * std::int64_t(p.summary.native_bytes()), s, summary);
    } else {
        store_tail(p.summary, p.tails + (std::int64_t(row.tail) * p.kv_heads + head) * std::int64_t(p.summary.tail_bytes()),
                   p.log_tokens[in_sub_block], summary);
    }
}

} // namespace oasis::cuda::kernels
