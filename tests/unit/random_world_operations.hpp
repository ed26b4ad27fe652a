// SPDX-License-Identifier: Apache-2.0
//
// The operations of a random schedule. Included by random_world.hpp.
#pragma once

#include "random_world.hpp"

namespace oasis::test {

inline const char* World::operate()
{
    const std::uint32_t dice = below(100);
    const bool dropped = std::exchange(dropped_, false);
    if (live_.empty() || dice < 7) {
        create();
        return "create";
    }
    if (dice < 11 && o_.forks) {
        fork();
        return "fork";
    }
    if (dice < 17) {
        dropped_ = !truncate() && dropped; // cutting nothing tells nothing
        return "truncate";
    }
    if (dice < 21) {
        remove(below(live_.size()));
        return "remove";
    }
    if (dice < 24) {
        const std::size_t now = cache_->stats().fast_capacity;
        const std::size_t reached = cache_->resize_fast(chance(50) ? now / 2 : now + now / 3);
        EXPECT_EQ(reached, cache_->stats().fast_capacity);
        if (chance(60)) { EXPECT_GE(cache_->resize_fast(o_.config.fast_bytes), o_.config.fast_bytes); }
        return "resize";
    }
    if (dice < 25) {
        cache_->drop_cached_prefixes();
        return "drop prefixes";
    }
    dropped_ = dice < 31;
    step(dropped_);
    return dropped_ ? "dropped step" : "step";
}

inline void World::check()
{
    EXPECT_NO_THROW(cache_->pool().check());
    const Stats stats = cache_->stats();
    EXPECT_EQ(stats.slots.free + stats.slots.resident + stats.slots.pinned + stats.slots.in_flight, stats.slots.capacity);
    EXPECT_EQ(stats.slots.pinned + stats.slots.in_flight, 0);
    if (!dropped_) { // what a dropped step did is told with the next call
        EXPECT_EQ(std::int64_t(residency_.units(Tier::kFast)), stats.slots.resident);
    }
    EXPECT_LE(stats.fast_bytes, stats.fast_capacity);
    EXPECT_LE(stats.slow_bytes, stats.slow_capacity);
    EXPECT_EQ(stats.sequences, std::int64_t(live_.size()));
    for (const auto& live : live_) {
        EXPECT_EQ(cache_->length(live->id), TokenIndex(live->tokens.size()));
        EXPECT_FALSE(cache_->state(live->id).lost());
    }
}

inline void World::create()
{
    auto live = std::make_unique<Live>();
    live->book = below(2);
    const auto& book = books_[live->book];
    live->pending.assign(book.begin(), book.begin() + 1 + below(std::uint64_t(o_.config.limits.max_context) * 2 / 3));
    if (chance(30)) { live->options.logical_resident = o_.config.budgets.logical_resident + std::int32_t(below(3)) * o_.config.block_tokens; }
    if (chance(30)) { live->options.dense_below = below(200); }
    SequenceOptions options = live->options;
    if (chance(80)) { options.prompt = live->pending; }
    const CreateResult made = cache_->create(options);
    if (!made) {
        ++refusals_;
        return;
    }
    live->id = made.id;
    live->tokens.assign(live->pending.begin(), live->pending.begin() + made.cached_tokens);
    live->pending.erase(live->pending.begin(), live->pending.begin() + made.cached_tokens);
    live->shadow = std::make_unique<Shadow>(o_.config, o_.windows, live->options);
    if (made.cached_tokens > 0) { happen(*live, {Happened::What::kPrefill, live->tokens, 0}); }
    live_.push_back(std::move(live));
}

inline void World::fork()
{
    Live& parent = any();
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

inline bool World::truncate()
{
    Live& live = any();
    const auto length = TokenIndex(live.tokens.size());
    TokenIndex to = chance(50) ? length - below(std::uint64_t(std::min<TokenIndex>(length, 20)) + 1) : below(std::uint64_t(length) + 1);
    if (chance(30)) { to -= to % o_.config.block_tokens; }
    if (chance(10)) { to -= to % cache_->pool().shape().group_tokens(); }
    if (!o_.deep_truncates) {
        const Sequence& sequence = *cache_->pool().find(live.id);
        const PoolShape& shape = cache_->pool().shape();
        while (to < length && (shape.first_native_block(to) < sequence.native_begin || shape.first_native_group(to) < sequence.native_group_begin)) { ++to; }
    }
    cache_->truncate(live.id, to);
    live.tokens.resize(std::size_t(to));
    live.pending.clear();
    if (to < length) { happen(live, {Happened::What::kTruncate, {}, to}); }
    return to < length;
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
    if (!live.pending.empty() || chance(15)) {
        const auto wanted = std::int32_t(live.pending.empty() ? 1 + below(40) : live.pending.size());
        part.rows.prefill_tokens = std::min({wanted, left, 1 + std::int32_t(below(60))});
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

inline void World::step(bool dropped)
{
    std::vector<Part> parts;
    std::int32_t room = o_.config.limits.max_rows;
    bool only_prefill = true;
    for (const auto& live : live_) {
        if (!chance(50)) { continue; }
        Part part = part_of(*live, room);
        if (part.ids.empty()) { continue; }
        room -= part.rows.rows();
        only_prefill &= part.rows.prefill_tokens > 0;
        parts.push_back(std::move(part));
    }
    std::vector<RowGroup> groups;
    std::vector<TokenId> ids;
    std::vector<TokenIndex> positions;
    busy_.clear();
    for (const Part& part : parts) {
        groups.push_back(part.rows);
        busy_.push_back(part.live->id);
        for (std::size_t i = 0; i < part.ids.size(); ++i) { positions.push_back(TokenIndex(part.live->tokens.size() + i)); }
        ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    }
    Step step = cache_->begin_step(runner_->queue(), groups);
    busy_.clear();
    if (!step) {
        ++refusals_;
        EXPECT_TRUE(step.full().has_value());
        return;
    }
    const bool attended = !(only_prefill && chance(20));
    const LayerId layers = o_.config.shape.layers;
    const auto rows = runner_->run(step, ids, positions, dropped ? LayerId(below(std::uint64_t(layers) + 1)) : layers, attended);
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
}

inline void World::settle(const Part& part, std::span<const std::vector<float>> rows, bool attended)
{
    if (part.accept == 0) { return; }
    Live& live = *part.live;
    const std::vector<TokenId> stood(part.ids.begin(), part.ids.begin() + part.accept);
    const bool is_prefill = part.rows.prefill_tokens > 0;
    const auto expected = happen(live, {is_prefill ? Happened::What::kPrefill : Happened::What::kDecode, stood, 0});
    for (std::size_t i = 0; i < stood.size() && attended; ++i) {
        EXPECT_EQ(rows[i], expected[i]) << (is_prefill ? "prefill" : "decode") << " row at position " << live.tokens.size() + i << " of sequence " << raw(live.id);
        ++rows_compared_;
    }
    live.tokens.insert(live.tokens.end(), stood.begin(), stood.end());
    live.pending.erase(live.pending.begin(), live.pending.begin() + std::ptrdiff_t(std::min(live.pending.size(), stood.size())));
}

} // namespace oasis::test
