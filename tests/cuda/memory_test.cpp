// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include <oasis/cuda/arena.hpp>
#include <oasis/cuda/dma.hpp>
#include <oasis/cuda/host_tier.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <type_traits>

#include <unistd.h>

namespace oasis::cuda::test {
namespace {

TEST(CudaError, TextHoldsTheCallTheNameAndTheValues)
{
    try {
        check(cudaErrorMemoryAllocation, "cudaMalloc of ", 1234, " bytes");
        FAIL() << "must throw";
    } catch (const CudaError& error) {
        EXPECT_EQ(error.code(), cudaErrorMemoryAllocation);
        const std::string text = error.what();
        EXPECT_NE(text.find("cudaMalloc of 1234 bytes: cudaErrorMemoryAllocation ("), std::string::npos) << text;
    }
    EXPECT_NO_THROW(check(cudaSuccess, "nothing"));
}

TEST(CudaQueue, ANullStreamIsRefused)
{
    static_assert(!std::is_constructible_v<Queue, std::nullptr_t>);
    static_assert(!std::is_default_constructible_v<Queue>);
    EXPECT_THROW(Queue(cudaStream_t{}), InvalidArgument);
}

TEST(CudaDevice, AnOldArchitectureIsRefusedByName)
{
    EXPECT_NO_THROW(require_supported({.name = "new", .architecture = 90}));
    try {
        require_supported({.id = 3, .name = "Old GPU", .architecture = 75});
        FAIL() << "must throw";
    } catch (const Unsupported& error) {
        EXPECT_STREQ(error.what(), "device 3 (Old GPU) is sm_75; the CUDA backend needs sm_90 (Hopper) or newer.");
    }
}

TEST(CudaBuffer, OwnsAndMoves)
{
    static_assert(!std::is_copy_constructible_v<DeviceBuffer<int>>);
    static_assert(std::is_nothrow_move_constructible_v<PinnedBuffer<int>>);
    DeviceBuffer<int> none(0); // no device needed
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(none.data(), nullptr);
    EXPECT_THROW(DeviceBuffer<std::uint64_t>(SIZE_MAX / 4), InvalidArgument);
}

class CudaMemory : public CudaTest {};

TEST_F(CudaMemory, CopiesAndFills)
{
    const auto values = random_values<float>(1000, 1);
    const auto device = upload(queue(), values);
    EXPECT_EQ(download(queue(), device), values);

    PinnedBuffer<float> pinned(values.size());
    enqueue_copy(queue(), pinned.data(), std::span<const float>(device.data(), device.size()));
    queue().synchronize();
    EXPECT_TRUE(std::equal(values.begin(), values.end(), pinned.data()));

    for (const std::int32_t value : download(queue(), poisoned<std::int32_t>(queue(), 17))) { EXPECT_EQ(value, -1); }
}

TEST_F(CudaMemory, AnAllocationThatCannotBeNamesItsBytes)
{
    try {
        const DeviceBuffer<> buffer(std::size_t{1} << 50);
        FAIL() << "must throw";
    } catch (const CudaError& error) {
        EXPECT_EQ(error.code(), cudaErrorMemoryAllocation);
        EXPECT_NE(std::string(error.what()).find("cudaMalloc of 1125899906842624 bytes"), std::string::npos) << error.what();
    }
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaMemory, EventsOrderAndTime)
{
    Stream low(Stream::Priority::kLow);
    Event begin(Event::Kind::kTimed);
    Event end(Event::Kind::kTimed);
    begin.record(queue());
    const auto buffer = poisoned<std::uint8_t>(queue(), std::size_t{64} << 20);
    end.record(queue());
    end.enqueue_wait(low.queue());
    low.queue().synchronize();
    EXPECT_TRUE(end.ready());
    EXPECT_GT(Event::milliseconds(begin, end), 0.0F);
}

TEST(CudaHostTier, OptionsThatCanNeverWorkThrow)
{
    PinFailure failure;
    EXPECT_THROW(HostTier::try_create({.bytes = 0}, failure), InvalidArgument);
    EXPECT_THROW(HostTier::try_create({.bytes = 1 << 20, .chunk_bytes = 4096}, failure), InvalidArgument);
    EXPECT_THROW(HostTier::try_create({.bytes = 1 << 20, .threads = -1}, failure), InvalidArgument);
}

TEST(CudaHostTierCases, TIER_01_MoreThanTheHostHasIsAValueThatNamesTheTier)
{
    PinFailure failure;
    const std::size_t asked = 2 * available_host_bytes();
    EXPECT_FALSE(HostTier::try_create({.bytes = asked}, failure));
    EXPECT_EQ(failure.full.tier, Tier::kSlow);
    EXPECT_GE(failure.full.needed_bytes, asked);
    EXPECT_EQ(failure.full.available_bytes, 0U);
    EXPECT_NE(failure.reason.find("pinned host tier of "), std::string::npos) << failure.reason;
    EXPECT_NE(failure.reason.find(" bytes available"), std::string::npos) << failure.reason;
}

TEST(CudaHostTierCases, TIER_01_PagesOfFilesThatCanBeDroppedCountAsAvailable)
{
    const auto root = std::filesystem::path(::testing::TempDir()) / ("oasis_available_" + std::to_string(::getpid()));
    const auto write = [&](const char* path, const char* text) {
        std::filesystem::create_directories((root / path).parent_path());
        std::ofstream(root / path) << text;
    };
    const auto available = [&] { return available_host_bytes(root.string()); };
    EXPECT_EQ(available(), SIZE_MAX) << "nothing says how much";
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n");
    EXPECT_EQ(available(), 8'192'000U);
    write("sys/fs/cgroup/memory.max", "max\n");
    write("sys/fs/cgroup/memory.current", "600000\n");
    EXPECT_EQ(available(), 8'192'000U);
    write("sys/fs/cgroup/memory.max", "1000000\n");
    EXPECT_EQ(available(), 400'000U);
    write("sys/fs/cgroup/memory.stat", "anon 100000\nfile 500000\nactive_file 200000\ninactive_file 300000\n");
    EXPECT_EQ(available(), 700'000U);
    write("sys/fs/cgroup/memory.stat", "inactive_file 700000\n"); // counted at another moment than the sum
    EXPECT_EQ(available(), 1'000'000U);
    std::filesystem::remove_all(root);
}

class CudaTiers : public CudaTest {};

TEST_F(CudaTiers, TIER_01_AFailureLeavesNoTrace)
{
    PinFailure failure;
    ASSERT_FALSE(HostTier::try_create({.bytes = std::size_t{1} << 47, .check_available = false},
                                      failure)); // more than addresses
    EXPECT_NE(failure.reason.find("mmap: "), std::string::npos) << failure.reason;
    EXPECT_EQ(failure.full.available_bytes, 0U);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_TRUE(HostTier::try_create({.bytes = std::size_t{64} << 20}, failure)) << failure.reason;
}

TEST_F(CudaTiers, PinnedMemoryIsOneRangeForHostAndDevice)
{
    for (const bool huge : {false, true}) {
        PinFailure failure;
        auto tier = HostTier::try_create(
            {.bytes = (std::size_t{9} << 20) + 1, .chunk_bytes = std::size_t{4} << 20, .threads = 3, .huge_pages = huge}, failure);
        ASSERT_TRUE(tier) << failure.reason;
        ASSERT_EQ(tier->size(), std::size_t{12} << 20);
        EXPECT_EQ(std::count(tier->data(), tier->data() + tier->size(), std::byte{0}), std::ptrdiff_t(tier->size()));
        const auto bytes = random_bytes(tier->size(), 3);
        std::memcpy(tier->data(), bytes.data(), bytes.size());
        const HostTier moved = std::move(*tier);
        const auto copy = poisoned<std::uint8_t>(queue(), bytes.size() - 7);
        CopyBatch batch; // across chunks
        batch.add_to_device(copy.data(), moved.data() + 7, copy.size());
        batch.enqueue(queue());
        EXPECT_TRUE(std::equal(bytes.begin() + 7, bytes.end(), download(queue(), copy).begin()));
        std::memset(moved.data(), 0, moved.size());
        batch.clear();
        batch.add_to_host(moved.data() + 7, copy.data(), copy.size());
        batch.enqueue(queue());
        queue().synchronize();
        EXPECT_EQ(std::memcmp(moved.data() + 7, bytes.data() + 7, copy.size()), 0);
    }
}

TEST_F(CudaTiers, AnArenaGrowsAndShrinksWhereItIs)
{
    Arena arena({.reserve_bytes = std::size_t{1} << 40, .granule_bytes = std::size_t{2} << 20});
    const std::byte* base = arena.data();
    EXPECT_EQ(arena.committed(), 0U);
    ASSERT_TRUE(arena.try_grow(1));
    EXPECT_EQ(arena.committed(), arena.granule());
    const auto bytes = random_bytes(arena.granule(), 4);
    auto* data = reinterpret_cast<std::uint8_t*>(arena.data());
    enqueue_copy(queue(), data, bytes);
    ASSERT_TRUE(arena.try_grow(5 * arena.granule()));
    enqueue_copy(queue(), data + 4 * arena.granule(), bytes);
    EXPECT_EQ(arena.data(), base);
    EXPECT_EQ(download(queue(), data, bytes.size()), bytes) << "growing moved what was there";
    EXPECT_EQ(download(queue(), data + 4 * arena.granule(), bytes.size()), bytes);
    arena.shrink(arena.granule() + 1);
    EXPECT_EQ(arena.committed(), 2 * arena.granule());
    EXPECT_EQ(download(queue(), data, bytes.size()), bytes);
    EXPECT_TRUE(arena.try_grow(3 * arena.granule()));
    EXPECT_THROW(static_cast<void>(arena.try_grow(arena.reserved() + 1)), InvalidArgument);
}

TEST_F(CudaTiers, AFullDeviceIsAValueAndChangesNothing)
{
    const std::size_t all = device_info(0).memory_bytes;
    Arena arena({.reserve_bytes = 2 * all, .granule_bytes = std::size_t{1} << 30});
    ASSERT_TRUE(arena.try_grow(std::size_t{1} << 30));
    EXPECT_FALSE(arena.try_grow(2 * all));
    EXPECT_EQ(arena.committed(), std::size_t{1} << 30);
    EXPECT_TRUE(arena.try_grow(std::size_t{2} << 30));
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

} // namespace
} // namespace oasis::cuda::test
