// SPDX-License-Identifier: Apache-2.0
//
// The scoring kernel. A warp owns a group: its lane 0 copies groups in bulk into the warp's ring, the warp turns codes into
// f16 fragments as they are (subnormals: code * 2^-24, no arithmetic) and multiplies them with queries * scales, sub-blocks as
// rows of the tile and queries as columns. Accumulators start at zeros . q. docs/design/cuda-score.md says why.
#pragma once

#include <oasis/cuda/score_columns.cuh>
#include <oasis/cuda/score_ptx.cuh>
#include <oasis/cuda/score_native.cuh>
#include <oasis/cuda/score_reduce.cuh>

namespace oasis::cuda::detail {

/// The queries of kTiles x 8 columns as fragments.
template <class K> struct Queries {
    static constexpr std::uint32_t kTileBytes = 8 * kQueryStride<K::kChannels> * 2;
    std::uint32_t address; ///< of this lane's part
    uint2 held[K::kHoist ? K::kSteps : 1][K::kHoist ? K::kTiles : 1];

    __device__ explicit Queries(std::uint32_t queries)
    {
        address = lane_address(queries);
        if constexpr (K::kHoist) {
#pragma unroll
            for (int step = 0; step < K::kSteps; ++step) {
#pragma unroll
                for (int n = 0; n < K::kTiles; ++n) { held[step][n] = load(step, n); }
            }
        }
    }
    /// Goes to pass i; held queries are those of the only one.
    __device__ void move_to(std::uint32_t queries, int i)
    {
        if constexpr (!K::kHoist) { address = lane_address(queries) + i * K::kTiles * kTileBytes; }
    }
    __device__ uint2 load(int step, int n) const { return load_shared_8(address + n * kTileBytes + step * 32); }
    __device__ uint2 at(int step, int n) const
    {
        if constexpr (K::kHoist) { return held[step][n]; }
        return load(step, n);
    }
    __device__ static std::uint32_t lane_address(std::uint32_t queries)
    {
        return queries + threadIdx.x % 32 / 4 * (kQueryStride<K::kChannels> * 2) + threadIdx.x % 4 * 8;
    }
};

/// Fragments of 16 channels: tile m holds slots slot_of(m) + 2 (lane / 4) and the next one.
template <class K> __device__ void load_codes(std::uint32_t codes, int step, std::uint32_t (&a)[4][4])
{
    const std::uint32_t lane = threadIdx.x % 32;
    std::uint32_t r[4];
    if constexpr (K::kCode == SummaryCode::kInt4) {
        load_transposed(codes + (16 * step + lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16, r);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t next = r[i] >> 8;
            a[i % 2 * 2][i / 2 * 2] = r[i] & 0x000F000FU;
            a[i % 2 * 2][i / 2 * 2 + 1] = next & 0x000F000FU;
            a[i % 2 * 2 + 1][i / 2 * 2] = r[i] & 0x00F000F0U; // 16 times as much
            a[i % 2 * 2 + 1][i / 2 * 2 + 1] = next & 0x00F000F0U;
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            load_transposed(codes + (16 * step + 8 * half + lane % 8) * 64 + lane / 8 * 16, r);
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                a[m][2 * half] = r[m] & 0x00FF00FFU;
                a[m][2 * half + 1] = (r[m] >> 8) & 0x00FF00FFU;
            }
        }
    }
}

/// First slot of tile m; in int4 the odd tiles are the high nibbles.
template <class K> __device__ constexpr int slot_of(int m)
{
    return K::kCode == SummaryCode::kInt4 ? m % 2 * 32 + m / 2 * 16 : 16 * m;
}
template <class K> __device__ constexpr bool is_high(int m) { return K::kCode == SummaryCode::kInt4 && m % 2 == 1; }

/// The spread of this lane's slots.
template <class K> __device__ void coded_spread(std::uint32_t group, float (&spread)[4][2])
{
    const std::uint32_t lane = threadIdx.x % 32;
    const uint4 header = load_shared_16(group + 16);
    const float2 affine = __half22float2(*reinterpret_cast<const __half2*>(&header.x)); // scale, zero
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const std::uint32_t codes = load_shared_2(group + std::uint32_t(K::kLayout.coded_spread_offset()) + slot_of<K>(m) + lane / 4 * 2);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float code = __uint_as_float(0x4B000000U | ((codes >> (8 * e)) & 255U)) - 8388608.0F;
            const float root = affine.y + affine.x * code;
            spread[m][e] = root * root;
        }
    }
}

