// SPDX-License-Identifier: Apache-2.0
// Block ids whose offsets leave 32 bits, in a sparse mapping.
#include "attend_fixture.hpp"

#include <sys/mman.h>

namespace oasis::test {
namespace {

class OffsetCases : public OnEveryTable {};

TEST(HeadBlockLayout, ATTN_07_ProductsWithABlockIdAre64Bit)
{
    struct Golden {
        std::int32_t block_tokens, head_dim;
        std::size_t stride, first_int32, first_uint32; ///< elements of K; ids
    };
    for (const Golden& row : {Golden{64, 128, 8192, 262'144, 524'288}, Golden{16, 128, 2048, 1'048'576, 2'097'152}}) {
        const HeadBlockLayout layout{DType::kF16, BlockCode::kNative, row.block_tokens, row.head_dim};
        ASSERT_EQ(layout.elements(), row.stride);
        EXPECT_EQ(row.first_int32 * layout.elements(), std::size_t{1} << 31);
        EXPECT_EQ(row.first_uint32 * layout.elements(), std::size_t{1} << 32);
        EXPECT_EQ(row.first_uint32 * layout.native_bytes(), std::size_t{1} << 34);
        static_assert(sizeof(decltype(layout.native_bytes())) == 8);
    }
}

TEST_P(OffsetCases, ATTN_07_BlocksOnBothSidesOfTheLimitsAreReadExactly)
{
    const BlockFormat format{DType::kF32, BlockCode::kNative, 64, 128};
    const std::size_t stride =
        HeadBlockLayout{format.dtype, format.code, format.block_tokens, format.head_dim}.native_bytes();
    ASSERT_EQ(stride, 65'536U);
    // Bytes and elements leave 31 and 32 bits at these ids.
    const std::vector<std::size_t> ids = {0, 32'767, 32'768, 65'535, 65'536, 131'071, 131'072, 262'143, 262'144};
    const std::size_t bytes = (ids.back() + 1) * stride;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) { GTEST_SKIP() << "needs " << bytes << " bytes of address space (ulimit -v)"; }
    auto* arena = static_cast<std::byte*>(memory);
    const std::vector<float> q = random_floats(3 * 128, 3, 0.1F);
    const Blocks blocks = make_blocks(format, std::int32_t(ids.size()) * 64, 6);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        std::memcpy(arena + ids[i] * stride, blocks.native[i].data(), stride);
    }
    std::vector<BlockRef> refs;
    for (const std::size_t id : ids) { refs.push_back({arena + id * stride, 0, 64, false}); }
    const State state = attend(kernels(), format, q, 3, refs);
    expect_attention(q, blocks.keys, blocks.values, state.out.data(), state.lse.data(), 128, 1e-5);
    munmap(memory, bytes);
}

TEST_P(OffsetCases, ATTN_07_PrefillPositionsBeyond32Bits)
{
    // Row 0 sits just below the last block position an int32 can hold; only its window is present.
    const BlockFormat format{DType::kF32, BlockCode::kNative, 64, 64};
    const Blocks blocks = make_blocks(format, 128, 8);
    const std::int32_t first_block = std::numeric_limits<std::int32_t>::max() - 3;
    const std::vector<float> q = random_floats(2 * 64, 5, 0.125F);
    const std::vector<cpu::PrefillBlock> list = {{blocks.native[0].data(), nullptr},
                                                 {blocks.native[1].data(), nullptr}};
    std::vector<float> out(2 * 64), top(2, -kInf), sum(2), lse(2), scratch(cpu::prefill_scratch_floats(format, 1));
    cpu::PrefillJob job{.format = format,
                        .q = q.data(),
                        .rows = 2,
                        .group = 1,
                        .first_position = TokenIndex{first_block} * 64 + 100,
                        .first_block = first_block,
                        .recent = 128,
                        .window = 80,
                        .blocks = list,
                        .out = out.data(),
                        .max = top.data(),
                        .sum = sum.data(),
                        .scratch = scratch.data()};
    kernels().prefill(job);
    cpu::finish_prefill(2, 1, 64, top.data(), sum.data(), out.data(), lse.data());
    for (std::ptrdiff_t row = 0; row < 2; ++row) {
        const std::vector<oracle::Row> keys(blocks.keys.begin() + 21 + row, blocks.keys.begin() + 101 + row);
        const std::vector<oracle::Row> values(blocks.values.begin() + 21 + row, blocks.values.begin() + 101 + row);
        expect_attention({q.begin() + row * 64, q.begin() + row * 64 + 64}, keys, values, &out[std::size_t(row) * 64],
                         &lse[std::size_t(row)], 64, 1e-5);
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, OffsetCases, every_table(), table_name);

} // namespace
} // namespace oasis::test
