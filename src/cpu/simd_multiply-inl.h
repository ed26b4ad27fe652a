// SPDX-License-Identifier: Apache-2.0
//
// The small matrix product that attention is made of. Every element is one chain of fused multiply-adds in ascending
// order of the inner index, so its bits depend neither on the tile it falls into nor on its neighbours.
#if defined(OASIS_CPU_SIMD_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OASIS_CPU_SIMD_MULTIPLY_INL_H_
#undef OASIS_CPU_SIMD_MULTIPLY_INL_H_
#else
#define OASIS_CPU_SIMD_MULTIPLY_INL_H_
#endif

#include "cpu/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oasis::cpu::HWY_NAMESPACE {

/// c[m, n] = (add ? c : 0) + sum over k of a[m, k] * b[k, n]; rows of b and c are contiguous.
struct Product {
    std::int32_t m = 0;
    std::int32_t n = 0; ///< a multiple of the vector length
    std::int32_t k = 0;
    const float* a = nullptr;
    std::ptrdiff_t a_row = 0;  ///< floats between rows of a
    std::ptrdiff_t a_step = 1; ///< floats between consecutive k of a row
    const float* b = nullptr;
    std::ptrdiff_t b_row = 0;
    float* c = nullptr;
    std::ptrdiff_t c_row = 0;
    bool add = false;
};

inline constexpr std::int32_t kTileRows = 6;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON // 32 registers
inline constexpr std::int32_t kTileVecs = 4;
#else
inline constexpr std::int32_t kTileVecs = 2;
#endif

template <int kRows, int kVecs> HWY_NOINLINE void multiply_tile(const Product& p, std::int32_t m, std::int32_t n)
{
    const F32 d;
    const float* a = p.a + m * p.a_row;
    const float* b = p.b + n;
    float* c = p.c + m * p.c_row + n;
    Vec sums[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) { sums[r][v] = p.add ? load_lanes(c + r * p.c_row + v * kLanes) : hn::Zero(d); }
    }
    for (std::int32_t k = 0; k < p.k; ++k, a += p.a_step, b += p.b_row) {
        Vec column[kVecs];
        for (int v = 0; v < kVecs; ++v) { column[v] = load_lanes(b + v * kLanes); }
        for (int r = 0; r < kRows; ++r) {
            const Vec weight = hn::Set(d, a[r * p.a_row]);
            for (int v = 0; v < kVecs; ++v) { sums[r][v] = hn::MulAdd(weight, column[v], sums[r][v]); }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) { hn::StoreU(sums[r][v], d, c + r * p.c_row + v * kLanes); }
    }
}

template <int kVecs> HWY_INLINE void multiply_columns(const Product& p, std::int32_t n)
{
    std::int32_t m = 0;
    for (; m + kTileRows <= p.m; m += kTileRows) { multiply_tile<kTileRows, kVecs>(p, m, n); }
    switch (p.m - m) {
    case 1: multiply_tile<1, kVecs>(p, m, n); break;
    case 2: multiply_tile<2, kVecs>(p, m, n); break;
    case 3: multiply_tile<3, kVecs>(p, m, n); break;
    case 4: multiply_tile<4, kVecs>(p, m, n); break;
    case 5: multiply_tile<5, kVecs>(p, m, n); break;
    default: break;
    }
}

inline void multiply(const Product& p)
{
    std::int32_t n = 0;
    for (; n + kTileVecs * kLanes <= p.n; n += kTileVecs * kLanes) { multiply_columns<kTileVecs>(p, n); }
    if constexpr (kTileVecs == 4) {
        switch ((p.n - n) / kLanes) {
        case 3: multiply_columns<3>(p, n); break;
        case 2: multiply_columns<2>(p, n); break;
        case 1: multiply_columns<1>(p, n); break;
        default: break;
        }
    } else {
        if (n < p.n) { multiply_columns<1>(p, n); }
    }
}

} // namespace oasis::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif // per-target include guard
