// SPDX-License-Identifier: Apache-2.0
//
// The compiled attention kernels: one table per instruction set, the best one chosen when first asked for.
#include <oasis/core/error.hpp>
#include <oasis/cpu/attend_kernels.hpp>

#include <hwy/detect_targets.h>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attend_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h

// Without vectors of four lanes the scalar table is what there is.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "cpu/simd_prefill-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::HWY_NAMESPACE {

const AttendKernels& attend_table()
{
    static constexpr AttendKernels kTable
    {
        attend_chunk, prefill, block_mass, encode_int8, decode_int8, to_float, from_float,
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

} // namespace oasis::cpu::HWY_NAMESPACE
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
struct Tables {
    std::array<const AttendKernels*, 4> items{};
    std::size_t count = 0;

    Tables()
    {
        add(scalar_attend_kernels());
        [[maybe_unused]] const std::int64_t machine = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_SSE4
        if (machine & HWY_SSE4) { add(N_SSE4::attend_table()); }
#endif
#if HWY_TARGETS & HWY_AVX2
        if (machine & HWY_AVX2) { add(N_AVX2::attend_table()); }
#endif
#if HWY_TARGETS & HWY_AVX3
        if (machine & HWY_AVX3) { add(N_AVX3::attend_table()); }
#endif
#if HWY_TARGETS & HWY_NEON
        if (machine & HWY_NEON) { add(N_NEON::attend_table()); }
#endif
    }

    void add(const AttendKernels& table) { items[count++] = &table; }
};

const AttendKernels& choose()
{
    const std::span<const AttendKernels* const> tables = all_attend_kernels();
    const char* wanted = std::getenv("OASIS_SIMD");
    if (wanted == nullptr || *wanted == '\0') { return *tables.back(); }
    const auto found = std::find_if(tables.begin(), tables.end(), [&](const AttendKernels* table) {
        return std::string_view(table->name) == wanted;
    });
    std::string names;
    for (const AttendKernels* table : tables) { names.append(names.empty() ? "" : ", ").append(table->name); }
    oasis::detail::expects(found != tables.end(), "OASIS_SIMD is \"", wanted, "\", this machine has: ", names);
    return **found;
}

} // namespace

std::span<const AttendKernels* const> all_attend_kernels()
{
    static const Tables kTables;
    return {kTables.items.data(), kTables.count};
}

const AttendKernels& attend_kernels()
{
    static const AttendKernels& table = choose();
    return table;
}

} // namespace oasis::cpu
#endif // HWY_ONCE
