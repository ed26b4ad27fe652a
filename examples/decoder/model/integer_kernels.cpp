// SPDX-License-Identifier: Apache-2.0
#include "model/integer_kernels.hpp"

#include "model/instruction_sets.hpp"

#include <oasis/core/error.hpp>
#include <oasis/core/half.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#if defined(OASIS_DECODE_X86)
#include <immintrin.h>
#endif

// Functions up to the matching END are compiled for an instruction set.
#if defined(__clang__)
#define OASIS_DECODE_PRAGMA(x) _Pragma(#x)
#define OASIS_DECODE_BEGIN(set)                                                                                        \
    OASIS_DECODE_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define OASIS_DECODE_END _Pragma("clang attribute pop")
#else
#define OASIS_DECODE_PRAGMA(x) _Pragma(#x)
#define OASIS_DECODE_BEGIN(set) _Pragma("GCC push_options") OASIS_DECODE_PRAGMA(GCC target(set))
#define OASIS_DECODE_END _Pragma("GCC pop_options")
#endif

namespace oasis_decode {
namespace {

OASIS_DECODE_INLINE std::int32_t four_bytes(const void* from)
{
    std::int32_t word = 0;
    std::memcpy(&word, from, sizeof word);
    return word;
}

namespace portable {

constexpr int kLanes = 4;
constexpr int kTileRows = 1;
constexpr int kTilePanels = 1;
using Ints = std::int32_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));
struct Quads {
    std::int32_t codes[4];
};

inline Ints all(std::int32_t x) { return Ints{} + x; }
inline Floats all(float x) { return Floats{x, x, x, x}; }
inline Ints load(const std::uint8_t* from)
{
    Ints v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
inline Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }
inline Floats half_floats(const std::uint16_t* from)
{
    Floats v{};
    for (int i = 0; i < kLanes; ++i) { v[i] = oasis::to_float(oasis::f16{from[i]}); }
    return v;
}
inline Ints low(Ints v) { return v & 0x0F0F0F0F; }
inline Ints high(Ints v) { return (v >> 4) & 0x0F0F0F0F; }
inline Quads quads(const std::int8_t* from) { return {{from[0], from[1], from[2], from[3]}}; }
inline Ints dot(Ints sum, Ints w, const Quads& x)
{
    for (int i = 0; i < 4; ++i) { sum += ((w >> (8 * i)) & 0xFF) * x.codes[i]; }
    return sum;
}
inline Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }

#include "model/integer_kernels-inl.h"

constexpr IntegerKernels kKernels = {quantise, multiply, "scalar"};

} // namespace portable

#if defined(OASIS_DECODE_X86)
OASIS_DECODE_BEGIN("avx2,fma,f16c")
namespace avx2 {

constexpr int kLanes = 8;
constexpr int kTileRows = 2;
constexpr int kTilePanels = 1;
using Ints = __m256i;
using Floats = __m256;
// Bytes 0 and 2, and bytes 1 and 3, as words: products of pairs of words add up in 32 bits, so nothing saturates.
struct Quads {
    Ints even, odd;
};

inline Ints all(std::int32_t x) { return _mm256_set1_epi32(x); }
inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Ints load(const std::uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const Ints*>(from)); }
inline Floats to_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
inline Floats half_floats(const std::uint16_t* from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Ints low(Ints v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline Ints high(Ints v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
inline Quads quads(const std::int8_t* from)
{
    const Ints v = _mm256_set1_epi32(four_bytes(from));
    return {_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
}
inline Ints dot(Ints sum, Ints w, const Quads& x)
{
    const Ints even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), x.even);
    const Ints odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), x.odd);
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

#include "model/integer_kernels-inl.h"

constexpr IntegerKernels kKernels = {quantise, multiply, "avx2"};

} // namespace avx2
OASIS_DECODE_END

OASIS_DECODE_BEGIN("avx512f,avx512bw,avx512vl,avx512vnni,fma")
namespace avx512 {

constexpr int kLanes = 16;
constexpr int kTileRows = 6;
constexpr int kTilePanels = 2;
using Ints = __m512i;
using Floats = __m512;
using Quads = __m512i;

inline Ints all(std::int32_t x) { return _mm512_set1_epi32(x); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Ints load(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
// With a mask of all lanes: GCC 12 warns of what the plain forms of its header leave open.
inline Floats to_floats(Ints v) { return _mm512_maskz_cvtepi32_ps(0xFFFF, v); }
inline Floats half_floats(const std::uint16_t* from)
{
    return _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Ints low(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline Ints high(Ints v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
inline Quads quads(const std::int8_t* from) { return _mm512_set1_epi32(four_bytes(from)); }
inline Ints dot(Ints sum, Ints w, Quads x) { return _mm512_dpbusd_epi32(sum, w, x); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

#include "model/integer_kernels-inl.h"

constexpr IntegerKernels kKernels = {quantise, multiply, "avx512"};

} // namespace avx512
OASIS_DECODE_END
#endif

} // namespace

QuantisedRows::QuantisedRows(std::int64_t rows, std::int64_t widest)
    : codes_(static_cast<std::size_t>(rows * widest)),
      scales_(static_cast<std::size_t>(rows * (widest / Matrix::kBlock))),
      sums_(scales_.size()),
      scaled_sums_(scales_.size())
{
}

void QuantisedRows::resize(std::int64_t rows, std::int64_t width)
{
    oasis::detail::expects(width % Matrix::kBlock == 0 && static_cast<std::size_t>(rows * width) <= codes_.size(),
                           "QuantisedRows: ", rows, " rows of ", width, " values, more than ", codes_.size(),
                           " in all or no whole blocks");
    rows_ = rows;
    width_ = width;
}

std::span<const IntegerKernels* const> all_integer_kernels()
{
    struct Found {
        std::array<const IntegerKernels*, 3> items{&portable::kKernels};
        std::size_t count = 1;
    };
    static const Found kFound = [] {
        Found found;
#if defined(OASIS_DECODE_X86)
        const auto add = [&](const IntegerKernels& kernels) { found.items[found.count++] = &kernels; };
        const bool has256 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); // all of them have F16C
        if (has256) { add(avx2::kKernels); }
        if (has256 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512vnni")) {
            add(avx512::kKernels);
        }
#endif
        return found;
    }();
    return {kFound.items.data(), kFound.count};
}

const IntegerKernels& integer_kernels()
{
    static const IntegerKernels& kChosen = []() -> const IntegerKernels& {
        const char* const wanted = std::getenv("OASIS_SIMD");
        if (!wanted || *wanted == '\0') { return *all_integer_kernels().back(); }
        for (const IntegerKernels* kernels : all_integer_kernels()) {
            if (std::string_view(kernels->name) == wanted) { return *kernels; }
        }
        return portable::kKernels;
    }();
    return kChosen;
}

} // namespace oasis_decode
