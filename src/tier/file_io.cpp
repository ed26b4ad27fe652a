// SPDX-License-Identifier: Apache-2.0
#include "tier/file_io.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace oasis::detail {
namespace {

struct FreeAligned {
    void operator()(std::byte* p) const noexcept { ::operator delete (p, std::align_val_t{kPage}); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeAligned>;

AlignedBytes aligned_bytes(std::size_t bytes) noexcept
{
    return AlignedBytes(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPage}, std::nothrow)));
}

/// `call(done)` transfers from byte `done` on, as pread and pwrite do.
template <class Call> std::string transfer(const char* what, std::size_t bytes, const Call& call)
{
    for (std::size_t done = 0; done < bytes;) {
        const ssize_t n = call(done);
        if (n < 0) {
            if (errno == EINTR) { continue; }
            return errno_text(errno);
        }
        if (n == 0) {
            return std::string(what) + " after " + std::to_string(done) + " of " + std::to_string(bytes) + " bytes";
        }
        done += static_cast<std::size_t>(n);
    }
    return {};
}

} // namespace

std::string errno_text(int error)
{
    std::string text;
#if defined(__GLIBC__) && (__GLIBC__ > 2 || (__GLIBC__ == 2 && __GLIBC_MINOR__ >= 32))
    if (const char* name = strerrorname_np(error)) { text = name; }
#endif
    if (text.empty()) { text = "errno " + std::to_string(error); }
    return text + " (" + std::generic_category().message(error) + ")";
}

std::string read_all(int file, std::byte* to, std::size_t bytes, std::uint64_t offset)
{
    return transfer("short read", bytes, [&](std::size_t done) {
        return ::pread(file, to + done, bytes - done, static_cast<off_t>(offset + done));
    });
}

std::string write_all(int file, const std::byte* from, std::size_t bytes, std::uint64_t offset)
{
    return transfer("short write", bytes, [&](std::size_t done) {
        return ::pwrite(file, from + done, bytes - done, static_cast<off_t>(offset + done));
    });
}

std::string allocate(int file, std::uint64_t offset, std::uint64_t bytes)
{
    int result = 0;
#if defined(__linux__)
    do {
        result = ::fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) { return {}; }
    if (errno != EOPNOTSUPP && errno != ENOSYS) { return errno_text(errno); }
#endif
    result = ::ftruncate(file, static_cast<off_t>(offset + bytes));
    return result == 0 ? std::string() : errno_text(errno);
}

std::string try_direct(int file)
{
#if defined(O_DIRECT)
    const int flags = ::fcntl(file, F_GETFL);
    if (flags < 0 || ::fcntl(file, F_SETFL, flags | O_DIRECT) != 0) { return "O_DIRECT: " + errno_text(errno); }
    const AlignedBytes page = aligned_bytes(2 * kPage);
    std::string wrong = page ? "" : "out of memory";
    if (wrong.empty()) {
        std::memset(page.get(), 0x5C, kPage);
        std::memset(page.get() + kPage, 0, kPage);
        wrong = write_all(file, page.get(), kPage, 0);
        if (wrong.empty()) { wrong = read_all(file, page.get() + kPage, kPage, 0); }
        if (wrong.empty() && std::memcmp(page.get(), page.get() + kPage, kPage) != 0) {
            wrong = "other bytes came back";
        }
        if (::ftruncate(file, 0) != 0 && wrong.empty()) { wrong = errno_text(errno); }
    }
    if (wrong.empty()) { return {}; }
    ::fcntl(file, F_SETFL, flags);
    return "O_DIRECT probe: " + wrong;
#else
    static_cast<void>(file);
    return "the system has no O_DIRECT";
#endif
}

NewFile open_unlinked(const std::string& path)
{
    static std::atomic<unsigned> counter{0};
    struct stat status {};
    const bool folder = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    NewFile out;
    for (int attempt = 0; attempt < 1000; ++attempt) {
        out.path = path;
        if (folder) {
            out.path += "/oasis-" + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1)) + ".kv";
        }
        out.file = ::open(out.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        out.error = out.file < 0 ? errno : 0;
        const bool again = out.error == EINTR || (folder && out.error == EEXIST);
        if (!again) { break; }
    }
    if (out.file >= 0) { ::unlink(out.path.c_str()); }
    return out;
}

std::byte* bounce_buffer(std::size_t bytes) noexcept
{
    thread_local AlignedBytes mine;
    thread_local std::size_t size = 0;
    if (size < bytes) {
        mine = aligned_bytes(bytes);
        size = mine ? bytes : 0;
    }
    return mine.get();
}

} // namespace oasis::detail
