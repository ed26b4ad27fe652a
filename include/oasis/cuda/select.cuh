// SPDX-License-Identifier: Apache-2.0
//
// The selection kernel: a CTA (a cluster of them for long rows) holds one (row, KV head)'s keys in registers and finds both
// cuts by one radix descent over unique 48-bit keys, the score above the position turned round: ties need no rule of their
// own. docs/design/cuda-score.md says why.
#pragma once

#include <oasis/cuda/select_scores.cuh>

namespace oasis::cuda::detail {

inline constexpr int kBins = 2048;
inline constexpr int kDigitBits = 11;
inline constexpr int kListRoom = 64;

/// Rank of a score: larger is better. 0: never chosen, 1: NaN, then the finite ones, +inf on top. As the CPU's `rank_key`.
__device__ inline std::uint32_t rank_key(float score)
{
    const std::uint32_t bits = __float_as_uint(score + 0.0F); // -0 becomes +0
    const std::uint32_t key = bits ^ (0x80000000U | (0U - (bits >> 31)));
    const std::uint32_t special = (bits & 0x7FFFFFFFU) > 0x7F800000U ? 1U : 0U;
    return special != 0 || bits == 0xFF800000U ? special : key;
}

/// What a descent knows of a cut: everything from `key` on is in.
struct SelectCut {
    std::uint64_t key;   ///< while open: the digits found so far
    std::int32_t wanted; ///< of those that share these digits
    std::int32_t there;  ///< how many share them
};

template <int kThreads> struct SelectShared {
    static constexpr int kWarps = kThreads / 32;
    alignas(16) std::int32_t histogram[2][kBins];
    std::uint64_t list[2][kListRoom];
    std::int32_t list_size[2];
    SelectCut cut[2];
    std::int32_t total;
    std::int32_t warp_count[2][kWarps];
    std::uint32_t low[kWarps];
    std::uint32_t high[kWarps];
    std::uint32_t cta_low;
    std::uint32_t cta_high;
    std::int32_t cta_count;
    LogSumShared<kWarps> log_sum;
};

/// A row's keys: 48 bits, all different; `kNone` cannot be chosen.
template <int kItems> struct SelectKeys {
    static constexpr std::uint64_t kNone = ~std::uint64_t(0);
    std::uint32_t key[kItems]; ///< 0: not a candidate
    std::uint32_t lowest;
    std::int32_t begin; ///< position of the first

    __device__ std::uint64_t at(int i) const
    {
        if (key[i] == 0) { return kNone; }
        const std::uint32_t rank = key[i] <= 1 ? 0 : key[i] - lowest;
        return std::uint64_t(rank) << 16 | std::uint32_t(0xFFFF - (begin + i));
    }
};

/// Sets `lowest` so that ranks begin at 1 (NaN: 0); returns the bits of the largest key.
template <class C, int kItems> __device__ int narrow(SelectShared<C::kThreads>& shared, SelectKeys<kItems>& keys)
{
    std::uint32_t low = 0xFFFFFFFFU;
    std::uint32_t high = 1;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        if (keys.key[i] > 1) { low = min(low, keys.key[i]); }
        high = max(high, keys.key[i]);
    }
    low = __reduce_min_sync(0xFFFFFFFFU, low);
    high = __reduce_max_sync(0xFFFFFFFFU, high);
    const int lane = int(threadIdx.x % 32);
    if (lane == 0) { shared.low[threadIdx.x / 32] = low, shared.high[threadIdx.x / 32] = high; }
    __syncthreads();
    low = __reduce_min_sync(0xFFFFFFFFU, lane < C::kWarps ? shared.low[lane] : 0xFFFFFFFFU);
    high = __reduce_max_sync(0xFFFFFFFFU, lane < C::kWarps ? shared.high[lane] : 1U);
    if constexpr (C::kCluster > 1) {
        if (threadIdx.x == 0) { shared.cta_low = low, shared.cta_high = high; }
        C::sync();
        low = __reduce_min_sync(0xFFFFFFFFU, lane < C::kCluster ? *C::remote(&shared.cta_low, lane) : 0xFFFFFFFFU);
        high = __reduce_max_sync(0xFFFFFFFFU, lane < C::kCluster ? *C::remote(&shared.cta_high, lane) : 1U);
    }
    keys.lowest = high > 1 ? low - 1 : 0;
    return 16 + (high > 1 ? 32 - __clz(int(high - keys.lowest)) : 0);
}

