// SPDX-License-Identifier: Apache-2.0
// The int8 code of head-blocks and the conversions of element types.
#include "attend_fixture.hpp"

namespace oasis::test {
namespace {

class Int8Test : public OnEveryTable {};
class Int8Cases : public OnEveryTable {};

std::vector<std::byte> encode(const AttendKernels& kernels, const Blocks& blocks, std::int32_t block)
{
    std::vector<std::byte> coded(blocks.layout(BlockCode::kInt8).int8_bytes(), std::byte{0x55});
    kernels.encode_int8(blocks.format, blocks.native[std::size_t(block)].data(), blocks.fill(block), coded.data());
    return coded;
}

std::vector<float> decode(const AttendKernels& kernels, const BlockFormat& format, const std::vector<std::byte>& coded)
{
    const HeadBlockLayout layout{format.dtype, BlockCode::kNative, format.block_tokens, format.head_dim};
    std::vector<std::byte> native(layout.native_bytes());
    kernels.decode_int8(format, coded.data(), native.data());
    std::vector<float> result(2 * layout.elements());
    cpu::scalar_attend_kernels().to_float(format.dtype, native.data(), result.size(), 1.0F, result.data());
    return result;
}

TEST_P(Int8Cases, ATTN_12_CodesEqualTheOracleAndRoundTripsStayInBounds)
{
    for (const std::int32_t d : {64, 80, 96, 32, 256}) {
        for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
            const BlockFormat format{dtype, BlockCode::kInt8, 16, d};
            const Blocks blocks = make_blocks(format, 27, unsigned(d));
            const auto coded = encode(kernels(), blocks, 1); // 11 tokens of 16
            const auto decoded = decode(kernels(), {DType::kF32, BlockCode::kInt8, 16, d}, coded);
            for (std::size_t plane = 0; plane < 2; ++plane) {
                for (std::size_t t = 0; t < 16; ++t) {
                    const oracle::Row zeros(std::size_t(d), 0.0);
                    const oracle::Row& row = t < 11 ? (plane ? blocks.values : blocks.keys)[16 + t] : zeros;
                    const oracle::Int8Row expected = oracle::quantise(row);
                    for (std::size_t i = 0; i < std::size_t(d); ++i) {
                        const double x = decoded[(plane * 16 + t) * std::size_t(d) + i];
                        ASSERT_LE(std::abs(x - row[i]), 0.501 * expected.scale);
                        ASSERT_NEAR(x, expected.decoded[i], 1.001 * expected.scale); // a tie may fall to either side
                    }
                }
            }
        }
    }
}

TEST_P(Int8Cases, ATTN_12_NeighbourTokensDoNotChangeACode)
{
    const BlockFormat format{DType::kF32, BlockCode::kInt8, 16, 80};
    Blocks blocks = make_blocks(format, 16, 3);
    const auto before = encode(kernels(), blocks, 0);
    for (std::int32_t c = 0; c < 80; ++c) { blocks.set(0, 6, c, 1e4F), blocks.set(1, 4, c, 1e4F); }
    const auto after = encode(kernels(), blocks, 0);
    EXPECT_EQ(std::memcmp(&before[5 * 80], &after[5 * 80], 80), 0);
    EXPECT_EQ(std::memcmp(&before[7 * 80], &after[7 * 80], 80), 0);
    EXPECT_EQ(std::memcmp(&before[(16 + 5) * 80], &after[(16 + 5) * 80], 80), 0);
}

TEST_P(Int8Cases, ATTN_17_ExtremeScalesGiveNoNan)
{
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const float size : {0.0F, 1e-30F, 1e-6F, 1e-4F, 1.0F, 1e4F, 65504.0F, 1e7F, 1e30F}) {
            if (dtype == DType::kF16 && size > 65504.0F) { continue; }
            const BlockFormat format{dtype, BlockCode::kInt8, 16, 64};
            Blocks blocks = make_blocks(format, 16, 3);
            for (std::int32_t t = 0; t < 16; ++t) {
                for (std::int32_t c = 0; c < 64; ++c) {
                    blocks.set(0, t, c, c % 16 ? 0.0F : size), blocks.set(1, t, c, c % 8 ? 0.0F : -size);
                }
            }
            const auto coded = encode(kernels(), blocks, 0);
            const auto decoded = decode(kernels(), format, coded);
            const double bound = std::max(2.0 * size / 127, 1e-7); // codes of tiny rows step by the smallest f16
            for (std::size_t i = 0; i < decoded.size(); ++i) {
                const std::size_t t = i / 64 % 16;
                const double x = (i < 16 * 64 ? blocks.keys : blocks.values)[t][i % 64];
                ASSERT_TRUE(std::isfinite(decoded[i])) << size;
                if (size <= 127 * 65504.0F) { ASSERT_NEAR(decoded[i], x, bound) << size; }
            }
            const BlockRef ref{coded.data(), 0, 16, true};
            const std::vector<float> q(64, 1e-3F);
            std::vector<float> out(64), lse(1);
            kernels().attend_chunk({format, q.data(), 1, {&ref, 1}, out.data(), lse.data()});
            for (const float x : out) { ASSERT_TRUE(std::isfinite(x)) << size; }
        }
    }
}

