// SPDX-License-Identifier: Apache-2.0
//
// The operations of a random schedule. Included by random_world.hpp.
#pragma once

#include "random_world.hpp"

namespace oasis::test {

/// One operation and all the checks. False when something is wrong.
inline bool World::go()
{
    arm();
    const char* what = operate();
    if (recover()) { dropped_ = false; }
    check();
    if (testing::Test::HasFailure()) { ADD_FAILURE() << "after operation " << operations_ << ": " << what << "; " << describe(); }
    ++operations_;
    return !testing::Test::HasFailure();
}

/// Most of the time the store works.
inline void World::arm()
{
    constexpr std::uint32_t kOften[] = {0, 0, 0, 1, 5, 20};
    dice_.failed_reads = o_.read_failures ? kOften[below(6)] : 0;
    dice_.failed_writes = o_.write_failures ? kOften[below(6)] : 0;
}

inline const char* World::operate()
{
    const std::uint32_t dice = below(100);
    const bool dropped = std::exchange(dropped_, false);
    if (live_.empty() || dice < 7) {
        create();
        return "create";
    }
    if (dice < 13 && o_.preempts) {
        Live& live = any();
        const bool told = live.preempted ? resume(live) : preempt(live);
        dropped_ = dropped && !told; // a call that throws tells nothing
        return "preempt or resume";
    }
    if (dice < 28) { return operate_on(dice, dropped); }
    dropped_ = dice < 34;
    step(dropped_);
    return dropped_ ? "dropped step" : "step";
}

inline const char* World::operate_on(std::uint32_t dice, bool dropped)
{
    Live* live = any_active();
    dropped_ = dropped;
    if (dice < 17) {
        if (!live || !o_.forks) { return "nothing"; }
        fork(*live);
        dropped_ = false;
        return "fork";
    }
    if (dice < 21) {
        dropped_ = !(live && truncate(*live)) && dropped; // cutting nothing tells nothing
        return "truncate";
    }
    if (dice < 24) {
        if (o_.long_lived && chance(75)) { return "nothing"; }
        dropped_ = false;
        remove(below(live_.size()));
        return "remove";
    }
    dropped_ = false;
    if (dice < 27) {
        const std::size_t now = cache_->stats().fast_capacity;
        const std::size_t reached = cache_->resize_fast(chance(50) ? now / 2 : now + now / 3);
        EXPECT_EQ(reached, cache_->stats().fast_capacity);
        if (chance(o_.long_lived ? 85 : 60)) { EXPECT_GE(cache_->resize_fast(o_.config.fast_bytes), o_.config.fast_bytes); }
        return "resize";
    }
    cache_->drop_cached_prefixes();
    return "drop prefixes";
}

inline void World::check()
{
    EXPECT_NO_THROW(cache_->pool().check());
    const Stats stats = cache_->stats();
    EXPECT_EQ(stats.slots.free + stats.slots.resident + stats.slots.pinned + stats.slots.in_flight, stats.slots.capacity);
    EXPECT_EQ(stats.slots.pinned, 0);
    if (o_.config.transfer_threads == 0) { EXPECT_EQ(stats.slots.in_flight, 0); }
    if (!dropped_) { // what a dropped step did is told with the next call
        EXPECT_EQ(std::int64_t(residency_.units(Tier::kFast)), stats.slots.resident);
    }
    const std::size_t draining = std::size_t(cache_->pool().slots().draining()) * cache_->pool().shape().unit_bytes;
    EXPECT_LE(stats.fast_bytes, stats.fast_capacity + draining);
    EXPECT_LE(stats.slow_bytes, stats.slow_capacity);
    EXPECT_EQ(stats.sequences, std::int64_t(live_.size()));
    EXPECT_EQ(store_->breaches(), 0);
    for (const auto& live : live_) {
        const SequenceState state = cache_->state(live->id);
        EXPECT_EQ(cache_->length(live->id), TokenIndex(live->tokens.size()));
        EXPECT_EQ(state.preempted, live->preempted);
        if (!live->preempted) { EXPECT_FALSE(state.lost()); }
    }
    check_bytes();
}

/// What a slot says it holds is what the slow tier has, byte by byte: some of one sequence's blocks.
inline void World::check_bytes()
{
    if (live_.empty()) { return; }
    const auto& pool = cache_->pool();
    const PoolShape& shape = pool.shape();
    const Sequence& sequence = *pool.find(any().id);
    std::vector<std::byte> stored(shape.unit_bytes);
    for (int i = 0; i < 6 && !sequence.blocks.empty(); ++i) {
        const BlockId block = sequence.blocks[below(sequence.blocks.size())];
        const auto layer = LayerId(below(std::uint64_t(o_.config.shape.layers)));
        const auto set = std::int32_t(below(std::uint64_t(shape.sets)));
        const SlotId slot = pool.slots().slot_of(pool.slots().unit(layer, set, block));
        if (slot == SlotId::kNone || !pool.slots().landed(slot)) { continue; }
        EXPECT_TRUE(pool.blocks()[block].sealed) << "block " << raw(block) << " has a slot";
        ASSERT_TRUE(store_->read({block, layer, set, stored.data()}));
        EXPECT_EQ(std::memcmp(stored.data(), pool.slots().data(slot), shape.unit_bytes), 0) << "block " << raw(block) << " layer " << layer << " set " << set;
    }
}

inline void World::create()
{
    auto live = std::make_unique<Live>();
    live->book = below(2);
    const auto& book = books_[live->book];
    const auto most = std::uint64_t(o_.config.limits.max_context);
    live->pending.assign(book.begin(), book.begin() + std::ptrdiff_t(o_.long_lived ? most / 2 + below(most / 3) : 1 + below(most * 2 / 3)));
    if (chance(30)) { live->options.logical_resident = o_.config.budgets.logical_resident + std::int32_t(below(3)) * o_.config.block_tokens; }
    if (chance(30)) { live->options.dense_below = below(200); }
    SequenceOptions options = live->options;
    if (chance(80)) { options.prompt = live->pending; }
    const CreateResult made = cache_->create(options);
    if (!made) {
        ++refusals_;
        if (live_.empty()) { // or nothing would ever be admitted again
            cache_->resize_fast(o_.config.fast_bytes);
            EXPECT_LT(++barren_, 1000) << "an empty cache admits nothing: " << name(made.full->tier) << " tier, " << made.full->needed_bytes << " bytes needed, "
                                       << made.full->available_bytes << " available";
        }
        return;
    }
    live->id = made.id;
    live->tokens.assign(live->pending.begin(), live->pending.begin() + made.cached_tokens);
    live->pending.erase(live->pending.begin(), live->pending.begin() + made.cached_tokens);
    live->shadow = std::make_unique<Shadow>(o_.config, o_.windows, live->options);
    if (made.cached_tokens > 0) { happen(*live, {Happened::What::kPrefill, live->tokens, 0}); }
    live_.push_back(std::move(live));
}

inline void World::fork(Live& parent)
{
    busy_.assign(1, parent.id);
    const ForkResult made = cache_->fork(parent.id);
    busy_.clear();
    if (!made) {
        ++refusals_;
        return;
    }
    auto live = std::make_unique<Live>();
    live->id = made.id;
    live->options = parent.options;
    live->book = parent.book;
    live->tokens = parent.tokens;
    live->pending = parent.pending;
    live->history = parent.history;
    live->shadow = std::make_unique<Shadow>(o_.config, o_.windows, live->options);
    for (const Happened& h : live->history) { replay(*live, h); }
    live_.push_back(std::move(live));
}

inline bool World::truncate(Live& live)
{
    const auto length = TokenIndex(live.tokens.size());
    TokenIndex to = chance(o_.long_lived ? 85 : 50) ? length - below(std::uint64_t(std::min<TokenIndex>(length, 20)) + 1) : below(std::uint64_t(length) + 1);
    if (chance(30)) { to -= to % o_.config.block_tokens; }
    if (chance(10)) { to -= to % cache_->pool().shape().group_tokens(); }
    if (!o_.deep_truncates) {
        const Sequence& sequence = *cache_->pool().find(live.id);
        const PoolShape& shape = cache_->pool().shape();
        while (to < length && (shape.first_native_block(to) < sequence.native_begin || shape.first_native_group(to) < sequence.native_group_begin)) { ++to; }
    }
    return cut(live, to, o_.long_lived);
}

/// False when nothing was cut.
inline bool World::cut(Live& live, TokenIndex to, bool compute_again)
{
    const auto length = TokenIndex(live.tokens.size());
    std::vector<TokenId> pending;
    if (compute_again) {
        pending.assign(live.tokens.begin() + std::ptrdiff_t(to), live.tokens.end());
        pending.insert(pending.end(), live.pending.begin(), live.pending.end());
    }
    try {
        cache_->truncate(live.id, to);
    } catch (const Error& e) { // the last block is shared, and the slow tier has no room for a copy: preempted sequences fill it too
        EXPECT_TRUE((o_.config.slow_bytes > 0 || o_.preempts) && to % o_.config.block_tokens != 0) << e.what();
        EXPECT_EQ(cache_->length(live.id), length);
        ++refusals_;
        return false;
    }
    live.tokens.resize(std::size_t(to));
    live.pending = std::move(pending);
    if (to < length) { happen(live, {Happened::What::kTruncate, {}, to}); }
    return to < length;
}

/// What the slow tier did not deliver is computed again from the first lost position on. True when there was something.
inline bool World::recover()
{
    bool any = false;
    for (bool again = true; again;) {
        again = false;
        for (const auto& live : live_) {
            const auto lost = cache_->state(live->id).first_lost;
            if (live->preempted || !lost) { continue; }
            EXPECT_TRUE(o_.read_failures);
            EXPECT_LT(*lost, TokenIndex(live->tokens.size()));
            if (testing::Test::HasFailure()) { return any; }
            cut(*live, *lost, true);
            ++losses_;
            any = again = true; // reading for the cut may fail too, and what is shared is lost to others
        }
    }
    if (any) { EXPECT_GT(failures_told_, 0); }
    return any;
}

/// False when the store failed.
inline bool World::preempt(Live& live)
{
    const Stats before = cache_->stats();
    try {
        live.preempted = bool(cache_->preempt(live.id));
        refusals_ += !live.preempted;
        EXPECT_LE(cache_->stats().fast_bytes, before.fast_bytes);
        return true;
    } catch (const StoreError&) {
        EXPECT_TRUE(o_.write_failures);
        EXPECT_EQ(cache_->pool().blocks().live(), before.blocks);
        ++store_errors_;
        return false;
    }
}

inline bool World::resume(Live& live)
{
    busy_.assign(1, live.id);
    bool called = true;
    try {
        live.preempted = !cache_->resume(live.id);
        ++(live.preempted ? refusals_ : resumed_);
    } catch (const StoreError&) {
        EXPECT_TRUE(o_.read_failures);
        ++store_errors_;
        called = false;
    }
    busy_.clear();
    return called;
}

/// Everything comes back, goes on for a step, and goes; then nothing is held any more.
inline void World::finish()
{
    dice_.failed_reads = dice_.failed_writes = 0;
    while (!live_.empty() && !testing::Test::HasFailure()) {
        if (live_.back()->preempted) { resume(*live_.back()); }
        recover();
        if (!live_.back()->preempted) { step(false); }
        if (!live_.empty()) { remove(live_.size() - 1); }
        recover();
        check();
    }
    cache_->drop_cached_prefixes();
    for (int i = 0; i < 1000 && cache_->stats().slots.in_flight > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const Step empty = cache_->begin_step(runner_->queue(), {});
    }
    const auto& pool = cache_->pool();
    EXPECT_EQ(cache_->stats().slots.in_flight, 0);
    EXPECT_EQ(pool.blocks().available(), pool.blocks().capacity());
    EXPECT_EQ(pool.blocks().store().bytes_used(), 0U);
    EXPECT_EQ(pool.groups().live(), 0);
    EXPECT_EQ(pool.blocks().native().in_use(), 0U);
}

inline void World::remove(std::size_t i)
{
    EXPECT_EQ(cache_->remove(live_[i]->id), RemoveResult::kRemoved);
    live_.erase(live_.begin() + std::ptrdiff_t(i));
}

inline std::size_t World::relieve()
{
    for (std::size_t i = 0; i < live_.size(); ++i) {
        if (std::find(busy_.begin(), busy_.end(), live_[i]->id) != busy_.end()) { continue; }
        remove(i);
        return 1;
    }
    return 0;
}

inline World::Part World::part_of(Live& live, std::int32_t room)
{
    Part part{.live = &live, .rows = {.sequence = live.id}, .ids = {}, .accept = 0, .tell_ids = chance(95)};
    const auto length = TokenIndex(live.tokens.size());
    const auto left = std::int32_t(std::min<TokenIndex>(room, o_.config.limits.max_context - length));
    if (left <= 0) { return part; }
    const auto next = [&](TokenIndex p) { return chance(85) ? books_[live.book][std::size_t(p)] : TokenId(below(1000)); };
    std::int32_t stand = 0;
    if (!live.pending.empty() || chance(o_.long_lived ? 3 : 15)) {
        const auto wanted = std::int32_t(live.pending.empty() ? 1 + below(40) : live.pending.size());
        part.rows.prefill_tokens = std::min({wanted, left, 1 + std::int32_t(below(o_.long_lived ? 120 : 60))});
        stand = part.rows.prefill_tokens;
    } else {
        part.rows.verify_rows = std::min(left, 1 + (chance(50) ? 0 : std::int32_t(below(kMaxVerifyRows))));
        part.rows.lookahead_rows = std::min(left - part.rows.verify_rows, std::int32_t(below(kMaxLookaheadRows + 1)));
        stand = part.rows.verify_rows;
    }
    for (std::int32_t i = 0; i < part.rows.rows(); ++i) { part.ids.push_back(std::size_t(i) < live.pending.size() ? live.pending[std::size_t(i)] : next(std::min<TokenIndex>(length + i, o_.config.limits.max_context - 1))); }
    part.accept = chance(70) ? stand : std::int32_t(below(std::uint64_t(stand) + 1));
    return part;
}

inline std::vector<World::Part> World::draw_parts()
{
    std::vector<Part> parts;
    std::int32_t room = o_.config.limits.max_rows;
    for (const auto& live : live_) {
        if (live->preempted || !chance(o_.long_lived ? 75 : 50)) { continue; }
        Part part = part_of(*live, room);
        if (part.ids.empty()) { continue; }
        room -= part.rows.rows();
        parts.push_back(std::move(part));
    }
    return parts;
}

/// Another thread meddles while the step runs.
inline void World::meddle(const std::vector<Part>& parts)
{
    if (!o_.outsiders || live_.empty() || !chance(25)) { return; }
    const SequenceId cancelled = parts.empty() ? any().id : parts.front().live->id;
    SequenceId removed = SequenceId::kNone;
    if (chance(5)) {
        removed = any().id;
        leaving_.push_back(removed);
    }
    outsider_.emplace([this, cancelled, removed] {
        cache_->request_cancel(cancelled);
        if (removed != SequenceId::kNone) { cache_->request_remove(removed); }
        const Stats stats = cache_->stats();
        EXPECT_EQ(stats.slots.free + stats.slots.resident + stats.slots.pinned + stats.slots.in_flight, stats.slots.capacity);
        EXPECT_EQ(cache_->layer_stats().size(), std::size_t(o_.config.shape.layers));
    });
}

/// Those whose removal was asked for are gone once a step has begun or was committed.
inline void World::forget_removed()
{
    for (const SequenceId id : std::exchange(leaving_, {})) {
        std::erase_if(live_, [&](const auto& live) { return live->id == id; });
    }
}

/// What an engine does when a step does not fit.
inline void World::make_way()
{
    forget_removed();
    cache_->resize_fast(o_.config.fast_bytes);
    Live* live = any_active();
    if (live && (chance(50) || !o_.preempts || !preempt(*live) || !live->preempted)) {
        std::erase_if(live_, [&](const auto& one) { return one.get() == live && cache_->remove(live->id) == RemoveResult::kRemoved; });
    }
}

inline void World::step(bool dropped)
{
    forget_removed();
    std::vector<Part> parts = draw_parts();
    std::vector<RowGroup> groups;
    std::vector<TokenId> ids;
    std::vector<TokenIndex> positions;
    bool only_prefill = true;
    busy_.clear();
    for (const Part& part : parts) {
        only_prefill &= part.rows.prefill_tokens > 0;
        groups.push_back(part.rows);
        busy_.push_back(part.live->id);
        for (std::size_t i = 0; i < part.ids.size(); ++i) { positions.push_back(TokenIndex(part.live->tokens.size() + i)); }
        ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    }
    Step step = cache_->begin_step(runner_->queue(), groups);
    busy_.clear();
    if (!step) {
        ++refusals_;
        dropped_ = false;
        EXPECT_TRUE(step.full().has_value());
        if (o_.long_lived) { make_way(); }
        return;
    }
    ++steps_;
    const bool attended = !(only_prefill && chance(20));
    const LayerId layers = o_.config.shape.layers;
    std::vector<std::vector<float>> rows;
    meddle(parts);
    try {
        rows = runner_->run(step, ids, positions, dropped ? LayerId(below(std::uint64_t(layers) + 1)) : layers, attended);
    } catch (const StoreError&) { // destroyed and, some operations later, repeated
        EXPECT_TRUE(o_.read_failures || o_.write_failures);
        ++store_errors_;
        dropped_ = dropped = true;
    }
    if (outsider_) { outsider_->join(); }
    outsider_.reset();
    bool lost = false;
    for (Part& part : parts) { lost |= part.lost = cache_->state(part.live->id).lost(); }
    if (lost && chance(50)) { dropped_ = dropped = true; }
    if (dropped) { return; }
    std::vector<Accepted> accepted;
    for (const Part& part : parts) {
        accepted.push_back({part.accept, part.tell_ids ? std::span(part.ids).first(std::size_t(part.accept)) : std::span<const TokenId>{}});
    }
    cache_->commit(runner_->queue(), std::move(step), accepted);
    std::size_t row = 0;
    for (const Part& part : parts) {
        settle(part, std::span(rows).subspan(row, part.ids.size()), attended);
        row += part.ids.size();
    }
    forget_removed();
}

inline void World::settle(const Part& part, std::span<const std::vector<float>> rows, bool attended)
{
    if (part.accept == 0) { return; }
    Live& live = *part.live;
    const std::vector<TokenId> stood(part.ids.begin(), part.ids.begin() + part.accept);
    const bool is_prefill = part.rows.prefill_tokens > 0;
    const auto expected = happen(live, {is_prefill ? Happened::What::kPrefill : Happened::What::kDecode, stood, 0});
    const bool compared = attended && o_.compare && !part.lost;
    for (std::size_t i = 0; i < stood.size() && compared; ++i) {
        EXPECT_EQ(rows[i], expected[i]) << (is_prefill ? "prefill" : "decode") << " row at position " << live.tokens.size() + i << " of sequence " << raw(live.id);
        ++rows_compared_;
    }
    live.tokens.insert(live.tokens.end(), stood.begin(), stood.end());
    live.pending.erase(live.pending.begin(), live.pending.begin() + std::ptrdiff_t(std::min(live.pending.size(), stood.size())));
}

} // namespace oasis::test
