// SPDX-License-Identifier: Apache-2.0
// Prefill against the oracle, and the promise that a row's bits depend on the row alone.
#include "attend_fixture.hpp"

namespace oasis::test {
namespace {

class PrefillTest : public OnEveryTable {};
class PrefillCases : public OnEveryTable {};

/// Rows [first, first + rows) of a sequence, cut into jobs of `job_rows` rows and waves of `wave_tiles` key tiles.
struct Cut {
    std::int32_t first = 0;
    std::int32_t rows = 0;
    std::int32_t job_rows = 1 << 20;
    std::int32_t wave_tiles = 1 << 20;
    std::int32_t recent = 32;
    std::int32_t window = 0;
};

std::vector<cpu::PrefillBlock> prefill_blocks(const Blocks& blocks, std::int32_t tokens)
{
    std::vector<cpu::PrefillBlock> result;
    for (std::int32_t j = 0; j * blocks.format.block_tokens < tokens; ++j) {
        const bool both = blocks.format.code == BlockCode::kInt8;
        result.push_back({blocks.native[std::size_t(j)].data(), both ? blocks.coded[std::size_t(j)].data() : nullptr});
    }
    return result;
}

/// q [rows of the whole sequence, group, d]; the state of the cut's rows.
State run(const AttendKernels& kernels, const Blocks& blocks, const std::vector<float>& q, std::int32_t group,
          const Cut& cut)
{
    const std::size_t width = std::size_t(group) * std::size_t(blocks.format.head_dim);
    State state{std::vector<float>(std::size_t(cut.rows) * width, 0.0F),
                std::vector<float>(std::size_t(cut.rows * group))};
    std::vector<float> top(state.lse.size(), -kInf);
    std::vector<float> sum(state.lse.size(), 0.0F);
    std::vector<float> scratch(cpu::prefill_scratch_floats(blocks.format, group));
    const auto list = prefill_blocks(blocks, cut.first + cut.rows);
    const std::size_t tile_blocks = std::size_t(cpu::kPrefillTileTokens / blocks.format.block_tokens);
    const std::size_t step = std::min(list.size(), std::size_t(cut.wave_tiles) * tile_blocks);
    for (std::size_t block = 0; block < list.size(); block += step) {
        for (std::int32_t row = 0; row < cut.rows; row += cut.job_rows) {
            cpu::PrefillJob job;
            job.format = blocks.format;
            job.rows = std::min(cut.job_rows, cut.rows - row);
            job.group = group;
            job.first_position = cut.first + row;
            job.first_block = std::int32_t(block);
            job.recent = cut.recent;
            job.window = cut.window;
            job.blocks = std::span(list).subspan(block, std::min(step, list.size() - block));
            job.q = q.data() + std::size_t(cut.first + row) * width;
            job.out = state.out.data() + std::size_t(row) * width;
            job.max = top.data() + row * group;
            job.sum = sum.data() + row * group;
            job.scratch = scratch.data();
            kernels.prefill(job);
        }
    }
    cpu::finish_prefill(cut.rows, group, blocks.format.head_dim, top.data(), sum.data(), state.out.data(),
                        state.lse.data());
    return state;
}

void expect_rows(const Blocks& blocks, const std::vector<float>& q, std::int32_t group, const Cut& cut,
                 const State& state)
{
    const std::size_t d = std::size_t(blocks.format.head_dim);
    const std::size_t width = std::size_t(group) * d;
    for (std::int32_t row = 0; row < cut.rows; ++row) {
        const std::int32_t position = cut.first + row;
        std::vector<oracle::Row> keys;
        std::vector<oracle::Row> values;
        for (std::int32_t t = cut.window ? std::max(0, position - cut.window + 1) : 0; t <= position; ++t) {
            const std::int32_t last_of_block = (t / blocks.format.block_tokens + 1) * blocks.format.block_tokens - 1;
            const bool coded = blocks.format.code == BlockCode::kInt8 && last_of_block <= position - cut.recent;
            keys.push_back((coded ? blocks.coded_keys : blocks.keys)[std::size_t(t)]);
            values.push_back((coded ? blocks.coded_values : blocks.values)[std::size_t(t)]);
        }
        const auto from = q.begin() + std::ptrdiff_t(std::size_t(position) * width);
        SCOPED_TRACE("position " + std::to_string(position));
        expect_attention({from, from + std::ptrdiff_t(width)}, keys, values, &state.out[std::size_t(row) * width],
                         &state.lse[std::size_t(row * group)], d, 1e-5);
    }
}

TEST_P(PrefillTest, EveryHeadDimDtypeAndCode)
{
    for (std::int32_t d = 32; d <= 256; d += 16) {
        for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
            for (const BlockCode code : {BlockCode::kNative, BlockCode::kInt8}) {
                const Blocks blocks = make_blocks({dtype, code, 16, d}, 83, unsigned(d));
                const auto q = random_floats(83 * 2 * std::size_t(d), 5, 1.0F / std::sqrt(float(d)));
                const Cut cut{.first = 60, .rows = 23};
                SCOPED_TRACE(std::string(name(dtype)) + " d " + std::to_string(d));
                expect_rows(blocks, q, 2, cut, run(kernels(), blocks, q, 2, cut));
            }
        }
    }
}

TEST_P(PrefillTest, EveryGroupBlockSizeAndWindow)
{
    for (const std::int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64}) {
        for (const std::int32_t block : {16, 32, 64}) {
            if (group > 9 && block == 64) { continue; } // the oracle is slow
            const Blocks blocks = make_blocks({DType::kF32, BlockCode::kInt8, block, 48}, 141, unsigned(group));
            const auto q = random_floats(141 * 48 * std::size_t(group), 6, 0.15F);
            for (const std::int32_t window : {0, 1, 37, 100}) {
                const Cut cut{.first = 133, .rows = 8, .recent = 20, .window = window};
                SCOPED_TRACE("group " + std::to_string(group) + " block " + std::to_string(block) + " window " +
                             std::to_string(window));
                expect_rows(blocks, q, group, cut, run(kernels(), blocks, q, group, cut));
            }
        }
    }
}

