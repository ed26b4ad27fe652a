// SPDX-License-Identifier: Apache-2.0
//
// The same fetch by bulk copies (cp.async.bulk: large tier to a ring in shared memory to the slot), for comparison: a warp
// per ring, one elected lane, no data in registers.
#pragma once

#include <oasis/cuda/fetch.cuh>

#include <cstdint>

namespace oasis::cuda::bench {

struct BulkParams {
    TransferParams transfer{};
    int stages = 4; ///< of a warp's ring, at most 16
};

inline constexpr int kBulkWarps = 8;  ///< at most, of a CTA
inline constexpr int kBulkStages = 16;
inline constexpr int kBulkBatch = 8;  ///< entries of the plan taken at once
inline constexpr int kBulkLag = 2;    ///< stores under way behind the last one

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline void bulk_load(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "r"(shared_address(barrier))
                 : "memory");
}

__device__ inline void bulk_wait(std::uint64_t* barrier, std::uint32_t parity)
{
    std::uint32_t ready = 0;
    while (!ready) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ready)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    }
}

__device__ inline void bulk_store(void* to, const void* from, std::uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

static __global__ void __launch_bounds__(32 * kBulkWarps) bulk_fetch(const BulkParams params)
{
    extern __shared__ __align__(128) std::byte ring_memory[];
    __shared__ std::uint64_t barriers[kBulkWarps][kBulkStages];
    __shared__ TransferPiece entries[kBulkWarps][kBulkStages];
    const TransferParams& p = params.transfer;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t warp = threadIdx.x / 32;
    const auto stages = static_cast<std::uint32_t>(params.stages);
    std::byte* ring = ring_memory + std::size_t(warp) * stages * p.unit_bytes;
    if (lane < stages) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barriers[warp][lane])) : "memory"); }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();

    const std::int64_t planned = std::int64_t(*p.count) - p.first;
    const auto count = static_cast<std::uint32_t>(planned < 0 ? 0 : planned < p.most ? planned : p.most);
    TransferPiece held;
    std::uint32_t taken = kBulkBatch;
    bool valid = false;
    bool fresh = false;
    bool exhausted = false;
    std::uint32_t issued = 0;
    std::uint32_t stored = 0;
    std::uint32_t finished = 0;
    const auto finish = [&](std::uint32_t until) {
        for (; finished < until; ++finished) {
            if (lane != 0) { continue; }
            const TransferPiece& piece = entries[warp][finished % stages];
            kernels::finish_piece<kernels::Direction::kFetch>(p, {piece.slot, piece.generation, piece.layer, true, true});
            kernels::count_layer(p, piece.layer, 1);
        }
    };
    while (!exhausted || finished < issued) {
        while (!exhausted && issued - finished < stages) {
            if (taken == kBulkBatch) {
                const std::uint32_t base = __shfl_sync(0xFFFFFFFFU, lane == 0 ? atomicAdd(&p.ticket->next, unsigned{kBulkBatch}) : 0U, 0);
                const bool mine = lane < kBulkBatch && base + lane < count;
                held.layer = -1;
                if (mine) { held = p.pieces[std::size_t(p.first) + base + lane]; }
                valid = mine && kernels::in_range(p, held);
                fresh = valid && kernels::load_relaxed(p.generation + held.slot) == held.generation;
                if (mine && !fresh) {
                    kernels::finish_piece<kernels::Direction::kFetch>(p, {held.slot, held.generation, held.layer, valid, false});
                    kernels::count_layer(p, held.layer, 1);
                }
                taken = 0;
                if (base >= count) {
                    exhausted = true;
                    break;
                }
            }
            const bool wanted = __shfl_sync(0xFFFFFFFFU, fresh, int(taken));
            if (wanted && lane == taken) {
                entries[warp][issued % stages] = held;
                bulk_load(ring + std::size_t(issued % stages) * p.unit_bytes, p.tier + held.place, p.unit_bytes, &barriers[warp][issued % stages]);
            }
            __syncwarp();
            issued += wanted;
            ++taken;
        }
        if (stored < issued) {
            const std::uint32_t stage = stored % stages;
            bulk_wait(&barriers[warp][stage], stored / stages % 2);
            if (lane == 0) { bulk_store(p.slots + std::uint64_t(entries[warp][stage].slot) * p.slot_stride, ring + std::size_t(stage) * p.unit_bytes, p.unit_bytes); }
            ++stored;
            if (stored - finished > kBulkLag) {
                asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kBulkLag) : "memory");
                finish(stored - kBulkLag);
            }
        } else {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            finish(stored);
        }
        __syncwarp();
    }
    kernels::leave(p.ticket);
}

inline void enqueue_bulk_fetch(Queue queue, const BulkParams& params, int ctas, int warps)
{
    const std::size_t shared = std::size_t(warps) * std::size_t(params.stages) * params.transfer.unit_bytes;
    check(::cudaFuncSetAttribute(bulk_fetch, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), "cudaFuncSetAttribute of ", shared, " bytes");
    bulk_fetch<<<ctas, 32 * warps, shared, queue.stream()>>>(params);
    check_launch("bulk_fetch");
}

} // namespace oasis::cuda::bench
