// SPDX-License-Identifier: Apache-2.0
//
// A file mapped for reading, and bounds-checked windows into it. Everything a file says about itself is a claim:
// offsets and sizes go through `view` before a byte is read.
#pragma once

#include <oasis/core/error.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace oasis_decode {

/// A model file that is damaged or not understood. The text names the file and the tensor or key.
class ModelError : public oasis::Error {
public:
    using oasis::Error::Error;
};

/// Throws `ModelError` with the joined text.
template <class... Parts> [[noreturn]] void fail(const Parts&... parts)
{
    throw ModelError(oasis::detail::text(parts...));
}

class MappedFile {
public:
    /// Maps `path`; throws `ModelError` with the system's reason.
    explicit MappedFile(std::filesystem::path path) : path_(std::move(path))
    {
        const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) { fail("cannot open ", path_.string(), ": ", std::strerror(errno)); }
        struct stat status = {};
        std::string problem;
        if (::fstat(fd, &status) != 0) {
            problem = std::strerror(errno);
        } else if (!S_ISREG(status.st_mode)) {
            problem = "not a regular file";
        } else if (status.st_size > 0) {
            size_ = static_cast<std::uint64_t>(status.st_size);
            void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
            if (address == MAP_FAILED) {
                problem = std::strerror(errno);
            } else {
                data_ = static_cast<const std::byte*>(address);
            }
        }
        ::close(fd);
        if (!problem.empty()) { fail("cannot map ", path_.string(), ": ", problem); }
    }
    MappedFile(MappedFile&& other) noexcept
        : path_(std::move(other.path_)),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0))
    {
    }
    MappedFile& operator=(MappedFile&& other) noexcept
    {
        std::swap(path_, other.path_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~MappedFile()
    {
        if (data_) { ::munmap(const_cast<std::byte*>(data_), size_); }
    }

    const std::filesystem::path& path() const noexcept { return path_; }
    std::uint64_t size() const noexcept { return size_; }
    std::span<const std::byte> bytes() const noexcept { return {data_, static_cast<std::size_t>(size_)}; }

    /// Whether [offset, offset + length) lies in the file; never wraps.
    bool contains(std::uint64_t offset, std::uint64_t length) const noexcept
    {
        return offset <= size_ && length <= size_ - offset;
    }

    /// The window [offset, offset + length); throws `ModelError` naming `what`, offset, length and file size.
    std::span<const std::byte> view(std::uint64_t offset, std::uint64_t length, std::string_view what) const
    {
        if (!contains(offset, length)) {
            fail(path_.string(), ": ", what, " at offset ", offset, " of ", length,
                 " bytes is past the end of the file (", size_, " bytes)");
        }
        return bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(length));
    }

private:
    std::filesystem::path path_;
    const std::byte* data_ = nullptr;
    std::uint64_t size_ = 0;
};

} // namespace oasis_decode
