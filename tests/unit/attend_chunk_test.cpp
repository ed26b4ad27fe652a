// SPDX-License-Identifier: Apache-2.0
// Decode attention over chunks, against the oracle.
#include "attend_fixture.hpp"

namespace oasis::test {
namespace {

class AttendChunkTest : public OnEveryTable {};
class AttendCases : public OnEveryTable {};

void expect_equals_oracle(const AttendKernels& kernels, const Blocks& blocks, std::int32_t group, bool coded,
                          double tolerance)
{
    SCOPED_TRACE(std::string(name(blocks.format.dtype)) + " d " + std::to_string(blocks.format.head_dim) + " group " +
                 std::to_string(group) + " block " + std::to_string(blocks.format.block_tokens) + " tokens " +
                 std::to_string(blocks.tokens) + (coded ? " coded" : ""));
    const std::size_t d = std::size_t(blocks.format.head_dim);
    const std::vector<float> q = random_floats(std::size_t(group) * d, 77, 1.0F / std::sqrt(float(d)));
    const State state = attend(kernels, blocks.format, q, group, blocks.refs(coded));
    expect_attention(q, coded ? blocks.coded_keys : blocks.keys, coded ? blocks.coded_values : blocks.values,
                     state.out.data(), state.lse.data(), d, tolerance);
}

TEST_P(AttendChunkTest, EveryHeadDimDtypeAndCode)
{
    for (std::int32_t d = 32; d <= 256; d += 16) {
        for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
            for (const bool coded : {false, true}) {
                const BlockFormat format{dtype, coded ? BlockCode::kInt8 : BlockCode::kNative, 16, d};
                expect_equals_oracle(kernels(), make_blocks(format, 53, unsigned(d)), 4, coded, 1e-5);
            }
        }
    }
}

TEST_P(AttendChunkTest, EveryBlockSizeAndLength)
{
    for (const std::int32_t block : {16, 32, 64}) {
        for (const std::int32_t tokens : {0, 1, block - 1, block, block + 1, 2 * block, 3 * block + 5, 700}) {
            for (const bool coded : {false, true}) {
                const BlockFormat format{DType::kF32, coded ? BlockCode::kInt8 : BlockCode::kNative, block, 64};
                expect_equals_oracle(kernels(), make_blocks(format, tokens, unsigned(tokens)), 3, coded, 1e-5);
            }
        }
    }
}

TEST_P(AttendCases, ATTN_05_EveryGroup)
{
    for (const std::int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64}) {
        for (const bool coded : {false, true}) {
            const BlockFormat format{DType::kBF16, coded ? BlockCode::kInt8 : BlockCode::kNative, 16, 80};
            expect_equals_oracle(kernels(), make_blocks(format, 45, unsigned(group)), group, coded, 1e-5);
        }
    }
}

TEST_P(AttendCases, ATTN_01_NanAndInfinityInUnusedSlots)
{
    for (const float poison : {kNaN, kInf, -kInf}) {
        for (const std::int32_t tokens : {1, 15, 17, 53}) {
            for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
                expect_equals_oracle(kernels(), make_blocks({dtype, BlockCode::kNative, 16, 64}, tokens, 5, poison), 4,
                                     false, 1e-5);
            }
        }
    }
}

TEST_P(AttendChunkTest, TokensBeforeBeginAreNotRead)
{
    const BlockFormat format{DType::kF32, BlockCode::kNative, 16, 64};
    Blocks blocks = make_blocks(format, 48, 9);
    const std::vector<float> q = random_floats(3 * 64, 10, 0.125F);
    for (std::int32_t t = 0; t < 7; ++t) {
        for (std::int32_t c = 0; c < 64; ++c) { blocks.set(0, t, c, kNaN), blocks.set(1, t, c, kInf); }
    }
    std::vector<BlockRef> refs = blocks.refs();
    refs[0].begin = 7;
    refs[1].begin = refs[1].end = 4; // nothing of the second block
    const State state = attend(kernels(), format, q, 3, refs);
    std::vector<oracle::Row> keys;
    std::vector<oracle::Row> values;
    for (std::size_t t = 7; t < 48; ++t) {
        if (t < 16 || t >= 32) { keys.push_back(blocks.keys[t]), values.push_back(blocks.values[t]); }
    }
    expect_attention(q, keys, values, state.out.data(), state.lse.data(), 64, 1e-5);
}

TEST_P(AttendCases, ATTN_02_EmptySetGivesZerosAndMinusInfinity)
{
    const BlockFormat format{DType::kF32, BlockCode::kNative, 16, 64};
    const Blocks blocks = make_blocks(format, 16, 3);
    const std::vector<float> q = random_floats(5 * 64, 4);
    std::vector<BlockRef> masked = blocks.refs();
    masked[0].end = 0;
    for (const auto& refs : {std::vector<BlockRef>{}, masked, std::vector<BlockRef>{{nullptr, 0, 0, false}}}) {
        std::vector<float> out(5 * 64, kNaN);
        std::vector<float> lse(5, kNaN);
        kernels().attend_chunk({format, q.data(), 5, refs, out.data(), lse.data()});
        EXPECT_EQ(out, std::vector<float>(5 * 64, 0.0F));
        EXPECT_EQ(lse, std::vector<float>(5, -kInf));
    }
}