TEST_P(Int8Cases, ATTN_17_NanAndInfinityAreCodedAsFiniteNumbers)
{
    const BlockFormat format{DType::kF32, BlockCode::kInt8, 16, 64};
    Blocks blocks = make_blocks(format, 16, 3);
    blocks.set(0, 2, 5, kNaN), blocks.set(0, 3, 5, kInf), blocks.set(0, 4, 5, -kInf), blocks.set(1, 2, 7, kNaN);
    const auto decoded = decode(kernels(), format, encode(kernels(), blocks, 0));
    for (const float x : decoded) { ASSERT_TRUE(std::isfinite(x)); }
    EXPECT_EQ(decoded[2 * 64 + 5], 0.0F);
    EXPECT_NEAR(decoded[2 * 64 + 6], blocks.keys[2][6], 0.05);
    EXPECT_GT(decoded[3 * 64 + 5], 8e6F);
    EXPECT_LT(decoded[4 * 64 + 5], -8e6F);
}

TEST_P(Int8Test, EveryTableWritesTheSameBytes)
{
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        for (const std::int32_t block : {16, 64}) {
            for (const float spread : {1e-6F, 1.0F, 900.0F}) {
                const Blocks blocks = make_blocks({dtype, BlockCode::kInt8, block, 112}, 90, 11, kNaN, spread);
                for (std::int32_t j = 0; j < blocks.blocks(); ++j) {
                    const auto scalar = encode(cpu::scalar_attend_kernels(), blocks, j);
                    EXPECT_EQ(encode(kernels(), blocks, j), scalar);
                    EXPECT_EQ(scalar[blocks.layout(BlockCode::kInt8).int8_tag_offset()], std::byte{0x55})
                        << "the tag is left alone";
                    EXPECT_EQ(decode(kernels(), blocks.format, scalar),
                              decode(cpu::scalar_attend_kernels(), blocks.format, scalar));
                }
            }
        }
    }
}

TEST_P(Int8Test, ConversionsEqualTheScalarOnes)
{
    std::vector<float> x = random_floats(1003, 5, 3.0F);
    const float special[] = {0.0F,        -0.0F,       1.0F,   65504.0F, 65519.0F,      65520.0F,       -1e30F,
                             kInf,        -kInf,       6e-8F,  3e-8F,    2.9802322e-8F, 1.00048828125F, 1.001953125F,
                             1.00390625F, 1.01171875F, 1e-38F, 1e-42F,   6.1e-5F};
    std::copy(std::begin(special), std::end(special), x.begin());
    const AttendKernels& scalar = cpu::scalar_attend_kernels();
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        std::vector<std::byte> expected(x.size() * 4), actual(x.size() * 4);
        scalar.from_float(dtype, x.data(), x.size(), expected.data());
        kernels().from_float(dtype, x.data(), x.size(), actual.data());
        EXPECT_EQ(actual, expected) << name(dtype);
        std::vector<float> back(x.size()), expected_back(x.size());
        scalar.to_float(dtype, expected.data(), x.size(), 0.125F, expected_back.data());
        kernels().to_float(dtype, expected.data(), x.size(), 0.125F, back.data());
        EXPECT_TRUE(same_bits(back, expected_back)) << name(dtype);
        const float nan = kNaN;
        kernels().from_float(dtype, std::vector<float>(40, nan).data(), 40, actual.data());
        kernels().to_float(dtype, actual.data(), 40, 1.0F, back.data());
        EXPECT_TRUE(std::all_of(back.begin(), back.begin() + 40, [](float y) { return std::isnan(y); })) << name(dtype);
    }
}

TEST_P(Int8Test, RefusesMoreTokensThanABlockHolds)
{
    const Blocks blocks = make_blocks({DType::kF32, BlockCode::kInt8, 16, 64}, 16, 3);
    std::vector<std::byte> coded(blocks.layout(BlockCode::kInt8).int8_bytes());
    EXPECT_THROW(kernels().encode_int8(blocks.format, blocks.native[0].data(), 17, coded.data()), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Tables, Int8Test, every_table(), table_name);
INSTANTIATE_TEST_SUITE_P(Tables, Int8Cases, every_table(), table_name);

} // namespace
} // namespace oasis::test
