// SPDX-License-Identifier: Apache-2.0
//
// A slow tier in ordinary memory: what a larger, slower memory is to the CPU backend.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/error.hpp>
#include <oasis/tier/slow_tier.hpp>
#include <oasis/tier/striped_lock.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <vector>

namespace oasis {

/// The slow tier in ordinary memory.
///
/// Memory is taken in chunks of whole blocks as blocks are reserved; a chunk without blocks is given back. Memory that
/// was never written costs no physical pages. A unit that was not written since its block was reserved is not
/// delivered.
///
/// Threads: every call may run beside every other. `read` and `write` of distinct units run side by side; `reserve` and
/// `release` wait for the copies that are under way and hold new ones up for as long as they change the tables. A read
/// that overlaps a write or the release of its own unit touches no memory that is not the store's, but what it delivers
/// is undefined.
class RamStore {
public:
    /// Takes no memory yet. Throws `InvalidArgument` for sizes that cannot be.
    explicit RamStore(const StoreOptions& options) : options_(options)
    {
        detail::expects(options.unit_bytes >= 1, "RamStore: unit_bytes is 0.");
        detail::expects(options.layers >= 1, "RamStore: layers is ", options.layers, "; it must be at least 1.");
        detail::expects(options.sets >= 1, "RamStore: sets is ", options.sets, "; it must be at least 1.");
        units_ = std::size_t(options.layers) * std::size_t(options.sets);
        detail::expects(options.unit_bytes <= std::numeric_limits<std::size_t>::max() / 2 / units_,
                        "RamStore: unit_bytes ", options.unit_bytes, " x layers ", options.layers, " x sets ",
                        options.sets, " overflows.");
        block_bytes_ = units_ * options.unit_bytes;
        max_places_ =
            std::min(options.capacity_bytes / block_bytes_, std::size_t(std::numeric_limits<std::int32_t>::max()));
        chunk_places_ = std::max<std::size_t>(1, kChunkBytes / block_bytes_);
    }
    RamStore(const RamStore&) = delete;
    RamStore& operator=(const RamStore&) = delete;

    /// Room for all units of a block; false when the capacity or the system's memory is used up. Nothing has changed
    /// then.
    bool reserve(BlockId block)
    {
        detail::expects(raw(block) >= 0, "RamStore::reserve: block id ", raw(block), " is negative.");
        const std::scoped_lock alone(lock_);
        detail::expects(find(block) == kNowhere, "RamStore::reserve: block ", raw(block), " is reserved already.");
        const std::size_t index = std::size_t(raw(block));
        if (index >= place_of_.size()) { place_of_.resize(std::max(index + 1, place_of_.size() * 2), kNowhere); }
        if (free_.empty()) {
            if (next_place_ == max_places_) { return false; }
            // Room for every place there is, so that `release` never allocates.
            if (free_.capacity() <= next_place_) { free_.reserve(std::max<std::size_t>(64, next_place_ * 2)); }
            free_.push_back(static_cast<std::int32_t>(next_place_++));
        }
        const std::int32_t place = free_.back();
        if (!enter_chunk(std::size_t(place) / chunk_places_)) { return false; }
        free_.pop_back();
        place_of_[index] = place;
        live_.fetch_add(1, std::memory_order_relaxed);
        return true;
    }

    /// See the concept `SlowStore`.
    ///@{
    void release(BlockId block)
    {
        const std::scoped_lock alone(lock_);
        const std::int32_t place = find(block);
        detail::expects(place != kNowhere, "RamStore::release: block ", raw(block), " is not reserved.");
        Chunk& chunk = chunks_[std::size_t(place) / chunk_places_];
        std::fill_n(written(place), units_, std::uint8_t{0});
        place_of_[std::size_t(raw(block))] = kNowhere;
        free_.push_back(place);
        live_.fetch_sub(1, std::memory_order_relaxed);
        if (--chunk.live == 0) {
            committed_.fetch_sub(chunk.bytes, std::memory_order_relaxed);
            chunk = Chunk{};
        }
    }

    bool write(const StorePiece& piece)
    {
        check("write", piece);
        const std::shared_lock stays(lock_.reader());
        const std::int32_t place = find(piece.block);
        if (place == kNowhere) { return false; }
        const std::size_t unit = unit_of(piece);
        std::memcpy(unit_data(place, unit), piece.data, options_.unit_bytes);
        std::atomic_ref(written(place)[unit]).store(1, std::memory_order_release);
        counts().written.fetch_add(options_.unit_bytes, std::memory_order_relaxed);
        return true;
    }

    bool read(const StorePiece& piece)
    {
        check("read", piece);
        const std::shared_lock stays(lock_.reader());
        const std::int32_t place = find(piece.block);
        if (place == kNowhere) { return false; }
        const std::size_t unit = unit_of(piece);
        if (std::atomic_ref(written(place)[unit]).load(std::memory_order_acquire) == 0) { return false; }
        std::memcpy(piece.data, unit_data(place, unit), options_.unit_bytes);
        counts().read.fetch_add(options_.unit_bytes, std::memory_order_relaxed);
        return true;
    }

