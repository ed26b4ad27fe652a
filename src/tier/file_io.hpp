// SPDX-License-Identifier: Apache-2.0
//
// System calls of the file tier: whole transfers, errors by name, buffers that direct I/O takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

namespace oasis::detail {

inline constexpr std::size_t kPage = 4096; ///< what direct I/O is aligned to: memory, offset and length

inline std::size_t round_up(std::size_t bytes, std::size_t to) noexcept { return (bytes + to - 1) / to * to; }

/// "ENOSPC (No space left on device)".
std::string errno_text(int error);

/// Transfers all bytes, in as many calls as it takes. Empty when done, else what went wrong.
std::string read_all(int file, std::byte* to, std::size_t bytes, std::uint64_t offset);
std::string write_all(int file, const std::byte* from, std::size_t bytes, std::uint64_t offset);

/// Makes the file longer, with room on the disk where the file system can promise it. Empty when done.
std::string allocate(int file, std::uint64_t offset, std::uint64_t bytes);

/// Switches direct I/O on if a page written comes back. Empty when it is on, else the reason; the file is empty after.
std::string try_direct(int file);

/// Makes a new file at `path`, or one with a new name in the folder `path`, and removes its name.
struct NewFile {
    int file = -1;
    std::string path{};
    int error = 0; ///< errno when `file` is -1
};
NewFile open_unlinked(const std::string& path);

/// Aligned memory of a thread, kept from one transfer to the next. Null when there is no memory.
std::byte* bounce_buffer(std::size_t bytes) noexcept;

} // namespace oasis::detail
