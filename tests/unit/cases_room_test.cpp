// SPDX-License-Identifier: Apache-2.0
//
// No room where there seemed to be some: a store that refuses places it has ids for, an allocation that fails, a callback
// that throws. Nothing may be lost, held twice or changed.
#include "background_fixture.hpp"

#include <new>
#include <stdexcept>

namespace oasis::test {
namespace {

/// A store that answers reserves with `answer()`.
template <class Answer> std::shared_ptr<fault::StoreFaults> reserves(Answer answer)
{
    auto faults = std::make_shared<fault::StoreFaults>();
    faults->when = [answer](fault::StoreOperation op, const StorePiece&) { return op == fault::StoreOperation::kReserve && answer(); };
    return faults;
}

TEST(RoomCases, ACachedPrefixMakesRoomInAStoreThatIsFull)
{
    int refusals = 0;
    const auto cache = cache_over(missing_config(), reserves([&] { return refusals > 0 && refusals-- > 0; }));
    Engine engine(*cache);
    const SequenceId gone = cache->create({}).id;
    engine.prefill(gone, 1, 640, 100, tokens_of(1, 640));
    cache->remove(gone);
    ASSERT_GT(cache->pool().blocks().cached(), 2);
    const SequenceId a = cache->create({}).id;
    const SequenceId b = cache->create({}).id;
    for (int i = 0; i < 12; ++i) {
        refusals = i % 3; // then a cached block is dropped, and the next try succeeds
        engine.prefill(a, 2, 50 * (i + 1));
        refusals = 1;
        engine.prefill(b, 3, 50 * (i + 1));
        cache->pool().check();
    }
    const Outputs expected = undisturbed(missing_config(), 2, 600, 8);
    EXPECT_EQ(engine.decode(a, 2, 8), expected);
    EXPECT_EQ(engine.decode(b, 3, 8), undisturbed(missing_config(), 3, 600, 8));
}

TEST(RoomCases, ATruncationThatTheStoreHasNoRoomForChangesNothing)
{
    bool full = false;
    const auto cache = cache_over(missing_config(), reserves([&] { return full; }));
    Engine engine(*cache);
    const SequenceId parent = cache->create({}).id;
    engine.prefill(parent, 1, 640);
    const SequenceId child = cache->fork(parent).id;
    full = true;
    EXPECT_THROW(cache->truncate(child, 600), Error);
    EXPECT_EQ(cache->length(child), 640);
    cache->truncate(child, 608); // between blocks nothing is copied
    cache->pool().check();
    full = false;
    cache->truncate(child, 600);
    engine.decode(child, 5, 10);
    EXPECT_EQ(engine.decode(parent, 1, 10), undisturbed(missing_config(), 1, 640, 10));
    cache->pool().check();
}

TEST(RoomCases, AnExceptionOfTheStoreOpensNoStep)
{
    int until = -1;
    const auto cache = cache_over(missing_config(), reserves([&]() -> bool {
        if (until >= 0 && until-- == 0) { throw std::bad_alloc(); }
        return false;
    }));
    Engine engine(*cache);
    const SequenceId a = cache->create({}).id;
    const SequenceId b = cache->create({}).id;
    engine.prefill(a, 1, 160);
    engine.prefill(b, 2, 160);
    const std::int64_t live = cache->pool().blocks().live();
    const std::vector<RowGroup> groups{{.sequence = a, .prefill_tokens = 40}, {.sequence = b, .prefill_tokens = 40}};
    for (const int at : {0, 2, 3, 5}) { // in the first group, and in the second
        until = at;
        EXPECT_THROW((void)cache->begin_step(engine.queue(), groups), std::bad_alloc);
        EXPECT_EQ(cache->pool().blocks().live(), live) << at;
        cache->pool().check();
    }
    EXPECT_EQ(cache->remove(a), RemoveResult::kRemoved);
    EXPECT_EQ(engine.decode(b, 2, 5), undisturbed(missing_config(), 2, 160, 5));
    cache->pool().check();
}

TEST(RoomCases, ACallbackThatThrowsLosesNeitherEventsNorSequences)
{
    CacheConfig c = missing_config();
    c.slow_bytes = 12 * 16 * footprint(c).slow_bytes_per_token;
    int throws = 0;
    int told = 0;
    Callbacks callbacks;
    callbacks.on_event = [&](const Event&) {
        ++told;
        if (throws > 0 && throws-- > 0) { throw std::runtime_error("from the callback"); }
    };
    const auto cache = cache_over(c, std::make_shared<fault::StoreFaults>(), callbacks);
    Engine engine(*cache);
    const SequenceId gone = cache->create({}).id;
    engine.prefill(gone, 1, 96, 96, tokens_of(1, 96));
    cache->remove(gone);
    const SequenceId a = cache->create({}).id;
    engine.prefill(a, 2, 136);
    told = 0;
    throws = 2;
    EXPECT_THROW((void)cache->fork(a), std::runtime_error); // a cached block makes room for the copy: that is told
    EXPECT_GE(told, 2) << "the rest is told";
    EXPECT_EQ(cache->stats().sequences, 1);
    cache->pool().check();
    throws = 0;
    EXPECT_EQ(engine.decode(a, 2, 5), undisturbed(c, 2, 136, 5));
    EXPECT_TRUE(cache->fork(a));
}

TEST(RoomCases, MemoryOfRetiredSlotsGoesWhateverTheirSize)
{
    for (const std::size_t unit : {std::size_t{544}, std::size_t{4224}, std::size_t{8192}}) {
        SlotTable<LruEviction> slots({.unit_bytes = unit, .layers = 1, .sets = 1, .blocks = 100}, LruEviction{});
        slots.set_capacity(100);
        for (std::int32_t i = 0; i < 100; ++i) { std::fill_n(slots.data(SlotId{i}), unit, std::byte{0xA5}); }
        slots.set_capacity(60);
        std::size_t kept = 0;
        for (std::int32_t i = 0; i < 100; ++i) { kept += slots.data(SlotId{i})[unit / 2] != std::byte{0}; }
        EXPECT_GE(kept, 60U) << "slots in use keep theirs";
        slots.set_capacity(0);
        for (std::int32_t i = 0; i < 100; ++i) { // dropped pages read as zeros
            EXPECT_EQ(std::count(slots.data(SlotId{i}), slots.data(SlotId{i}) + unit, std::byte{0}), std::ptrdiff_t(unit)) << unit << " bytes, slot " << i;
        }
        slots.check();
    }
}

TEST(RoomCases, UnusedCellsAreKeptForNativeWindowsAlone)
{
    FloatCache floats(missing_config());
    Engine engine(floats);
    const auto unused = [&] { return floats.pool().blocks().native().trim(SIZE_MAX); };
    const std::size_t cell = floats.pool().shape().native_cell_bytes;
    const SequenceId id = floats.create({}).id;
    engine.prefill(id, 1, 640, 128); // a chunk is native until it is sealed
    engine.decode(id, 1, 20);
    EXPECT_LE(unused(), 4 * cell) << "a window of 32 tokens, the open block and one that the row begins";
    floats.remove(id);
    EXPECT_EQ(unused(), 0U);
}

TEST(RoomCases, CellsGoBackDownToWhatIsKept)
{
    CellPool cells(1024);
    std::vector<std::byte*> taken;
    for (int i = 0; i < 8; ++i) { taken.push_back(cells.take()); }
    for (std::byte* cell : taken) { cells.give(cell); }
    EXPECT_EQ(cells.trim(3 * 1024 + 1023), 3 * 1024U);
    EXPECT_EQ(cells.trim(), 0U);
    CellPool empty(0); // of summaries that keep nothing
    empty.give(empty.take());
    EXPECT_EQ(empty.trim(), 0U);
}

} // namespace
} // namespace oasis::test
