// SPDX-License-Identifier: Apache-2.0
#include "fault/failing_store.hpp"

#include <oasis/tier/any_store.hpp>

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>

namespace oasis {
namespace {

constexpr StoreOptions kShape{.unit_bytes = 16, .layers = 2, .sets = 1, .capacity_bytes = 16 * 2 * 4};

/// What the concept asks for and no more.
class PlainStore {
public:
    bool reserve(BlockId) { return true; }
    void release(BlockId) {}
    bool write(const StorePiece&) { return true; }
    bool read(const StorePiece&) { return false; }
    std::size_t bytes_used() { return 1; } // not the one that is asked: the const one is
    std::size_t bytes_used() const { return 3; }
    std::size_t capacity_bytes() const { return 4; }
};

TEST(AnyStore, HoldsRamWhenMadeFromOptions)
{
    AnyStore store(kShape);
    std::array<std::byte, 16> bytes{std::byte{9}};
    ASSERT_TRUE(store.reserve(BlockId{2}));
    ASSERT_TRUE(store.write({BlockId{2}, 1, 0, bytes.data()}));
    bytes[0] = std::byte{0};
    ASSERT_TRUE(store.read({BlockId{2}, 1, 0, bytes.data()}));
    EXPECT_EQ(bytes[0], std::byte{9});
    EXPECT_EQ(store.bytes_used(), 32U);
    EXPECT_EQ(store.capacity_bytes(), 128U);
    EXPECT_EQ(store.bytes_read(), 16U);
    EXPECT_EQ(store.bytes_written(), 16U);
    EXPECT_EQ(store.last_error(), "");
    store.release(BlockId{2});
    EXPECT_EQ(store.bytes_used(), 0U);
}

TEST(AnyStore, TakesAnyStoreAndKeepsItsExceptionsAndFailures)
{
    const auto faults = std::make_shared<fault::StoreFaults>();
    AnyStore store(erase_store(std::make_unique<fault::FailingStore<>>(kShape, faults)));
    faults->fail_reserve_at = 1;
    EXPECT_FALSE(store.reserve(BlockId{0}));
    EXPECT_TRUE(store.reserve(BlockId{0}));
    EXPECT_THROW(store.reserve(BlockId{0}), InvalidArgument);
    EXPECT_EQ(faults->reserves, 3U);
}

TEST(AnyStore, CountersThatAStoreLacksReadAsNothing)
{
    const AnyStore store(erase_store(std::make_unique<PlainStore>()));
    EXPECT_EQ(store.bytes_used(), 3U);
    EXPECT_EQ(store.capacity_bytes(), 4U);
    EXPECT_EQ(store.bytes_read(), 0U);
    EXPECT_EQ(store.bytes_written(), 0U);
    EXPECT_EQ(store.last_error(), "");
}

TEST(AnyStore, NullIsRefused)
{
    EXPECT_THROW(AnyStore(std::unique_ptr<SlowTier>()), InvalidArgument);
    EXPECT_THROW(erase_store(std::unique_ptr<RamStore>()), InvalidArgument);
}

TEST(FailingStore, DelaysTheCallsItIsToldTo)
{
    using namespace std::chrono;
    const auto faults = std::make_shared<fault::StoreFaults>();
    fault::FailingStore<AnyStore> store(std::make_unique<AnyStore>(kShape), kShape.unit_bytes, faults);
    faults->delay = [](fault::StoreOperation op, const StorePiece& piece) {
        return microseconds(op == fault::StoreOperation::kRead && piece.block == BlockId{1} ? 30'000 : 0);
    };
    std::array<std::byte, 16> bytes{};
    for (std::int32_t b = 0; b < 2; ++b) {
        ASSERT_TRUE(store.reserve(BlockId{b}));
        ASSERT_TRUE(store.write({BlockId{b}, 0, 0, bytes.data()}));
        const auto start = steady_clock::now();
        ASSERT_TRUE(store.read({BlockId{b}, 0, 0, bytes.data()}));
        EXPECT_EQ(steady_clock::now() - start >= milliseconds(30), b == 1);
    }
}

} // namespace
} // namespace oasis
