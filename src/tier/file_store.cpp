// SPDX-License-Identifier: Apache-2.0
#include <oasis/tier/file_store.hpp>

#include <oasis/core/error.hpp>

#include "tier/file_io.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include <unistd.h>
#include <xxhash.h>

namespace oasis {
namespace {

constexpr std::int32_t kNowhere = -1;
constexpr std::size_t kGrowBytes = std::size_t{16} << 20;

/// 0 stands for a unit that was not written.
std::uint64_t checksum(const std::byte* data, std::size_t bytes) noexcept
{
    return std::max<std::uint64_t>(XXH3_64bits(data, bytes), 1);
}

} // namespace

class FileStore::Impl {
public:
    Impl(const StoreOptions& store, const FileStoreOptions& file);
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl() { ::close(file_); }

    bool reserve(BlockId block);
    void release(BlockId block);
    bool write(const StorePiece& piece);
    bool read(const StorePiece& piece);
    std::string last_error() const
    {
        if (forked()) { return "FileStore: the file belongs to the process that was forked"; }
        const std::scoped_lock lock(error_mutex_);
        return error_;
    }

    StoreOptions options_;
    std::string path_{};
    std::string note_{};
    bool direct_ = false;
    int file_ = -1;
    std::size_t block_bytes_ = 0; ///< without padding
    std::atomic<std::size_t> live_{0};
    std::atomic<std::size_t> file_bytes_{0};
    std::atomic<std::uint64_t> bytes_read_{0};
    std::atomic<std::uint64_t> bytes_written_{0};
    std::atomic<std::uint64_t> corrupt_units_{0};

private:
    using Sums = std::unique_ptr<std::atomic<std::uint64_t>[]>;

    /// Where a unit is; `sum` is null when its block is not reserved.
    struct Unit {
        std::uint64_t offset = 0;
        std::atomic<std::uint64_t>* sum = nullptr;
    };

    bool forked() const noexcept { return ::getpid() != owner_; }
    void check(const char* operation, const StorePiece& piece) const;
    std::int32_t find(BlockId block) const noexcept
    {
        const std::int32_t id = raw(block);
        return id >= 0 && std::size_t(id) < place_of_.size() ? place_of_[std::size_t(id)] : kNowhere;
    }
    Unit locate(const StorePiece& piece) const;
    bool grow(BlockId block);
    bool failed(const char* operation, const StorePiece& piece, std::uint64_t offset, const std::string& why);

    std::size_t units_ = 0;       ///< of one block
    std::size_t unit_stride_ = 0; ///< with padding
    std::size_t max_places_ = 0;
    pid_t owner_ = ::getpid();

    std::mutex growth_mutex_; ///< one `reserve` at a time; taken before `tables_mutex_`
    mutable std::shared_mutex tables_mutex_;
    std::size_t next_place_ = 0; ///< places from here on were never used
    std::vector<std::int32_t> place_of_{};
    std::vector<std::int32_t> free_{};
    std::vector<Sums> sums_{}; ///< by place: one checksum per unit

