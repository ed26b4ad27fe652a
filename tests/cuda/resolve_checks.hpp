// SPDX-License-Identifier: Apache-2.0
//
// What `enqueue_resolve` wrote, against the model.
#pragma once

#include "resolve_steps.hpp"

namespace oasis::cuda::test {

/// What the verify rows read. The model has seen them then, and slots of blocks that are to be sealed anew are forgotten.
inline std::vector<Blocks> ResolveWorld::apply_model(LayerId layer, std::size_t sequence, std::int32_t head)
{
    const SequenceStep& step = batch[sequence];
    const std::int64_t u = unit(step.cell, layer, head);
    oracle::LogicalModel& model = models_[std::size_t(u)];
    model.begin_step(std::size_t(accepted_[std::size_t(step.cell)]), step.first);
    std::vector<Blocks> reads;
    for (std::int32_t r = 0; r < step.verify; ++r) {
        const Row& selected = row(layer, first_row(sequence) + r, head);
        reads.push_back(model.row(step.first + r, selected.must, selected.may, selected.best));
    }
    for (Slot& slot : slots_) {
        if (slot.unit == u && slot.block >= first_native(step.first)) { slot.block = -1; }
    }
    return reads;
}

/// Every piece goes to a slot that may be given away, once, with the next generation, from the block's place. Applies it.
inline std::int32_t ResolveWorld::check_plan(LayerId layer, const ResolvePlan& plan, std::map<std::int64_t, Blocks>& planned,
                                             std::set<std::int32_t>& taken)
{
    const bool guess = plan.pieces == guess_.data();
    const std::int32_t count = download(queue_, plan.count, 1)[0];
    for (const TransferPiece& piece : download(queue_, plan.pieces, std::size_t(count))) {
        Slot& slot = slots_[std::size_t(piece.slot)];
        EXPECT_TRUE(taken.insert(piece.slot).second) << "slot " << piece.slot << " was given away twice";
        EXPECT_FALSE(slot.flying) << "slot " << piece.slot;
        EXPECT_EQ(piece.generation, generation_now_[std::size_t(piece.slot)] + 1);
        EXPECT_EQ(piece.layer, layer);
        const auto head = std::int32_t(slot.unit % shape.kv_heads);
        const auto at = std::find_if(batch.begin(), batch.end(),
                                     [&](const SequenceStep& step) { return step.cell >= 0 && unit(step.cell, layer, head) == slot.unit; });
        if (at == batch.end()) {
            ADD_FAILURE() << "slot " << piece.slot << " is another's";
            continue;
        }
        const oracle::LogicalModel& model = models_[std::size_t(slot.unit)];
        for (std::size_t rows = 0; slot.block >= 0 && rows <= model.rows(); ++rows) {
            EXPECT_FALSE(model.contains(rows, slot.block)) << "block " << slot.block << " is held";
        }
        if (guess && slot.block >= 0) {
            EXPECT_EQ(guarded_[std::size_t(slot.unit)].count(slot.block), 0U) << "a guess replaced an expected block";
        }
        const std::int64_t in_block = (std::int64_t{layer} * shape.kv_heads + head) * kUnitBytes;
        const std::int64_t stride = kUnitBytes * shape.layers * shape.kv_heads;
        EXPECT_EQ((std::int64_t(piece.place) - in_block) % stride, 0);
        const auto place = std::int32_t((std::int64_t(piece.place) - in_block) / stride);
        const auto sequence = std::int32_t(at - batch.begin());
        const auto* places = tier_blocks_.data() + sequence * shape.max_blocks;
        const auto block = std::int32_t(std::find(places, places + shape.max_blocks, place) - places);
        EXPECT_LT(block, first_native(at->first + at->rows - 1));
        EXPECT_TRUE(planned[slot.unit].insert(block).second);
        generation_now_[std::size_t(piece.slot)] = piece.generation;
        slot = {slot.unit, block, versions_[std::size_t(at->cell)][std::size_t(block)], true};
    }
    return count;
}

inline void ResolveWorld::check_list(LayerId layer, std::size_t sequence, std::int32_t head, const std::vector<Blocks>& reads,
                                     const std::vector<char>& landed)
{
    const SequenceStep& step = batch[sequence];
    const auto list = std::int64_t(sequence) * shape.kv_heads + head;
    const std::int32_t count = download(queue_, counts_.data() + list, 1)[0];
    seen_.read += std::uint64_t(count);
    std::vector<Blocks> found(std::size_t(step.rows));
    std::int32_t last = -1;
    for (const AttendBlock& entry : download(queue_, blocks_.data() + list * shape.max_rows * shape.may, std::size_t(count))) {
        const bool native = (entry.flags & AttendBlock::kNativeForm) != 0;
        ASSERT_NE(entry.rows, 0);
        ASSERT_LT(entry.block, shape.max_blocks);
        ASSERT_GT(2 * entry.block + native, last) << "not ascending";
        last = 2 * entry.block + native;
        for (std::int32_t r = 0; r < 8; ++r) {
            if (((entry.rows >> r) & 1) == 0) { continue; }
            ASSERT_LT(r, step.rows);
            EXPECT_EQ(native, entry.block >= first_native(step.first + r));
            EXPECT_TRUE(found[std::size_t(r)].insert(entry.block).second);
            if (r >= step.verify) { EXPECT_EQ(entry.flags & AttendBlock::kLate, 0); }
        }
        if (native) {
            EXPECT_EQ(entry.offset, native_cells_[sequence * kRing + std::size_t(entry.block % kRing)] +
                                        (std::int64_t{layer} * shape.kv_heads + head) * kNativeBytes);
            continue;
        }
        ASSERT_EQ(entry.offset % kUnitBytes, 0);
        const auto at = std::size_t(entry.offset / kUnitBytes);
        ASSERT_LT(at, slots_.size());
        EXPECT_EQ(slots_[at].unit, unit(step.cell, layer, head));
        EXPECT_EQ(slots_[at].block, entry.block);
        EXPECT_EQ(slots_[at].version, versions_[std::size_t(step.cell)][std::size_t(entry.block)])
            << "stale bytes of block " << entry.block;
        EXPECT_EQ((entry.flags & AttendBlock::kLate) == 0, landed[at] != 0 && !slots_[at].flying);
        needed_.insert(std::int32_t(at));
    }
    for (std::int32_t r = 0; r < step.rows; ++r) {
        if (r < step.verify) {
            EXPECT_EQ(found[std::size_t(r)], reads[std::size_t(r)]) << "row " << r;
            continue;
        }
        const Row& selected = row(layer, first_row(sequence) + r, head);
        Blocks expected; // what is there, and was not replaced
        for (const Blocks* from : {&selected.must, &selected.may}) {
            for (const std::int32_t b : *from) {
                const auto has = [&](const Slot& slot) {
                    return slot.unit == unit(step.cell, layer, head) && slot.block == b && landed[std::size_t(&slot - slots_.data())] &&
                           !slot.flying;
                };
                if (b >= first_native(step.first + r) || std::any_of(slots_.begin(), slots_.end(), has)) { expected.insert(b); }
            }
        }
        EXPECT_EQ(found[std::size_t(r)], expected) << "lookahead row " << r;
    }
}

/// The logical sets of every row that may stand, and the unit's slots.
inline void ResolveWorld::check_unit(LayerId layer, std::size_t sequence, std::int32_t head)
{
    const SequenceStep& step = batch[sequence];
    const std::int64_t u = unit(step.cell, layer, head);
    const oracle::LogicalModel& model = models_[std::size_t(u)];
    for (std::int64_t r = 0; r <= step.verify; ++r) {
        const std::int64_t version = u * (shape.max_rows + 1) + r;
        const std::int32_t count = download(queue_, member_counts_.data() + version, 1)[0];
        ASSERT_EQ(count >= 0, model.filled(std::size_t(r))) << "after " << r << " rows";
        std::vector<std::pair<std::int32_t, std::int64_t>> members;
        for (const LogicalMember& m : download(queue_, members_.data() + version * shape.logical, std::size_t(std::max(count, 0)))) {
            members.emplace_back(m.block, m.stamp);
        }
        EXPECT_EQ(members, model.members(std::size_t(r))) << "after " << r << " rows";
    }
    const std::int32_t guarded = download(queue_, guarded_counts_.data() + u, 1)[0];
    ASSERT_GE(guarded, 0);
    ASSERT_LE(guarded, shape.cap);
    Blocks wanted;
    for (std::int32_t r = step.verify; r < step.rows; ++r) {
        const Blocks& must = row(layer, first_row(sequence) + r, head).must;
        wanted.insert(must.begin(), must.end());
    }
    guarded_[std::size_t(u)].clear();
    std::set<std::int32_t> seen;
    int kind = 0;
    const auto owned = download(queue_, owned_.data() + u * owned_slots(), std::size_t(owned_slots()));
    for (std::size_t i = 0; i < owned.size(); ++i) {
        const int now = owned[i].slot < 0 ? 2 : owned[i].block < 0 ? 1 : 0;
        ASSERT_GE(now, kind) << "slots in use, empty ones, none";
        kind = now;
        if (now == 2) { continue; }
        EXPECT_TRUE(seen.insert(owned[i].slot).second);
        EXPECT_EQ(slots_[std::size_t(owned[i].slot)].unit, u);
        EXPECT_EQ(slots_[std::size_t(owned[i].slot)].block, owned[i].block);
        if (std::int32_t(i) >= guarded) { continue; }
        guarded_[std::size_t(u)].insert(owned[i].block);
        EXPECT_TRUE(wanted.count(owned[i].block) > 0 && !model.contains(std::size_t(step.verify), owned[i].block))
            << "guess " << owned[i].block;
    }
    EXPECT_EQ(seen.size(), std::size_t(owned_slots()) - 2);
}

/// What lists name arrives, guesses perhaps.
inline void ResolveWorld::land()
{
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (!slots_[i].flying || (needed_.count(std::int32_t(i)) == 0 && draw(3) != 0)) { continue; }
        slots_[i].flying = false;
        marks_now_[i] = generation_now_[i];
    }
    needed_.clear();
    enqueue_copy(queue_, marks_.data(), marks_now_);
    queue_.synchronize();
}

