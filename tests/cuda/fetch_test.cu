// SPDX-License-Identifier: Apache-2.0
#include "fetch_fixture.hpp"

#include <oasis/cuda/arena.hpp>
#include <oasis/cuda/dma.hpp>
#include <oasis/cuda/launch.cuh>

#include <algorithm>

namespace oasis::cuda::test {
namespace {

TEST_F(Fetch, RandomPlansLandByteForByte)
{
    std::uint64_t seed = 1;
    for (const std::uint32_t unit : {16U, 128U, 4224U, 4608U, 4624U, 8192U, 8320U, 33792U}) {
        for (const std::size_t count : {0, 1, 7, 500}) {
            make(unit, 700, 4);
            plan_random(count, ++seed);
            enqueue_fetch(queue(), params(), {.ctas = 1 + int(seed % 5), .threads = 32 << (seed % 6)});
            expect_landed(std::vector<bool>(count, true));
            if (HasFailure()) { FAIL() << "unit " << unit << ", " << count << " pieces"; }
        }
    }
}

TEST_F(Fetch, AStaleGenerationNeverLands)
{
    make(4224, 300, 3);
    plan_random(200, 7);
    std::vector<bool> fresh(200, true);
    for (std::size_t i = 0; i < 200; i += 3) {
        ++generation[std::size_t(pieces[i].slot)];
        fresh[i] = false;
    }
    upload_generations();
    enqueue_fetch(queue(), params());
    expect_landed(fresh);
    EXPECT_EQ(counters().stale, 67U);
}

TEST_F(Fetch, LaunchesTakeSlicesOfAPlan)
{
    make(4224, 300, 3);
    plan_random(250, 10);
    for (int first = 0; first < 300; first += 64) {
        auto p = params();
        p.first = first;
        p.most = 64;
        enqueue_fetch(queue(), p);
    }
    expect_landed(std::vector<bool>(250, true));
}

TEST_F(Fetch, OffsetsBeyondTwoGigabytes)
{
    constexpr std::uint64_t kFar = (std::uint64_t{1} << 31) + (std::uint64_t{64} << 20);
    constexpr std::uint64_t kBytes = kFar + (std::uint64_t{4} << 20);
    if (const std::size_t available = available_host_bytes(); available < kBytes) {
        GTEST_SKIP() << "needs " << kBytes << " bytes of host memory, " << available << " are available";
    }
    PinFailure failure;
    auto large = HostTier::try_create({.bytes = kBytes}, failure);
    ASSERT_TRUE(large) << failure.reason;
    Arena slots({.reserve_bytes = kFar + (1 << 20)});
    ASSERT_TRUE(slots.try_grow(kFar + (1 << 20)));
    make(4224, 1, 1);
    const auto bytes = random_bytes(4224, 13);
    std::memcpy(large->data() + kFar, bytes.data(), bytes.size());
    const auto slot = std::int32_t(kFar / 4224);
    const std::vector<TransferPiece> plan{{.place = kFar, .slot = slot, .generation = 5}};
    const auto device_plan = upload(queue(), plan);
    const auto count = upload(queue(), std::vector<std::int32_t>{1});
    const auto generations = upload(queue(), std::vector<std::uint32_t>(std::size_t(slot) + 1, 5));
    const auto marks = poisoned<std::uint32_t>(queue(), std::size_t(slot) + 1);
    auto p = params();
    p.tier = large->data();
    p.tier_bytes = large->size();
    p.slots = slots.data();
    p.slot_count = slot + 1;
    p.pieces = device_plan.data();
    p.count = count.data();
    p.most = 1;
    p.generation = generations.data();
    p.marks = marks.data();
    enqueue_fetch(queue(), p);
    EXPECT_EQ(download(queue(), reinterpret_cast<const std::uint8_t*>(slots.data()) + std::uint64_t(slot) * 4224, 4224), bytes);
    EXPECT_EQ(download(queue(), marks.data() + slot, 1).front(), 5U);
}

TEST_F(Fetch, TwoQueuesShareTheDevice)
{
    make(4224, 600, 2);
    plan_random(500, 14);
    Stream low(Stream::Priority::kLow);
    const auto ticket = upload(queue(), std::vector<TransferTicket>(1));
    for (int round = 0; round < 50; ++round) {
        reset();
        queue().synchronize();
        auto first = params();
        first.most = 200;
        auto second = params();
        second.first = 200;
        second.most = 300;
        second.ticket = ticket.data();
        enqueue_fetch(queue(), first, {.ctas = 3});
        enqueue_fetch(low.queue(), second, {.ctas = 2});
        low.queue().synchronize();
        expect_landed(std::vector<bool>(500, true));
        if (HasFailure()) { FAIL() << "round " << round; }
    }
}

TEST_F(Fetch, WhatIsWrittenThroughComesBack)
{
    make(8320, 200, 2);
    plan_random(150, 16);
    const auto bytes = random_bytes(slots_.size(), 17);
    enqueue_copy(queue(), reinterpret_cast<std::uint8_t*>(slots_.data()), bytes);
    ++generation[std::size_t(pieces[9].slot)]; // given away since: its bytes must not reach the place
    upload_generations();
    enqueue_write_through(queue(), params());
    queue().synchronize();
    EXPECT_EQ(counters().done, 149U);
    EXPECT_EQ(counters().stale, 1U);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const bool same = std::memcmp(tier->data() + pieces[i].place, bytes.data() + std::size_t(pieces[i].slot) * unit_, unit_) == 0;
        ASSERT_EQ(same, i != 9) << i;
        ASSERT_EQ(marks()[std::size_t(pieces[i].slot)], i == 9 ? kPoison : pieces[i].generation);
    }
    reset();
    tier_bytes_now();
    enqueue_fetch(queue(), params());
    std::vector<bool> fresh(150, true);
    fresh[9] = false;
    expect_landed(fresh);
}

TEST_F(Fetch, ALayerIsWaitedForAndADeadlineEndsTheWait)
{
    make(4224, 400, 4);
    plan_random(400, 18);
    Stream low(Stream::Priority::kLow);
    const auto expected = upload(queue(), std::vector<std::uint32_t>{100, 100, 100, 101});
    const auto late = upload(queue(), std::vector<std::uint32_t>{0});
    const auto seen = poisoned<std::uint32_t>(queue(), 400);
    queue().synchronize();
    launch(low.queue(), "slow_fill", slow_fill, SlowFill{nullptr, 0, 0, 2'000'000}, 1, 32);
    enqueue_fetch(low.queue(), params(), {.ctas = 1, .threads = 32});
    enqueue_wait_layer(queue(), {.over = params().layer_over, .expected = expected.data(), .layer = 0, .late = late.data()});
    enqueue_copy(queue(), seen.data(), std::span<const std::uint32_t>(marks_.data(), 400));
    EXPECT_EQ(download(queue(), late).front(), 0U);
    const auto marks_seen = download(queue(), seen);
    for (const auto& piece : pieces) {
        if (piece.layer == 0) { ASSERT_EQ(marks_seen[std::size_t(piece.slot)], piece.generation); }
    }
    enqueue_wait_layer(
        queue(), {.over = params().layer_over, .expected = expected.data(), .layer = 3, .deadline_ns = 5'000'000, .late = late.data()});
    EXPECT_EQ(download(queue(), late).front(), 1U) << "the 101st piece never comes";
    low.queue().synchronize();
}

TEST_F(Fetch, ALayersCountersMayWrap)
{
    make(4224, 16, 1);
    plan_random(4, 22);
    Stream low(Stream::Priority::kLow);
    const auto over = upload(queue(), std::vector<std::uint32_t>{0xFFFFFFFE});
    const auto expected = upload(queue(), std::vector<std::uint32_t>{2});
    const auto passed = upload(queue(), std::vector<std::uint32_t>{0xFFFFFFFF});
    const auto late = upload(queue(), std::vector<std::uint32_t>{0});
    const auto seen = poisoned<std::uint32_t>(queue(), 16);
    queue().synchronize();
    launch(low.queue(), "slow_fill", slow_fill, SlowFill{nullptr, 0, 0, 2'000'000}, 1, 32);
    auto p = params();
    p.layer_over = over.data();
    enqueue_fetch(low.queue(), p, {.ctas = 1, .threads = 32});
    enqueue_wait_layer(queue(), {.over = over.data(), .expected = expected.data(), .layer = 0, .late = late.data()});
    enqueue_copy(queue(), seen.data(), std::span<const std::uint32_t>(marks_.data(), 16));
    EXPECT_EQ(download(queue(), late).front(), 0U);
    EXPECT_EQ(download(queue(), over).front(), 2U);
    const auto marks_seen = download(queue(), seen);
    for (const auto& piece : pieces) { EXPECT_EQ(marks_seen[std::size_t(piece.slot)], piece.generation); }
    enqueue_wait_layer(
        queue(),
        {.over = over.data(), .expected = passed.data(), .layer = 0, .deadline_ns = 5'000'000, .late = late.data()});
    EXPECT_EQ(download(queue(), late).front(), 0U) << "2 comes after 0xFFFFFFFF";
    low.queue().synchronize();
}

TEST_F(Fetch, ArgumentsThatCanNeverWorkThrow)
{
    make(4224, 4, 1);
    auto p = params();
    p.unit_bytes = 4220;
    EXPECT_THROW(enqueue_fetch(queue(), p), InvalidArgument);
    p = params();
    p.marks = nullptr;
    EXPECT_THROW(enqueue_fetch(queue(), p), InvalidArgument);
    EXPECT_THROW(enqueue_fetch(queue(), params(), {.ctas = 1, .threads = 33}), InvalidArgument);
    EXPECT_THROW(enqueue_write_through(queue(), params(), {.ctas = 0}), InvalidArgument);
}

TEST_F(Fetch, BatchesCopyEverythingInPiecesOfFourMegabytes)
{
    make(4224, 4, 1);
    constexpr std::size_t kBytes = (std::size_t{9} << 20) + 5;
    const auto bytes = random_bytes(kBytes, 19);
    PinnedBuffer<std::uint8_t> pinned(kBytes);
    std::copy(bytes.begin(), bytes.end(), pinned.data());
    const auto target = poisoned<std::uint8_t>(queue(), kBytes);
    CopyBatch batch;
    batch.enqueue(queue()); // nothing
    batch.add_to_device(target.data(), pinned.data(), 100);
    batch.add_to_device(target.data() + 100, pinned.data() + 100, kBytes - 100);
    EXPECT_GE(batch.pieces(), 4U);
    EXPECT_LE(batch.pieces(), 5U);
    batch.enqueue(queue());
    batch.clear();
    EXPECT_EQ(download(queue(), target), bytes);
}

} // namespace
} // namespace oasis::cuda::test