TEST_P(PrefillTest, ShortPrompts)
{
    for (const std::int32_t rows : {1, 15, 16, 17, 32, 53, 63, 64, 65, 128, 131}) {
        const Blocks blocks = make_blocks({DType::kF32, BlockCode::kNative, 16, 64}, rows, unsigned(rows));
        const auto q = random_floats(std::size_t(rows) * 3 * 64, 7, 0.125F);
        const Cut cut{.rows = rows};
        expect_rows(blocks, q, 3, cut, run(kernels(), blocks, q, 3, cut));
    }
}

TEST_P(PrefillTest, RowsDoNotDependOnChunksJobsOrWaves)
{
    constexpr std::int32_t kTokens = 267;
    for (const std::int32_t group : {1, 3, 5, 49}) {
        for (const std::int32_t window : {0, 70}) {
            const Blocks blocks = make_blocks({DType::kF32, BlockCode::kInt8, 16, 80}, kTokens, unsigned(group));
            const auto q = random_floats(std::size_t(kTokens * group) * 80, 8, 0.11F);
            const State whole = run(kernels(), blocks, q, group, {.rows = kTokens, .window = window});
            for (const std::int32_t job_rows : {1, 7, 32, 50}) {
                const State cut =
                    run(kernels(), blocks, q, group,
                        {.rows = kTokens, .job_rows = job_rows, .wave_tiles = job_rows % 3 + 1, .window = window});
                EXPECT_TRUE(same_bits(whole.out, cut.out))
                    << "group " << group << " rows " << job_rows << " window " << window;
                EXPECT_TRUE(same_bits(whole.lse, cut.lse))
                    << "group " << group << " rows " << job_rows << " window " << window;
            }
            // The end of the prompt as a chunk of its own.
            const State tail =
                run(kernels(), blocks, q, group, {.first = 200, .rows = kTokens - 200, .window = window});
            const std::vector<float> expected(whole.out.begin() + std::ptrdiff_t(200) * group * 80, whole.out.end());
            EXPECT_TRUE(same_bits(tail.out, expected)) << "group " << group << " window " << window;
        }
    }
}

