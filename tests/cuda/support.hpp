// SPDX-License-Identifier: Apache-2.0
//
// For every test that needs a GPU: skips with a reason where there is none, and moves data.
#pragma once

#include <oasis/core/half.hpp>
#include <oasis/cpu/attend_kernels.hpp>
#include <oasis/cuda/device.hpp>
#include <oasis/cuda/memory.hpp>
#include <oasis/cuda/queue.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace oasis::cuda::test {

/// Empty when device 0 can run the kernels, else why not.
inline std::string why_no_gpu()
{
    std::string reason;
    if (device_count(&reason) == 0) { return "no GPU: " + reason; }
    try {
        require_supported(device_info(0));
    } catch (const Unsupported& error) {
        return error.what();
    }
    return {};
}

/// Empty when the current device has so many bytes free, else why the test has to be skipped.
inline std::string lacks_gpu_memory(std::size_t bytes)
{
    std::size_t free = 0;
    std::size_t total = 0;
    check(::cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (free >= bytes) { return {}; }
    return "needs " + std::to_string(bytes) + " bytes of GPU memory, " + std::to_string(free) + " are free";
}

/// A test with a stream of its own, skipped with the reason where there is no GPU.
class CudaTest : public ::testing::Test {
protected:
    void SetUp() override
    {
        if (const std::string reason = why_no_gpu(); !reason.empty()) { GTEST_SKIP() << reason; }
        stream_.emplace();
    }
    void TearDown() override
    {
        if (stream_) { queue().synchronize(); }
    }

    Queue queue() const { return stream_->queue(); }

private:
    std::optional<Stream> stream_;
};

template <class P> class CudaTestWithParam : public CudaTest, public ::testing::WithParamInterface<P> {};

/// A device copy of `values`, there when the call returns.
template <class T>
DeviceBuffer<T> upload(Queue queue, const std::vector<T>& values)
{
    DeviceBuffer<T> buffer(values.size());
    enqueue_copy(queue, buffer.data(), std::span<const T>(values));
    queue.synchronize();
    return buffer;
}

/// `count` elements at device memory, after all work of `queue`.
template <class T>
std::vector<T> download(Queue queue, const T* data, std::size_t count)
{
    std::vector<T> values(count);
    enqueue_copy(queue, values.data(), std::span<const T>(data, count));
    queue.synchronize();
    return values;
}

template <class T>
std::vector<T> download(Queue queue, const DeviceBuffer<T>& buffer)
{
    return download(queue, static_cast<const T*>(buffer.data()), buffer.size());
}

/// All bits set: NaN in every float type, -1 in every integer. What a kernel has to write must not keep it, what it must not
/// touch must.
template <class T>
DeviceBuffer<T> poisoned(Queue queue, std::size_t count)
{
    DeviceBuffer<T> buffer(count);
    enqueue_fill(queue, buffer.data(), count, 0xFF);
    return buffer;
}

/// Uniform in [-scale, scale), rounded to T (float, f16 or bf16).
template <class T>
std::vector<T> random_values(std::size_t count, std::uint64_t seed, float scale = 1.0F)
{
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<T> values(count);
    for (T& value : values) { value = from_float<T>(uniform(random)); }
    return values;
}

/// The bytes of `values` as elements of a type, rounded as the CPU backend rounds.
inline std::vector<std::byte> encode(DType dtype, const std::vector<float>& values)
{
    std::vector<std::byte> bytes(values.size() * size_of(dtype));
    cpu::scalar_attend_kernels().from_float(dtype, values.data(), values.size(), bytes.data());
    return bytes;
}

inline std::vector<std::uint8_t> random_bytes(std::size_t count, std::uint64_t seed)
{
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> bytes(count);
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
    }
    for (; i < count; ++i) { bytes[i] = static_cast<std::uint8_t>(random()); }
    return bytes;
}

} // namespace oasis::cuda::test
