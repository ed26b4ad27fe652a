// SPDX-License-Identifier: Apache-2.0
#include "model/mapped_file.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace oasis_decode {
namespace {

// More files than a model has shards; a mapping beyond them works, but has no name when its file shrinks.
constexpr std::size_t kSlots = 1024;
std::array<std::atomic<const void*>, kSlots> live_mappings{};

} // namespace

std::string legible(std::string_view text, std::size_t most)
{
    std::string out;
    for (const char c : text.substr(0, most)) { out += (c >= 0x20 && c < 0x7F) ? c : '?'; }
    return out;
}

bool is_folder(const std::filesystem::path& path) noexcept
{
    std::error_code unknown;
    return std::filesystem::is_directory(path, unknown);
}

MappedFile::MappedFile(std::filesystem::path path) : mapping_(std::make_unique<const Mapping>(std::move(path))) {}

MappedFile::Mapping::Mapping(std::filesystem::path file) : path(std::move(file))
{
    // Without O_NONBLOCK a FIFO would be waited for.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) { fail("cannot open ", path.string(), ": ", std::strerror(errno)); }
    struct stat status = {};
    std::string problem;
    if (::fstat(fd, &status) != 0) {
        problem = std::strerror(errno);
    } else if (!S_ISREG(status.st_mode)) {
        problem = "not a regular file";
    } else if (status.st_size > 0) {
        void* address = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
        if (address == MAP_FAILED) {
            problem = std::strerror(errno);
        } else {
            data = static_cast<const std::byte*>(address);
            size = static_cast<std::uint64_t>(status.st_size);
        }
    }
    ::close(fd);
    if (!problem.empty()) { fail("cannot map ", path.string(), ": ", problem); }
    for (slot = 0; slot < kSlots; ++slot) {
        const void* none = nullptr;
        if (live_mappings[slot].compare_exchange_strong(none, this)) { break; }
    }
}

MappedFile::Mapping::~Mapping()
{
    if (slot < kSlots) { live_mappings[slot].store(nullptr); }
    if (data) { ::munmap(const_cast<std::byte*>(data), static_cast<std::size_t>(size)); }
}

void MappedFile::refuse(std::uint64_t offset, std::uint64_t length, std::string_view what) const
{
    fail(path().string(), ": ", what, " at offset ", offset, " of ", length, " bytes is past the end of the file (",
         size(), " bytes)");
}

const char* mapped_file_at(const void* address) noexcept
{
    static_assert(std::atomic<const void*>::is_always_lock_free);
    constexpr std::less<const void*> before;
    for (const auto& slot : live_mappings) {
        const auto* mapping = static_cast<const MappedFile::Mapping*>(slot.load());
        if (mapping && !before(address, mapping->data) && before(address, mapping->data + mapping->size)) {
            return mapping->path.c_str();
        }
    }
    return nullptr;
}

} // namespace oasis_decode