/// Finds in which bin each cut lies; `shared.cut` and `shared.total` are there after it.
template <class C> __device__ void search(SelectShared<C::kThreads>& shared, int level, int bits, const SelectCut (&cuts)[2])
{
    constexpr int kPerThread = kBins / C::kThreads;
    const int lane = int(threadIdx.x % 32);
    const int warp = int(threadIdx.x / 32);
    std::int32_t count[2][kPerThread]; // from the top bin down
    std::int32_t sum[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        sum[c] = 0;
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            const int bin = kBins - 1 - (int(threadIdx.x) * kPerThread + i);
            count[c][i] = 0;
            if (c == 0 || level > 0) {
                for (int rank = 0; rank < C::kCluster; ++rank) { count[c][i] += C::remote(shared.histogram[c], rank)[bin]; }
            } else {
                count[1][i] = count[0][i];
            }
            sum[c] += count[c][i];
        }
    }
    std::int32_t before[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        before[c] = level == 0 && c == 1 ? before[0] + sum[0] : warp_scan(sum[c]);
        if (lane == 31) { shared.warp_count[c][warp] = before[c]; }
        before[c] -= sum[c];
    }
    C::sync(); // everybody has read the histograms
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        before[c] += __reduce_add_sync(0xFFFFFFFFU, lane < warp ? shared.warp_count[c][lane] : 0);
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            if (before[c] < cuts[c].wanted && cuts[c].wanted <= before[c] + count[c][i]) {
                const auto bin = std::uint64_t(kBins - 1 - (int(threadIdx.x) * kPerThread + i));
                shared.cut[c] = {cuts[c].key << bits | bin, cuts[c].wanted - before[c], count[c][i]};
            }
            before[c] += count[c][i];
        }
        if (c == 0 && threadIdx.x == C::kThreads - 1) { shared.total = before[0]; }
    }
    __syncthreads();
}

/// Both cuts of one row, as keys: what is at or above them is in. `wanted` counts are those beside the forced blocks.
template <class C, int kItems>
__device__ void find_cuts(SelectShared<C::kThreads>& shared, const SelectKeys<kItems>& keys, int bits, const std::int32_t (&wanted)[2],
                          std::uint64_t (&found)[2])
{
    SelectCut cuts[2] = {{0, wanted[0], 0}, {0, wanted[1], 0}};
    bool open[2] = {wanted[0] > 0, wanted[1] > 0};
    found[0] = found[1] = SelectKeys<kItems>::kNone - 1;
    int shift = bits; // below the digits that are known
    for (int level = 0; open[0] || open[1]; ++level) {
        const int width = min(kDigitBits, shift);
        const int above = shift;
        shift -= width;
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const std::uint64_t key = keys.at(i);
            if (key == SelectKeys<kItems>::kNone) { continue; }
            const auto bin = int(key >> shift) & (1 << width) - 1;
            if (level == 0) {
                atomicAdd(&shared.histogram[0][bin], 1);
                continue;
            }
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                if (open[c] && key >> above == cuts[c].key) { atomicAdd(&shared.histogram[c][bin], 1); }
            }
        }
        C::sync();
        search<C>(shared, level, width, cuts);
        bool listed = true;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (!open[c]) { continue; }
            if (level == 0 && shared.total <= cuts[c].wanted) { // all there are
                found[c] = 0;
                open[c] = false;
                continue;
            }
            cuts[c] = shared.cut[c];
            if (cuts[c].wanted == cuts[c].there) {
                found[c] = cuts[c].key << shift;
                open[c] = false;
            }
            listed = listed && (!open[c] || cuts[c].there <= kListRoom);
        }
        if (!open[0] && !open[1]) { break; }
        if (listed) { // few share the digits: the first CTA ranks them against each other
            std::uint64_t(*const list)[kListRoom] = C::remote(shared.list, 0);
            std::int32_t* const size = C::remote(shared.list_size, 0);
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
                const std::uint64_t key = keys.at(i);
                if (key == SelectKeys<kItems>::kNone) { continue; }
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    if (open[c] && key >> shift == cuts[c].key) { list[c][atomicAdd(size + c, 1)] = key; }
                }
            }
            C::sync();
            const int c = int(threadIdx.x) / kListRoom;
            const int i = int(threadIdx.x) % kListRoom;
            if (C::rank() == 0 && c < 2 && i < shared.list_size[c]) {
                const std::uint64_t key = shared.list[c][i];
                int better = 0;
                for (int k = 0; k < shared.list_size[c]; ++k) { better += shared.list[c][k] > key; }
                if (better == (c == 0 ? cuts[0].wanted : cuts[1].wanted) - 1) { shared.cut[c].key = key; }
            }
            C::sync();
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                if (open[k]) { found[k] = C::remote(shared.cut, 0)[k].key; }
            }
            break;
        }
        for (int i = int(threadIdx.x); i < 2 * kBins / 4; i += C::kThreads) { reinterpret_cast<int4*>(shared.histogram[0])[i] = int4{}; }
        C::sync();
    }
}