/// acc = 2^-24 / factor * estimates in log2 without spread and tokens; 2^-20 in high tiles.
template <class K>
__device__ void multiply_group(std::uint32_t group, const Queries<K>& queries, float (&acc)[4][K::kTiles][4])
{
    const std::uint32_t lane = threadIdx.x % 32;
    std::uint32_t affine[4];
#pragma unroll
    for (int n = 0; n < K::kTiles; ++n) { acc[0][n][0] = acc[0][n][1] = acc[0][n][2] = acc[0][n][3] = 0.0F; }
#pragma unroll
    for (int step = 0; step < K::kSteps; ++step) {
        if (step % 2 == 0) { load_matrices(group + std::uint32_t(K::kLayout.zeros_offset()) + 32 * step + lane / 8 * 16, affine); }
        const std::uint32_t low = affine[step % 2 * 2];
        const std::uint32_t high = affine[step % 2 * 2 + 1];
#pragma unroll
        for (int n = 0; n < K::kTiles; ++n) { multiply_add(acc[0][n], low, low, high, high, queries.at(step, n)); }
    }
#pragma unroll
    for (int n = 0; n < K::kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float zero = acc[0][n][i];
#pragma unroll
            for (int m = 0; m < 4; ++m) { acc[m][n][i] = zero * (is_high<K>(m) ? 0x1p-20F : 0x1p-24F); }
        }
    }
#pragma unroll
    for (int step = 0; step < K::kSteps; ++step) {
        std::uint32_t a[4][4];
        load_codes<K>(group + std::uint32_t(K::kLayout.codes_offset()), step, a);
        if (step % 2 == 0) { load_matrices(group + std::uint32_t(K::kLayout.scales_offset()) + 32 * step + lane / 8 * 16, affine); }
#pragma unroll
        for (int n = 0; n < K::kTiles; ++n) {
            uint2 b = queries.at(step, n);
            b.x = multiply_halves(b.x, affine[step % 2 * 2]);
            b.y = multiply_halves(b.y, affine[step % 2 * 2 + 1]);
#pragma unroll
            for (int m = 0; m < 4; ++m) { multiply_add(acc[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b); }
        }
    }
}

/// Log masses of 8 columns from their accumulators.
template <class K>
__device__ void finish_coded(const float (&acc)[4][4], const float (&spread)[4][2], const ScoreColumn* columns, int group, float log2_tokens, uint4 flags)
{
    const auto lane = int(threadIdx.x % 32);
    const ScoreColumn* const own = columns + lane % 4 * 2;
    BlockMass<K> mass(group);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
        const float weight = own[q].spread * 0x1p-24F;
        float values[4][2];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                values[m][e] = is_high<K>(m) ? acc[m][2 * e + q] * 0.0625F : acc[m][2 * e + q];
                if constexpr (K::kSpread) { values[m][e] += weight * spread[m][e]; }
            }
        }
        mass.reduce(q, values, own[q].factor * 0x1p24F);
    }
    mass.finish(log2_tokens);
    if ((flags.x | flags.y | flags.z | flags.w) != 0U) {
        for (int q = 0; q < 2; ++q) { mass.mark(q, std::uint64_t(flags.y) << 32 | flags.x, std::uint64_t(flags.w) << 32 | flags.z); }
    }
    mass.store(own, [&](const ScoreColumn& column) { return group < column.coded; });
}

/// One pass over the columns of `queries` for a group in shared memory; `release` is called once its bytes are read for the
/// last time.
template <class K, class Release>
__device__ void score_coded(std::uint32_t group_bytes, int group, float log2_tokens, const Queries<K>& queries, const ScoreColumn* columns, const Release& release)
{
    const uint4 flags = load_shared_16(group_bytes);
    float spread[4][2];
    if constexpr (K::kSpread) { coded_spread<K>(group_bytes, spread); }
    float acc[4][K::kTiles][4];
    multiply_group<K>(group_bytes, queries, acc);
    release();
#pragma unroll
    for (int n = 0; n < K::kTiles; ++n) {
        const float part[4][4] = {{acc[0][n][0], acc[0][n][1], acc[0][n][2], acc[0][n][3]},
                                  {acc[1][n][0], acc[1][n][1], acc[1][n][2], acc[1][n][3]},
                                  {acc[2][n][0], acc[2][n][1], acc[2][n][2], acc[2][n][3]},
                                  {acc[3][n][0], acc[3][n][1], acc[3][n][2], acc[3][n][3]}};
        finish_coded<K>(part, spread, columns + 8 * n, group, log2_tokens, flags);
    }
}

