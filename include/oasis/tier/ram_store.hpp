// SPDX-License-Identifier: Apache-2.0
//
// A slow tier in ordinary memory: what a larger, slower memory is to the CPU backend.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

namespace oasis {

struct StoreOptions {
    std::size_t unit_bytes = 0; ///< one coded head-block (all heads of a block in layer scope)
    std::int32_t layers = 0;
    std::int32_t sets = 0;          ///< selection sets of a layer
    std::size_t capacity_bytes = 0; ///< never exceeded; a block takes unit_bytes * layers * sets
};

/// Memory is taken in chunks of whole blocks as blocks are reserved; a chunk without blocks is given back. Memory that
/// was never written costs no physical pages. A unit that was not written since its block was reserved is not
/// delivered. `reserve` and `release` need the store to themselves; writes and reads of distinct units may run on
/// several threads.
class RamStore {
public:
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
        ++live_;
        return true;
    }

    void release(BlockId block)
    {
        const std::int32_t place = find(block);
        detail::expects(place != kNowhere, "RamStore::release: block ", raw(block), " is not reserved.");
        Chunk& chunk = chunks_[std::size_t(place) / chunk_places_];
        std::fill_n(written(place), units_, std::uint8_t{0});
        place_of_[std::size_t(raw(block))] = kNowhere;
        free_.push_back(place);
        --live_;
        if (--chunk.live == 0) {
            committed_ -= chunk.bytes;
            chunk = Chunk{};
        }
    }

    bool write(const StorePiece& piece)
    {
        const std::int32_t place = locate("write", piece);
        if (place == kNowhere) { return false; }
        const std::size_t unit = unit_of(piece);
        std::memcpy(unit_data(place, unit), piece.data, options_.unit_bytes);
        written(place)[unit] = 1;
        bytes_written_.fetch_add(options_.unit_bytes, std::memory_order_relaxed);
        return true;
    }

    bool read(const StorePiece& piece)
    {
        const std::int32_t place = locate("read", piece);
        if (place == kNowhere) { return false; }
        const std::size_t unit = unit_of(piece);
        if (written(place)[unit] == 0) { return false; }
        std::memcpy(piece.data, unit_data(place, unit), options_.unit_bytes);
        bytes_read_.fetch_add(options_.unit_bytes, std::memory_order_relaxed);
        return true;
    }

    std::size_t bytes_used() const noexcept { return live_ * block_bytes_; }
    std::size_t capacity_bytes() const noexcept { return options_.capacity_bytes; }
    /// Bytes of all chunks that are held now: bytes_used rounded up to chunks.
    std::size_t bytes_committed() const noexcept { return committed_; }
    std::size_t block_bytes() const noexcept { return block_bytes_; }
    std::uint64_t bytes_written() const noexcept { return bytes_written_.load(std::memory_order_relaxed); }
    std::uint64_t bytes_read() const noexcept { return bytes_read_.load(std::memory_order_relaxed); }

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
            committed_ += bytes;
        }
        ++chunk.live;
        return true;
    }

    std::int32_t locate(const char* operation, const StorePiece& piece) const
    {
        detail::expects(piece.layer >= 0 && piece.layer < options_.layers && piece.set >= 0 &&
                            piece.set < options_.sets,
                        "RamStore::", operation, ": block ", raw(piece.block), " layer ", piece.layer, " set ",
                        piece.set, " is outside ", options_.layers, " layers x ", options_.sets, " sets.");
        detail::expects(piece.data != nullptr, "RamStore::", operation, ": block ", raw(piece.block),
                        " comes with no memory.");
        return find(piece.block);
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
    std::size_t live_ = 0;
    std::size_t committed_ = 0;
    std::vector<Chunk> chunks_;
    std::vector<std::int32_t> free_;
    std::vector<std::int32_t> place_of_; ///< by block id
    std::atomic<std::uint64_t> bytes_written_{0};
    std::atomic<std::uint64_t> bytes_read_{0};
};

static_assert(check_store<RamStore>());

} // namespace oasis
