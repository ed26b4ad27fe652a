// SPDX-License-Identifier: Apache-2.0
#include "model/kernels.hpp"

#include "model/instruction_sets.hpp"

#include <oasis/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(OASIS_DECODE_X86) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OASIS_DECODE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OASIS_DECODE_CLONES // one version: sanitizers do not get on with the resolvers that clones need
#endif

namespace oasis_decode {
namespace {

constexpr std::int64_t kLanes = Matrix::kLanes;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// Halves are added to halves until one lane is left.
OASIS_DECODE_INLINE float sum(const Lanes& v)
{
    const auto eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    const auto two = four + __builtin_shufflevector(four, four, 2, 3, 2, 3);
    return two[0] + two[1];
}

using Words = std::uint32_t __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
using Integers = std::int32_t __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

// Each of these gives the 32 weights of block b as two vectors of floats.
struct LoadF32 {
    OASIS_DECODE_INLINE static void block(const std::uint32_t* codes, const float*, std::int64_t b, Lanes& low,
                                          Lanes& high)
    {
        low = reinterpret_cast<const Lanes&>(codes[b * Matrix::kBlock]);
        high = reinterpret_cast<const Lanes&>(codes[b * Matrix::kBlock + kLanes]);
    }
};

struct LoadBF16 {
    OASIS_DECODE_INLINE static void block(const std::uint32_t* codes, const float*, std::int64_t b, Lanes& low,
                                          Lanes& high)
    {
        const Words both = *reinterpret_cast<const Words*>(codes + b * kLanes);
        low = reinterpret_cast<Lanes>(both << 16);
        high = reinterpret_cast<Lanes>(both & 0xFFFF0000U);
    }
};

struct LoadQ8 {
    OASIS_DECODE_INLINE static void block(const std::uint32_t* codes, const float* scales, std::int64_t b, Lanes& low,
                                          Lanes& high)
    {
        const Words four =
            *reinterpret_cast<const Words*>(codes + b / 2 * kLanes) >> static_cast<std::uint32_t>(b % 2 * 16);
        low = __builtin_convertvector(reinterpret_cast<Integers>(four << 24) >> 24, Lanes) * scales[b];
        high = __builtin_convertvector(reinterpret_cast<Integers>(four << 16) >> 24, Lanes) * scales[b];
    }
};

struct LoadQ4 {
    OASIS_DECODE_INLINE static void block(const std::uint32_t* codes, const float* scales, std::int64_t b, Lanes& low,
                                          Lanes& high)
    {
        const Words eight =
            *reinterpret_cast<const Words*>(codes + b / 4 * kLanes) >> static_cast<std::uint32_t>(b % 4 * 8);
        low = __builtin_convertvector(reinterpret_cast<Integers>(eight & 0xFU), Lanes) * scales[2 * b] +
              scales[2 * b + 1];
        high = __builtin_convertvector(reinterpret_cast<Integers>((eight >> 4) & 0xFU), Lanes) * scales[2 * b] +
               scales[2 * b + 1];
    }
};

struct LoadQ8Affine {
    OASIS_DECODE_INLINE static void block(const std::uint32_t* codes, const float* scales, std::int64_t b, Lanes& low,
                                          Lanes& high)
    {
        const Words four =
            *reinterpret_cast<const Words*>(codes + b / 2 * kLanes) >> static_cast<std::uint32_t>(b % 2 * 16);
        const float* const at = scales + 4 * b;
        low = __builtin_convertvector(reinterpret_cast<Integers>(four << 24) >> 24, Lanes) * at[0] + at[1];
        high = __builtin_convertvector(reinterpret_cast<Integers>(four << 16) >> 24, Lanes) * at[2] + at[3];
    }
};

// Dot products of one row of weights with Rows rows of x: two accumulators a row, in the same order whatever Rows is.
template <class Load, int Rows>
OASIS_DECODE_INLINE void dot_rows(const std::uint32_t* codes, const float* scales, const float* x, std::int64_t in,
                                  float* out)
{
    Lanes even[Rows] = {};
    Lanes odd[Rows] = {};
    const std::int64_t blocks = in / Matrix::kBlock;
    for (std::int64_t b = 0; b < blocks; ++b) {
        Lanes low, high;
        Load::block(codes, scales, b, low, high);
        for (int r = 0; r < Rows; ++r) {
            const float* const at = x + r * in + b * Matrix::kBlock;
            even[r] += low * *reinterpret_cast<const Lanes*>(at);
            odd[r] += high * *reinterpret_cast<const Lanes*>(at + kLanes);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        const Lanes both = even[r] + odd[r];
        float total = sum(both);
        // Only F32 has rows that are no whole number of blocks.
        for (std::int64_t j = blocks * Matrix::kBlock; j < in; ++j) {
            total += reinterpret_cast<const float*>(codes)[j] * x[r * in + j];
        }
        out[r] = total;
    }
}

template <class Load> OASIS_DECODE_INLINE void few_columns_of(const Product& p, std::int64_t begin, std::int64_t end)
{
    const std::int64_t in = p.w->in();
    for (std::int64_t o = begin; o < end; ++o) {
        const std::uint32_t* codes = p.w->codes(o);
        const float* scales = p.w->scales(o);
        for (std::int64_t r = 0; r < p.rows;) {
            float dots[8];
            const float* x = p.x + r * in;
            const std::int64_t taken = std::min<std::int64_t>(p.rows - r, 8);
            switch (taken) {
            case 8: dot_rows<Load, 8>(codes, scales, x, in, dots); break;
            case 7: dot_rows<Load, 7>(codes, scales, x, in, dots); break;
            case 6: dot_rows<Load, 6>(codes, scales, x, in, dots); break;
            case 5: dot_rows<Load, 5>(codes, scales, x, in, dots); break;
            case 4: dot_rows<Load, 4>(codes, scales, x, in, dots); break;
            case 3: dot_rows<Load, 3>(codes, scales, x, in, dots); break;
            case 2: dot_rows<Load, 2>(codes, scales, x, in, dots); break;
            default: dot_rows<Load, 1>(codes, scales, x, in, dots);
            }
            for (std::int64_t k = 0; k < taken; ++k) {
                float& y = p.y[(r + k) * p.out() + o];
                y = p.accumulate ? y + dots[k] : dots[k];
            }
            r += taken;
        }
    }
}

OASIS_DECODE_CLONES
void few_columns(const Product& p, std::int64_t begin, std::int64_t end)
{
    switch (p.w->code()) {
    case Matrix::Code::kF32: few_columns_of<LoadF32>(p, begin, end); break;
    case Matrix::Code::kBF16: few_columns_of<LoadBF16>(p, begin, end); break;
    case Matrix::Code::kQ8: few_columns_of<LoadQ8>(p, begin, end); break;
    case Matrix::Code::kQ4: few_columns_of<LoadQ4>(p, begin, end); break;
    case Matrix::Code::kQ8Affine: few_columns_of<LoadQ8Affine>(p, begin, end); break;
    default: break; // panels are multiplied as integers
    }
}

// A tile holds kTileColumns rows of the weights, transposed: value of weight row j at input k is tile[k * kTileColumns + j].
constexpr std::int64_t kTileColumns = 2 * kLanes;
// Inputs that are worked on at a time: this much of a tile stays in the first- or second-level cache for all rows.
constexpr std::int64_t kTileDepth = 384;

// Transposes 16 x 16 values in place: four rounds, each interleaves the first half of the vectors with the second.
OASIS_DECODE_INLINE void transpose(Lanes* rows)
{
    for (int round = 0; round < 4; ++round) {
        Lanes next[kLanes];
        for (std::int64_t i = 0; i < kLanes / 2; ++i) {
            const Lanes a = rows[i], b = rows[i + kLanes / 2];
            next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            next[2 * i + 1] =
                __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        for (std::int64_t i = 0; i < kLanes; ++i) { rows[i] = next[i]; }
    }
}

template <class Load>
OASIS_DECODE_INLINE void expand_of(const Matrix& w, std::int64_t first, std::int64_t columns, float* tile)
{
    const std::int64_t blocks = w.in() / Matrix::kBlock;
    for (std::int64_t j = 0; j < columns; j += kLanes) {
        const std::int64_t here = std::min(kLanes, columns - j);
        for (std::int64_t b = 0; b < blocks; ++b) {
            Lanes low[kLanes] = {};
            Lanes high[kLanes] = {};
            for (std::int64_t i = 0; i < here; ++i) {
                Load::block(w.codes(first + j + i), w.scales(first + j + i), b, low[i], high[i]);
            }
            transpose(low);
            transpose(high);
            float* at = tile + b * Matrix::kBlock * kTileColumns + j;
            for (std::int64_t k = 0; k < kLanes; ++k) {
                std::memcpy(at + k * kTileColumns, &low[k], sizeof low[k]);
                std::memcpy(at + (k + kLanes) * kTileColumns, &high[k], sizeof high[k]);
            }
        }
        for (std::int64_t i = 0; i < here; ++i) {
            for (std::int64_t k = blocks * Matrix::kBlock; k < w.in(); ++k) {
                tile[k * kTileColumns + j + i] = w.floats(first + j + i)[k];
            }
        }
    }
}

// Makes weight rows [first, first + columns) a tile; what lies beyond them in it is zero.
OASIS_DECODE_CLONES
void expand(const Matrix& w, std::int64_t first, std::int64_t columns, float* tile)
{
    if (columns < kTileColumns) { std::fill_n(tile, w.in() * kTileColumns, 0.0F); }
    switch (w.code()) {
    case Matrix::Code::kF32: expand_of<LoadF32>(w, first, columns, tile); break;
    case Matrix::Code::kBF16: expand_of<LoadBF16>(w, first, columns, tile); break;
    case Matrix::Code::kQ8: expand_of<LoadQ8>(w, first, columns, tile); break;
    case Matrix::Code::kQ4: expand_of<LoadQ4>(w, first, columns, tile); break;
    case Matrix::Code::kQ8Affine: expand_of<LoadQ8Affine>(w, first, columns, tile); break;
    default: break;
    }
}

// Adds x[Rows, depth] * tile[depth, 16] to sums, input by input, so that the order of a sum depends on nothing.
// Six rows of two vectors fill the registers of AVX-512, of one vector those of AVX2.
template <int Rows, int Vectors>
OASIS_DECODE_INLINE void micro(const float* x, std::int64_t stride, const float* tile, std::int64_t depth, float* sums)
{
    Lanes acc[Rows][Vectors];
    std::memcpy(acc, sums, sizeof acc);
    for (std::int64_t k = 0; k < depth; ++k) {
        Lanes w[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            w[v] = *reinterpret_cast<const Lanes*>(tile + k * kTileColumns + v * kLanes);
        }
        for (int r = 0; r < Rows; ++r) {
            const float value = x[r * stride + k];
            for (int v = 0; v < Vectors; ++v) { acc[r][v] += w[v] * value; }
        }
    }
    std::memcpy(sums, acc, sizeof acc);
}

template <int Rows, int Vectors>
OASIS_DECODE_INLINE void micro_rows(const Product& p, std::int64_t row, std::int64_t k, std::int64_t depth,
                                    const float* tile, std::int64_t first, std::int64_t columns)
{
    constexpr std::int64_t kWidth = Vectors * kLanes;
    const std::int64_t out = p.out();
    for (std::int64_t at = 0; at < columns; at += kWidth) {
        float sums[Rows * kWidth] = {};
        const std::int64_t used = std::min(kWidth, columns - at);
        float* const y = p.y + row * out + first + at;
        if (k > 0 || p.accumulate) {
            for (int r = 0; r < Rows; ++r) { std::copy_n(y + r * out, used, sums + r * kWidth); }
        }
        micro<Rows, Vectors>(p.x + row * p.w->in() + k, p.w->in(), tile + k * kTileColumns + at, depth, sums);
        for (int r = 0; r < Rows; ++r) { std::copy_n(sums + r * kWidth, used, y + r * out); }
    }
}

template <int Vectors>
OASIS_DECODE_INLINE void tile_product_of(const Product& p, const float* tile, std::int64_t first, std::int64_t columns)
{
    constexpr int kRows = 6;
    for (std::int64_t k = 0; k < p.w->in(); k += kTileDepth) {
        const std::int64_t depth = std::min(kTileDepth, p.w->in() - k);
        std::int64_t row = 0;
        for (; row + kRows <= p.rows; row += kRows) {
            micro_rows<kRows, Vectors>(p, row, k, depth, tile, first, columns);
        }
        for (; row + 2 <= p.rows; row += 2) { micro_rows<2, Vectors>(p, row, k, depth, tile, first, columns); }
        if (row < p.rows) { micro_rows<1, Vectors>(p, row, k, depth, tile, first, columns); }
    }
}

#if defined(OASIS_DECODE_X86)
__attribute__((target("avx512f,avx512bw,avx512vl,fma"))) void tile_product_512(const Product& p, const float* tile,
                                                                               std::int64_t first, std::int64_t columns)
{
    tile_product_of<2>(p, tile, first, columns);
}
__attribute__((target("avx2,fma"))) void tile_product_256(const Product& p, const float* tile, std::int64_t first,
                                                          std::int64_t columns)
{
    tile_product_of<1>(p, tile, first, columns);
}
#endif

void tile_product_plain(const Product& p, const float* tile, std::int64_t first, std::int64_t columns)
{
    tile_product_of<1>(p, tile, first, columns);
}

// y[rows, first...] of all rows against one tile.
void tile_product(const Product& p, const float* tile, std::int64_t first, std::int64_t columns)
{
#if defined(OASIS_DECODE_X86)
    static const bool has512 =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    static const bool has256 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has512) { return tile_product_512(p, tile, first, columns); }
    if (has256) { return tile_product_256(p, tile, first, columns); }
#endif
    tile_product_plain(p, tile, first, columns);
}

// exp(x) for x <= 0, within 2e-7 of it relatively.
OASIS_DECODE_INLINE void exp_negative(const Lanes& argument, Lanes& out)
{
    const Lanes x = argument > -87.0F ? argument : Lanes{} - 87.0F; // NaN too
    const Lanes scaled = x * 1.44269504F;
    const Integers whole_number = __builtin_convertvector(scaled - 0.5F, Integers); // rounds, as scaled <= 0
    const Lanes whole = __builtin_convertvector(whole_number, Lanes);
    // ln 2 in two parts keeps the remainder exact.
    const Lanes rest = (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
    Lanes poly = Lanes{} + 1.0F / 5040.0F;
    poly = poly * rest + 1.0F / 720.0F;
    poly = poly * rest + 1.0F / 120.0F;
    poly = poly * rest + 1.0F / 24.0F;
    poly = poly * rest + 1.0F / 6.0F;
    poly = poly * rest + 0.5F;
    poly = poly * rest + 1.0F;
    poly = poly * rest + 1.0F;
    out = poly * reinterpret_cast<Lanes>((whole_number + 127) << 23);
}

// Up to a vector's worth of values; the lanes beyond `count` are `filler`.
OASIS_DECODE_INLINE void load_some(const float* from, std::int64_t count, float filler, Lanes& out)
{
    out = Lanes{} + filler;
    std::memcpy(&out, from, static_cast<std::size_t>(std::min(count, kLanes)) * sizeof(float));
}

OASIS_DECODE_CLONES
void swiglu_row(std::int64_t width, const float* __restrict gate, const float* __restrict up, float* __restrict act)
{
    for (std::int64_t i = 0; i < width; i += kLanes) {
        const std::int64_t count = std::min(kLanes, width - i);
        Lanes g, u, e;
        load_some(gate + i, count, 0.0F, g);
        load_some(up + i, count, 0.0F, u);
        exp_negative(g >= 0.0F ? -g : g, e);
        const Lanes sigmoid = (g >= 0.0F ? Lanes{} + 1.0F : e) / (e + 1.0F);
        const Lanes out = g * sigmoid * u;
        std::memcpy(act + i, &out, static_cast<std::size_t>(count) * sizeof(float));
    }
}

OASIS_DECODE_CLONES
float sum_exp_row(std::int64_t width, const float* x, float top)
{
    Lanes total = {};
    Lanes v, e;
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        load_some(x + i, kLanes, top, v);
        exp_negative(v - top, e);
        total += e;
    }
    load_some(x + i, width - i, top, v);
    exp_negative(v - top, e);
    for (std::int64_t lane = width - i; lane < kLanes; ++lane) { e[lane] = 0; }
    return sum(total + e);
}

OASIS_DECODE_CLONES
void rms_row(std::int64_t width, const float* x, const float* weight, float eps, float* out)
{
    Lanes squares = {};
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const Lanes v = *reinterpret_cast<const Lanes*>(x + i);
        squares += v * v;
    }
    float total = sum(squares);
    for (; i < width; ++i) { total += x[i] * x[i]; }
    const float scale = 1.0F / std::sqrt(total / static_cast<float>(width) + eps);
    for (i = 0; i < width; ++i) { out[i] = x[i] * scale * weight[i]; }
}

// Work below this many multiplications is not worth waking a thread for.
constexpr std::int64_t kWorthSharing = 1 << 15;

// Rows that are quantised at a time: they stay in the second-level cache while the weights go by.
constexpr std::int64_t kQuantisedRows = 256;
constexpr std::int64_t kPanelGrain = 2;
constexpr std::int64_t kRangesPerThread = 4;

// Cuts [0, count) into ranges, one a thread or more, in multiples of `grain`: body(range's number, begin, end).
template <class Body>
void share(oasis::Executor& executor, std::int64_t count, std::int64_t grain, std::int64_t cost, const Body& body,
           std::int64_t per_thread = 1)
{
    const auto threads = static_cast<std::int64_t>(executor.concurrency());
    const std::int64_t grains = (count + grain - 1) / grain;
    const std::int64_t tasks = cost < kWorthSharing ? 1 : std::min(threads * per_thread, grains);
    if (tasks <= 1) {
        body(std::int64_t{0}, std::int64_t{0}, count);
        return;
    }
    executor.parallel_for(static_cast<std::size_t>(tasks), [&](std::size_t task) {
        const auto t = static_cast<std::int64_t>(task);
        const std::int64_t begin = grains * t / tasks * grain;
        const std::int64_t end = std::min(count, grains * (t + 1) / tasks * grain);
        if (begin < end) { body(t, begin, end); }
    });
}

} // namespace

Multiplier::Multiplier(oasis::Executor& executor, std::int64_t widest)
    : executor_(&executor),
      tile_values_(kTileColumns * widest),
      tiles_(executor.concurrency() * static_cast<std::size_t>(tile_values_)),
      quantised_(kQuantisedRows, widest)
{
}

void Multiplier::operator()(const Product& product)
{
    if (product.rows <= 0) { return; }
    if (Matrix::in_panels(product.w->code())) {
        integers(product);
    } else if (product.rows <= kFewRows) {
        few(product);
    } else {
        many(product);
    }
}

void Multiplier::few(const Product& p)
{
    share(*executor_, p.out(), 16, p.rows * p.w->in() * p.out(),
          [&](std::int64_t, std::int64_t begin, std::int64_t end) { few_columns(p, begin, end); });
}

void Multiplier::many(const Product& p)
{
    const Matrix& w = *p.w;
    oasis::detail::expects(w.in() * kTileColumns <= tile_values_, "Multiplier: a matrix ", w.in(), " wide, more than ",
                           tile_values_ / kTileColumns);
    share(*executor_, p.out(), kTileColumns, p.rows * w.in() * p.out(),
          [&](std::int64_t thread, std::int64_t begin, std::int64_t end) {
              float* const tile = tiles_.data() + thread * tile_values_;
              for (std::int64_t first = begin; first < end; first += kTileColumns) {
                  const std::int64_t columns = std::min(kTileColumns, end - first);
                  expand(w, first, columns, tile);
                  tile_product(p, tile, first, columns);
              }
          });
}

void Multiplier::integers(const Product& p)
{
    const Matrix& w = *p.w;
    const IntegerKernels& kernels = integer_kernels();
    const std::int64_t panels = (p.out() + Matrix::kPanelRows - 1) / Matrix::kPanelRows;
    for (std::int64_t row = 0; row < p.rows; row += kQuantisedRows) {
        const std::int64_t rows = std::min(kQuantisedRows, p.rows - row);
        quantised_.resize(rows, w.in());
        share(*executor_, rows, 1, rows * w.in(), [&](std::int64_t, std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r) { kernels.quantise(p.x + (row + r) * w.in(), quantised_, r); }
        });
        const IntegerProduct product{&quantised_, &w, p.y + row * p.out(), p.out(), p.accumulate};
        // Several ranges a thread: one that is held up leaves its share to the others.
        share(
            *executor_, panels, kPanelGrain, rows * w.in() * p.out() / 4,
            [&](std::int64_t, std::int64_t begin, std::int64_t end) { kernels.multiply(product, begin, end); },
            kRangesPerThread);
    }
}

