// SPDX-License-Identifier: Apache-2.0
//
// A large tier of random bytes, poisoned slots and random plans between them. For nvcc: it has a kernel.
#pragma once

#include "support.hpp"

#include <oasis/cuda/fetch.hpp>
#include <oasis/cuda/host_tier.hpp>

#include <algorithm>
#include <numeric>

namespace oasis::cuda::test {

struct SlowFill {
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    std::uint8_t value = 0;
    std::uint64_t nanoseconds = 0;
};

/// Writes, after a pause.
static __global__ void slow_fill(const SlowFill p)
{
    std::uint64_t begin = 0;
    std::uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < p.nanoseconds);
    for (std::size_t i = threadIdx.x; i < p.bytes; i += blockDim.x) { p.to[i] = std::byte(p.value); }
}

class Fetch : public CudaTest {
protected:
    static constexpr std::uint32_t kPoison = 0xFFFFFFFFU;

    void make(std::uint32_t unit, std::int32_t slots, std::int32_t layers)
    {
        unit_ = unit;
        layers_ = layers;
        PinFailure failure;
        if (!tier || tier->size() < std::size_t(unit) * std::size_t(slots)) {
            tier = HostTier::try_create({.bytes = std::size_t(unit) * std::size_t(slots)}, failure);
            ASSERT_TRUE(tier) << failure.reason;
        }
        const auto bytes = random_bytes(tier->size(), unit + std::uint64_t(slots));
        std::memcpy(tier->data(), bytes.data(), bytes.size());
        tier_bytes_now();
        slots_ = DeviceBuffer<>(std::size_t(unit) * std::size_t(slots));
        marks_ = DeviceBuffer<std::uint32_t>(std::size_t(slots));
        over_ = DeviceBuffer<std::uint32_t>(std::size_t(layers));
        counters_ = DeviceBuffer<TransferCounters>(1);
        ticket_ = upload(queue(), std::vector<TransferTicket>(1));
        reset();
        generation.resize(std::size_t(slots));
        for (std::size_t i = 0; i < generation.size(); ++i) { generation[i] = std::uint32_t(1000 + i); }
        upload_generations();
    }
    /// The slots hold poison again, nothing is marked or counted.
    void reset()
    {
        enqueue_fill(queue(), slots_.data(), slots_.size(), 0xFF);
        enqueue_fill(queue(), marks_.data(), marks_.size(), 0xFF);
        enqueue_fill(queue(), over_.data(), over_.size(), 0);
        enqueue_fill(queue(), counters_.data(), 1, 0);
    }
    /// Places at random, slots each once, layers in order.
    void plan_random(std::size_t count, std::uint64_t seed)
    {
        std::mt19937_64 random(seed);
        std::vector<std::int32_t> order(generation.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::uint64_t> places(tier->size() / unit_);
        std::iota(places.begin(), places.end(), 0);
        std::shuffle(places.begin(), places.end(), random);
        pieces.resize(count);
        for (std::size_t i = 0; i < count; ++i) {
            const auto slot = std::size_t(order[i]);
            pieces[i] = {.place = places[i] * unit_,
                         .slot = order[i],
                         .generation = generation[slot],
                         .layer = std::int32_t(i * std::size_t(layers_) / count)};
        }
        upload_plan();
    }
    void upload_plan()
    {
        plan_ = upload(queue(), pieces);
        const std::vector<std::int32_t> count{std::int32_t(pieces.size())};
        if (count_.empty()) { count_ = DeviceBuffer<std::int32_t>(1); }
        if (stable_plan_.size() < generation.size()) { stable_plan_ = DeviceBuffer<TransferPiece>(generation.size()); }
        enqueue_copy(queue(), stable_plan_.data(), std::span<const TransferPiece>(plan_.data(), plan_.size()));
        enqueue_copy(queue(), count_.data(), count);
        queue().synchronize();
    }
    void upload_generations()
    {
        if (generations_.size() != generation.size()) { generations_ = DeviceBuffer<std::uint32_t>(generation.size()); }
        enqueue_copy(queue(), generations_.data(), generation);
        queue().synchronize();
    }
    TransferParams params()
    {
        return {.tier = tier->data(),
                .tier_bytes = tier->size(),
                .slots = slots_.data(),
                .slot_stride = unit_,
                .slot_count = std::int32_t(generation.size()),
                .unit_bytes = unit_,
                .pieces = stable_plan_.data(),
                .count = count_.data(),
                .first = 0,
                .most = std::int32_t(pieces.size()),
                .generation = generations_.data(),
                .marks = marks_.data(),
                .layer_over = over_.data(),
                .layers = layers_,
                .counters = counters_.data(),
                .ticket = ticket_.data()};
    }
    std::vector<std::uint32_t> marks() { return download(queue(), marks_); }
    TransferCounters counters() { return download(queue(), counters_).front(); }
    std::size_t tier_bytes() const { return tier->size(); }
    /// What the tier holds now is what is to be fetched.
    void tier_bytes_now()
    {
        content_.assign(reinterpret_cast<const std::uint8_t*>(tier->data()),
                        reinterpret_cast<const std::uint8_t*>(tier->data()) + tier->size());
    }

    /// Piece i landed if `good[i]`; every other slot still holds poison.
    void expect_landed(const std::vector<bool>& good)
    {
        std::vector<std::uint8_t> expected(slots_.size(), 0xFF);
        std::vector<std::uint32_t> expected_marks(generation.size(), kPoison);
        std::vector<std::uint32_t> over(std::size_t(layers_), 0);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            const auto& piece = pieces[i];
            if (piece.layer >= 0 && piece.layer < layers_) { ++over[std::size_t(piece.layer)]; }
            if (!good[i]) { continue; }
            std::memcpy(expected.data() + std::size_t(piece.slot) * unit_, content_.data() + piece.place, unit_);
            expected_marks[std::size_t(piece.slot)] = piece.generation;
        }
        queue().synchronize();
        EXPECT_TRUE(download(queue(), reinterpret_cast<const std::uint8_t*>(slots_.data()), slots_.size()) == expected)
            << "bytes of slots differ";
        EXPECT_EQ(marks(), expected_marks);
        EXPECT_EQ(download(queue(), over_), over);
        EXPECT_EQ(counters().done, std::uint32_t(std::count(good.begin(), good.end(), true)));
        const auto ticket = download(queue(), ticket_).front();
        EXPECT_EQ(ticket.next, 0U);
        EXPECT_EQ(ticket.left, 0U);
    }

    std::optional<HostTier> tier;
    std::vector<TransferPiece> pieces;
    std::vector<std::uint32_t> generation;
    std::uint32_t unit_ = 0;
    DeviceBuffer<> slots_;
    DeviceBuffer<std::uint32_t> marks_;
    DeviceBuffer<std::uint32_t> generations_;

private:
    std::int32_t layers_ = 0;
    std::vector<std::uint8_t> content_;
    DeviceBuffer<TransferPiece> plan_;
    DeviceBuffer<TransferPiece> stable_plan_; ///< where it always lies, for graphs
    DeviceBuffer<std::int32_t> count_;
    DeviceBuffer<std::uint32_t> over_;
    DeviceBuffer<TransferCounters> counters_;
    DeviceBuffer<TransferTicket> ticket_;
};

class FetchCases : public Fetch {};

} // namespace oasis::cuda::test
