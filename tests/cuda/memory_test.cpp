// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include <type_traits>

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

} // namespace
} // namespace oasis::cuda::test