TEST_P(PrefillCases, ATTN_01_PoisonBeyondTheLastToken)
{
    for (const float poison : {kNaN, kInf}) {
        for (const std::int32_t tokens : {1, 15, 17, 53}) {
            const Blocks blocks = make_blocks({DType::kF16, BlockCode::kNative, 16, 64}, tokens, 3, poison);
            const auto q = random_floats(std::size_t(tokens) * 4 * 64, 7, 0.125F);
            const Cut cut{.rows = tokens};
            expect_rows(blocks, q, 4, cut, run(kernels(), blocks, q, 4, cut));
        }
    }
}

TEST_P(PrefillCases, ATTN_15_LaterTokensDoNotChangeEarlierRows)
{
    Blocks blocks = make_blocks({DType::kF32, BlockCode::kNative, 16, 64}, 100, 3);
    const auto q = random_floats(100 * 3 * 64, 7, 0.125F);
    const State plain = run(kernels(), blocks, q, 3, {.rows = 100});
    for (std::int32_t t = 70; t < 100; ++t) {
        for (std::int32_t c = 0; c < 64; ++c) {
            blocks.set(0, t, c, t % 2 ? kNaN : 1e4F), blocks.set(1, t, c, t % 3 ? kNaN : kInf);
        }
    }
    const State other = run(kernels(), blocks, q, 3, {.rows = 100});
    EXPECT_EQ(std::memcmp(plain.out.data(), other.out.data(), 70 * 3 * 64 * 4), 0);
    EXPECT_EQ(std::memcmp(plain.lse.data(), other.lse.data(), 70 * 3 * 4), 0);
    EXPECT_NE(plain.lse[70 * 3], other.lse[70 * 3]);
}

TEST_P(PrefillTest, BlocksBelowEveryWindowMayBeAbsent)
{
    Blocks blocks = make_blocks({DType::kF32, BlockCode::kNative, 16, 64}, 200, 3);
    const auto q = random_floats(200 * 64, 7, 0.125F);
    auto list = prefill_blocks(blocks, 200);
    std::vector<float> out(10 * 64), top(10, -kInf), sum(10), scratch(cpu::prefill_scratch_floats(blocks.format, 1));
    cpu::PrefillJob job{.format = blocks.format,
                        .q = q.data(),
                        .rows = 10,
                        .group = 1,
                        .first_position = 190,
                        .first_block = 0,
                        .recent = 128,
                        .window = 50,
                        .blocks = list,
                        .out = out.data(),
                        .max = top.data(),
                        .sum = sum.data(),
                        .scratch = scratch.data()};
    for (std::size_t j = 0; j < 8; ++j) { list[j] = {}; } // position 190 sees tokens from 141 on: block 8
    EXPECT_NO_THROW(kernels().prefill(job));
    list[8] = {};
    EXPECT_THROW(kernels().prefill(job), InvalidArgument);
    job.first_block = 1;
    EXPECT_THROW(kernels().prefill(job), InvalidArgument); // not the start of a key tile
}

TEST(FinishPrefill, RowsThatSawNothingAreEmpty)
{
    std::vector<float> out(2 * 32, 3.0F);
    const std::vector<float> top = {-kInf, 1.0F};
    const std::vector<float> sum = {0.0F, 2.0F};
    std::vector<float> lse(2);
    cpu::finish_prefill(2, 1, 32, top.data(), sum.data(), out.data(), lse.data());
    EXPECT_EQ(out[0], 0.0F);
    EXPECT_EQ(out[32], 1.5F);
    EXPECT_EQ(lse[0], -kInf);
    EXPECT_FLOAT_EQ(lse[1], 1.0F + std::log(2.0F));
}

INSTANTIATE_TEST_SUITE_P(Tables, PrefillTest, every_table(), table_name);
INSTANTIATE_TEST_SUITE_P(Tables, PrefillCases, every_table(), table_name);

} // namespace
} // namespace oasis::test
