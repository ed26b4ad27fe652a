// SPDX-License-Identifier: Apache-2.0
#include "fetch_fixture.hpp"
#include "graph.hpp"

#include <oasis/cuda/dma.hpp>
#include <oasis/cuda/launch.cuh>
#include <oasis/cuda/staging.hpp>

namespace oasis::cuda::test {
namespace {

TEST_F(FetchCases, PREF_05_ASlotGivenAwayInFlightIsNotTakenForItsNewOwners)
{
    make(8192, 2048, 1);
    plan_random(2000, 8);
    Stream other;
    auto bumped = generation;
    for (auto& g : bumped) { g += 1000; }
    for (int i = 0; i < 20; ++i) {
        upload_generations();
        reset();
        queue().synchronize();
        enqueue_fetch(queue(), params(), {.ctas = 1, .threads = 128});
        enqueue_copy(other.queue(), generations_.data(), bumped); // some time during the fetch
        other.queue().synchronize();
        queue().synchronize();
        for (const auto& piece : pieces) {
            const std::uint32_t mark = marks()[std::size_t(piece.slot)];
            ASSERT_TRUE(mark == piece.generation || mark == kPoison) << "slot " << piece.slot << " is marked " << mark;
        }
        ASSERT_EQ(counters().done + counters().stale, 2000U);
    }
}

TEST_F(FetchCases, PREF_10_PiecesOutOfRangeAreRefusedAndTheRestLands)
{
    make(4224, 100, 2);
    plan_random(50, 9);
    std::vector<bool> good(50, true);
    const auto spoil = [&](std::size_t i, auto&& change) {
        change(pieces[i]);
        good[i] = false;
    };
    spoil(3, [&](TransferPiece& p) { p.place = tier_bytes() - 4208; });
    spoil(4, [&](TransferPiece& p) { p.place = ~std::uint64_t{0} - 127; });
    spoil(5, [&](TransferPiece& p) { p.place += 8; });
    spoil(6, [&](TransferPiece& p) { p.slot = 100; });
    spoil(7, [&](TransferPiece& p) { p.slot = -1; });
    spoil(8, [&](TransferPiece& p) { p.layer = 2; });
    upload_plan();
    enqueue_fetch(queue(), params());
    expect_landed(good);
    EXPECT_EQ(counters().refused, 6U);
}

TEST_F(FetchCases, PREF_08_AReplayedGraphFollowsThePlanOfItsTime)
{
    make(4224, 300, 3);
    plan_random(0, 11);
    auto p = params();
    p.most = 300;
    const Graph graph(queue(), [&] { enqueue_fetch(queue(), p); });
    for (const std::size_t count : {std::size_t{0}, std::size_t{250}, std::size_t{3}}) {
        reset();
        plan_random(count, 12 + count);
        graph.enqueue(queue());
        expect_landed(std::vector<bool>(count, true));
    }
}

TEST_F(FetchCases, PREF_01_WriteThroughWaitsForTheProducer)
{
    make(4224, 64, 1);
    plan_random(64, 15);
    Stream low(Stream::Priority::kLow);
    Event written;
    for (int round = 0; round < 200; ++round) {
        const auto value = std::uint8_t(round);
        launch(queue(), "slow_fill", slow_fill, SlowFill{slots_.data(), slots_.size(), value, 20'000}, 1, 256);
        written.record(queue());
        written.enqueue_wait(low.queue());
        enqueue_write_through(low.queue(), params());
        low.queue().synchronize();
        for (const auto& piece : pieces) {
            const auto* place = reinterpret_cast<const std::uint8_t*>(tier->data()) + piece.place;
            ASSERT_EQ(std::count(place, place + unit_, value), std::ptrdiff_t(unit_)) << "round " << round;
        }
    }
}

TEST_F(FetchCases, PREF_03_EveryStepSeesItsOwnTable)
{
    constexpr std::size_t kSteps = 20;
    constexpr std::size_t kSize = 1000;
    StagingRing<std::uint32_t> ring(kSize, 3);
    const auto table = poisoned<std::uint32_t>(queue(), kSize);
    const auto seen = poisoned<std::uint32_t>(queue(), kSteps * kSize);
    for (std::size_t step = 0; step < kSteps; ++step) {
        const auto memory = ring.next();
        std::fill(memory.begin(), memory.end(), std::uint32_t(step));
        ring.enqueue(queue(), table.data(), kSize);
        launch(queue(), "slow_fill", slow_fill, SlowFill{nullptr, 0, 0, 2'000'000}, 1, 32);
        enqueue_copy(queue(), seen.data() + step * kSize, std::span<const std::uint32_t>(table.data(), kSize));
    }
    const auto values = download(queue(), seen);
    for (std::size_t i = 0; i < values.size(); ++i) { ASSERT_EQ(values[i], i / kSize); }
    EXPECT_THROW(ring.enqueue(queue(), table.data(), kSize), InvalidArgument) << "not filled since";
}

TEST_F(FetchCases, PREF_12_TheChosenPathIsNearTheBest)
{
    make(4096, 64 << 8, 1); // 64 MiB
    const auto table = TransferTable::measure(queue(), tier->data(), tier->size(), slots_.data(), slots_.size(), 4096);
    for (const std::size_t bytes : TransferTable::kRunBytes) {
        for (const std::size_t runs : TransferTable::kRuns) {
            const double best = std::max(table.gbps(TransferPath::kGather, bytes, runs), table.gbps(TransferPath::kDma, bytes, runs));
            ASSERT_GT(best, 0.0);
            EXPECT_EQ(table.gbps(table.choose(bytes, runs), bytes, runs), best) << bytes << " x " << runs;
        }
    }
    EXPECT_EQ(table.choose(4096, 64), TransferPath::kGather);
}

TEST_F(FetchCases, PREF_14_DemandDoesNotQueueBehindGuesses)
{
    make(8192, 20000, 1);
    plan_random(20000, 21);
    Stream low(Stream::Priority::kLow);
    const auto ticket = upload(queue(), std::vector<TransferTicket>(1));
    auto demand = params();
    demand.most = 64;
    demand.ticket = ticket.data();
    // Guesses in launches of 8 MiB: 160 us each at 50 GB/s.
    const auto guess = [&] {
        for (std::int32_t first = 64; first < 20000; first += 1024) {
            auto p = params();
            p.first = first;
            p.most = 1024;
            enqueue_fetch(low.queue(), p);
        }
    };
    const auto median_us = [&](bool loaded) {
        std::vector<float> times;
        for (int i = 0; i < 15; ++i) {
            Event begin(Event::Kind::kTimed);
            Event end(Event::Kind::kTimed);
            if (loaded) { guess(); }
            begin.record(queue());
            enqueue_fetch(queue(), demand);
            end.record(queue());
            end.synchronize();
            EXPECT_TRUE(!loaded || cudaStreamQuery(low.queue().stream()) == cudaErrorNotReady) << "the guesses were over before the demand";
            low.queue().synchronize();
            times.push_back(1e3F * Event::milliseconds(begin, end));
        }
        std::sort(times.begin(), times.end());
        return times[7];
    };
    const float alone = median_us(false);
    EXPECT_LE(median_us(true), 2 * alone + 200) << "alone it takes " << alone << " us";
}

} // namespace
} // namespace oasis::cuda::test