/// Writes the chosen positions in order, then -1, and the counts.
template <class C, int kItems>
__device__ void write_sets(const SelectParams& p, SelectShared<C::kThreads>& shared, const SelectKeys<kItems>& keys, std::uint32_t forced,
                           const std::uint64_t (&cuts)[2], std::int64_t row_set)
{
    const int lane = int(threadIdx.x % 32);
    const int warp = int(threadIdx.x / 32);
    std::uint32_t in[2] = {forced, forced};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const std::uint64_t key = keys.at(i);
        if (key == SelectKeys<kItems>::kNone) { continue; }
        in[0] |= std::uint32_t(key >= cuts[0]) << i;
        in[1] |= std::uint32_t(key >= cuts[1]) << i;
    }
    in[1] &= ~in[0];
    // A warp has a few hundred blocks: both counts fit one word.
    const std::int32_t both = warp_scan(__popc(in[0]) | __popc(in[1]) << 16);
    std::int32_t before[2] = {both & 0xFFFF, both >> 16};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        if (lane == 31) { shared.warp_count[c][warp] = before[c]; }
        before[c] -= __popc(in[c]);
    }
    C::sync();
    std::int32_t total[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        before[c] += __reduce_add_sync(0xFFFFFFFFU, lane < warp ? shared.warp_count[c][lane] : 0);
        total[c] = 0;
        for (int rank = 0; rank < C::kCluster; ++rank) {
            const std::int32_t there = __reduce_add_sync(0xFFFFFFFFU, lane < C::kWarps ? C::remote(shared.warp_count[c], rank)[lane] : 0);
            if (rank < C::rank()) { before[c] += there; }
            total[c] += there;
        }
    }
    std::int32_t* const out[2] = {p.must + row_set * p.must_blocks, p.may + row_set * p.may_blocks};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const std::int32_t room = c == 0 ? p.must_blocks : p.may_blocks;
        std::int32_t to = before[c];
        for (std::uint32_t rest = in[c]; rest != 0; rest &= rest - 1) { out[c][to++] = keys.begin + __ffs(int(rest)) - 1; }
        for (std::int32_t i = total[c] + C::rank() * C::kThreads + std::int32_t(threadIdx.x); i < room; i += C::kCluster * C::kThreads) {
            out[c][i] = -1;
        }
        if (C::rank() == 0 && threadIdx.x == 0) { p.count[2 * row_set + c] = total[c]; }
    }
}

template <class C> __global__ void __launch_bounds__(C::kThreads, 1024 / C::kThreads) select_kernel(const __grid_constant__ SelectParams p)
{
    __shared__ SelectShared<C::kThreads> shared;
    constexpr int kItems = C::kItems;
    const std::int64_t row_set = blockIdx.x / C::kCluster;
    const std::int64_t row = row_set / p.kv_heads;
    const SelectRange range(p, std::int32_t(p.position[row]), C::kCapacity);
    for (int i = int(threadIdx.x); i < kBins / 4; i += C::kThreads) {
        reinterpret_cast<int4*>(shared.histogram[0])[i] = int4{};
    } // the other is cleared before its use
    if (threadIdx.x < 2) { shared.list_size[threadIdx.x] = 0; }

    SelectKeys<kItems> keys;
    keys.begin = (C::rank() * C::kThreads + std::int32_t(threadIdx.x)) * kItems;
    float scores[kItems];
    load_scores<C>(p, shared.log_sum, range, row, std::int32_t(row_set % p.kv_heads), keys.begin, scores);
    std::uint32_t forced = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const std::int32_t block = keys.begin + i;
        const bool there = block >= range.first && block < range.end;
        const bool must = there && (block < range.sink_end || block >= range.recent_begin);
        forced |= std::uint32_t(must) << i;
        keys.key[i] = there && !must ? rank_key(scores[i]) : 0U;
        if (p.score != nullptr && there) { p.score[row_set * p.mass_stride + block] = scores[i]; }
    }
    const int bits = narrow<C>(shared, keys);
    const std::int32_t wanted[2] = {max(p.must_blocks - range.forced(), 0), max(p.may_blocks - range.forced(), 0)};
    std::uint64_t cuts[2];
    find_cuts<C>(shared, keys, bits, wanted, cuts);
    write_sets<C>(p, shared, keys, forced, cuts, row_set);
    if constexpr (C::kCluster > 1) { C::sync(); } // nobody leaves while its shared memory is read
}

} // namespace oasis::cuda::detail
