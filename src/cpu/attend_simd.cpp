// SPDX-License-Identifier: Apache-2.0
//
// The compiled attention kernels: one table per instruction set, the best one chosen when first asked for.
#include <oasis/cpu/attend_kernels.hpp>

#include "cpu/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attend_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h

#include "cpu/simd_tables.hpp"

// Without vectors of four lanes the scalar table is what there is.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "cpu/simd_prefill-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::HWY_NAMESPACE {

const AttendKernels& attend_table()
{
    static constexpr AttendKernels kTable{attend_chunk, prefill, block_mass, encode_int8, decode_int8, to_float, from_float, OASIS_SIMD_NAME};
    return kTable;
}

} // namespace oasis::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace oasis::cpu {
namespace {

/// What this machine can run.
const SimdTables<AttendKernels>& tables()
{
    static const SimdTables<AttendKernels> kTables = [] {
        SimdTables<AttendKernels> found;
        found.add(scalar_attend_kernels());
        [[maybe_unused]] const std::int64_t machine = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_SSE4
        if (machine & HWY_SSE4) { found.add(N_SSE4::attend_table()); }
#endif
#if HWY_TARGETS & HWY_AVX2
        if (machine & HWY_AVX2) { found.add(N_AVX2::attend_table()); }
#endif
#if HWY_TARGETS & HWY_AVX3
        if (machine & HWY_AVX3) { found.add(N_AVX3::attend_table()); }
#endif
#if HWY_TARGETS & HWY_NEON
        if (machine & HWY_NEON) { found.add(N_NEON::attend_table()); }
#endif
        return found;
    }();
    return kTables;
}

} // namespace

std::span<const AttendKernels* const> all_attend_kernels() { return tables().all(); }

const AttendKernels& attend_kernels()
{
    static const AttendKernels& table = tables().choose();
    return table;
}

} // namespace oasis::cpu
#endif // HWY_ONCE
