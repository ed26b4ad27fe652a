// SPDX-License-Identifier: Apache-2.0
//
// The compiled scoring kernels: one table per instruction set, the best one chosen when first asked for.
#include <oasis/core/error.hpp>
#include <oasis/cpu/score_kernels.hpp>

#include <hwy/detect_targets.h>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/score_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h

// Without vectors of four lanes the scalar table is what there is.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "cpu/simd_score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::scoring::HWY_NAMESPACE {

const ScoreKernels& score_table()
{
    static constexpr ScoreKernels kTable
    {
        estimate, block_log_mass, max_finite, exp_shifted, max_into, log_mean,
#if HWY_TARGET == HWY_AVX3
            "avx512"
#elif HWY_TARGET == HWY_AVX2
            "avx2"
#elif HWY_TARGET == HWY_SSE4
            "sse4"
#elif HWY_TARGET == HWY_NEON
            "neon"
#else
            "simd128"
#endif
    };
    return kTable;
}

} // namespace oasis::cpu::scoring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

namespace oasis::cpu {
namespace {

/// The tables this machine can run, worst first.
struct ScoreTables {
    std::array<const ScoreKernels*, 4> items{};
    std::size_t count = 0;

    ScoreTables()
    {
        add(scalar_score_kernels());
        [[maybe_unused]] const std::int64_t machine = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_SSE4
        if (machine & HWY_SSE4) { add(scoring::N_SSE4::score_table()); }
#endif
#if HWY_TARGETS & HWY_AVX2
        if (machine & HWY_AVX2) { add(scoring::N_AVX2::score_table()); }
#endif
#if HWY_TARGETS & HWY_AVX3
        if (machine & HWY_AVX3) { add(scoring::N_AVX3::score_table()); }
#endif
#if HWY_TARGETS & HWY_NEON
        if (machine & HWY_NEON) { add(scoring::N_NEON::score_table()); }
#endif
    }

    void add(const ScoreKernels& table) { items[count++] = &table; }
};

const ScoreKernels& choose()
{
    const std::span<const ScoreKernels* const> tables = all_score_kernels();
    const char* wanted = std::getenv("OASIS_SIMD");
    if (wanted == nullptr || *wanted == '\0') { return *tables.back(); }
    const auto found = std::find_if(tables.begin(), tables.end(),
                                    [&](const ScoreKernels* table) { return std::string_view(table->name) == wanted; });
    std::string names;
    for (const ScoreKernels* table : tables) { names.append(names.empty() ? "" : ", ").append(table->name); }
    oasis::detail::expects(found != tables.end(), "OASIS_SIMD is \"", wanted, "\", this machine has: ", names);
    return **found;
}

} // namespace

std::span<const ScoreKernels* const> all_score_kernels()
{
    static const ScoreTables kTables;
    return {kTables.items.data(), kTables.count};
}

const ScoreKernels& score_kernels()
{
    static const ScoreKernels& table = choose();
    return table;
}

} // namespace oasis::cpu
#endif // HWY_ONCE
