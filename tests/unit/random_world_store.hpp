// SPDX-License-Identifier: Apache-2.0
//
// The slow tier of a random schedule: it sees to the store's contract, is slow, and fails. Included by random_world.hpp.
#pragma once

#include "fault/failing_store.hpp"

#include <oasis/tier/ram_store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace oasis::test {

/// A RamStore that counts breaches of what `SlowStore` promises its stores: a unit is not written while it is read or written, and a block
/// is not released meanwhile. Its counts are relaxed: they must not order what a race detector is to see unordered.
class WatchedStore {
public:
    explicit WatchedStore(const StoreOptions& options)
        : options_(options), inner_(options),
          users_(options.capacity_bytes / options.unit_bytes + std::size_t(options.layers) * std::size_t(options.sets))
    {
    }

    bool reserve(BlockId block) { return inner_.reserve(block); }
    void release(BlockId block)
    {
        for (std::int32_t layer = 0; layer < options_.layers; ++layer) {
            for (std::int32_t set = 0; set < options_.sets; ++set) { breaches_ += users_[at({block, layer, set, nullptr})].load(std::memory_order_relaxed) != 0; }
        }
        inner_.release(block);
    }
    bool write(const StorePiece& piece)
    {
        const Use use(users_[at(piece)], kWriter);
        if (use.before != 0) { breaches_.fetch_add(1, std::memory_order_relaxed); }
        return inner_.write(piece);
    }
    bool read(const StorePiece& piece)
    {
        const Use use(users_[at(piece)], 1);
        if (use.before >= kWriter) { breaches_.fetch_add(1, std::memory_order_relaxed); }
        return inner_.read(piece);
    }
    std::size_t bytes_used() const { return inner_.bytes_used(); }
    std::size_t capacity_bytes() const { return inner_.capacity_bytes(); }

    std::int64_t breaches() const { return breaches_.load(std::memory_order_relaxed); }

private:
    static constexpr std::uint32_t kWriter = 1U << 16;

    struct Use {
        Use(std::atomic<std::uint32_t>& users, std::uint32_t kind) : users_(users), kind_(kind), before(users.fetch_add(kind, std::memory_order_relaxed)) {}
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        ~Use() { users_.fetch_sub(kind_, std::memory_order_relaxed); }
        std::atomic<std::uint32_t>& users_;
        std::uint32_t kind_;
        std::uint32_t before;
    };
    std::size_t at(const StorePiece& piece) const noexcept
    {
        return (std::size_t(raw(piece.block)) * std::size_t(options_.layers) + std::size_t(piece.layer)) * std::size_t(options_.sets) + std::size_t(piece.set);
    }

    StoreOptions options_;
    RamStore inner_;
    std::vector<std::atomic<std::uint32_t>> users_; ///< [blocks, layers, sets]
    std::atomic<std::int64_t> breaches_{0};
};

/// How often the store fails and how slow it is, by chance; any thread may ask.
class FaultDice {
public:
    explicit FaultDice(std::uint64_t seed) : state_(seed) {}

    std::atomic<std::uint32_t> failed_reads{0};  ///< per mille
    std::atomic<std::uint32_t> failed_writes{0}; ///< per mille
    std::atomic<std::uint32_t> slow{0};          ///< per mille of all calls take up to 200 us

    std::shared_ptr<fault::StoreFaults> plan()
    {
        auto faults = std::make_shared<fault::StoreFaults>();
        faults->when = [this](fault::StoreOperation operation, const StorePiece&) {
            if (operation == fault::StoreOperation::kReserve) { return false; }
            const auto& often = operation == fault::StoreOperation::kRead ? failed_reads : failed_writes;
            return roll() % 1000 < often.load(std::memory_order_relaxed);
        };
        faults->delay = [this](fault::StoreOperation operation, const StorePiece&) {
            if (operation == fault::StoreOperation::kReserve || roll() % 1000 >= slow.load(std::memory_order_relaxed)) { return std::chrono::microseconds(0); }
            return std::chrono::microseconds(roll() % 200);
        };
        return faults;
    }

private:
    std::uint32_t roll()
    {
        std::uint64_t z = state_.fetch_add(0x9E3779B97F4A7C15ULL, std::memory_order_relaxed);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        return std::uint32_t(z >> 32);
    }

    std::atomic<std::uint64_t> state_;
};

} // namespace oasis::test
