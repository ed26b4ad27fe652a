// SPDX-License-Identifier: Apache-2.0
#include "attend_expect.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace oasis::cuda::test {
namespace {

using Kind = std::tuple<DType, std::int32_t, BlockCode>;

class AttendKinds : public CudaTestWithParam<Kind> {
protected:
    AttendShape shape() const
    {
        const auto [dtype, head_dim, code] = GetParam();
        return {.dtype = dtype, .code = code, .head_dim = head_dim};
    }
};

std::string kind_name(const ::testing::TestParamInfo<Kind>& info)
{
    const auto [dtype, head_dim, code] = info.param;
    return std::string(name(dtype)) + "_d" + std::to_string(head_dim) + (code == BlockCode::kInt8 ? "_int8" : "_native");
}

INSTANTIATE_TEST_SUITE_P(All, AttendKinds,
                         ::testing::Combine(::testing::Values(DType::kF16, DType::kBF16), ::testing::Values(64, 80, 96, 128, 256),
                                            ::testing::Values(BlockCode::kNative, BlockCode::kInt8)),
                         kind_name);

TEST_P(AttendKinds, EqualsTheOracleOverRandomShapes)
{
    std::mt19937_64 random(7);
    const auto any = [&](std::int32_t low, std::int32_t high) { return std::uniform_int_distribution<std::int32_t>(low, high)(random); };
    for (int round = 0; round < 6; ++round) {
        AttendShape shape = this->shape();
        shape.group = any(1, 16);
        shape.kv_heads = any(1, 3);
        shape.block_tokens = 16 << any(0, 2);
        shape.window = round % 3 == 2 ? any(1, 300) : 0;
        std::vector<AttendSequence> sequences;
        for (std::int32_t s = any(1, 3); s > 0; --s) { sequences.push_back({any(0, 700), round % 2 ? any(1, 8) : 1, 0.1 * any(1, 10)}); }
        const AttendWorld world(shape, sequences, static_cast<std::uint64_t>(round), any(0, 40));
        expect_attention(world, world.run(queue()), shape.dtype);
        if (HasFatalFailure()) {
            FAIL() << "round " << round << " group " << shape.group << " block " << shape.block_tokens << " window " << shape.window;
        }
    }
}

TEST_P(AttendKinds, ATTN_01_LengthsAroundBlocksAndChunksWithNaNInUnusedPlaces)
{
    for (const std::int32_t b : {16, 32, 64}) {
        AttendShape shape = this->shape();
        shape.block_tokens = b;
        std::vector<AttendSequence> sequences;
        for (const std::int32_t length : {1, b - 1, b, b + 1, 3 * b + 5, 255, 256, 257, 512, 513}) { sequences.push_back({length - 1}); }
        const AttendWorld world(shape, sequences, 3);
        expect_attention(world, world.run(queue()), shape.dtype);
    }
}

class AttendCases : public CudaTest {};

TEST_F(AttendCases, ATTN_01_InfinityInUnusedPlaces)
{
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
        AttendWorld world({.dtype = dtype, .head_dim = 128}, {{4, 3}, {290}}, 5);
        const std::uint16_t infinity = dtype == DType::kF16 ? 0x7C00 : 0x7F80;
        for (std::size_t list = 0; list < world.counts().size(); ++list) {
            const std::int32_t last = world.counts()[list] - 1;
            auto* elements = reinterpret_cast<std::uint16_t*>(
                world.bytes_of(world.blocks()[list * std::size_t(world.max_blocks()) + std::size_t(last)]));
            std::replace(elements, elements + 2 * 16 * 128, std::uint16_t{0xFFFF}, infinity);
        }
        expect_attention(world, world.run(queue()), dtype);
    }
}

TEST_F(AttendCases, ATTN_02_EmptySetsGiveZerosAndChangeNoOtherRow)
{
    const AttendShape shape{.head_dim = 128, .kv_heads = 1};
    AttendWorld world(shape, {{300, 1, 0.5}, {300, 3, 0.5}, {40, 1, 1.0}}, 11);
    const AttendResult before = world.run(queue());
    world.counts()[0] = 0; // a list without blocks
    for (std::int32_t i = 0; i < world.counts()[1]; ++i) {
        world.blocks()[std::size_t(world.max_blocks() + i)].rows &= 0b101;
    } // a row without blocks
    const AttendResult after = world.run(queue());
    expect_attention(world, after, shape.dtype);
    const std::size_t row = std::size_t(shape.group) * 128;
    for (const std::size_t empty : {std::size_t{0}, std::size_t{2}}) {
        for (std::size_t i = 0; i < row; ++i) { ASSERT_EQ(after.out[empty * row + i], 0.0F); }
    }
    for (const std::size_t kept : {1U, 3U, 4U}) {
        EXPECT_TRUE(std::equal(before.out.begin() + std::ptrdiff_t(kept * row), before.out.begin() + std::ptrdiff_t((kept + 1) * row),
                               after.out.begin() + std::ptrdiff_t(kept * row)))
            << kept;
    }
}

