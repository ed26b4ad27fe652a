// SPDX-License-Identifier: Apache-2.0
//
// Kernels that code: head-blocks to int8, summary groups to int4 and int8. A CTA per job, jobs and their count in device memory.
#pragma once

#include <oasis/cuda/append.cuh>
#include <oasis/cuda/warp.cuh>

#include <type_traits>

namespace oasis::cuda::kernels {

inline constexpr int kSealThreads = 256;

/// One row by one warp: scale = amax / 127 rounded up to f16, at most 65504; codes to nearest even; NaN is 0.
template <class Element> __device__ void encode_row(const Element* row, int d, std::int8_t* codes, f16* scale_to)
{
    const int lane = threadIdx.x % 32;
    float x[8];
    float amax = 0.0F;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const int c = lane + 32 * k;
        x[k] = c < d ? element(row, c) : 0.0F;
        amax = fmaxf(amax, fabsf(x[k])); // passes over NaN
    }
    const f16 scale = to_f16_up(fminf(__fdiv_rn(detail::warp_max(amax), 127.0F), kMaxF16));
    const float width = oasis::to_float(scale);
    if (lane == 0) { *scale_to = scale; }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const int c = lane + 32 * k;
        if (c >= d) { break; }
        const float scaled = width > 0.0F ? __fdiv_rn(x[k], width) : 0.0F;
        codes[c] = static_cast<std::int8_t>(isnan(scaled) ? 0 : __float2int_rn(fminf(fmaxf(scaled, -127.0F), 127.0F)));
    }
}

/// What is read back where a coded value is needed in the element type.
template <class Element> __device__ float decoded(std::int8_t code, float scale)
{
    const float bound = std::is_same_v<Element, f16> ? kMaxF16 : 3.402823466e38F;
    const float x = fminf(fmaxf(static_cast<float>(code) * scale, -bound), bound);
    return oasis::to_float(from_float<Element>(x));
}

template <class Element> __device__ void encode_block(const SealParams& p, const SealJob& job)
{
    const HeadBlockLayout& layout = p.head_block;
    const int d = layout.head_dim;
    const auto* native = reinterpret_cast<const Element*>(p.native + job.native);
    std::byte* coded = p.coded + job.coded;
    auto* codes = reinterpret_cast<std::int8_t*>(coded);
    auto* scales = reinterpret_cast<f16*>(coded + layout.int8_scales_offset());
    for (int row = threadIdx.x / 32; row < 2 * layout.block_tokens; row += kSealThreads / 32) {
        encode_row(native + std::size_t(row) * d, d, codes + std::size_t(row) * d, scales + row);
    }
    for (std::size_t at = layout.int8_tag_offset() + threadIdx.x; at < layout.int8_bytes(); at += kSealThreads) {
        coded[at] = std::byte{0};
    }
    if (p.summary.planes == 0 || job.group < 0) { return; }
    __syncthreads();
    const int tokens = p.summary.options.tokens;
    const int sub_blocks = layout.block_tokens / tokens;
    for (int base = 0; base < sub_blocks; base += kSealThreads / 16) {
        const int s = base + static_cast<int>(threadIdx.x) / 16;
        const bool active = s < sub_blocks;
        const auto key = [&](int t, int c) {
            if (!active) { return 0.0F; }
            const int token = s * tokens + t;
            return decoded<Element>(codes[std::size_t(token) * d + c], oasis::to_float(scales[token]));
        };
        SubBlockSummary summary;
        summarise(p.summary, tokens, key, summary);
        if (active) { store_sub_block(p.summary, p.groups + job.group, job.first_sub_block + s, summary); }
    }
}

__device__ inline void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes)
{
    for (std::size_t at = std::size_t(threadIdx.x) * 16; at < bytes; at += std::size_t(blockDim.x) * 16) {
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
    }
}

template <class Element> __global__ void __launch_bounds__(kSealThreads) seal_blocks(const SealParams p)
{
    const int count = min(*p.job_count, p.max_jobs);
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const SealJob job = p.jobs[i];
        if (p.head_block.code == BlockCode::kNative) {
            copy_bytes(p.native + job.native, p.coded + job.coded, p.head_block.native_bytes());
        } else {
            encode_block<Element>(p, job);
        }
    }
}

enum class Rounding { kNearest, kUp, kDown };

struct AffineScale {
    f16 scale;
    f16 zero;
};

/// Smallest of the valid values, the first of equals: the sign of a zero is that of the first.
struct Lowest {
    float value;
    int slot; ///< 64: none
    __device__ void take(float other_value, int other_slot)
    {
        if (other_slot < 64 && (slot == 64 || other_value < value || (other_value == value && other_slot < slot))) {
            value = other_value;
            slot = other_slot;
        }
    }
};

/// The code of one value: value ~ zero + scale * code, rounded as asked. Doubles as on the CPU, where the products and sums are exact.
__device__ inline int affine_code(float value, double zero, double scale, int max_code, Rounding rounding)
{
    const double lift = rounding == Rounding::kNearest ? 0.5 : 0.0;
    int code = static_cast<int>(__dadd_rn(__ddiv_rn(__dsub_rn(value, zero), scale), lift));
    code = max(0, min(max_code, code));
    const auto at = [&](int c) { return __dadd_rn(zero, __dmul_rn(scale, static_cast<double>(c))); };
    if (rounding == Rounding::kUp) {
        while (code < max_code && at(code) < value) { ++code; }
    } else if (rounding == Rounding::kDown) {
        while (code > 0 && at(code) > value) { --code; }
        while (code < max_code && at(code + 1) <= value) { ++code; }
    }
    return code;
}

