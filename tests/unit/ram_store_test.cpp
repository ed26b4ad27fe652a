// SPDX-License-Identifier: Apache-2.0
#include "fault/failing_store.hpp"

#include <oasis/tier/ram_store.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace oasis {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(RamStore, CapacityInWholeBlocks)
{
    RamStore store({.unit_bytes = 100, .layers = 2, .sets = 3, .capacity_bytes = 600 * 4 + 599});
    for (std::int32_t b = 0; b < 4; ++b) { EXPECT_TRUE(store.reserve(BlockId{b})); }
    EXPECT_FALSE(store.reserve(BlockId{4}));
    EXPECT_EQ(store.bytes_used(), 2400U);
    EXPECT_LE(store.bytes_committed(), store.capacity_bytes());
}

TEST(RamStore, NothingFitsInNothing)
{
    RamStore store({.unit_bytes = 128, .layers = 1, .sets = 1, .capacity_bytes = 127});
    EXPECT_FALSE(store.reserve(BlockId{0}));
    EXPECT_EQ(store.bytes_used(), 0U);
}

TEST(RamStore, TakesMemoryAsBlocksComeAndGivesEmptyChunksBack)
{
    RamStore store({.unit_bytes = kMiB, .layers = 1, .sets = 1, .capacity_bytes = std::size_t{1} << 50});
    EXPECT_EQ(store.bytes_committed(), 0U) << "a large capacity costs nothing until it is used";
    for (std::int32_t b = 0; b < 20; ++b) { ASSERT_TRUE(store.reserve(BlockId{b})); }
    EXPECT_EQ(store.bytes_used(), 20 * kMiB);
    EXPECT_EQ(store.bytes_committed(), 24 * kMiB);
    for (std::int32_t b = 0; b < 19; ++b) { store.release(BlockId{b}); }
    EXPECT_EQ(store.bytes_used(), kMiB);
    EXPECT_EQ(store.bytes_committed(), 8 * kMiB);
    store.release(BlockId{19});
    EXPECT_EQ(store.bytes_committed(), 0U);
}

TEST(RamStore, MisuseIsRefusedWithTheBlock)
{
    RamStore store({.unit_bytes = 8, .layers = 2, .sets = 2, .capacity_bytes = 1000});
    std::array<std::byte, 8> bytes{};
    ASSERT_TRUE(store.reserve(BlockId{3}));
    const auto text_of = [](auto&& call) -> std::string {
        try {
            call();
        } catch (const InvalidArgument& error) {
            return error.what();
        }
        return "nothing was thrown";
    };
    const auto refuses = [&](auto&& call, const char* text) {
        EXPECT_NE(text_of(call).find(text), std::string::npos) << text_of(call);
    };
    refuses([&] { store.reserve(BlockId{3}); }, "block 3 is reserved already");
    refuses([&] { store.reserve(BlockId::kNone); }, "block id -1 is negative");
    refuses([&] { store.release(BlockId{4}); }, "block 4 is not reserved");
    refuses([&] { store.read({BlockId{3}, 2, 0, bytes.data()}); }, "block 3 layer 2 set 0");
    refuses([&] { store.write({BlockId{3}, 0, -1, bytes.data()}); }, "set -1");
    refuses([&] { store.write({BlockId{3}, 0, 0, nullptr}); }, "no memory");
    refuses([] { RamStore({.unit_bytes = 0, .layers = 1, .sets = 1, .capacity_bytes = 1}); }, "unit_bytes is 0");
    refuses([] { RamStore({.unit_bytes = std::numeric_limits<std::size_t>::max() / 4, .layers = 8, .sets = 1}); },
            "overflows");
    EXPECT_EQ(store.bytes_used(), 32U) << "a refused call changes nothing";
}

