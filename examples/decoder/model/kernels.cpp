// SPDX-License-Identifier: Apache-2.0
#include "model/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cblas.h>
#include <cmath>
#include <cstring>
#include <mutex>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OASIS_DECODE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OASIS_DECODE_CLONES // one version: sanitizers do not get on with the resolvers that clones need
#endif
#define OASIS_DECODE_INLINE __attribute__((always_inline)) inline

namespace oasis_decode {
namespace {

constexpr std::int64_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

OASIS_DECODE_INLINE float sum(const Lanes& v)
{
    float parts[kLanes];
    std::memcpy(parts, &v, sizeof parts);
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
        for (std::int64_t i = 0; i < width; ++i) { parts[i] += parts[i + width]; }
    }
    return parts[0];
}

// Dot products of one row of w with Rows rows of x: two accumulators a row, in the same order whatever Rows is.
template <int Rows>
OASIS_DECODE_INLINE void dot_rows(const float* w, const float* x, std::int64_t in, float* out)
{
    Lanes even[Rows] = {};
    Lanes odd[Rows] = {};
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= in; i += 2 * kLanes) {
        const Lanes w0 = *reinterpret_cast<const Lanes*>(w + i);
        const Lanes w1 = *reinterpret_cast<const Lanes*>(w + i + kLanes);
        for (int r = 0; r < Rows; ++r) {
            even[r] += w0 * *reinterpret_cast<const Lanes*>(x + r * in + i);
            odd[r] += w1 * *reinterpret_cast<const Lanes*>(x + r * in + i + kLanes);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        const Lanes both = even[r] + odd[r];
        float total = sum(both);
        for (std::int64_t j = i; j < in; ++j) { total += w[j] * x[r * in + j]; }
        out[r] = total;
    }
}

OASIS_DECODE_CLONES
void few_columns(const Product& p, std::int64_t begin, std::int64_t end)
{
    for (std::int64_t o = begin; o < end; ++o) {
        const float* w = p.w + o * p.in;
        std::int64_t r = 0;
        while (r < p.rows) {
            float dots[4];
            const std::int64_t left = p.rows - r;
            const float* x = p.x + r * p.in;
            const std::int64_t taken = std::min<std::int64_t>(left, 4);
            switch (taken) {
            case 4: dot_rows<4>(w, x, p.in, dots); break;
            case 3: dot_rows<3>(w, x, p.in, dots); break;
            case 2: dot_rows<2>(w, x, p.in, dots); break;
            default: dot_rows<1>(w, x, p.in, dots);
            }
            for (std::int64_t k = 0; k < taken; ++k) {
                float& y = p.y[(r + k) * p.out + o];
                y = p.accumulate ? y + dots[k] : dots[k];
            }
            r += taken;
        }
    }
}

// exp(x) for x <= 0, within 2e-7 of it relatively; written so that the compiler turns a loop of it into vectors.
OASIS_DECODE_INLINE float exp_negative(float x)
{
    x = x > -87.0F ? x : -87.0F;   // NaN too
    const float scaled = x * 1.44269504F;
    const float whole = static_cast<float>(static_cast<std::int32_t>(scaled - 0.5F));   // rounds, as scaled <= 0
    // ln 2 in two parts keeps the remainder exact.
    const float rest = (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
    float poly = 1.0F / 5040.0F;
    poly = poly * rest + 1.0F / 720.0F;
    poly = poly * rest + 1.0F / 120.0F;
    poly = poly * rest + 1.0F / 24.0F;
    poly = poly * rest + 1.0F / 6.0F;
    poly = poly * rest + 0.5F;
    poly = poly * rest + 1.0F;
    poly = poly * rest + 1.0F;
    return poly * std::bit_cast<float>((static_cast<std::int32_t>(whole) + 127) << 23);
}

OASIS_DECODE_CLONES
void swiglu_row(std::int64_t width, const float* __restrict gate, const float* __restrict up, float* __restrict act)
{
    for (std::int64_t i = 0; i < width; ++i) {
        const float g = gate[i];
        const float e = exp_negative(-std::fabs(g));
        const float sigmoid = (g >= 0 ? 1.0F : e) / (1.0F + e);
        act[i] = g * sigmoid * up[i];
    }
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

// Cuts [0, count) into one range a thread, in multiples of `grain`, and runs them.
template <class Body>
void share(oasis::Executor& executor, std::int64_t count, std::int64_t grain, std::int64_t cost, const Body& body)
{
    const auto threads = static_cast<std::int64_t>(executor.concurrency());
    const std::int64_t grains = (count + grain - 1) / grain;
    const std::int64_t tasks = cost < kWorthSharing ? 1 : std::min(threads, grains);
    if (tasks <= 1) {
        body(std::int64_t{0}, count);
        return;
    }
    executor.parallel_for(static_cast<std::size_t>(tasks), [&](std::size_t task) {
        const auto t = static_cast<std::int64_t>(task);
        const std::int64_t begin = grains * t / tasks * grain;
        const std::int64_t end = std::min(count, grains * (t + 1) / tasks * grain);
        if (begin < end) { body(begin, end); }
    });
}

} // namespace

void multiply_few(oasis::Executor& executor, const Product& p)
{
    share(executor, p.out, 16, p.rows * p.in * p.out, [&](std::int64_t begin, std::int64_t end) { few_columns(p, begin, end); });
}

void multiply_blas(oasis::Executor& executor, const Product& p)
{
    // The executor's threads are the parallelism; BLAS must not start its own.
    static std::once_flag once;
    std::call_once(once, [] { openblas_set_num_threads(1); });
    share(executor, p.out, 16, p.rows * p.in * p.out, [&](std::int64_t begin, std::int64_t end) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(p.rows), static_cast<blasint>(end - begin),
                    static_cast<blasint>(p.in), 1.0F, p.x, static_cast<blasint>(p.in), p.w + begin * p.in, static_cast<blasint>(p.in),
                    p.accumulate ? 1.0F : 0.0F, p.y + begin, static_cast<blasint>(p.out));
    });
}

void multiply(oasis::Executor& executor, const Product& product)
{
    if (product.rows <= 0) { return; }
    if (product.rows <= kFewRows) {
        multiply_few(executor, product);
    } else {
        multiply_blas(executor, product);
    }
}

void rms_norm(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* x, const float* weight, float eps, float* out)
{
    share(executor, rows, 1, rows * width, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) { rms_row(width, x + r * width, weight, eps, out + r * width); }
    });
}

void swiglu(oasis::Executor& executor, std::int64_t rows, std::int64_t width, const float* gate_up, float* act)
{
    share(executor, rows, 1, rows * width * 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
            const float* gate = gate_up + r * 2 * width;
            swiglu_row(width, gate, gate + width, act + r * width);
        }
    });
}

void rotate_heads(std::int64_t heads, std::int64_t head_dim, const float* in, const float* cosine, const float* sine, float* out)
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