TEST_P(AttendCases, ATTN_15_NeighbourHeadsDoNotChangeABit)
{
    const BlockFormat format{DType::kF32, BlockCode::kNative, 16, 96};
    const Blocks blocks = make_blocks(format, 150, 21);
    std::vector<float> q = random_floats(6 * 96, 22, 0.1F);
    const State plain = attend(kernels(), format, q, 6, blocks.refs());
    std::fill(q.begin() + 96, q.begin() + 192, kNaN);
    std::fill(q.begin() + 480, q.end(), 1e4F);
    const State other = attend(kernels(), format, q, 6, blocks.refs());
    for (const std::size_t h : {0U, 2U, 3U, 4U}) {
        EXPECT_EQ(std::memcmp(&plain.out[h * 96], &other.out[h * 96], 96 * 4), 0) << h;
        EXPECT_EQ(plain.lse[h], other.lse[h]) << h;
    }
}

TEST_P(AttendChunkTest, GoldenTwoTokens)
{
    const BlockFormat format{DType::kF32, BlockCode::kNative, 16, 32};
    Blocks blocks = make_blocks(format, 2, 1);
    for (std::int32_t c = 0; c < 32; ++c) {
        blocks.set(0, 0, c, 0.0F), blocks.set(0, 1, c, c == 0 ? std::log(3.0F) : 0.0F);
        blocks.set(1, 0, c, 10.0F), blocks.set(1, 1, c, 2.0F);
    }
    std::vector<float> q(32, 1.0F);
    const State state = attend(kernels(), format, q, 1, blocks.refs());
    EXPECT_NEAR(state.out[0], 4.0F, 1e-5);
    EXPECT_NEAR(state.out[31], 4.0F, 1e-5);
    EXPECT_NEAR(state.lse[0], 1.3862944F, 1e-6);
}

TEST_P(AttendChunkTest, LargeLogitsDoNotOverflow)
{
    const BlockFormat format{DType::kF32, BlockCode::kNative, 16, 256};
    const Blocks blocks = make_blocks(format, 40, 6, kNaN, 60.0F);
    const std::vector<float> q = random_floats(256, 8, 60.0F);
    const State state = attend(kernels(), format, q, 1, blocks.refs());
    expect_attention(q, blocks.keys, blocks.values, state.out.data(), state.lse.data(), 256, 1e-4);
}

TEST_P(AttendChunkTest, NanInUsedTokensIsNotHidden)
{
    Blocks blocks = make_blocks({DType::kF32, BlockCode::kNative, 16, 64}, 40, 6);
    const std::vector<float> q = random_floats(64, 8, 0.125F);
    blocks.set(0, 21, 3, kNaN);
    const State state = attend(kernels(), blocks.format, q, 1, blocks.refs());
    EXPECT_TRUE(std::isnan(state.out[0]));
    EXPECT_TRUE(std::isnan(state.lse[0]));
}

TEST_P(AttendChunkTest, BlockMassIsTheLogSumOfItsTokens)
{
    for (const bool coded : {false, true}) {
        const BlockFormat format{DType::kF16, coded ? BlockCode::kInt8 : BlockCode::kNative, 32, 112};
        const Blocks blocks = make_blocks(format, 75, 14);
        const std::vector<float> q = random_floats(7 * 112, 15, 0.1F);
        std::vector<BlockRef> refs = blocks.refs(coded);
        refs.push_back({nullptr, 0, 0, false});
        std::vector<float> mass(7 * 4, kNaN);
        kernels().block_mass({format, q.data(), 7, refs, mass.data()});
        const auto queries = rows_of(q, 112);
        const auto& keys = coded ? blocks.coded_keys : blocks.keys;
        for (std::size_t h = 0; h < 7; ++h) {
            for (std::size_t j = 0; j < 3; ++j) {
                const auto first = keys.begin() + std::ptrdiff_t(j) * 32;
                const std::vector<oracle::Row> part(first, first + blocks.fill(std::int32_t(j)));
                EXPECT_NEAR(mass[h * 4 + j], oracle::attend(queries[h], part, part).lse, 1e-5);
            }
            EXPECT_EQ(mass[h * 4 + 3], -kInf);
        }
    }
}

TEST_P(AttendChunkTest, RefusesWhatItCannotDo)
{
    const Blocks blocks = make_blocks({DType::kF32, BlockCode::kNative, 64, 64}, 64 * 5, 2);
    const std::vector<BlockRef> refs = blocks.refs();
    std::vector<float> x(64 * 256);
    cpu::AttendChunk job{blocks.format, x.data(), 1, refs, x.data(), x.data()};
    EXPECT_THROW(kernels().attend_chunk(job), InvalidArgument); // 320 tokens
    job.blocks = job.blocks.first(4);
    job.group = 0;
    EXPECT_THROW(kernels().attend_chunk(job), InvalidArgument);
    job.group = 1;
    job.format.head_dim = 100;
    EXPECT_THROW(kernels().attend_chunk(job), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Tables, AttendChunkTest, every_table(), table_name);
INSTANTIATE_TEST_SUITE_P(Tables, AttendCases, every_table(), table_name);

} // namespace
} // namespace oasis::test
