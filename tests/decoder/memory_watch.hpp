// SPDX-License-Identifier: Apache-2.0
//
// Counts what `operator new` hands out; include it in one file of an executable.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <malloc.h>
#include <new>

namespace oasis_decode::test {

inline std::atomic<std::size_t> live_bytes{0};
inline std::atomic<std::size_t> peak_bytes{0};

inline void* counted_allocation(std::size_t size, std::size_t alignment)
{
    void* p = alignment > alignof(std::max_align_t)
                  ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                  : std::malloc(size ? size : 1);
    if (!p) { throw std::bad_alloc(); }
    const std::size_t now = live_bytes += ::malloc_usable_size(p);
    std::size_t peak = peak_bytes;
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {}
    return p;
}

inline void counted_release(void* p) noexcept
{
    if (p) { live_bytes -= ::malloc_usable_size(p); }
    std::free(p);
}

/// From its construction: the memory taken at most beyond what was live, and the time.
class Watch {
public:
    Watch() : before_(live_bytes), begin_(std::chrono::steady_clock::now()) { peak_bytes = live_bytes.load(); }
    std::size_t extra_bytes() const { return peak_bytes - before_; }
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

private:
    std::size_t before_;
    std::chrono::steady_clock::time_point begin_;
};

} // namespace oasis_decode::test

void* operator new(std::size_t size) { return oasis_decode::test::counted_allocation(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment)
{
    return oasis_decode::test::counted_allocation(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept // a sanitizer's own would not call the one above
{
    try {
        return oasis_decode::test::counted_allocation(size, 0);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void operator delete(void* p) noexcept { oasis_decode::test::counted_release(p); }
void operator delete(void* p, std::size_t) noexcept { oasis_decode::test::counted_release(p); }
void operator delete(void* p, std::align_val_t) noexcept { oasis_decode::test::counted_release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { oasis_decode::test::counted_release(p); }
