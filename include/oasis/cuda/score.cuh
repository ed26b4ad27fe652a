// SPDX-License-Identifier: Apache-2.0
//
// The scoring kernel. One warp of a CTA takes tiles and copies their groups in bulk into a ring of stages; the others take
// groups from the ring in order, one warp a group. Making a tile's columns is work from the same ring, a tile ahead, so that
// nobody waits for anybody but through the ring.
#pragma once

#include <oasis/cuda/score_coded.cuh>
#include <oasis/cuda/score_native.cuh>

namespace oasis::cuda::detail {

/// Puts items into the ring, in order. One warp.
template <class K> class ScoreProducer {
public:
    __device__ ScoreProducer(const ScoreArgs& args, std::byte* shared)
        : args_(args),
          shared_(*reinterpret_cast<ScoreShared*>(shared)),
          count_(*reinterpret_cast<const TileCount*>(shared + args.count<K>())),
          stages_(shared_address(shared) + args.stage<K>(0)),
          policy_(evict_first())
    {
        take();
    }

    __device__ void run()
    {
        look();
        bool more = begin_tile(0);
        for (int k = 0; more; ++k) {
            // The next tile is looked up while half of this one's groups are put, its columns are made while the other half is scored.
            look();
            const int items = items_of(tile(k));
            put_items(k, 0, items / 2);
            more = begin_tile(k + 1);
            put_items(k, items / 2, items);
        }
        put(K::kWarps - 1, [](int) { return ScoreItem{ScoreItem::kStop, 0, 0, 0}; });
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    __device__ ScoreTile& tile(int k) { return shared_.tile[k % kTileSlots]; }

    /// A tile's index is asked for a tile ahead.
    __device__ void take()
    {
        if (lane() == 0) { index_ = atomicAdd(args_.params.counter, 1U); }
    }

    __device__ void look()
    {
        next_.look(args_.params, args_.group_tokens(), count_, __shfl_sync(0xFFFFFFFFU, index_, 0));
        take();
    }

    /// Gives tile k its slot once nobody needs it, and has its columns made.
    __device__ bool begin_tile(int k)
    {
        while (*static_cast<volatile std::uint32_t*>(&shared_.done[k % kTileSlots]) != items_[0]) { __nanosleep(40); }
        if (!next_.write(tile(k))) { return false; }
        const std::uint32_t own = items_[0] + std::uint32_t(items_of(tile(k)));
        items_[0] = items_[1];
        items_[1] = items_[2];
        items_[2] = own;
        put(args_.columns, [&](int i) { return ScoreItem{ScoreItem::kColumn, k, 0, i}; });
        return true;
    }

    __device__ static bool is_native(const ScoreTile& of) { return of.native != 0 || K::kPlain; }
    __device__ int items_of(const ScoreTile& of) const { return (of.end - of.first) * (is_native(of) ? args_.columns / 8 : 1); }

    __device__ void put_items(int k, int begin, int end)
    {
        const ScoreTile& of = tile(k);
        if (is_native(of)) {
            const int eights = args_.columns / 8;
            put(end - begin, [&](int i) {
                return ScoreItem{ScoreItem::kNative, k, of.first + (begin + i) / eights, (begin + i) % eights * 8};
            });
        } else {
            put(end - begin, [&](int i) { return ScoreItem{ScoreItem::kGroup, k, of.first + begin + i, 0}; });
        }
    }

    /// `make(i)` for i of 0..n, eight lanes at a time: each waits for its stage, writes its item and starts its copy.
    template <class Make> __device__ void put(int n, const Make& make)
    {
        for (int begin = 0; begin < n; begin += 8) {
            const int i = begin + lane();
            if (lane() < 8 && i < n) {
                const std::uint32_t at = issued_ + lane();
                const std::uint32_t stage = at & ((1U << args_.log2_stages) - 1);
                while (!try_wait(shared_address(&shared_.empty[stage]), (at >> args_.log2_stages & 1U) ^ 1U)) { __nanosleep(100); }
                const ScoreItem item = make(i);
                shared_.item[stage] = item;
                *static_cast<volatile std::uint32_t*>(&shared_.put[stage]) = at;
                const std::uint32_t full = shared_address(&shared_.full[stage]);
                if (item.kind == ScoreItem::kGroup) {
                    if constexpr (!K::kPlain) {
                        copy_bulk(stages_ + stage * K::kGroupBytes, group_address(args_.params.coded, tile(item.tile), item.group),
                                  K::kGroupBytes, full, policy_);
                    }
                } else {
                    arrive(full);
                }
            }
            __syncwarp();
            issued_ += std::uint32_t(min(8, n - begin));
        }
    }

    const ScoreArgs& args_;
    ScoreShared& shared_;
    const TileCount& count_;
    std::uint32_t stages_;
    std::uint64_t policy_;
    std::uint32_t index_ = 0;
    std::uint32_t issued_ = 0;
    std::uint32_t items_[kTileSlots] = {}; ///< of the slots' tiles so far, the slot that is used next first
    NextTile next_;
};

/// Takes items from the ring until there are no more. One warp.
template <class K> __device__ void consume(const ScoreArgs& args, std::byte* bytes)
{
    auto& shared = *reinterpret_cast<ScoreShared*>(bytes);
    const std::uint32_t base = shared_address(bytes);
    const bool leader = threadIdx.x % 32 == 0;
    for (;;) {
        std::uint32_t at = 0;
        if (leader) { at = atomicAdd(&shared.next, 1U); }
        at = __shfl_sync(0xFFFFFFFFU, at, 0);
        const std::uint32_t stage = at & ((1U << args.log2_stages) - 1);
        while (*static_cast<volatile std::uint32_t*>(&shared.put[stage]) != at) { __nanosleep(20); }
        wait(shared_address(&shared.full[stage]), at >> args.log2_stages & 1U);
        const ScoreItem item = shared.item[stage];
        const auto slot = std::uint32_t(item.tile % kTileSlots);
        const ScoreTile& tile = shared.tile[slot];
        const auto release = [&] {
            __syncwarp();
            if (leader) { arrive(shared_address(&shared.empty[stage])); }
        };
        if (item.kind == ScoreItem::kStop) {
            release(); // for the next warp's: there may be fewer stages than warps
            return;
        }
        auto* const columns = reinterpret_cast<ScoreColumn*>(bytes + args.column<K>(slot));
        if (item.kind == ScoreItem::kColumn) {
            release();
            make_column<K::kChannels>(args.params, tile, args.planes, args.group_tokens(), item.column, bytes + args.queries<K>(slot),
                                      columns[item.column]);
            __syncwarp();
            if (leader) { arrive(shared_address(&shared.columns_ready[slot])); }
            continue;
        }
        wait(shared_address(&shared.columns_ready[slot]), item.tile / kTileSlots % 2);
        const std::uint32_t queries = base + args.queries<K>(slot);
        if (item.kind == ScoreItem::kNative) {
            release();
            score_native<K>(args, tile, item.group, queries + item.column / 16 * kQueryBytes<K::kChannels> + item.column / 8 % 2 * 4,
                            columns + item.column, item.column);
        } else {
            if constexpr (!K::kPlain) { score_coded<K>(args, base + args.stage<K>(stage), item.group, queries, columns, release); }
        }
        __syncwarp();
        if (leader) {
            __threadfence_block();
            atomicAdd(&shared.done[slot], 1U);
        }
    }
}

template <class K> __global__ void __launch_bounds__(K::kThreads, 1) score_kernel(const __grid_constant__ ScoreArgs args)
{
    extern __shared__ __align__(128) std::byte bytes[];
    auto& shared = *reinterpret_cast<ScoreShared*>(bytes);
    if (threadIdx.x < kMostStages) {
        init_barrier(shared_address(&shared.full[threadIdx.x]), 1);
        init_barrier(shared_address(&shared.empty[threadIdx.x]), 1);
        shared.put[threadIdx.x] = 0xFFFFFFFFU;
    }
    if (threadIdx.x < kTileSlots) {
        init_barrier(shared_address(&shared.columns_ready[threadIdx.x]), args.columns);
        shared.done[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) { shared.next = 0; }
    count_tiles(args.params, args.group_tokens(), *reinterpret_cast<TileCount*>(bytes + args.count<K>()));
    if (threadIdx.x / 32 == K::kWarps - 1) {
        ScoreProducer<K>(args, bytes).run();
        if (threadIdx.x % 32 == 0) { leave(args.params); }
    } else {
        consume<K>(args, bytes);
    }
}

} // namespace oasis::cuda::detail
