// SPDX-License-Identifier: Apache-2.0
//
// From a group's estimates to the log masses of its blocks: a log-sum-exp over the sub-blocks of each, in log2.
#pragma once

#include <oasis/cuda/score_columns.cuh>
#include <oasis/cuda/ptx.cuh>

#include <limits>

namespace oasis::cuda::detail {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

/// Sub-block that lies in a slot.
template <class K> __device__ constexpr int sub_block_of(int slot) { return slot % K::kBlocks * (64 / K::kBlocks) + slot / K::kBlocks; }

struct LogSum {
    float high;
    float sum; ///< of 2^(x - high); NaN where `high` is +inf

    __device__ void add(LogSum other, float shift)
    {
        sum = sum * exp2_approx(high - shift) + other.sum * exp2_approx(other.high - shift);
        high = fmaxf(high, other.high);
    }
};

/// A lane (g, t) brings, for columns 2t and 2t + 1, the estimates of slots s + 2g and s + 2g + 1, s = 0, 16, 32, 48 in the
/// order of its tiles. Slot s is sub-block s / kBlocks of block s % kBlocks.
/// `kMasked`: estimates may be -inf.
template <class K, bool kMasked> class BlockMass {
    static constexpr int kBlocks = K::kBlocks;
    static_assert(kBlocks == 2 || kBlocks == 4 || kBlocks == 8 || kBlocks == 16);

public:
    __device__ explicit BlockMass(int group) : group_(group) {}

    /// values * unit are the estimates of column q.
    __device__ void reduce(int q, const float (&values)[4][2], float unit)
    {
        LogSum part[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float high = fmaxf(fmaxf(values[0][e], values[1][e]), fmaxf(values[2][e], values[3][e])) * unit;
            float sum = exp2_approx(values[0][e] * unit - shift_of(high));
#pragma unroll
            for (int m = 1; m < 4; ++m) { sum += exp2_approx(values[m][e] * unit - shift_of(high)); }
            part[e] = {high, sum};
        }
        if constexpr (kBlocks == 16) {
            mass_[q][0] = value_of(part[0]);
            mass_[q][1] = value_of(part[1]);
        } else {
            // The lane 16 away has other sub-blocks of the same two blocks: each keeps one.
            const bool upper = threadIdx.x % 32 >= 16;
            LogSum mine = upper ? part[1] : part[0];
            const LogSum theirs = upper ? part[0] : part[1];
            add(mine, {__shfl_xor_sync(0xFFFFFFFFU, theirs.high, 16), __shfl_xor_sync(0xFFFFFFFFU, theirs.sum, 16)});
#pragma unroll
            for (int step = 8; step >= 2 * kBlocks; step /= 2) { // fewer blocks: more lanes with sub-blocks of the same one
                add(mine, {__shfl_xor_sync(0xFFFFFFFFU, mine.high, step), __shfl_xor_sync(0xFFFFFFFFU, mine.sum, step)});
            }
            mass_[q][0] = value_of(mine);
        }
    }

    /// To natural logarithms; `offset`, in log2, belongs to every estimate of a column.
    __device__ void finish(const float (&offset)[2])
    {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
#pragma unroll
            for (int e = 0; e < kResults; ++e) { mass_[q][e] = mass_[q][e] * kLn2 + offset[q] * kLn2; }
        }
    }

    /// Blocks with a sub-block in a mask: NaN where poisoned, +inf where unbounded.
    __device__ void mark(int q, std::uint64_t poisoned, std::uint64_t unbounded)
    {
        constexpr int kSubBlocks = 64 / kBlocks;
#pragma unroll
        for (int e = 0; e < kResults; ++e) {
            const std::uint64_t bits = (std::uint64_t(1) << kSubBlocks) - 1 << (block() + e) * kSubBlocks;
            if ((unbounded & bits) != 0) { mass_[q][e] = kInf; }
            if ((poisoned & bits) != 0) { mass_[q][e] = __uint_as_float(0x7FC00000U); }
        }
    }

    template <class Wanted> __device__ void store(const ScoreColumn* columns, const Wanted& wanted) const
    {
        if (kBlocks < 8 && threadIdx.x / 4 % 4 >= kBlocks / 2) { return; } // another lane has the same
#pragma unroll
        for (int q = 0; q < 2; ++q) {
            if (!wanted(columns[q])) { continue; }
            float* const out = columns[q].log_mass + (std::uint32_t(group_) * kBlocks + std::uint32_t(block()));
#pragma unroll
            for (int e = 0; e < kResults; ++e) { __stcg(out + e, mass_[q][e]); }
        }
    }

    /// First block of this lane's results.
    __device__ static int block()
    {
        const auto g = int(threadIdx.x % 32 / 4);
        return kBlocks == 16 ? 2 * g : 2 * (g % (kBlocks / 2)) + g / 4;
    }

private:
    /// What is taken off exponents: 0 where nothing counts yet.
    __device__ static float shift_of(float high) { return kMasked && high == -kInf ? 0.0F : high; }
    __device__ static void add(LogSum& mine, LogSum other) { mine.add(other, shift_of(fmaxf(mine.high, other.high))); }

    __device__ static float value_of(LogSum x) { return kMasked && isinf(x.high) ? x.high : x.high + log2_approx(x.sum); }

    static constexpr int kResults = kBlocks == 16 ? 2 : 1;
    float mass_[2][kResults];
    int group_;
};

} // namespace oasis::cuda::detail
