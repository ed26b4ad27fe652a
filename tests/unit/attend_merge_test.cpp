// SPDX-License-Identifier: Apache-2.0
// Merging partial results of disjoint sets.
#include "attend_fixture.hpp"

namespace oasis::test {
namespace {

class MergeTest : public OnEveryTable {};

State empty_state(std::int32_t group, std::int32_t d)
{
    return {std::vector<float>(std::size_t(group * d), 0.0F), std::vector<float>(std::size_t(group), -kInf)};
}

void merge(const State& other, State& into, std::int32_t group, std::int32_t d)
{
    cpu::merge_states(group, d, other.out.data(), other.lse.data(), into.out.data(), into.lse.data());
}

TEST(MergeCases, ATTN_03_EmptySidesChangeNothing)
{
    const State some{random_floats(2 * 32, 1), {-3.5F, 80.0F}};
    State result = some;
    merge(empty_state(2, 32), result, 2, 32);
    EXPECT_TRUE(same_bits(result.out, some.out));
    EXPECT_TRUE(same_bits(result.lse, some.lse));
    result = empty_state(2, 32);
    merge(some, result, 2, 32);
    EXPECT_TRUE(same_bits(result.out, some.out));
    EXPECT_TRUE(same_bits(result.lse, some.lse));
    result = empty_state(2, 32);
    merge(empty_state(2, 32), result, 2, 32);
    EXPECT_EQ(result.out, std::vector<float>(64, 0.0F));
    EXPECT_EQ(result.lse, std::vector<float>(2, -kInf));
}

TEST_P(MergeTest, ATTN_03_EightSplitsSomeOfThemEmpty)
{
    const BlockFormat format{DType::kF32, BlockCode::kNative, 16, 64};
    const Blocks blocks = make_blocks(format, 8 * 16, 2);
    const std::vector<float> q = random_floats(3 * 64, 3, 0.125F);
    for (const std::size_t empties : {0U, 1U, 7U, 8U}) {
        State total = empty_state(3, 64);
        std::vector<oracle::Row> keys;
        std::vector<oracle::Row> values;
        for (std::size_t j = 0; j < 8; ++j) {
            BlockRef ref = blocks.refs()[j];
            if (j < empties) { ref.end = 0; }
            for (std::size_t t = 0; j >= empties && t < 16; ++t) {
                keys.push_back(blocks.keys[j * 16 + t]), values.push_back(blocks.values[j * 16 + t]);
            }
            State part = empty_state(3, 64);
            kernels().attend_chunk({format, q.data(), 3, {&ref, 1}, part.out.data(), part.lse.data()});
            merge(part, total, 3, 64);
        }
        expect_attention(q, keys, values, total.out.data(), total.lse.data(), 64, 1e-5);
    }
}

TEST(MergeStates, GoldenTwoTokensSplit)
{
    State total{std::vector<float>(32, 10.0F), {0.0F}};
    const State other{std::vector<float>(32, 2.0F), {std::log(3.0F)}};
    merge(other, total, 1, 32);
    EXPECT_NEAR(total.out[0], 4.0F, 1e-6);
    EXPECT_NEAR(total.lse[0], 1.3862944F, 1e-6);
    const State before = total;
    merge(empty_state(1, 32), total, 1, 32);
    EXPECT_TRUE(same_bits(before.out, total.out));
    EXPECT_TRUE(same_bits(before.lse, total.lse));
}

TEST(MergeStates, FarApartSidesStayFinite)
{
    State total{std::vector<float>(32, 1.0F), {-5000.0F}};
    merge({std::vector<float>(32, 2.0F), {9000.0F}}, total, 1, 32);
    EXPECT_EQ(total.out[0], 2.0F);
    EXPECT_EQ(total.lse[0], 9000.0F);
    merge({std::vector<float>(32, 7.0F), {-9000.0F}}, total, 1, 32);
    EXPECT_EQ(total.out[0], 2.0F);
    EXPECT_EQ(total.lse[0], 9000.0F);
}

TEST_P(MergeTest, ManyChunksEqualTheOracle)
{
    const BlockFormat format{DType::kBF16, BlockCode::kNative, 64, 96};
    const Blocks blocks = make_blocks(format, 5 * cpu::kChunkTokens + 70, 4);
    const std::vector<float> q = random_floats(5 * 96, 3, 0.2F);
    const State state = attend(kernels(), format, q, 5, blocks.refs());
    expect_attention(q, blocks.keys, blocks.values, state.out.data(), state.lse.data(), 96, 1e-5);
}

/// A chunk's bits depend on its tokens, not on how blocks list them.
TEST_P(MergeTest, ChunkBitsDoNotDependOnTheBlockSize)
{
    const std::vector<float> q = random_floats(4 * 64, 3, 0.125F);
    const Blocks small = make_blocks({DType::kF32, BlockCode::kNative, 16, 64}, 250, 4);
    const Blocks large = make_blocks({DType::kF32, BlockCode::kNative, 64, 64}, 250, 4);
    const State a = attend(kernels(), small.format, q, 4, small.refs());
    const State b = attend(kernels(), large.format, q, 4, large.refs());
    EXPECT_TRUE(same_bits(a.out, b.out));
    EXPECT_TRUE(same_bits(a.lse, b.lse));
}

INSTANTIATE_TEST_SUITE_P(Tables, MergeTest, every_table(), table_name);

} // namespace
} // namespace oasis::test
