// SPDX-License-Identifier: Apache-2.0
#include "graph.hpp"
#include "resolve_checks.hpp"

#include <memory>
#include <string>

namespace oasis::cuda::test {
namespace {

class Resolve : public CudaTest {
protected:
    void run(const ResolveShape& shape, int steps, std::uint64_t seed)
    {
        ResolveWorld world(queue(), shape, seed);
        for (int step = 0; step < steps; ++step) {
            world.begin_step();
            for (LayerId layer = 0; layer < shape.layers; ++layer) {
                enqueue_resolve(queue(), world.params(layer));
                world.check_layer(layer);
                if (HasFailure()) { FAIL() << "seed " << seed << ", step " << step << ", layer " << layer; }
            }
            world.end_step();
        }
        counters = world.counters();
    }
    ResolveCounters counters;
};

TEST_F(Resolve, RandomStepsFollowTheModel)
{
    run({}, 60, 1);
    EXPECT_GT(counters.fetched, 0U);
    EXPECT_GT(counters.guessed, 0U);
    EXPECT_GT(counters.late, 0U);
    run({.max_rows = 8, .must = 12, .may = 24, .logical = 24, .cap = 6, .spare = 0}, 40, 2);
    run({.max_rows = 1, .cap = 0, .spare = 0}, 40, 3);
    run({.max_rows = 8, .must = 11, .may = 11, .logical = 40, .cap = 1, .recent = 16, .length = 200}, 40, 4);
}

TEST_F(Resolve, DenseRowsReadAllAndLeaveTheSetAlone) { run({.may = 40, .logical = 40, .dense_below = 600, .length = 580, .steps_a_cut = 3}, 60, 5); }

TEST_F(Resolve, MustSetsAlone) { run({.may_none = true}, 40, 6); }

TEST_F(Resolve, AFirstSparseRowBringsItsRanking) { run({.logical = 30, .ranked = true}, 60, 7); }

TEST_F(Resolve, LongContextsAndLargeSets)
{
    run({.cells = 2,
         .layers = 1,
         .max_rows = 4,
         .must = 64,
         .may = 128,
         .logical = 300,
         .cap = 32,
         .recent = 128,
         .max_blocks = 65000,
         .length = 700000},
        6, 8);
}

TEST_F(Resolve, AReplayedGraphDoesWhatALaunchDoes)
{
    const ResolveShape shape{.layers = 1};
    ResolveWorld eager(queue(), shape, 9);
    ResolveWorld replayed(queue(), shape, 9);
    const Graph graph(queue(), [&] { enqueue_resolve(queue(), replayed.params(0)); });
    for (int step = 0; step < 20; ++step) {
        eager.begin_step();
        replayed.begin_step();
        enqueue_resolve(queue(), eager.params(0));
        graph.enqueue(queue());
        replayed.check_layer(0);
        eager.check_layer(0);
        EXPECT_EQ(eager.digest(), replayed.digest()) << "step " << step;
        if (HasFailure()) { break; }
        eager.end_step();
        replayed.end_step();
    }
}

TEST_F(Resolve, NoSequencesLeaveEmptyPlans)
{
    ResolveWorld world(queue(), {.layers = 1}, 12);
    ResolveParams p = world.params(0);
    do {
        world.begin_step();
        enqueue_resolve(queue(), p);
    } while (download(queue(), p.demand.count, 1)[0] == 0);
    p.sequences = 0;
    enqueue_fill(queue(), p.guess.count, 1, 0xFF);
    enqueue_resolve(queue(), p);
    EXPECT_EQ(download(queue(), p.demand.count, 1)[0], 0);
    EXPECT_EQ(download(queue(), p.guess.count, 1)[0], 0);
    const auto expected = download(queue(), p.demand.expected, 2);
    EXPECT_EQ(expected[0], expected[1]) << "nothing was planned";
    const ResolveTicket ticket = download(queue(), p.ticket, 1)[0];
    EXPECT_EQ(ticket.left, 0U);
    p.prefetch_cap = 0; // then the guess's plan is not looked at
    enqueue_fill(queue(), p.guess.count, 1, 0xFF);
    enqueue_resolve(queue(), p);
    EXPECT_EQ(download(queue(), p.guess.count, 1)[0], -1);
}

TEST_F(Resolve, NumbersThatDoNotFitAreNamed)
{
    ResolveWorld world(queue(), {}, 10);
    const auto refusal = [&](auto&& change) {
        ResolveParams p = world.params(0);
        change(p);
        try {
            enqueue_resolve(queue(), p);
        } catch (const InvalidArgument& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    EXPECT_NE(refusal([](ResolveParams& p) { p.residency.owned_slots = 51; }).find("51 slots a unit"), std::string::npos);
    EXPECT_NE(refusal([](ResolveParams& p) { p.list_blocks = 63; }).find("lists of 63 blocks"), std::string::npos);
    EXPECT_NE(refusal([](ResolveParams& p) { p.demand.capacity = 100; }).find("room for 100 pieces"), std::string::npos);
    EXPECT_NE(refusal([](ResolveParams& p) { p.may_blocks = 17; }).find("may 17"), std::string::npos);
    EXPECT_NE(refusal([](ResolveParams& p) { p.dense_below = 257; }).find("257 tokens"), std::string::npos);
    EXPECT_NE(refusal([](ResolveParams& p) { p.residency.max_rows = 9; }).find("9 rows"), std::string::npos);
    EXPECT_NE(refusal([](ResolveParams& p) { p.must = nullptr; }).find("null"), std::string::npos);
}

TEST_F(Resolve, ACellWithTooFewSlotsIsCounted)
{
    ResolveWorld world(queue(), {.cells = 1, .layers = 1, .kv_heads = 1, .max_rows = 1, .cap = 0}, 11);
    ResolveParams p = world.params(0);
    world.take_slots(4);
    do {
        world.begin_step();
    } while (world.batch[0].cell < 0);
    enqueue_resolve(queue(), p);
    const ResolveCounters counted = world.counters();
    EXPECT_EQ(counted.fetched, 4U);
    EXPECT_GT(counted.unserved, 0U);
    const auto list = download(queue(), p.blocks, std::size_t(counted.read));
    EXPECT_EQ(std::count_if(list.begin(), list.end(), [](const AttendBlock& b) { return (b.flags & AttendBlock::kNativeForm) == 0; }), 4);
}

} // namespace
} // namespace oasis::cuda::test
