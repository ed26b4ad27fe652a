// SPDX-License-Identifier: Apache-2.0
//
// Tables of kernels by instruction set: what this machine can run, and which one is used. Needs cpu/simd_targets.hpp before it.
#pragma once

#include <oasis/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

/// Name of the table that is being compiled, by Highway's current target.
#define OASIS_SIMD_NAME                                                                                                                              \
    (HWY_TARGET == HWY_AVX3   ? "avx512"                                                                                                             \
     : HWY_TARGET == HWY_AVX2 ? "avx2"                                                                                                               \
     : HWY_TARGET == HWY_SSE4 ? "sse4"                                                                                                               \
     : HWY_TARGET == HWY_NEON ? "neon"                                                                                                               \
                              : "simd128")

namespace oasis::cpu {

/// Worst first. `Kernels` has a `name`.
template <class Kernels>
class SimdTables {
public:
    void add(const Kernels& table) { items_[count_++] = &table; }
    std::span<const Kernels* const> all() const { return {items_.data(), count_}; }

    /// The best one, or the one that OASIS_SIMD in the environment names.
    const Kernels& choose() const
    {
        const char* wanted = std::getenv("OASIS_SIMD");
        if (wanted == nullptr || *wanted == '\0') { return *all().back(); }
        std::string names;
        for (const Kernels* table : all()) {
            if (std::string_view(table->name) == wanted) { return *table; }
            names.append(names.empty() ? "" : ", ").append(table->name);
        }
        throw InvalidArgument(oasis::detail::text("OASIS_SIMD is \"", wanted, "\", this machine has: ", names));
    }

private:
    std::array<const Kernels*, 4> items_{};
    std::size_t count_ = 0;
};

} // namespace oasis::cpu
