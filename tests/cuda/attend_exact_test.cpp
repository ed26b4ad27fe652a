// SPDX-License-Identifier: Apache-2.0
//
// What must not change a bit: the batch, the split of the work, other rows, late blocks, graphs.
#include "attend_expect.hpp"
#include "graph.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace oasis::cuda::test {
namespace {

class AttendExact : public CudaTestWithParam<BlockCode> {
protected:
    AttendShape shape() const { return {.code = GetParam(), .head_dim = 128, .group = 4, .kv_heads = 2}; }

    /// The output of one row of `result` (all heads).
    static std::vector<float> row_of(const AttendWorld& world, const AttendResult& result, std::int32_t row)
    {
        const std::size_t n = std::size_t(world.q_heads()) * 128;
        std::vector<float> out(result.out.begin() + std::ptrdiff_t(std::size_t(row) * n),
                               result.out.begin() + std::ptrdiff_t(std::size_t(row + 1) * n));
        const std::size_t heads = std::size_t(world.q_heads());
        out.insert(out.end(), result.lse.begin() + std::ptrdiff_t(std::size_t(row) * heads),
                   result.lse.begin() + std::ptrdiff_t(std::size_t(row + 1) * heads));
        return out;
    }
};

INSTANTIATE_TEST_SUITE_P(Codes, AttendExact, ::testing::Values(BlockCode::kNative, BlockCode::kInt8),
                         [](const auto& kind) { return kind.param == BlockCode::kInt8 ? "int8" : "native"; });

TEST_P(AttendExact, ATTN_15_ARowDoesNotSeeItsNeighbours)
{
    const AttendWorld world(shape(), {{900, 8, 0.4}, {517, 1, 0.6}, {700, 5, 0.5}}, 23);
    const AttendResult together = world.run(queue());
    expect_attention(world, together, DType::kBF16);
    std::int32_t first = 0;
    for (std::size_t s = 0; s < world.sequences().size(); ++s) {
        for (std::int32_t row = 0; row < world.sequences()[s].rows; ++row) {
            const AttendWorld one = world.only(s, row);
            EXPECT_TRUE(same_bits(row_of(world, together, first + row), row_of(one, one.run(queue()), 0)))
                << "sequence " << s << " row " << row;
        }
        first += world.sequences()[s].rows;
    }
}

TEST_P(AttendExact, ATTN_15_NaNOfALaterRowStaysThere)
{
    AttendWorld world(shape(), {{600, 4, 0.5}, {33}}, 29);
    const AttendResult clean = world.run(queue());
    // V of the last token, which row 3 alone sees, and whole blocks that row 0 does not read.
    const std::int64_t last = world.sequences()[0].first_position + 3;
    for (std::int32_t h = 0; h < 2; ++h) {
        for (std::int32_t i = 0; i < world.counts()[std::size_t(h)]; ++i) {
            const AttendBlock& block = world.blocks()[std::size_t(h * world.max_blocks() + i)];
            auto* bytes = reinterpret_cast<std::uint16_t*>(world.bytes_of(block));
            if (block.block == last / 16) {
                for (int c = 0; c < 128; ++c) { bytes[(16 + last % 16) * 128 + c] = 0x7FC0; }
            } else if ((block.flags & AttendBlock::kNativeForm || GetParam() == BlockCode::kNative) && !(block.rows & 1)) {
                std::fill(bytes, bytes + 2 * 16 * 128, std::uint16_t{0x7FC0});
            }
        }
    }
    const AttendResult spoilt = world.run(queue());
    EXPECT_TRUE(same_bits(row_of(world, clean, 0), row_of(world, spoilt, 0)));
    EXPECT_TRUE(same_bits(row_of(world, clean, 4), row_of(world, spoilt, 4)));
    EXPECT_TRUE(std::isnan(spoilt.out[3 * std::size_t(world.q_heads()) * 128]));
}

TEST_P(AttendExact, TheSplitOfTheWorkDoesNotMatter)
{
    const AttendWorld world(shape(), {{2100}, {77}, {1500, 3, 0.8}}, 31);
    const AttendResult expected = world.run(queue());
    for (const auto& [depth, ctas] : {std::pair{2, 1}, {3, 2}, {4, 1}, {1, 3}}) {
        AttendConfig config = world.config();
        config.ring_depth = depth;
        config.ctas_per_sm = ctas;
        config.max_sequences += depth;
        const AttendResult result = world.run(queue(), config);
        EXPECT_TRUE(same_bits(result.out, expected.out) && same_bits(result.lse, expected.lse)) << depth << " stages, " << ctas << " CTAs";
    }
}

TEST_P(AttendExact, APlanOfASmallerRingDoesNotDisturbOneThatWasMadeBefore)
{
    const AttendWorld world(shape(), {{2100}, {77}}, 33);
    const AttendResult expected = world.run(queue());
    AttendConfig smaller = world.config();
    smaller.ring_depth = 1;
    const AttendPlan first(world.config());
    const AttendPlan second(smaller);
    ASSERT_GT(first.config().ring_depth, second.config().ring_depth);
    for (const AttendPlan* plan : {&first, &second}) {
        const AttendWorld::OnDevice on(queue(), world, *plan);
        plan->enqueue(queue(), on.params);
        EXPECT_TRUE(same_bits(on.result(queue()).out, expected.out)) << plan->config().ring_depth << " stages";
    }
}

TEST_P(AttendExact, LateBlocksChangeNoBit)
{
    AttendWorld world(shape(), {{1200, 1, 0.8}, {900, 6, 0.5}, {500}, {90}}, 37);
    const AttendResult expected = world.run(queue());
    std::mt19937 random(1);
    const std::size_t per = std::size_t(world.max_blocks());
    for (std::size_t i = 0; i < world.blocks().size(); ++i) {
        const bool late = i / (2 * per) == 3 || (i / (2 * per) != 2 && random() % 12 == 0); // all of one sequence, none of another
        world.blocks()[i].flags |= late ? AttendBlock::kLate : 0;
    }
    const AttendResult in_two = world.run(queue(), world.config(), {AttendPhase::kReady, AttendPhase::kLate});
    EXPECT_TRUE(same_bits(in_two.out, expected.out));
    EXPECT_TRUE(same_bits(in_two.lse, expected.lse));
    // The ready part reads no late block: with those NaN, only the late launch can tell.
    AttendWorld absent = world;
    for (std::size_t list = 0; list < world.counts().size(); ++list) {
        for (std::int32_t i = 0; i < world.counts()[list]; ++i) {
            const AttendBlock& block = world.blocks()[list * per + std::size_t(i)];
            if (block.flags & AttendBlock::kLate) { std::memset(absent.bytes_of(block), 0xFF, absent.bytes_of_form(block)); }
        }
    }
    const AttendResult sequence_without = absent.run(queue(), world.config(), {AttendPhase::kReady, AttendPhase::kLate});
    EXPECT_TRUE(same_bits(row_of(world, sequence_without, 7), row_of(world, expected, 7)));
    EXPECT_TRUE(std::isnan(sequence_without.out[8 * std::size_t(world.q_heads()) * 128]));
}

TEST_P(AttendExact, ATTN_14_GraphReplayWithOtherListsEqualsEager)
{
    const AttendWorld world(shape(), {{1300}, {64, 4, 0.7}, {700}, {333, 2, 0.5}}, 41);
    const AttendPlan plan(world.config());
    const AttendWorld::OnDevice on(queue(), world, plan);
    const Graph graph(queue(), [&] { plan.enqueue(queue(), on.params); });
    const std::vector<std::int32_t> row_starts{0, 1, 5, 6, 8};
    for (const std::size_t live : {4U, 1U, 0U, 3U, 4U}) { // the rest is padding: lists without blocks
        std::vector<std::int32_t> now = world.counts();
        std::fill(now.begin() + std::ptrdiff_t(2 * live), now.end(), 0);
        enqueue_copy(queue(), on.counts.data(), std::span<const std::int32_t>(now));
        plan.enqueue(queue(), on.params);
        const AttendResult eager = on.result(queue());
        enqueue_fill(queue(), on.out.data(), on.out.size(), 0xFF);
        enqueue_fill(queue(), on.lse.data(), on.lse.size(), 0xFF);
        graph.enqueue(queue());
        const AttendResult replayed = on.result(queue());
        EXPECT_TRUE(same_bits(replayed.out, eager.out) && same_bits(replayed.lse, eager.lse)) << live << " live";
        const std::size_t row = std::size_t(world.q_heads()) * 128;
        for (std::size_t i = std::size_t(row_starts[live]) * row; i < replayed.out.size(); ++i) { ASSERT_EQ(replayed.out[i], 0.0F); }
        if (live == 4) { expect_attention(world, replayed, DType::kBF16); }
    }
}

TEST_P(AttendExact, OutputInTheQueriesTypeIsTheRoundedFloat)
{
    const AttendWorld world(shape(), {{400}, {90, 3, 0.6}}, 43);
    const AttendResult wide = world.run(queue());
    const std::vector<std::uint16_t> narrow = world.run_narrow(queue());
    ASSERT_EQ(narrow.size(), wide.out.size());
    for (std::size_t i = 0; i < narrow.size(); ++i) { ASSERT_EQ(narrow[i], to_bf16(wide.out[i]).bits); }
}

} // namespace
} // namespace oasis::cuda::test
