// SPDX-License-Identifier: Apache-2.0
//
// Counts the allocations of a test program. Every form of new and delete is replaced, so that sanitizers see pairs.
// Include it in one source of a program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace oasis::test {

inline std::atomic<std::int64_t> allocations{0};

inline void* try_counted(std::size_t bytes, std::size_t align) noexcept
{
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (align <= alignof(std::max_align_t)) { return std::malloc(bytes ? bytes : 1); }
    return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

inline void* counted(std::size_t bytes, std::size_t align)
{
    void* p = try_counted(bytes, align);
    if (!p) { throw std::bad_alloc(); }
    return p;
}

} // namespace oasis::test

using oasis::test::counted;
using oasis::test::try_counted;
using Align = std::align_val_t;

[[gnu::noinline]] void* operator new(std::size_t n) { return counted(n, 1); }
[[gnu::noinline]] void* operator new[](std::size_t n) { return counted(n, 1); }
[[gnu::noinline]] void* operator new(std::size_t n, Align a) { return counted(n, std::size_t(a)); }
[[gnu::noinline]] void* operator new[](std::size_t n, Align a) { return counted(n, std::size_t(a)); }
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return try_counted(n, 1); }
[[gnu::noinline]] void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return try_counted(n, 1); }
[[gnu::noinline]] void* operator new(std::size_t n, Align a, const std::nothrow_t&) noexcept
{
    return try_counted(n, std::size_t(a));
}
[[gnu::noinline]] void* operator new[](std::size_t n, Align a, const std::nothrow_t&) noexcept
{
    return try_counted(n, std::size_t(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, Align) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, Align) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, Align) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t, Align) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, Align, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, Align, const std::nothrow_t&) noexcept { std::free(p); }
