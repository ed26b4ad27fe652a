// SPDX-License-Identifier: Apache-2.0
//
// Owners of device and of pinned host memory for things of fixed size. The large tiers have their own: arena.hpp (slots)
// and host_tier.hpp (pinned pool).
#pragma once

#include <oasis/cuda/queue.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

namespace oasis::cuda {
namespace detail {

template <class T> std::size_t checked_bytes(std::size_t count)
{
    expects(count <= std::numeric_limits<std::size_t>::max() / sizeof(T), "CUDA memory: ", count, " elements of ", sizeof(T),
            " bytes overflow.");
    return count * sizeof(T);
}

struct DeviceMemory {
    static void* allocate(std::size_t bytes)
    {
        void* data = nullptr;
        check(::cudaMalloc(&data, bytes), "cudaMalloc of ", bytes, " bytes");
        return data;
    }
    static void release(void* data) noexcept { static_cast<void>(::cudaFree(data)); }
};

struct PinnedMemory {
    static void* allocate(std::size_t bytes)
    {
        void* data = nullptr;
        check(::cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "cudaHostAlloc of ", bytes, " bytes");
        return data;
    }
    static void release(void* data) noexcept { static_cast<void>(::cudaFreeHost(data)); }
};

/// `size` elements, uninitialised; nothing is allocated for none. Move-only.
template <class T, class Memory> class Buffer {
    static_assert(std::is_trivially_copyable_v<T>, "buffers hold trivially copyable types");

public:
    Buffer() = default;
    explicit Buffer(std::size_t size) : size_(size)
    {
        if (size) { data_ = static_cast<T*>(Memory::allocate(checked_bytes<T>(size))); }
    }
    Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Buffer()
    {
        if (data_) { Memory::release(data_); }
    }

    T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t bytes() const noexcept { return size_ * sizeof(T); }
    bool empty() const noexcept { return size_ == 0; }

private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace detail

/// Memory of the current device (cudaMalloc); `data()` is a device pointer.
template <class T = std::byte> using DeviceBuffer = detail::Buffer<T, detail::DeviceMemory>;

/// Page-locked host memory that the device can read and write too (cudaHostAlloc): plans, counters, staging.
template <class T = std::byte> using PinnedBuffer = detail::Buffer<T, detail::PinnedMemory>;

/// Copies `source` to `target` in the queue's order. Host memory must be pinned for the call not to block, and must stay
/// as it is until the copy has run.
template <class T> void enqueue_copy(Queue queue, T* target, std::type_identity_t<std::span<const T>> source)
{
    if (source.empty()) { return; }
    check(::cudaMemcpyAsync(target, source.data(), source.size_bytes(), cudaMemcpyDefault, queue.stream()), "cudaMemcpyAsync of ",
          source.size_bytes(), " bytes");
}

/// Sets every byte of `count` elements at `target` to `value`.
template <class T> void enqueue_fill(Queue queue, T* target, std::size_t count, std::uint8_t value)
{
    if (count == 0) { return; }
    check(::cudaMemsetAsync(target, value, count * sizeof(T), queue.stream()), "cudaMemsetAsync of ", count * sizeof(T), " bytes");
}

} // namespace oasis::cuda