/// A warp's groups in the order it will score them, copied ahead across tiles.
template <class K> class ScoreRing {
public:
    __device__ ScoreRing(const SummaryTable& table, const ScoreTile* tiles, std::uint32_t bytes, std::uint32_t barriers)
        : table_(table), tiles_(tiles), bytes_(bytes), barriers_(barriers), policy_(evict_first()), group_(tiles[0].first + warp())
    {
    }

    /// Fills free stages from the tiles up to number `known`.
    __device__ void fill(int known)
    {
        while (issued_ - consumed_ < K::kStages) {
            while (group_ >= end_of(tiles_[tile_ % 3])) {
                if (tile_ == known) { return; }
                ++tile_;
                group_ = tiles_[tile_ % 3].first + warp();
            }
            if (threadIdx.x % 32 == 0) {
                copy_bulk(stage(issued_), group_address(table_, tiles_[tile_ % 3], group_), K::kGroupBytes, barrier(issued_), policy_);
            }
            ++issued_;
            group_ += kScoreWarps;
        }
    }
    /// Address of the next group's bytes, which have landed.
    __device__ std::uint32_t wait() const
    {
        wait_barrier(barrier(consumed_), consumed_ / K::kStages % 2);
        return stage(consumed_);
    }
    __device__ void release(int known)
    {
        __syncwarp();
        ++consumed_;
        fill(known);
    }

private:
    __device__ static int warp() { return int(threadIdx.x / 32); }
    __device__ static int end_of(const ScoreTile& tile) { return tile.native ? tile.first : tile.end; }
    __device__ std::uint32_t stage(std::uint32_t i) const { return bytes_ + i % K::kStages * K::kGroupBytes; }
    __device__ std::uint32_t barrier(std::uint32_t i) const { return barriers_ + i % K::kStages * 8; }

    const SummaryTable& table_;
    const ScoreTile* tiles_;
    std::uint32_t bytes_;
    std::uint32_t barriers_;
    std::uint64_t policy_;
    int tile_ = 0;
    int group_;
    std::uint32_t issued_ = 0;
    std::uint32_t consumed_ = 0;
};

/// A tile of coded groups: each warp scores every eighth.
template <class K>
__device__ void score_tile(const ScoreArgs& args, const ScoreTile& tile, std::uint32_t queries, const ScoreColumn* columns, ScoreRing<K>& ring, int known)
{
    Queries<K> pass(queries);
    const int passes = args.columns / (8 * K::kTiles);
    for (int group = tile.first + int(threadIdx.x / 32); group < tile.end; group += kScoreWarps) {
        const std::uint32_t bytes = ring.wait();
        for (int i = 0; i < passes; ++i) {
            pass.move_to(queries, i);
            score_coded<K>(bytes, group, args.log2_tokens, pass, columns + 8 * K::kTiles * i, [&] {
                if (i == passes - 1) { ring.release(known); }
            });
        }
    }
}

template <class K> __global__ void __launch_bounds__(kScoreThreads, 2) score_kernel(const __grid_constant__ ScoreArgs args)
{
    extern __shared__ __align__(128) std::byte shared[];
    const ScoreParams& p = args.params;
    const ScoreShared<K> at{args.columns};
    auto* const tiles = reinterpret_cast<ScoreTile*>(shared + at.tile(0));
    auto* const first = reinterpret_cast<std::int32_t*>(shared + at.first());
    const int warp = int(threadIdx.x / 32);
    const std::uint32_t base = shared_address(shared);
    const std::uint32_t barriers = base + at.barriers() + warp * 8 * 2;
    if constexpr (!K::kPlain) {
        if (threadIdx.x % 32 < K::kStages) { init_barrier(barriers + threadIdx.x % 32 * 8); }
    }
    count_tiles(p, args.group_tokens(), first);
    if (warp == 0) {
        take_tile(p, args.group_tokens(), first, tiles[0]);
        take_tile(p, args.group_tokens(), first, tiles[1]);
    }
    __syncthreads();
    const auto make_columns = [&](int k) {
        if (!tiles[k % 3].valid) { return; }
        auto* const queries = reinterpret_cast<__half*>(shared + at.queries(k % 2));
        auto* const columns = reinterpret_cast<ScoreColumn*>(shared + at.column(k % 2));
        for (int c = warp; c < args.columns; c += kScoreWarps) {
            make_column<K::kChannels>(p, tiles[k % 3], args.planes, args.group_tokens(), c, queries + c * kQueryStride<K::kChannels>, columns[c]);
        }
    };
    ScoreRing<K> ring(p.coded, tiles, base + warp * K::kStages * K::kGroupBytes, barriers);
    if constexpr (!K::kPlain) { ring.fill(1); }
    make_columns(0);
    __syncthreads();
    for (int k = 0; tiles[k % 3].valid; ++k) {
        // While this tile is scored one warp takes the tile after the next and all make the next one's columns.
        if constexpr (!K::kPlain) { ring.fill(k + 1); }
        if (warp == k % kScoreWarps) { take_tile(p, args.group_tokens(), first, tiles[(k + 2) % 3]); }
        make_columns(k + 1);
        const ScoreTile& tile = tiles[k % 3];
        const std::uint32_t queries = base + at.queries(k % 2);
        const auto* const columns = reinterpret_cast<const ScoreColumn*>(shared + at.column(k % 2));
        if (tile.native || K::kPlain) {
            score_native_tile<K>(args, tile, queries, columns);
        } else {
            if constexpr (!K::kPlain) { score_tile<K>(args, tile, queries, columns, ring, k + 1); }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) { leave(p); }
}

} // namespace oasis::cuda::detail
