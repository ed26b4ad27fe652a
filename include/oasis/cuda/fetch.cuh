// SPDX-License-Identifier: Apache-2.0
//
// The kernels behind fetch.hpp. What keeps the link busy is bytes in flight (rate x round trip: 50 GB/s x 2 us = 100 KB), so a
// lane has nine 16-byte loads outstanding before its first store: a piece of 4,224 bytes is one round of a warp.
#pragma once

#include <oasis/cuda/fetch.hpp>

#include <cstdint>

namespace oasis::cuda::kernels {

inline constexpr int kLoads = 9;
inline constexpr int kMaxThreads = 1024;
inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFFU;

enum class Direction { kFetch, kWriteThrough };

/// A load that leaves no trace in L1; not the read-only path, which would promise that nobody writes while the kernel runs.
__device__ inline uint4 load_once(const uint4* from)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

__device__ inline std::uint32_t load_relaxed(const std::uint32_t* from)
{
    std::uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ inline std::uint32_t load_acquire(const std::uint32_t* from)
{
    std::uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ inline void store_relaxed(std::uint32_t* to, std::uint32_t x)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

__device__ inline void add_relaxed(std::uint32_t* to, std::uint32_t x)
{
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

/// What was written before is visible before what is written after: on this device, or (write-through) everywhere.
template <Direction direction> __device__ void fence()
{
    if constexpr (direction == Direction::kFetch) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    } else {
        asm volatile("fence.acq_rel.sys;" ::: "memory");
    }
}

__device__ inline bool in_range(const TransferParams& p, const TransferPiece& piece)
{
    return piece.slot >= 0 && piece.slot < p.slot_count && piece.layer >= 0 && piece.layer < p.layers && piece.place % 16 == 0 &&
           piece.place <= p.tier_bytes && p.unit_bytes <= p.tier_bytes - piece.place;
}

/// `units` words of 16 bytes by one warp. `meanwhile()` runs while the first round's loads are under way and says whether to
/// store them; what it returns is returned.
template <class Meanwhile>
__device__ bool copy_units(const uint4* from, uint4* to, std::uint32_t units, std::uint32_t lane, Meanwhile&& meanwhile)
{
    for (std::uint32_t base = lane; base < units + lane; base += 32 * kLoads) { // the same rounds for all lanes
        uint4 held[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            if (base + 32 * i < units) { held[i] = load_once(from + base + 32 * i); }
        }
        if (base == lane && !meanwhile()) { return false; }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            if (base + 32 * i < units) { to[base + 32 * i] = held[i]; }
        }
    }
    return true;
}

/// What is left to do for a piece once its stores are on their way.
struct Finished {
    std::int32_t slot;
    std::uint32_t generation;
    std::int32_t layer;
    bool valid;
    bool copied;
};

/// Lane 0: the mark and the counters of a piece that was moved.
template <Direction direction> __device__ void finish_piece(const TransferParams& p, const Finished& piece)
{
    if (!piece.valid) {
        add_relaxed(&p.counters->refused, 1);
        return;
    }
    const bool done = piece.copied && load_relaxed(p.generation + piece.slot) == piece.generation;
    fence<direction>();
    if (done) { store_relaxed(p.marks + piece.slot, piece.generation); }
    add_relaxed(done ? &p.counters->done : &p.counters->stale, 1);
}

/// Lane 0: `pieces` of a layer are over, and who sees the count sees their marks.
__device__ inline void count_layer(const TransferParams& p, std::int32_t layer, std::uint32_t pieces)
{
    if (layer < 0 || layer >= p.layers) { return; }
    fence<Direction::kFetch>();
    add_relaxed(p.layer_over + layer, pieces);
}

/// The last CTA leaves the ticket as it was found.
__device__ inline void leave(TransferTicket* ticket)
{
    __syncthreads();
    if (threadIdx.x != 0) { return; }
    __threadfence();
    if (atomicAdd(&ticket->left, 1U) == gridDim.x - 1) {
        ticket->next = 0;
        ticket->left = 0;
    }
}

/// A warp moves one piece at a time. Everything else a piece costs is a round trip of its own, so it happens while the next
/// piece's loads are under way: taking the entry after, looking at the generation, finishing the piece before. Layers are
/// counted when a warp leaves one.
template <Direction direction> __global__ void __launch_bounds__(kMaxThreads) move_pieces(const TransferParams p)
{
    const std::uint32_t lane = threadIdx.x % 32;
    const std::int64_t planned = std::int64_t(*p.count) - p.first;
    const auto count = static_cast<std::uint32_t>(planned < 0 ? 0 : planned < p.most ? planned : p.most);
    const auto take = [&] { return lane == 0 ? atomicAdd(&p.ticket->next, 1U) : 0U; };
    std::uint32_t i = __shfl_sync(kAllLanes, take(), 0);
    TransferPiece piece;
    if (i < count) { piece = p.pieces[std::size_t(p.first) + i]; }
    __shared__ Finished lasts[kMaxThreads / 32]; // of lane 0 alone: registers are for the bytes under way
    Finished& last = lasts[threadIdx.x / 32];
    std::uint32_t over = 0; // lane 0: pieces of the last one's layer, itself included
    const auto finish_last = [&](std::int32_t layer) {
        if (lane != 0 || over == 0) { return; }
        finish_piece<direction>(p, last);
        if (last.layer == layer) { return; }
        count_layer(p, last.layer, over);
        over = 0;
    };
    while (i < count) {
        const std::uint32_t ticket = take();
        TransferPiece next;
        const bool valid = in_range(p, piece);
        const std::uint32_t now = valid ? load_relaxed(p.generation + piece.slot) : ~piece.generation;
        const auto meanwhile = [&] {
            i = __shfl_sync(kAllLanes, ticket, 0);
            if (i < count) { next = p.pieces[std::size_t(p.first) + i]; }
            finish_last(piece.layer);
            return static_cast<bool>(__all_sync(kAllLanes, now == piece.generation));
        };
        bool copied = false;
        if (valid) {
            auto* place = reinterpret_cast<uint4*>(p.tier + piece.place);
            auto* slot = reinterpret_cast<uint4*>(p.slots + std::uint64_t(piece.slot) * p.slot_stride);
            constexpr bool kFetch = direction == Direction::kFetch;
            copied = copy_units(kFetch ? place : slot, kFetch ? slot : place, p.unit_bytes / 16, lane, meanwhile);
        } else {
            meanwhile();
        }
        __syncwarp();
        if (lane == 0) {
            last = {piece.slot, piece.generation, piece.layer, valid, copied};
            ++over;
        }
        piece = next;
    }
    finish_last(-1);
    leave(p.ticket);
}

} // namespace oasis::cuda::kernels
