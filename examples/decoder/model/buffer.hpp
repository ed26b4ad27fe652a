// SPDX-License-Identifier: Apache-2.0
//
// Uninitialised float memory, aligned for the widest vectors; large ones ask for huge pages.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <sys/mman.h>

namespace oasis_decode {

class Buffer {
public:
    Buffer() = default;
    explicit Buffer(std::size_t count) : size_(count)
    {
        constexpr std::size_t kHugePage = std::size_t{2} << 20;
        if (count > (SIZE_MAX - kHugePage) / sizeof(float)) { throw std::bad_alloc(); }
        const std::size_t alignment = count * sizeof(float) >= kHugePage ? kHugePage : 64;
        const std::size_t bytes = (count * sizeof(float) + alignment - 1) / alignment * alignment;
        if (bytes == 0) { return; }
        data_.reset(static_cast<float*>(std::aligned_alloc(alignment, bytes)));
        if (!data_) { throw std::bad_alloc(); }
        if (alignment == kHugePage) { ::madvise(data_.get(), bytes, MADV_HUGEPAGE); }
    }

    float* data() noexcept { return data_.get(); }
    const float* data() const noexcept { return data_.get(); }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    std::span<float> span() noexcept { return {data_.get(), size_}; }
    std::span<const float> span() const noexcept { return {data_.get(), size_}; }

private:
    struct Free {
        void operator()(float* p) const noexcept { std::free(p); }
    };
    std::unique_ptr<float, Free> data_;
    std::size_t size_ = 0;
};

} // namespace oasis_decode
