// SPDX-License-Identifier: Apache-2.0
//
// The PTX instructions that the kernels use, one function each. Fragment layouts are those of the PTX manual's
// mma.m16n8k16: lane = 4 * i + j; A holds rows i and i + 8, columns 2j, 2j + 1 and 8 more; C holds rows i and i + 8, columns
// 2j and 2j + 1.
#pragma once

#include <oasis/core/types.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace oasis::cuda::detail {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer)
{
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes from global to shared memory, asynchronously; zeros unless `valid`, and then the source is not read.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

__device__ __forceinline__ void prefetch(const void* pointer)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(pointer)));
}

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(std::uint32_t barrier)
{
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

/// Arrives once this thread's copies so far have landed.
__device__ __forceinline__ void arrive_after_copies(std::uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Waits until the phase of `parity` is complete.
__device__ __forceinline__ void wait(std::uint32_t barrier, std::uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/// Whether the phase of `parity` is complete; may wait a little for it.
__device__ __forceinline__ bool try_wait(std::uint32_t barrier, std::uint32_t parity)
{
    std::uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/// Bulk copy of a multiple of 16 bytes to shared memory, for which the barrier's phase waits. `policy` says what goes first when
/// the L2 needs room.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier, std::uint64_t policy)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ std::uint64_t evict_first()
{
    std::uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/// Adds to a counter of the device, after everything that this thread wrote or has seen written. Returns what was there.
__device__ __forceinline__ std::uint32_t add_release(std::uint32_t* counter, std::uint32_t n)
{
    std::uint32_t before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter)), "r"(n)
                 : "memory");
    return before;
}

/// After `add_release`: what others released before is seen.
__device__ __forceinline__ void fence_acquire() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// A barrier of the first `threads` threads of the CTA.
__device__ __forceinline__ void synchronize(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[2], std::uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[4], std::uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[2], std::uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}

__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t address)
{
    std::uint32_t value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ std::uint32_t load_shared_2(std::uint32_t address)
{
    std::uint16_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ uint4 load_shared_16(std::uint32_t address)
{
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address) : "memory");
    return value;
}

/// Products of two pairs of f16.
__device__ __forceinline__ std::uint32_t multiply_halves(std::uint32_t a, std::uint32_t b)
{
    std::uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

/// c += a * b for m16n8k16 of f16 or bf16, summed in float. Subnormal f16 count in full.
template <class Element>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2])
{
    if constexpr (std::is_same_v<Element, f16>) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/// Two floats to two elements, `low` in the low half.
template <class Element> __device__ __forceinline__ std::uint32_t pack(float low, float high)
{
    std::uint32_t pair;
    if constexpr (std::is_same_v<Element, f16>) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

/// An element's bits to float.
template <class Element> __device__ __forceinline__ float to_float_bits(std::uint16_t bits)
{
    float value;
    if constexpr (std::is_same_v<Element, f16>) {
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    } else {
        value = __uint_as_float(std::uint32_t{bits} << 16);
    }
    return value;
}

/// 2^x and log2(x), to about 2^-22; denormals count as zero.
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Four int8 to two pairs of f16, exactly: bytes 0 and 2, bytes 1 and 3. 0x64xx is 1024 + xx in f16.
__device__ __forceinline__ void unpack_int8(std::uint32_t bytes, std::uint32_t& even, std::uint32_t& odd)
{
    const std::uint32_t biased = bytes ^ 0x80808080U;
    const std::uint32_t low = __byte_perm(biased, 0x64646464U, 0x4240);
    const std::uint32_t high = __byte_perm(biased, 0x64646464U, 0x4341);
    asm("sub.f16x2 %0, %1, %2;" : "=r"(even) : "r"(low), "r"(0x64806480U));
    asm("sub.f16x2 %0, %1, %2;" : "=r"(odd) : "r"(high), "r"(0x64806480U));
}

/// The offset of a 16-byte piece of a row in a tile of rows of `kRowBytes`: pieces are exchanged so that eight successive
/// rows have the same piece in eight different bank groups, for any multiple of 16 bytes.
template <int kRowBytes> __device__ __forceinline__ std::uint32_t tile_offset(int row, int piece)
{
    constexpr int kPieces = kRowBytes / 16;
    constexpr int kLowBit = kPieces & -kPieces;
    constexpr int kPeriod = kLowBit < 8 ? kLowBit : 8;
    const int exchanged = piece ^ ((row / (8 / kPeriod)) & (kPeriod - 1));
    return static_cast<std::uint32_t>(row * kRowBytes + exchanged * 16);
}

} // namespace oasis::cuda::detail
