// SPDX-License-Identifier: Apache-2.0
//
// Groups in native form (f16): those that a row's recent window touches, and every group of the f16 code. Few, so their
// fragments come straight from global memory. Here a row may see a part of a group: what is not complete at its position is
// hidden, and its incomplete sub-block comes from its tail.
#pragma once

#include <oasis/cuda/score_config.cuh>
#include <oasis/cuda/score_reduce.cuh>

namespace oasis::cuda::detail {

/// What a column sees of a group.
struct GroupView {
    std::int32_t complete; ///< sub-blocks
    bool has_tail;

    __device__ GroupView(std::int32_t position, std::int32_t begin, std::int32_t sub_tokens)
    {
        const std::int32_t tokens = min(max(position + 1 - begin, 0), SummaryLayout::kGroupSubBlocks * sub_tokens);
        complete = tokens / sub_tokens;
        has_tail = tokens % sub_tokens != 0;
    }
};

__device__ inline const std::byte* tail_of(const ScoreArgs& args, const ScoreColumn& column, std::int32_t head)
{
    return args.params.tail + (column.row * args.params.kv_heads + head) * args.tail_bytes;
}

/// The tail's estimate in log2, by one warp, in float from the query itself.
template <class K> __device__ float tail_estimate(const ScoreArgs& args, const ScoreColumn& column, std::int32_t head, std::int32_t query)
{
    const ScoreParams& p = args.params;
    const std::byte* const bytes = tail_of(args, column, head);
    const SummaryTail& tail = *reinterpret_cast<const SummaryTail*>(bytes);
    const auto* const values = reinterpret_cast<const float*>(bytes + sizeof(SummaryTail));
    const int head_dim = K::kChannels / args.planes;
    const std::int64_t at = column.row * p.q_row_stride + (std::int64_t(head) * p.group + query) * head_dim;
    float sum = 0.0F;
    for (int c = int(threadIdx.x % 32); c < head_dim; c += 32) {
        const float weight = query_element(p, at + c) * p.scale;
        const int plane = args.planes == 2 && !(weight > 0.0F) ? 1 : 0;
        sum += weight * values[plane * head_dim + c];
    }
    return (warp_sum(sum) + tail.log_tokens) * kLog2E + column.coded_spread * column.coded_factor * tail.spread;
}

/// Dot products of a native group with the 8 columns whose queries begin at `queries`; tile m holds slots 16 m + 2 (lane / 4) and
/// the next one.
template <class K> __device__ void multiply_native(const std::byte* group, std::uint32_t queries, float (&acc)[4][4])
{
    const std::uint32_t lane = threadIdx.x % 32;
    const std::byte* const mine = group + sizeof(SummaryHeader) + lane % 4 * 2 * 128 + lane / 4 * 4;
    const std::uint32_t query = queries + lane / 4 * kQueryStride<K::kChannels> + lane % 4 * 16;
#pragma unroll 2
    for (int step = 0; step < K::kSteps; ++step) {
        std::uint32_t x[4][4]; // [channel 2t, 2t + 1, 2t + 8, 2t + 9][tile]
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                x[c][m] = *reinterpret_cast<const std::uint32_t*>(mine + (16 * step + c % 2 + c / 2 * 8) * 128 + 32 * m);
            }
        }
        const std::uint32_t b[]{load_shared(query + step * 64), load_shared(query + step * 64 + 8)};
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            multiply_add<f16>(acc[m],
                              {__byte_perm(x[0][m], x[1][m], 0x5410), __byte_perm(x[0][m], x[1][m], 0x7632),
                               __byte_perm(x[2][m], x[3][m], 0x5410), __byte_perm(x[2][m], x[3][m], 0x7632)},
                              b);
        }
    }
}

/// 8 columns from `index` on.
template <class K>
__device__ __noinline__ void score_native(const ScoreArgs& args, const ScoreTile& tile, int group, std::uint32_t queries,
                                          const ScoreColumn* columns, int index)
{
    const ScoreParams& p = args.params;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::int32_t begin = group * args.group_tokens();
    const std::byte* const bytes = group_address(tile.native ? p.native : p.coded, tile, group);
    float acc[4][4] = {};
    multiply_native<K>(bytes, queries, acc);

    float tail = 0.0F; // of column `lane`
    for (int c = 0; c < 8; ++c) {
        const ScoreColumn& column = columns[c];
        if (column.position < begin || !GroupView(column.position, begin, args.tokens).has_tail) { continue; }
        const float estimate = tail_estimate<K>(args, column, tile.head, (index + c) % p.group);
        if (int(lane) == c) { tail = estimate; }
    }
    BlockMass<K, true> mass(group);
    const ScoreColumn* const own = columns + lane % 4 * 2;
    const SummaryHeader& header = *reinterpret_cast<const SummaryHeader*>(bytes);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
        const GroupView view(own[q].position, begin, args.tokens);
        // In units of the column's factor, without the sub-block's log n, as complete ones are.
        const float own_tail =
            (__shfl_sync(0xFFFFFFFFU, tail, int(lane % 4 * 2 + q)) - args.log2_tokens) / (own[q].coded_factor * 0x1p-24F);
        float values[4][2];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            float2 root{};
            if constexpr (K::kSpread) {
                root = __half22float2(
                    *reinterpret_cast<const __half2*>(bytes + sizeof(SummaryHeader) + K::kChannels * 128 + 32 * m + lane / 4 * 4));
            }
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const auto slot = int(16 * m + 2 * (lane / 4) + e);
                const int s = sub_block_of<K>(slot);
                float value = acc[m][2 * e + q];
                if constexpr (K::kSpread) { value += own[q].coded_spread * 0x1p24F * (e == 0 ? root.x * root.x : root.y * root.y); }
                values[m][e] = s < view.complete ? value : s == view.complete && view.has_tail ? own_tail : -kInf;
            }
        }
        mass.reduce(q, values, own[q].coded_factor * 0x1p-24F);
    }
    mass.finish({args.log2_tokens, args.log2_tokens});
#pragma unroll
    for (int q = 0; q < 2; ++q) {
        const GroupView view(own[q].position, begin, args.tokens);
        const std::uint64_t seen = view.complete == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << view.complete) - 1;
        std::uint64_t poisoned = header.poisoned & seen;
        std::uint64_t unbounded = header.unbounded & seen;
        if (view.has_tail) {
            const SummaryTail& end = *reinterpret_cast<const SummaryTail*>(tail_of(args, own[q], tile.head));
            poisoned |= std::uint64_t(end.poisoned != 0) << view.complete;
            unbounded |= std::uint64_t(end.unbounded != 0) << view.complete;
        }
        if ((poisoned | unbounded) != 0) { mass.mark(q, poisoned, unbounded); }
    }
    mass.store(own, [&](const ScoreColumn& column) {
        return tile.native ? group >= column.coded && column.position >= begin : group < column.coded;
    });
}

} // namespace oasis::cuda::detail
