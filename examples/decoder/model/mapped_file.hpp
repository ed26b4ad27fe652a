// SPDX-License-Identifier: Apache-2.0
//
// A file mapped for reading, and bounds-checked windows into it. Everything a file says about itself is a claim:
// offsets and sizes go through `view` before a byte is read.
#pragma once

#include <oasis/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace oasis_decode {

/// A file that is damaged or not understood. The text names the file and the tensor, key or line.
class ModelError : public oasis::Error {
public:
    using oasis::Error::Error;
};

/// Throws `ModelError` with the joined text.
template <class... Parts> [[noreturn]] void fail(const Parts&... parts)
{
    throw ModelError(oasis::detail::text(parts...));
}

/// Text of a file for an error: at most `most` characters, printable ASCII.
std::string legible(std::string_view text, std::size_t most = 80);

/// Whether there is a folder; a path that cannot be looked at is none, and opening it says why.
bool is_folder(const std::filesystem::path& path) noexcept;

/// The size is that of the moment of opening. When the file shrinks later, or its disk fails, an access raises SIGBUS:
/// `mapped_file_at` then says which file it was.
class MappedFile {
public:
    /// Maps a regular file; throws `ModelError` with the system's reason.
    explicit MappedFile(std::filesystem::path path);

    const std::filesystem::path& path() const noexcept { return mapping_->path; }
    std::uint64_t size() const noexcept { return mapping_->size; }
    std::span<const std::byte> bytes() const noexcept
    {
        return {mapping_->data, static_cast<std::size_t>(mapping_->size)};
    }

    /// Whether [offset, offset + length) lies in the file; never wraps.
    bool contains(std::uint64_t offset, std::uint64_t length) const noexcept
    {
        return offset <= size() && length <= size() - offset;
    }

    /// The window [offset, offset + length); throws `ModelError` naming `what`, offset, length and file size.
    std::span<const std::byte> view(std::uint64_t offset, std::uint64_t length, std::string_view what) const
    {
        if (!contains(offset, length)) { refuse(offset, length, what); }
        return bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(length));
    }

private:
    friend const char* mapped_file_at(const void* address) noexcept;
    /// Stays where it is while the `MappedFile` moves, so that a signal handler can look at it.
    struct Mapping {
        explicit Mapping(std::filesystem::path file);
        Mapping(const Mapping&) = delete;
        Mapping& operator=(const Mapping&) = delete;
        ~Mapping();

        std::filesystem::path path;
        const std::byte* data = nullptr;
        std::uint64_t size = 0;
        std::size_t slot = 0;
    };
    [[noreturn]] void refuse(std::uint64_t offset, std::uint64_t length, std::string_view what) const;

    std::unique_ptr<const Mapping> mapping_;
};

/// The path of the mapped file that `address` lies in, or null. For signal handlers: takes no lock and no memory.
const char* mapped_file_at(const void* address) noexcept;

} // namespace oasis_decode