void rms_norm(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* x, const float* weight,
              float eps, float* out)
{
    share(executor, rows, 1, rows * width, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) { rms_row(width, x + r * width, weight, eps, out + r * width); }
    });
}

void swiglu(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* gate_up, float* act)
{
    share(executor, rows, 1, rows * width * 8, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
            const float* gate = gate_up + r * 2 * width;
            swiglu_row(width, gate, gate + width, act + r * width);
        }
    });
}

float sum_exp(std::span<const float> x, float top)
{
    return sum_exp_row(static_cast<std::int64_t>(x.size()), x.data(), top);
}

void add(std::int64_t width, const float* x, float* y)
{
    for (std::int64_t i = 0; i < width; ++i) { y[i] += x[i]; }
}

void norm_heads(std::int64_t heads, std::int64_t head_dim, const float* weight, float eps, float* x)
{
    for (std::int64_t h = 0; h < heads; ++h, x += head_dim) { rms_row(head_dim, x, weight, eps, x); }
}

void rotate_heads(std::int64_t heads, std::int64_t head_dim, const float* in, const float* cosine, const float* sine,
                  float* out)
{
    const std::int64_t half = head_dim / 2;
    for (std::int64_t h = 0; h < heads; ++h) {
        const float* a = in + h * head_dim;
        float* o = out + h * head_dim;
        for (std::int64_t i = 0; i < half; ++i) {
            const float low = a[i];
            const float high = a[i + half];
            o[i] = low * cosine[i] - high * sine[i];
            o[i + half] = high * cosine[i] + low * sine[i];
        }
    }
}

} // namespace oasis_decode
