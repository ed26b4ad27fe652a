// SPDX-License-Identifier: Apache-2.0
//
// The instructions that the scoring kernel is made of. PTX ISA 8.0, sm_90.
#pragma once

#include <cstdint>

namespace oasis::cuda::detail {

__device__ inline std::uint32_t shared_address(const void* pointer)
{
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four 8x8 matrices of 16-bit elements; lane i has the address of row i % 8 of matrix i / 8. Lane (g, t) = (i / 4, i % 4)
/// gets elements 2t and 2t + 1 of row g.
__device__ inline void load_matrices(std::uint32_t address, std::uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// The same, transposed: lane (g, t) gets element g of rows 2t and 2t + 1.
__device__ inline void load_transposed(std::uint32_t address, std::uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// d += a b: a 16 x 16, b 16 x 8, f16; sums in float. Subnormal f16 count in full.
__device__ inline void multiply_add(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, uint2 b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}

__device__ inline std::uint32_t multiply_halves(std::uint32_t a, std::uint32_t b)
{
    std::uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ inline uint4 load_shared_16(std::uint32_t address)
{
    uint4 r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address) : "memory");
    return r;
}

__device__ inline std::uint32_t load_shared_4(std::uint32_t address)
{
    std::uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(address) : "memory");
    return r;
}

__device__ inline std::uint32_t load_shared_2(std::uint32_t address)
{
    std::uint16_t r;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(r) : "r"(address) : "memory");
    return r;
}

__device__ inline float exp2_of(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ inline float log2_of(float x)
{
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ inline void init_barrier(std::uint32_t barrier, std::uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void arrive(std::uint32_t barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }

/// Bulk copy of a multiple of 16 bytes to shared memory; the barrier's phase ends when it has landed. What is read once goes
/// first when the L2 needs room.
__device__ inline void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier, std::uint64_t policy)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ inline std::uint64_t evict_first()
{
    std::uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ inline bool try_barrier(std::uint32_t barrier, std::uint32_t phase)
{
    std::uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return done != 0;
}

__device__ inline void wait_barrier(std::uint32_t barrier, std::uint32_t phase)
{
    while (!try_barrier(barrier, phase)) {}
}

} // namespace oasis::cuda::detail
