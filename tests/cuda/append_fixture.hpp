// SPDX-License-Identifier: Apache-2.0
//
// Append, seal and close against the CPU backend: every byte must be the same. Shapes, odd values, comparison.
#pragma once

#include "support.hpp"

#include <oasis/cpu/attend_kernels.hpp>
#include <oasis/cuda/append.hpp>
#include <oasis/score/block_scorer.hpp>

#include <cmath>
#include <ostream>

namespace oasis::cuda::test {

using Bytes = std::vector<std::uint8_t>;

struct Shape {
    DType dtype;
    std::int32_t head_dim;
    std::int32_t block_tokens;
    SummaryKind kind;
    std::int32_t tokens;
    SummaryCode code;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& s)
{
    return out << name(s.dtype) << " d" << s.head_dim << " b" << s.block_tokens << " kind" << int(s.kind) << " t" << s.tokens << " code"
               << int(s.code);
}

inline const Shape kShapes[] = {
    {DType::kF16, 128, 16, SummaryKind::kSpread, 2, SummaryCode::kInt4},
    {DType::kBF16, 128, 16, SummaryKind::kSpread, 4, SummaryCode::kInt4},
    {DType::kBF16, 80, 32, SummaryKind::kSpread, 2, SummaryCode::kInt8},
    {DType::kF32, 64, 16, SummaryKind::kMinMax, 16, SummaryCode::kInt4},
    {DType::kF16, 256, 64, SummaryKind::kMinMax, 8, SummaryCode::kInt8},
    {DType::kBF16, 96, 16, SummaryKind::kCuboid, 4, SummaryCode::kInt4},
    {DType::kF16, 64, 64, SummaryKind::kMean, 64, SummaryCode::kInt8},
    {DType::kF32, 32, 16, SummaryKind::kSpread, 1, SummaryCode::kF16},
    {DType::kF32, 128, 32, SummaryKind::kMinMax, 4, SummaryCode::kF32},
    {DType::kBF16, 256, 16, SummaryKind::kSpread, 2, SummaryCode::kF32},
};

class CpuBytes : public CudaTestWithParam<Shape> {
protected:
    CpuBytes()
        : head_block{GetParam().dtype, BlockCode::kInt8, GetParam().block_tokens, GetParam().head_dim},
          scorer(StockSummary(GetParam().kind), {.kind = GetParam().kind, .tokens = GetParam().tokens, .code = GetParam().code},
                 GetParam().head_dim, GetParam().block_tokens)
    {
    }

    /// Elements of the dtype; one in 500 is a value that breaks things.
    Bytes random_elements(std::size_t count, std::uint64_t seed) const
    {
        static const float kOdd[] = {NAN, INFINITY, -INFINITY, 0.0F, -0.0F, 65504.0F, -65519.0F, 3e38F, 1e-7F, -6e-8F, 1e-40F};
        std::mt19937_64 random(seed);
        std::normal_distribution<float> normal;
        Bytes bytes(count * size_of(head_block.dtype));
        for (std::size_t i = 0; i < count; ++i) {
            const float x =
                random() % 500 == 0 ? kOdd[random() % std::size(kOdd)] : normal(random) * std::exp2(float(random() % 12) - 6.0F);
            kernels().from_float(head_block.dtype, &x, 1, bytes.data() + i * size_of(head_block.dtype));
        }
        return bytes;
    }
    static const cpu::AttendKernels& kernels() { return cpu::scalar_attend_kernels(); }
    cpu::BlockFormat format() const
    {
        return {.dtype = head_block.dtype, .block_tokens = head_block.block_tokens, .head_dim = head_block.head_dim};
    }

    /// `count` tokens of a head-block from `first` on, as floats.
    KeyRows keys(const std::uint8_t* native, std::int32_t first, std::int32_t count)
    {
        const auto d = std::size_t(head_block.head_dim);
        keys_.resize(std::size_t(count) * d);
        kernels().to_float(head_block.dtype, native + std::size_t(first) * d * size_of(head_block.dtype), keys_.size(), 1.0F, keys_.data());
        return {keys_.data(), count, head_block.head_dim, head_block.head_dim};
    }
    static std::byte* bytes(Bytes& data, std::size_t at) { return reinterpret_cast<std::byte*>(data.data()) + at; }
    static std::byte* bytes(const DeviceBuffer<std::uint8_t>& data) { return reinterpret_cast<std::byte*>(data.data()); }

    static void expect_same(const Bytes& mine, const Bytes& cpu, std::size_t record, const char* what)
    {
        ASSERT_EQ(mine.size(), cpu.size());
        std::size_t different = 0;
        for (std::size_t i = 0; i < cpu.size(); ++i) {
            if (mine[i] == cpu[i]) { continue; }
            if (++different <= 3) {
                ADD_FAILURE() << what << ": record " << i / record << " byte " << i % record << " is " << int(mine[i]) << ", on the CPU "
                              << int(cpu[i]);
            }
        }
        EXPECT_EQ(different, 0U) << what << " of " << cpu.size();
    }

    HeadBlockLayout head_block;
    BlockScorer<> scorer;

private:
    std::vector<float> keys_;
};

} // namespace oasis::cuda::test