    std::size_t bytes_used() const noexcept { return live_.load(std::memory_order_relaxed) * block_bytes_; }
    std::size_t capacity_bytes() const noexcept { return options_.capacity_bytes; }
    ///@}
    /// Bytes of all chunks that are held now: bytes_used rounded up to chunks.
    std::size_t bytes_committed() const noexcept { return committed_.load(std::memory_order_relaxed); }
    /// Bytes of all units of a block.
    std::size_t block_bytes() const noexcept { return block_bytes_; }
    /// Bytes of units stored and delivered.
    ///@{
    std::uint64_t bytes_written() const noexcept
    {
        std::uint64_t sum = 0;
        for (const Counts& c : counts_) { sum += c.written.load(std::memory_order_relaxed); }
        return sum;
    }
    std::uint64_t bytes_read() const noexcept
    {
        std::uint64_t sum = 0;
        for (const Counts& c : counts_) { sum += c.read.load(std::memory_order_relaxed); }
        return sum;
    }
    ///@}

private:
    static constexpr std::size_t kChunkBytes = std::size_t{8} << 20;
    static constexpr std::align_val_t kAlign{4096};
    static constexpr std::int32_t kNowhere = -1;

    struct Free {
        void operator()(std::byte* p) const noexcept { ::operator delete(p, kAlign); }
    };
    struct Chunk {
        std::unique_ptr<std::byte, Free> data{};
        std::unique_ptr<std::uint8_t[]> written{}; ///< [places of the chunk, units]
        std::size_t bytes = 0;
        std::size_t live = 0;
    };
    struct alignas(64) Counts {
        std::atomic<std::uint64_t> written{0};
        std::atomic<std::uint64_t> read{0};
    };

    std::int32_t find(BlockId block) const noexcept
    {
        const std::int32_t id = raw(block);
        return id >= 0 && std::size_t(id) < place_of_.size() ? place_of_[std::size_t(id)] : kNowhere;
    }

    /// Counts one more block into chunk `index`, taking its memory first where needed.
    bool enter_chunk(std::size_t index)
    {
        if (index >= chunks_.size()) { chunks_.resize(index + 1); }
        Chunk& chunk = chunks_[index];
        if (!chunk.data) {
            const std::size_t places = std::min(chunk_places_, max_places_ - index * chunk_places_);
            const std::size_t bytes = places * block_bytes_;
            std::unique_ptr<std::byte, Free> data(static_cast<std::byte*>(::operator new(bytes, kAlign, std::nothrow)));
            std::unique_ptr<std::uint8_t[]> flags(new (std::nothrow) std::uint8_t[places * units_]());
            if (!data || !flags) { return false; }
            chunk = Chunk{std::move(data), std::move(flags), bytes, 0};
            committed_.fetch_add(bytes, std::memory_order_relaxed);
        }
        ++chunk.live;
        return true;
    }

    void check(const char* operation, const StorePiece& piece) const
    {
        detail::expects(piece.layer >= 0 && piece.layer < options_.layers && piece.set >= 0 &&
                            piece.set < options_.sets,
                        "RamStore::", operation, ": block ", raw(piece.block), " layer ", piece.layer, " set ",
                        piece.set, " is outside ", options_.layers, " layers x ", options_.sets, " sets.");
        detail::expects(piece.data != nullptr, "RamStore::", operation, ": block ", raw(piece.block),
                        " comes with no memory.");
    }

    std::size_t unit_of(const StorePiece& piece) const noexcept
    {
        return std::size_t(piece.layer) * std::size_t(options_.sets) + std::size_t(piece.set);
    }
    std::byte* unit_data(std::int32_t place, std::size_t unit) const noexcept
    {
        const std::size_t in_chunk = std::size_t(place) % chunk_places_;
        return chunks_[std::size_t(place) / chunk_places_].data.get() + in_chunk * block_bytes_ +
               unit * options_.unit_bytes;
    }
    Counts& counts() noexcept { return counts_[detail::StripedLock::stripe()]; }
    std::uint8_t* written(std::int32_t place) const noexcept
    {
        return chunks_[std::size_t(place) / chunk_places_].written.get() + std::size_t(place) % chunk_places_ * units_;
    }

    StoreOptions options_;
    std::size_t units_ = 0; ///< of one block
    std::size_t block_bytes_ = 0;
    std::size_t max_places_ = 0;
    std::size_t chunk_places_ = 0;
    std::size_t next_place_ = 0; ///< places from here on were never used
    std::atomic<std::size_t> live_{0};
    std::atomic<std::size_t> committed_{0};
    std::vector<Chunk> chunks_;
    std::vector<std::int32_t> free_;
    std::vector<std::int32_t> place_of_; ///< by block id
    detail::StripedLock lock_;           ///< readers look places up and copy, writers change the tables
    std::array<Counts, detail::StripedLock::kStripes> counts_{};
};

static_assert(check_store<RamStore>());

} // namespace oasis