    mutable std::mutex error_mutex_;
    std::string error_{};
};

FileStore::Impl::Impl(const StoreOptions& store, const FileStoreOptions& file) : options_(store)
{
    detail::expects(store.unit_bytes >= 1, "FileStore: unit_bytes is 0.");
    detail::expects(store.layers >= 1, "FileStore: layers is ", store.layers, "; it must be at least 1.");
    detail::expects(store.sets >= 1, "FileStore: sets is ", store.sets, "; it must be at least 1.");
    detail::expects(!file.path.empty(), "FileStore: path is empty.");
    units_ = std::size_t(store.layers) * std::size_t(store.sets);
    detail::expects(
        store.unit_bytes <= std::size_t(std::numeric_limits<std::int64_t>::max()) / 2 / units_ - detail::kPage,
        "FileStore: unit_bytes ", store.unit_bytes, " x layers ", store.layers, " x sets ", store.sets, " overflows.");
    block_bytes_ = units_ * store.unit_bytes;

    const detail::NewFile made = detail::open_unlinked(file.path);
    if (made.file < 0) {
        throw StoreError(detail::text("FileStore: cannot make ", made.path, ": ", detail::errno_text(made.error)));
    }
    file_ = made.file;
    path_ = made.path;
    note_ = file.direct_io == DirectIo::kOff ? "switched off" : detail::try_direct(file_);
    direct_ = note_.empty();
    if (file.direct_io == DirectIo::kOn && !direct_) {
        ::close(file_);
        throw StoreError(detail::text("FileStore: no direct I/O for ", path_, ": ", note_));
    }
    unit_stride_ = direct_ ? detail::round_up(store.unit_bytes, detail::kPage) : store.unit_bytes;
    max_places_ = std::min(store.capacity_bytes / block_bytes_, std::size_t(std::numeric_limits<std::int32_t>::max()));
    // Offsets are 63 bits.
    const std::size_t most = std::size_t(std::numeric_limits<std::int64_t>::max());
    const std::size_t limit = file.max_file_bytes == 0 ? most : std::min(most, file.max_file_bytes);
    max_places_ = std::min(max_places_, limit / (unit_stride_ * units_));
}

bool FileStore::Impl::failed(const char* operation, const StorePiece& piece, std::uint64_t offset,
                             const std::string& why)
{
    std::string text = detail::text("FileStore: ", operation, " of block ", raw(piece.block), " layer ", piece.layer,
                                    " set ", piece.set, " at offset ", offset, " of ", path_, ": ", why);
    const std::scoped_lock lock(error_mutex_);
    error_ = std::move(text);
    return false;
}

void FileStore::Impl::check(const char* operation, const StorePiece& piece) const
{
    detail::expects(piece.layer >= 0 && piece.layer < options_.layers && piece.set >= 0 && piece.set < options_.sets,
                    "FileStore::", operation, ": block ", raw(piece.block), " layer ", piece.layer, " set ", piece.set,
                    " is outside ", options_.layers, " layers x ", options_.sets, " sets.");
    detail::expects(piece.data != nullptr, "FileStore::", operation, ": block ", raw(piece.block),
                    " comes with no memory.");
}

FileStore::Impl::Unit FileStore::Impl::locate(const StorePiece& piece) const
{
    const std::shared_lock lock(tables_mutex_);
    const std::int32_t place = find(piece.block);
    if (place == kNowhere) { return {}; }
    const std::size_t unit = std::size_t(piece.layer) * std::size_t(options_.sets) + std::size_t(piece.set);
    return {(std::uint64_t(place) * units_ + unit) * unit_stride_, &sums_[std::size_t(place)][unit]};
}

/// Makes the file long enough for one more place, and for some more where there is room.
bool FileStore::Impl::grow(BlockId block)
{
    const std::size_t have = file_bytes_.load(std::memory_order_relaxed);
    const std::size_t stride = unit_stride_ * units_;
    const std::size_t need = (next_place_ + 1) * stride;
    if (need <= have) { return true; }
    const std::size_t wish = std::min(std::max(need, have + kGrowBytes / stride * stride), max_places_ * stride);
    std::string wrong;
    for (const std::size_t size : {wish, need}) {
        wrong = detail::allocate(file_, have, size - have);
        if (wrong.empty()) {
            file_bytes_.store(size, std::memory_order_relaxed);
            return true;
        }
    }
    return failed("allocation", {block, 0, 0, nullptr}, have, wrong);
}

bool FileStore::Impl::reserve(BlockId block)
{
    detail::expects(raw(block) >= 0, "FileStore::reserve: block id ", raw(block), " is negative.");
    if (forked()) { return false; }
    const std::scoped_lock growth(growth_mutex_);
    bool is_new = false;
    {
        const std::shared_lock lock(tables_mutex_);
        detail::expects(find(block) == kNowhere, "FileStore::reserve: block ", raw(block), " is reserved already.");
        is_new = free_.empty();
    }
    // The system may take its time: without the tables' lock. Nobody else takes places meanwhile.
    if (is_new && (next_place_ == max_places_ || !grow(block))) { return false; }
    const std::unique_lock lock(tables_mutex_);
    const std::size_t index = std::size_t(raw(block));
    if (index >= place_of_.size()) { place_of_.resize(std::max(index + 1, place_of_.size() * 2), kNowhere); }
    if (is_new) {
        // Room for every place there is, so that `release` never allocates.
        if (free_.capacity() <= next_place_) { free_.reserve(std::max<std::size_t>(64, next_place_ * 2)); }
        sums_.push_back(std::make_unique<std::atomic<std::uint64_t>[]>(units_));
        free_.push_back(static_cast<std::int32_t>(next_place_++));
    }
    place_of_[index] = free_.back();
    free_.pop_back();
    live_.fetch_add(1, std::memory_order_relaxed);
    return true;
}

void FileStore::Impl::release(BlockId block)
{
    if (forked()) { return; }
    const std::unique_lock lock(tables_mutex_);
    const std::int32_t place = find(block);
    detail::expects(place != kNowhere, "FileStore::release: block ", raw(block), " is not reserved.");
    for (std::size_t u = 0; u < units_; ++u) { sums_[std::size_t(place)][u].store(0, std::memory_order_relaxed); }
    place_of_[std::size_t(raw(block))] = kNowhere;
    free_.push_back(place);
    live_.fetch_sub(1, std::memory_order_relaxed);
}

bool FileStore::Impl::write(const StorePiece& piece)
{
    check("write", piece);
    if (forked()) { return false; }
    const Unit unit = locate(piece);
    if (unit.sum == nullptr) { return false; }
    unit.sum->store(0, std::memory_order_relaxed);
    const std::byte* from = piece.data;
    if (direct_ &&
        (unit_stride_ != options_.unit_bytes || reinterpret_cast<std::uintptr_t>(from) % detail::kPage != 0)) {
        std::byte* bounce = detail::bounce_buffer(unit_stride_);
        if (bounce == nullptr) { return failed("write", piece, unit.offset, "ENOMEM (no aligned buffer)"); }
        std::memcpy(bounce, piece.data, options_.unit_bytes);
        std::memset(bounce + options_.unit_bytes, 0, unit_stride_ - options_.unit_bytes);
        from = bounce;
    }
    const std::uint64_t sum = checksum(from, options_.unit_bytes);
    const std::string wrong = detail::write_all(file_, from, unit_stride_, unit.offset);
    if (!wrong.empty()) { return failed("write", piece, unit.offset, wrong); }
    unit.sum->store(sum, std::memory_order_release);
    bytes_written_.fetch_add(options_.unit_bytes, std::memory_order_relaxed);
    return true;
}

bool FileStore::Impl::read(const StorePiece& piece)
{
    check("read", piece);
    if (forked()) { return false; }
    const Unit unit = locate(piece);
    if (unit.sum == nullptr) { return false; }
    const std::uint64_t sum = unit.sum->load(std::memory_order_acquire);
    if (sum == 0) { return false; }
    std::byte* to = piece.data;
    if (direct_ && (unit_stride_ != options_.unit_bytes || reinterpret_cast<std::uintptr_t>(to) % detail::kPage != 0)) {
        to = detail::bounce_buffer(unit_stride_);
        if (to == nullptr) { return failed("read", piece, unit.offset, "ENOMEM (no aligned buffer)"); }
    }
    const std::string wrong = detail::read_all(file_, to, unit_stride_, unit.offset);
    if (!wrong.empty()) { return failed("read", piece, unit.offset, wrong); }
    if (checksum(to, options_.unit_bytes) != sum) {
        corrupt_units_.fetch_add(1, std::memory_order_relaxed);
        return failed("read", piece, unit.offset, "EBADMSG (the checksum differs from that of the bytes written)");
    }
    if (to != piece.data) { std::memcpy(piece.data, to, options_.unit_bytes); }
    bytes_read_.fetch_add(options_.unit_bytes, std::memory_order_relaxed);
    return true;
}

FileStore::FileStore(const StoreOptions& store, const FileStoreOptions& file)
    : impl_(std::make_unique<Impl>(store, file))
{
}
FileStore::~FileStore() = default;

bool FileStore::reserve(BlockId block) { return impl_->reserve(block); }
void FileStore::release(BlockId block) { impl_->release(block); }
bool FileStore::write(const StorePiece& piece) { return impl_->write(piece); }
bool FileStore::read(const StorePiece& piece) { return impl_->read(piece); }
std::size_t FileStore::bytes_used() const noexcept
{
    return impl_->live_.load(std::memory_order_relaxed) * impl_->block_bytes_;
}
std::size_t FileStore::capacity_bytes() const noexcept { return impl_->options_.capacity_bytes; }
std::size_t FileStore::file_bytes() const noexcept { return impl_->file_bytes_.load(std::memory_order_relaxed); }
std::uint64_t FileStore::bytes_read() const noexcept { return impl_->bytes_read_.load(std::memory_order_relaxed); }
std::uint64_t FileStore::bytes_written() const noexcept
{
    return impl_->bytes_written_.load(std::memory_order_relaxed);
}
std::uint64_t FileStore::corrupt_units() const noexcept
{
    return impl_->corrupt_units_.load(std::memory_order_relaxed);
}
bool FileStore::direct() const noexcept { return impl_->direct_; }
const std::string& FileStore::note() const noexcept { return impl_->note_; }
const std::string& FileStore::path() const noexcept { return impl_->path_; }
std::string FileStore::last_error() const { return impl_->last_error(); }
int FileStore::descriptor() const noexcept { return impl_->file_; }

} // namespace oasis
