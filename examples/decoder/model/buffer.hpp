// SPDX-License-Identifier: Apache-2.0
//
// Uninitialised memory, aligned for the widest vectors; large ones ask for huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <sys/mman.h>

namespace oasis_decode {

/// `count` values of a trivial type.
template <class T> class Array {
public:
    Array() = default;
    explicit Array(std::size_t count) : size_(count)
    {
        constexpr std::size_t kHugePage = std::size_t{2} << 20;
        if (count > (SIZE_MAX - kHugePage) / sizeof(T)) { throw std::bad_alloc(); }
        const std::size_t alignment = count * sizeof(T) >= kHugePage ? kHugePage : 64;
        const std::size_t bytes = (count * sizeof(T) + alignment - 1) / alignment * alignment;
        if (bytes == 0) { return; }
        data_.reset(static_cast<T*>(std::aligned_alloc(alignment, bytes)));
        if (!data_) { throw std::bad_alloc(); }
        if (alignment == kHugePage) { ::madvise(data_.get(), bytes, MADV_HUGEPAGE); }
    }

    T* data() noexcept { return data_.get(); }
    const T* data() const noexcept { return data_.get(); }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    std::span<T> span() noexcept { return {data_.get(), size_}; }
    std::span<const T> span() const noexcept { return {data_.get(), size_}; }

private:
    struct Free {
        void operator()(T* p) const noexcept { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    std::size_t size_ = 0;
};

using Buffer = Array<float>;

} // namespace oasis_decode