TEST_F(AttendCases, ATTN_05_EveryGroupUpTo16AndASentenceBeyond)
{
    for (std::int32_t group = 1; group <= 16; ++group) {
        const AttendWorld world({.head_dim = 64, .group = group}, {{270}, {30, 5, 0.7}}, 13);
        expect_attention(world, world.run(queue()), DType::kBF16);
    }
}

TEST(AttendPlanChecks, ATTN_05_ATTN_12_RefusalsListWhatIsSupported)
{
    const AttendConfig good{.q_heads = 8, .kv_heads = 2, .max_sequences = 1, .max_blocks = 4};
    const auto refusal = [&](auto&& change) {
        AttendConfig config = good;
        change(config);
        try {
            const AttendPlan plan(config);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
    EXPECT_PRED2(has, refusal([](AttendConfig& c) { c.head_dim = 100; }),
                 "head_dim 100; supported: f16 and bf16, head_dim 64, 80, 96, 128, 256");
    EXPECT_PRED2(has, refusal([](AttendConfig& c) { c.dtype = DType::kF32; }), "f32 with head_dim 128; supported:");
    EXPECT_PRED2(has, refusal([](AttendConfig& c) { c.q_heads = 34; }), "34 query heads on 2 KV heads");
    EXPECT_PRED2(has, refusal([](AttendConfig& c) { c.q_heads = 9; }), "1 to 16 query heads on a KV head");
    EXPECT_PRED2(has, refusal([](AttendConfig& c) { c.block_tokens = 48; }), "blocks of 48 tokens");
    EXPECT_PRED2(has, refusal([](AttendConfig& c) { c.max_rows = 9; }), "max_rows is 9");
    EXPECT_PRED2(has, refusal([](AttendConfig& c) { c.max_blocks = 0; }), "max_blocks is 0");
}

TEST_F(AttendCases, ATTN_17_ScalesFromTheSmallestToTheLargest)
{
    for (const double amplitude : {0.0, 1e-7, 1e-5, 1e-2, 3e4}) {
        const AttendShape shape{.dtype = DType::kBF16, .code = BlockCode::kInt8, .head_dim = 128, .amplitude = amplitude};
        const AttendWorld world(shape, {{500}, {301, 3, 0.6}}, 17);
        expect_attention(world, world.run(queue()), shape.dtype, amplitude == 0.0 ? 1.0 : amplitude);
    }
}

TEST_F(AttendCases, ATTN_07_OffsetsBeyond32Bits)
{
    const std::size_t elements = (std::size_t{1} << 32) + (std::size_t{1} << 20);
    if (const std::string why = lacks_gpu_memory(2 * elements + (std::size_t{1} << 30)); !why.empty()) {
        GTEST_SKIP() << why;
    }
    const AttendShape shape{.dtype = DType::kF16, .head_dim = 128, .kv_heads = 1, .recent = 0};
    AttendWorld world(shape, {{16 * 6 - 1}}, 19);
    const AttendPlan plan(world.config());
    AttendWorld::OnDevice on(queue(), world, plan);
    const DeviceBuffer<std::byte> arena(2 * elements);
    std::vector<AttendBlock> blocks = world.blocks();
    const std::int64_t limits[] = {0, std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{1} << 33};
    for (std::int32_t i = 0; i < world.counts()[0]; ++i) {
        AttendBlock& block = blocks[std::size_t(i)];
        const std::byte* content = world.bytes_of(block);
        block.flags = 0;
        block.offset = limits[i % 4] + (i / 4 ? 8192 : limits[i % 4] ? -8192 : 0);
        enqueue_copy(queue(), arena.data() + block.offset, std::span<const std::byte>(content, 8192));
    }
    enqueue_copy(queue(), on.blocks.data(), std::span<const AttendBlock>(blocks));
    on.params.slots = arena.data();
    on.params.native = nullptr;
    plan.enqueue(queue(), on.params);
    expect_attention(world, on.result(queue()), shape.dtype);
}

} // namespace
} // namespace oasis::cuda::test