inline void ResolveWorld::check_layer(LayerId layer)
{
    std::vector<char> landed;
    for (const Slot& slot : slots_) { landed.push_back(!slot.flying); }
    std::map<std::int64_t, std::vector<Blocks>> reads;
    std::map<std::int64_t, Blocks> missing, planned, guessed;
    for (std::size_t s = 0; s < batch.size(); ++s) {
        for (std::int32_t h = 0; h < shape.kv_heads && batch[s].cell >= 0; ++h) {
            const std::int64_t u = unit(batch[s].cell, layer, h);
            reads[u] = apply_model(layer, s, h);
            for (std::int32_t r = 0; r < batch[s].verify; ++r) {
                for (const std::int32_t b : reads[u][std::size_t(r)]) {
                    const auto has =
                        std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.unit == u && slot.block == b; });
                    if (b < first_native(batch[s].first + r) && has == slots_.end()) { missing[u].insert(b); }
                }
            }
        }
    }
    const ResolveParams p = params(layer);
    std::set<std::int32_t> taken;
    const std::int32_t fetched = check_plan(layer, p.demand, planned, taken);
    const std::int32_t guesses = shape.cap > 0 ? check_plan(layer, p.guess, guessed, taken) : 0;
    EXPECT_EQ(planned, missing);
    EXPECT_EQ(download(queue_, generation_), generation_now_);
    seen_.fetched += std::uint64_t(fetched);
    seen_.guessed += std::uint64_t(guesses);
    for (std::size_t s = 0; s < batch.size(); ++s) {
        for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
            if (batch[s].cell < 0) {
                EXPECT_EQ(download(queue_, counts_.data() + std::int64_t(s) * shape.kv_heads + h, 1)[0], 0);
                continue;
            }
            check_list(layer, s, h, reads[unit(batch[s].cell, layer, h)], landed);
            check_unit(layer, s, h);
        }
    }
    const auto expected = download(queue_, expected_device_);
    const auto at = std::size_t(layer);
    const auto layers = std::size_t(shape.layers);
    EXPECT_EQ(expected[at], expected_[0][at]);
    EXPECT_EQ(expected[layers + at], expected_[0][at] += std::uint32_t(fetched));
    EXPECT_EQ(expected[2 * layers + at], expected_[1][at]);
    EXPECT_EQ(expected[3 * layers + at], expected_[1][at] += std::uint32_t(guesses));
    const ResolveCounters counters = download(queue_, counters_)[0];
    EXPECT_EQ(counters.read, seen_.read);
    EXPECT_EQ(counters.fetched, seen_.fetched);
    EXPECT_EQ(counters.guessed, seen_.guessed);
    EXPECT_EQ(counters.unserved, 0U);
    land();
}

inline std::vector<std::int64_t> ResolveWorld::digest() const
{
    std::vector<std::int64_t> all;
    const auto add = [&](const auto& values) { all.insert(all.end(), values.begin(), values.end()); };
    for (const OwnedSlot& own : download(queue_, owned_)) {
        all.push_back(own.slot);
        all.push_back(own.block);
    }
    for (const LogicalMember& member : download(queue_, members_)) {
        all.push_back(member.block);
        all.push_back(member.stamp);
    }
    add(download(queue_, member_counts_));
    add(download(queue_, generation_));
    add(download(queue_, counts_));
    add(download(queue_, plan_counts_));
    const ResolveCounters counters = download(queue_, counters_)[0];
    for (const std::uint64_t n : {counters.read, counters.fetched, counters.late, counters.guessed, counters.unserved}) {
        all.push_back(std::int64_t(n));
    }
    return all;
}

} // namespace oasis::cuda::test
