// SPDX-License-Identifier: Apache-2.0
//
// Memory of the pool: zeroed tables that cost nothing until touched, cells of one size, and one reserved address range for slots.
#pragma once

#include <oasis/core/error.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace oasis {

/// A table of n zeros. Pages that nobody touches take no memory.
template <class T>
    requires std::is_trivially_copyable_v<T>
class ZeroedArray {
public:
    ZeroedArray() = default;
    explicit ZeroedArray(std::size_t n) : data_(static_cast<T*>(std::calloc(n ? n : 1, sizeof(T)))), size_(n)
    {
        if (!data_) { throw std::bad_alloc(); }
    }
    std::size_t size() const noexcept { return size_; }
    T& operator[](std::size_t i) noexcept { return data_.get()[i]; }
    const T& operator[](std::size_t i) const noexcept { return data_.get()[i]; }
    T* data() noexcept { return data_.get(); }
    const T* data() const noexcept { return data_.get(); }

private:
    struct Free {
        void operator()(T* p) const noexcept { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    std::size_t size_ = 0;
};

/// Cells of one size, aligned to 128 bytes. Returned cells are reused before new ones are made; `trim` gives them back to the system.
class CellPool {
public:
    explicit CellPool(std::size_t cell_bytes) : cell_bytes_(cell_bytes) {}
    CellPool(const CellPool&) = delete;
    CellPool& operator=(const CellPool&) = delete;
    ~CellPool() { shrink(0); }

    std::byte* take()
    {
        std::byte* cell = nullptr;
        if (!free_.empty()) {
            cell = free_.back();
            free_.pop_back();
        } else {
            if (free_.capacity() <= in_use_) { free_.reserve(2 * in_use_ + 16); } // so that `give` never allocates
            cell = static_cast<std::byte*>(::operator new(cell_bytes_, std::align_val_t{128}));
        }
        ++in_use_;
        return cell;
    }
    void give(std::byte* cell) noexcept
    {
        free_.push_back(cell);
        --in_use_;
    }
    /// Gives unused cells back to the system, but for those that fit `keep` bytes; returns the bytes kept.
    std::size_t trim(std::size_t keep = 0) noexcept
    {
        shrink(cell_bytes_ > 0 ? keep / cell_bytes_ : free_.size()); // cells may have no bytes
        return free_.size() * cell_bytes_;
    }
    std::size_t cell_bytes() const noexcept { return cell_bytes_; }
    std::size_t in_use() const noexcept { return in_use_; }
    std::size_t bytes_in_use() const noexcept { return in_use_ * cell_bytes_; }

private:
    void shrink(std::size_t most) noexcept
    {
        for (; free_.size() > most; free_.pop_back()) { ::operator delete(free_.back(), std::align_val_t{128}); }
    }

    std::size_t cell_bytes_;
    std::size_t in_use_ = 0;
    std::vector<std::byte*> free_;
};

/// An address range reserved up front; memory comes with the first touch and goes with `release`.
class ReservedRange {
public:
    explicit ReservedRange(std::size_t bytes) : bytes_(bytes ? bytes : 1)
    {
        void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            throw Error(detail::text("fast tier: cannot reserve an address range of ", bytes_, " bytes, one for every block that the slow tier can hold: ",
                                     std::strerror(errno)));
        }
        data_ = static_cast<std::byte*>(p);
    }
    ReservedRange(const ReservedRange&) = delete;
    ReservedRange& operator=(const ReservedRange&) = delete;
    ~ReservedRange() { ::munmap(data_, bytes_); }

    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return bytes_; }

    static std::size_t page_bytes() noexcept
    {
        static const auto kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        return kPage;
    }
    /// Drops the whole pages inside [offset, offset + bytes): they read as zeros until written again.
    void release(std::size_t offset, std::size_t bytes) noexcept
    {
        const std::size_t page = page_bytes();
        const std::size_t begin = (offset + page - 1) / page * page;
        const std::size_t end = (offset + bytes) / page * page;
        if (begin < end) { ::madvise(data_ + begin, end - begin, MADV_DONTNEED); }
    }

private:
    std::byte* data_ = nullptr;
    std::size_t bytes_;
};

} // namespace oasis