TEST(RamStore, POOL_01_SecondReleaseIsRefusedAndNoPlaceHasTwoOwners)
{
    RamStore store({.unit_bytes = 64, .layers = 1, .sets = 1, .capacity_bytes = 64 * 8});
    for (std::int32_t b = 0; b < 8; ++b) { ASSERT_TRUE(store.reserve(BlockId{b})); }
    store.release(BlockId{5});
    EXPECT_THROW(store.release(BlockId{5}), InvalidArgument);
    EXPECT_TRUE(store.reserve(BlockId{20}));
    EXPECT_FALSE(store.reserve(BlockId{21})) << "the released place was handed out twice";
}

TEST(RamStore, POOL_15_ChurnKeepsMemoryAtItsLevel)
{
    RamStore store({.unit_bytes = 4096, .layers = 4, .sets = 2, .capacity_bytes = 64 * kMiB});
    std::mt19937 random(9);
    std::vector<bool> held(4096, false);
    std::size_t most = 0;
    for (int n = 0; n < 300000; ++n) {
        const std::size_t b = random() % held.size();
        const BlockId block{static_cast<std::int32_t>(b)};
        if (held[b]) {
            store.release(block);
            held[b] = false;
        } else {
            held[b] = store.reserve(block);
        }
        most = std::max(most, store.bytes_committed());
    }
    EXPECT_LE(most, 64 * kMiB);
}

TEST(RamStore, DistinctUnitsFromSeveralThreads)
{
    constexpr std::int32_t kThreads = 4;
    constexpr std::int32_t kBlocks = 64;
    RamStore store({.unit_bytes = 1000, .layers = kThreads, .sets = 2, .capacity_bytes = kMiB * 64});
    for (std::int32_t b = 0; b < kBlocks; ++b) { ASSERT_TRUE(store.reserve(BlockId{b})); }
    std::vector<int> wrong(kThreads, 0);
    {
        std::vector<std::jthread> threads;
        for (std::int32_t layer = 0; layer < kThreads; ++layer) {
            threads.emplace_back([&, layer] {
                std::vector<std::byte> bytes(1000);
                for (int pass = 0; pass < 2; ++pass) {
                    for (std::int32_t b = 0; b < kBlocks; ++b) {
                        const StorePiece piece{BlockId{b}, layer, b % 2, bytes.data()};
                        if (pass == 0) { std::memset(bytes.data(), layer * kBlocks + b, bytes.size()); }
                        const bool done = pass == 0 ? store.write(piece) : store.read(piece);
                        if (!done || bytes[999] != static_cast<std::byte>(layer * kBlocks + b)) {
                            ++wrong[std::size_t(layer)];
                        }
                    }
                }
            });
        }
    }
    EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
    EXPECT_EQ(store.bytes_written(), std::uint64_t{kThreads} * kBlocks * 1000);
    EXPECT_EQ(store.bytes_read(), store.bytes_written());
}

TEST(FailingStore, FailsTheCallsItIsToldTo)
{
    const auto faults = std::make_shared<fault::StoreFaults>();
    fault::FailingStore<> store({.unit_bytes = 16, .layers = 1, .sets = 1, .capacity_bytes = 1024}, faults);
    faults->fail_write_at = 2;
    faults->when = [](fault::StoreOperation op, const StorePiece& piece) {
        return op == fault::StoreOperation::kRead && piece.block == BlockId{7};
    };
    std::array<std::byte, 16> bytes{};
    for (const std::int32_t b : {6, 7}) { ASSERT_TRUE(store.reserve(BlockId{b})); }
    EXPECT_TRUE(store.write({BlockId{6}, 0, 0, bytes.data()}));
    EXPECT_FALSE(store.write({BlockId{7}, 0, 0, bytes.data()}));
    EXPECT_TRUE(store.write({BlockId{7}, 0, 0, bytes.data()}));
    EXPECT_TRUE(store.read({BlockId{6}, 0, 0, bytes.data()}));
    EXPECT_FALSE(store.read({BlockId{7}, 0, 0, bytes.data()}));
    EXPECT_EQ(bytes[0], std::byte{0x7F}) << "a failed read leaves garbage";
    EXPECT_EQ(faults->failures, 2U);
}

} // namespace
} // namespace oasis
