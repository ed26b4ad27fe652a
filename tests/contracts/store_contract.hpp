// SPDX-License-Identifier: Apache-2.0
//
// The laws of a slow store. For one of your own:
//     template <> struct oasis::contracts::StoreFactory<MyStore> {
//         static std::unique_ptr<MyStore> make(const StoreOptions& options);
//     };
//     INSTANTIATE_TYPED_TEST_SUITE_P(Mine, StoreContract, MyStore);
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/tier/ram_store.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

namespace oasis::contracts {

/// Makes the store under test. The default passes the options to its constructor.
template <class Store> struct StoreFactory {
    static std::unique_ptr<Store> make(const StoreOptions& options) { return std::make_unique<Store>(options); }
};

template <class Store> class StoreContract : public testing::Test {
protected:
    static_assert(check_store<Store>());
    static constexpr std::size_t kUnit = 4224;
    static constexpr std::int32_t kLayers = 3;
    static constexpr std::int32_t kSets = 2;
    static constexpr std::size_t kBlockBytes = kUnit * kLayers * kSets;
    static constexpr std::int32_t kBlocks = 16;

    static BlockId block(std::int32_t i) { return BlockId{i}; }
    static std::uint32_t seed_of(std::int32_t b, LayerId l, std::int32_t s)
    {
        return static_cast<std::uint32_t>((b * kLayers + l) * kSets + s);
    }

    bool write(BlockId id, LayerId layer, std::int32_t set, std::uint32_t seed)
    {
        std::vector<std::byte> bytes = pattern(seed);
        return store->write({id, layer, set, bytes.data()});
    }
    /// What the store delivers, empty when it refuses.
    std::vector<std::byte> read(BlockId id, LayerId layer, std::int32_t set)
    {
        std::vector<std::byte> bytes(kUnit);
        if (!store->read({id, layer, set, bytes.data()})) { bytes.clear(); }
        return bytes;
    }
    static std::vector<std::byte> pattern(std::uint32_t seed)
    {
        std::mt19937 random(seed);
        std::vector<std::byte> bytes(kUnit);
        for (auto& b : bytes) { b = static_cast<std::byte>(random()); }
        return bytes;
    }

    std::unique_ptr<Store> store = StoreFactory<Store>::make({kUnit, kLayers, kSets, kBlockBytes* kBlocks});
};
TYPED_TEST_SUITE_P(StoreContract);

TYPED_TEST_P(StoreContract, GivesBackEveryUnit)
{
    std::uint32_t seed = 0;
    for (std::int32_t b = 0; b < 4; ++b) {
        ASSERT_TRUE(this->store->reserve(this->block(b)));
        for (LayerId l = 0; l < this->kLayers; ++l) {
            for (std::int32_t s = 0; s < this->kSets; ++s) { ASSERT_TRUE(this->write(this->block(b), l, s, seed++)); }
        }
    }
    seed = 0;
    for (std::int32_t b = 0; b < 4; ++b) {
        for (LayerId l = 0; l < this->kLayers; ++l) {
            for (std::int32_t s = 0; s < this->kSets; ++s) {
                EXPECT_EQ(this->read(this->block(b), l, s), this->pattern(seed++)) << b << ' ' << l << ' ' << s;
            }
        }
    }
}

TYPED_TEST_P(StoreContract, KeepsTheLastWrite)
{
    ASSERT_TRUE(this->store->reserve(this->block(3)));
    ASSERT_TRUE(this->write(this->block(3), 1, 1, 10));
    ASSERT_TRUE(this->write(this->block(3), 1, 1, 11));
    EXPECT_EQ(this->read(this->block(3), 1, 1), this->pattern(11));
}

TYPED_TEST_P(StoreContract, DeliversNothingThatWasNotWritten)
{
    EXPECT_TRUE(this->read(this->block(0), 0, 0).empty()) << "a block that was never reserved";
    EXPECT_FALSE(this->write(this->block(0), 0, 0, 1));
    ASSERT_TRUE(this->store->reserve(this->block(0)));
    EXPECT_TRUE(this->read(this->block(0), 0, 0).empty()) << "a unit that was never written";
    ASSERT_TRUE(this->write(this->block(0), 0, 0, 1));
    EXPECT_TRUE(this->read(this->block(0), 0, 1).empty()) << "the unit beside it";
    this->store->release(this->block(0));
    EXPECT_TRUE(this->read(this->block(0), 0, 0).empty()) << "a released block";
    ASSERT_TRUE(this->store->reserve(this->block(7)));
    EXPECT_TRUE(this->read(this->block(7), 0, 0).empty()) << "the last owner's bytes";
}

TYPED_TEST_P(StoreContract, FullIsAValueAndReleasedRoomIsUsedAgain)
{
    std::int32_t taken = 0;
    while (this->store->reserve(this->block(taken))) {
        ++taken;
        ASSERT_LE(this->store->bytes_used(), this->store->capacity_bytes());
        ASSERT_LE(taken, this->kBlocks);
    }
    ASSERT_GE(taken, 2);
    ASSERT_TRUE(this->write(this->block(0), 0, 0, 5));
    EXPECT_FALSE(this->store->reserve(this->block(500)));
    const std::size_t full = this->store->bytes_used();
    this->store->release(this->block(1));
    EXPECT_LT(this->store->bytes_used(), full);
    EXPECT_TRUE(this->store->reserve(this->block(500)));
    EXPECT_EQ(this->store->bytes_used(), full);
    EXPECT_EQ(this->read(this->block(0), 0, 0), this->pattern(5)) << "a refusal must change nothing";
}

TYPED_TEST_P(StoreContract, AgreesWithAMapUnderRandomUse)
{
    using Key = std::tuple<std::int32_t, LayerId, std::int32_t>;
    std::map<Key, std::uint32_t> written;
    std::vector<bool> reserved(2 * this->kBlocks, false);
    std::mt19937 random(11);
    for (int n = 0; n < 2000; ++n) {
        const std::int32_t b = static_cast<std::int32_t>(random() % reserved.size());
        const LayerId l = static_cast<LayerId>(random() % this->kLayers);
        const std::int32_t s = static_cast<std::int32_t>(random() % this->kSets);
        const std::uint32_t seed = random() % 1000;
        if (!reserved[std::size_t(b)]) {
            const bool room = std::count(reserved.begin(), reserved.end(), true) < this->kBlocks;
            ASSERT_EQ(this->store->reserve(this->block(b)), room);
            reserved[std::size_t(b)] = room;
        } else if (random() % 8 == 0) {
            this->store->release(this->block(b));
            reserved[std::size_t(b)] = false;
            std::erase_if(written, [&](const auto& entry) { return std::get<0>(entry.first) == b; });
        } else if (random() % 2 == 0) {
            ASSERT_TRUE(this->write(this->block(b), l, s, seed));
            written[{b, l, s}] = seed;
        } else {
            const auto found = written.find({b, l, s});
            const auto expected = found == written.end() ? std::vector<std::byte>{} : this->pattern(found->second);
            ASSERT_EQ(this->read(this->block(b), l, s), expected);
        }
    }
    for (std::size_t b = 0; b < reserved.size(); ++b) {
        if (reserved[b]) { this->store->release(this->block(static_cast<std::int32_t>(b))); }
    }
    EXPECT_EQ(this->store->bytes_used(), 0U);
}

/// Transfer threads read what is there while the driving thread reserves and releases, and executor threads write.
/// Worth a run under a thread sanitizer.
TYPED_TEST_P(StoreContract, ReadsBesideReservesWritesAndReleases)
{
    constexpr std::int32_t kSteady = 4; // blocks 0 to 3 are read all the time
    for (std::int32_t b = 0; b < kSteady; ++b) {
        ASSERT_TRUE(this->store->reserve(this->block(b)));
        for (LayerId l = 0; l < this->kLayers; ++l) {
            for (std::int32_t s = 0; s < this->kSets; ++s) {
                ASSERT_TRUE(this->write(this->block(b), l, s, this->seed_of(b, l, s)));
            }
        }
    }
    std::atomic<bool> done{false};
    std::atomic<int> wrong{0};
    std::vector<std::jthread> readers;
    for (std::uint32_t t = 0; t < 3; ++t) {
        readers.emplace_back([&, t] {
            std::mt19937 random(t);
            do {
                const auto b = static_cast<std::int32_t>(random() % kSteady);
                const auto l = static_cast<LayerId>(random() % this->kLayers);
                const auto s = static_cast<std::int32_t>(random() % this->kSets);
                if (this->read(this->block(b), l, s) != this->pattern(this->seed_of(b, l, s))) { ++wrong; }
            } while (!done.load());
        });
    }
    // Blocks come and go beside them, with large ids too, so that tables grow.
    for (std::int32_t round = 0; round < 40; ++round) {
        const std::int32_t first = kSteady + round * 50;
        for (std::int32_t b = first; b < first + 2; ++b) { ASSERT_TRUE(this->store->reserve(this->block(b))); }
        {
            std::vector<std::jthread> writers;
            for (std::int32_t b = first; b < first + 2; ++b) {
                writers.emplace_back([&, b] {
                    for (LayerId l = 0; l < this->kLayers; ++l) {
                        if (!this->write(this->block(b), l, b % this->kSets, this->seed_of(b, l, 0))) { ++wrong; }
                    }
                });
            }
        }
        for (std::int32_t b = first; b < first + 2; ++b) {
            for (LayerId l = 0; l < this->kLayers; ++l) {
                const auto expected = this->pattern(this->seed_of(b, l, 0));
                if (this->read(this->block(b), l, b % this->kSets) != expected) { ++wrong; }
            }
            this->store->release(this->block(b));
        }
        ASSERT_LE(this->store->bytes_used(), this->store->capacity_bytes());
    }
    done = true;
    readers.clear();
    EXPECT_EQ(wrong.load(), 0);
}

REGISTER_TYPED_TEST_SUITE_P(StoreContract, GivesBackEveryUnit, KeepsTheLastWrite, DeliversNothingThatWasNotWritten,
                            FullIsAValueAndReleasedRoomIsUsedAgain, AgreesWithAMapUnderRandomUse,
                            ReadsBesideReservesWritesAndReleases);

} // namespace oasis::contracts