/// One channel of 64 slots by one warp: lane i has slots i and i + 32. Returns the scale; `codes` gets the lane's two codes.
__device__ inline AffineScale code_channel(const float (&value)[2], std::uint64_t valid, int max_code, Rounding rounding, int (&codes)[2])
{
    const int lane = threadIdx.x % 32;
    Lowest low{0.0F, 64};
    float high = -INFINITY;
    for (int h = 0; h < 2; ++h) {
        codes[h] = 0;
        if (((valid >> (lane + 32 * h)) & 1U) == 0) { continue; }
        low.take(value[h], lane + 32 * h);
        high = fmaxf(high, value[h]);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other_value = __shfl_xor_sync(kAll, low.value, offset);
        const int other_slot = __shfl_xor_sync(kAll, low.slot, offset);
        low.take(other_value, other_slot);
    }
    high = detail::warp_max(high);
    AffineScale result{};
    if (low.slot == 64) { return result; }
    result.zero = to_f16(low.value);
    if (!(high > low.value)) { return result; }
    const double zero = low.value;
    const float step = __double2float_rn(__ddiv_rn(__dsub_rn(high, zero), static_cast<double>(max_code)));
    const bool down = rounding == Rounding::kDown;
    result.scale = down ? to_f16_down(step) : to_f16_up(step);
    while (!down && __dadd_rn(zero, __dmul_rn(oasis::to_float(result.scale), static_cast<double>(max_code))) < high) {
        result.scale = next_up(result.scale);
    }
    const double scale = oasis::to_float(result.scale);
    if (scale == 0.0) { return result; } // a range below f16, rounded down
    for (int h = 0; h < 2; ++h) {
        if (((valid >> (lane + 32 * h)) & 1U) != 0) { codes[h] = affine_code(value[h], zero, scale, max_code, rounding); }
    }
    return result;
}

/// Channel `c` of a group; `channels()` is the spread.
__device__ inline AffineScale close_channel(const SummaryLayout& layout, const std::byte* native, std::byte* coded, int c,
                                            std::uint64_t valid)
{
    const int lane = threadIdx.x % 32;
    const bool is_spread = c == layout.channels();
    const auto* from = reinterpret_cast<const f16*>(
        native + (is_spread ? layout.native_spread_offset() : sizeof(SummaryHeader) + c * layout.native_channel_bytes()));
    const float value[2] = {oasis::to_float(from[lane]), oasis::to_float(from[lane + 32])};
    const bool four = !is_spread && layout.options.code == SummaryCode::kInt4;
    const auto rounding = !layout.upper_bound ? Rounding::kNearest : is_spread || c < layout.head_dim ? Rounding::kUp : Rounding::kDown;
    int codes[2];
    const AffineScale affine = code_channel(value, valid, four ? 15 : 255, rounding, codes);
    if (is_spread) {
        std::byte* to = coded + layout.coded_spread_offset();
        to[lane] = std::byte(codes[0]);
        to[lane + 32] = std::byte(codes[1]);
        return affine;
    }
    std::byte* to = coded + layout.codes_offset() + c * layout.channel_bytes();
    if (four) {
        to[lane] = std::byte(codes[0] | (codes[1] << 4));
    } else {
        to[lane] = std::byte(codes[0]);
        to[lane + 32] = std::byte(codes[1]);
    }
    if (lane == 0) {
        reinterpret_cast<f16*>(coded + layout.scales_offset())[c] = affine.scale;
        reinterpret_cast<f16*>(coded + layout.zeros_offset())[c] = affine.zero;
    }
    return affine;
}

/// The header of the coded form: flags of what was never written are garbage. `valid` (by slot) are the sub-blocks to code.
__device__ inline SummaryHeader close_header(const SummaryLayout& layout, const SummaryHeader& open, int sub_blocks, std::uint64_t& valid)
{
    const std::uint64_t written = sub_blocks >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << sub_blocks) - 1;
    SummaryHeader header;
    header.poisoned = open.poisoned & written;
    header.unbounded = open.unbounded & written;
    valid = 0;
    for (int s = 0; s < sub_blocks; ++s) {
        if ((header.poisoned >> s & 1U) == 0) { valid |= std::uint64_t{1} << layout.slot(s); }
    }
    return header;
}

static __global__ void __launch_bounds__(kSealThreads) close_groups(const CloseParams p)
{
    __shared__ SummaryHeader header;
    __shared__ std::uint64_t valid;
    const SummaryLayout& layout = p.summary;
    const int count = min(*p.job_count, p.max_jobs);
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const CloseJob job = p.jobs[i];
        const std::byte* native = p.native + job.native;
        std::byte* coded = p.coded + job.coded;
        if (layout.plain()) {
            copy_bytes(native, coded, layout.native_bytes());
            continue;
        }
        __syncthreads(); // the last job's header is written
        if (threadIdx.x == 0) { header = close_header(layout, *reinterpret_cast<const SummaryHeader*>(native), job.sub_blocks, valid); }
        __syncthreads();
        const int channels = layout.channels() + (layout.spread ? 1 : 0);
        for (int c = threadIdx.x / 32; c < channels; c += kSealThreads / 32) {
            const AffineScale affine = close_channel(layout, native, coded, c, valid);
            if (c == layout.channels() && threadIdx.x % 32 == 0) {
                header.spread_scale = affine.scale;
                header.spread_zero = affine.zero;
            }
        }
        const std::size_t end = layout.codes_offset() + std::size_t(layout.channels()) * layout.channel_bytes();
        for (std::size_t at = end + threadIdx.x; at < layout.coded_bytes(); at += kSealThreads) { coded[at] = std::byte{0}; }
        __syncthreads();
        if (threadIdx.x == 0) { *reinterpret_cast<SummaryHeader*>(coded) = header; }
    }
}

} // namespace oasis::cuda::kernels
