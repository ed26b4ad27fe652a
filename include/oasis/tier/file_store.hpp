// SPDX-License-Identifier: Apache-2.0
//
// A slow tier in a file, by positional reads and writes. Part of the compiled library (`OasisKV::oasis`, POSIX
// systems).
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/tier/slow_tier.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace oasis {

/// Whether transfers go past the page cache.
enum class DirectIo : std::uint8_t {
    kAuto, ///< past the page cache where the file system can, else through it
    kOn,   ///< past the page cache, or the constructor throws
    kOff,
};

/// Where the file lies and how it is read.
struct FileStoreOptions {
    std::string path;                     ///< a folder, in which a file of a new name is made, or a file that does not exist
    DirectIo direct_io = DirectIo::kAuto; ///< past the page cache or through it
    std::size_t max_file_bytes =
        0; ///< the file's size, padding included, stays at or below it; 0: what the capacity takes
};

/// The slow tier in a file.
///
/// The file is made for its owner alone (mode 0600, never over a file that is there) and its name is removed at once:
/// the space is free again when the process ends, however it ends. Room for blocks is allocated as they are reserved,
/// so that a full disk is a refused `reserve`; it is used again after a `release` and given back with the store.
///
/// A unit takes whole pages of 4 KiB in direct mode, `unit_bytes` otherwise. Its checksum stays in memory and is
/// verified on every read: bytes that changed, a short file and a failed system call are a `read` that returns false,
/// with the reason in `last_error()`. A write that failed leaves the unit unwritten.
///
/// Threads: every call may run beside every other; the tables are locked only to look places up, never during a
/// transfer. A read that overlaps a write or the release of its own unit fails or delivers one of the two contents.
///
/// After a `fork` the child's copy of the store refuses every call and its destructor leaves the parent's file alone.
class FileStore {
public:
    /// Throws `InvalidArgument` for options that cannot work and `StoreError` with the system's reason.
    FileStore(const StoreOptions& store, const FileStoreOptions& file);
    FileStore(const FileStore&) = delete;
    FileStore& operator=(const FileStore&) = delete;
    ~FileStore();

    /// See the concept `SlowStore`.
    ///@{
    bool reserve(BlockId block);
    void release(BlockId block);
    bool write(const StorePiece& piece);
    bool read(const StorePiece& piece);
    ///@}

    /// Units of the blocks that are reserved, without padding.
    std::size_t bytes_used() const noexcept;
    /// Of the store's options.
    std::size_t capacity_bytes() const noexcept;
    /// What the file takes, padding included: never less than was ever in use.
    std::size_t file_bytes() const noexcept;
    /// Bytes of units delivered and stored.
    ///@{
    std::uint64_t bytes_read() const noexcept;
    std::uint64_t bytes_written() const noexcept;
    ///@}
    /// Reads whose bytes were not those that were written.
    std::uint64_t corrupt_units() const noexcept;

    /// Whether transfers go past the page cache; if not, `note()` says why.
    bool direct() const noexcept;
    /// Why the page cache is used; empty when it is not.
    const std::string& note() const noexcept;
    /// The path that the file had for a moment.
    const std::string& path() const noexcept;
    /// The last failure: operation, block, path, offset and the system's name for the error. Empty before the first.
    std::string last_error() const;
    /// For tests and tools.
    int descriptor() const noexcept;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

static_assert(check_store<FileStore>());

} // namespace oasis
