// SPDX-License-Identifier: Apache-2.0
//
// The compiled scoring kernels: one table per instruction set, the best one chosen when first asked for.
#include <oasis/cpu/score_kernels.hpp>

#include "cpu/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/score_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h

#include "cpu/simd_tables.hpp"

// Without vectors of four lanes the scalar table is what there is.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "cpu/simd_score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::scoring::HWY_NAMESPACE {

const ScoreKernels& score_table()
{
    static constexpr ScoreKernels kTable{estimate, block_log_mass, max_finite, exp_shifted, max_into, log_mean, OASIS_SIMD_NAME};
    return kTable;
}

} // namespace oasis::cpu::scoring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace oasis::cpu {
namespace {

/// What this machine can run.
const SimdTables<ScoreKernels>& tables()
{
    static const SimdTables<ScoreKernels> kTables = [] {
        SimdTables<ScoreKernels> found;
        found.add(scalar_score_kernels());
        [[maybe_unused]] const std::int64_t machine = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_SSE4
        if (machine & HWY_SSE4) { found.add(scoring::N_SSE4::score_table()); }
#endif
#if HWY_TARGETS & HWY_AVX2
        if (machine & HWY_AVX2) { found.add(scoring::N_AVX2::score_table()); }
#endif
#if HWY_TARGETS & HWY_AVX3
        if (machine & HWY_AVX3) { found.add(scoring::N_AVX3::score_table()); }
#endif
#if HWY_TARGETS & HWY_NEON
        if (machine & HWY_NEON) { found.add(scoring::N_NEON::score_table()); }
#endif
        return found;
    }();
    return kTables;
}

} // namespace

std::span<const ScoreKernels* const> all_score_kernels() { return tables().all(); }

const ScoreKernels& score_kernels()
{
    static const ScoreKernels& table = tables().choose();
    return table;
}

} // namespace oasis::cpu
#endif // HWY_ONCE
