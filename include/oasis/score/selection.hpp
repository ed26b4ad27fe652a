// SPDX-License-Identifier: Apache-2.0
//
// The stock selection policy: the exact top blocks for the fetch, the attend and the ranking budget in one descent.
#pragma once

#include <oasis/concepts.hpp>
#include <oasis/core/error.hpp>
#include <oasis/core/views.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace oasis {

namespace detail {

/// Rank of a score as an integer: larger is better. 0: never chosen (-inf), 1: NaN, then the finite ones, +inf on top.
inline std::uint32_t rank_key(float score) noexcept
{
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);         // -0 becomes +0
    const std::uint32_t key = bits ^ (0x80000000U | (0U - (bits >> 31))); // negative: all bits turned, else the sign
    const std::uint32_t special = (bits & 0x7FFFFFFFU) > 0x7F800000U ? 1U : 0U;
    return special != 0 || bits == 0xFF800000U ? special : key;
}

inline constexpr std::uint32_t kInfinityKey = 0xFF800000U;

/// The best `count` of the candidates: all with a key above `key`, and the first `ties` with that key.
struct Cut {
    std::int32_t count = 0;
    std::uint32_t key = 0;
    std::int32_t ties = 0;

    /// Whether a candidate is in; to be asked in position order.
    bool takes(std::uint32_t candidate) noexcept
    {
        return candidate > key || (candidate == key && ties > 0 && ties-- > 0);
    }
};

/// Candidates of a selection: the blocks that are not forced and not -inf.
struct Candidates {
    std::span<const float> scores;
    std::size_t begin; // forced before
    std::size_t end;   // forced from here on
};

/// Where the digits of a key lie, most significant first.
inline constexpr std::array<int, 3> kDigitShift{21, 10, 0};
inline constexpr std::array<int, 3> kDigitBits{11, 11, 10};

constexpr std::uint32_t digit_of(std::uint32_t key, int level) noexcept
{
    return (key >> kDigitShift[level]) & ((1U << kDigitBits[level]) - 1);
}

/// The digits above `level`.
constexpr std::uint32_t prefix_of(std::uint32_t key, int level) noexcept
{
    return level == 0 ? 0 : key >> (kDigitShift[level] + kDigitBits[level]);
}

/// Finds the cut for each `cuts[i].count`: a radix descent from the top digit, one pass over the scores per digit.
inline void find_cuts(const Candidates& candidates, std::span<Cut, 3> cuts)
{
    std::array<std::int32_t, 3> left{};
    for (int i = 0; i < 3; ++i) { left[i] = cuts[i].count; }
    for (int level = 0; level < 3; ++level) {
        std::array<std::array<std::int32_t, 2048>, 3> histogram; // of the candidates that share a cut's prefix
        const int used = level == 0 ? 1 : 3;
        for (int i = 0; i < used; ++i) { histogram[i].fill(0); }
        const std::uint32_t prefixes[] = {prefix_of(cuts[0].key, level), prefix_of(cuts[1].key, level),
                                          prefix_of(cuts[2].key, level)};
        for (std::size_t b = candidates.begin; b < candidates.end; ++b) {
            const std::uint32_t key = rank_key(candidates.scores[b]);
            const std::uint32_t prefix = prefix_of(key, level);
            // Below the first level few candidates share a prefix: one branch for the rest.
            if (!((prefix == prefixes[0]) | (prefix == prefixes[1]) | (prefix == prefixes[2]))) { continue; }
            for (int i = 0; i < used; ++i) { histogram[i][digit_of(key, level)] += prefix == prefixes[i]; }
        }
        for (int i = 0; i < 3; ++i) {
            const auto& counts = histogram[used == 1 ? 0 : i];
            std::uint32_t digit = (1U << kDigitBits[level]) - 1;
            while (digit > 0 && counts[digit] < left[i]) { left[i] -= counts[digit--]; }
            cuts[i].key |= digit << kDigitShift[level];
        }
    }
    // Key 0 stands for "all there are": it is the key of what is never chosen.
    for (int i = 0; i < 3; ++i) { cuts[i].ties = cuts[i].key == 0 ? 0 : left[i]; }
}

/// How many of the best candidates it takes until their mass and the forced blocks' reaches `top_p` of the whole, at
/// most `limit`.
inline std::int32_t count_for_mass(const Candidates& candidates, float top_p, std::int32_t limit)
{
    float high = -std::numeric_limits<float>::infinity();
    for (const float score : candidates.scores) {
        if (std::isfinite(score)) { high = std::max(high, score); }
    }
    const auto mass_of = [high](float score) { return std::isfinite(score) ? double(std::exp(score - high)) : 0.0; };
    double total = 0.0;
    double reached = 0.0;
    for (std::size_t b = 0; b < candidates.scores.size(); ++b) {
        const double mass = mass_of(candidates.scores[b]);
        total += mass;
        if (b < candidates.begin || b >= candidates.end) { reached += mass; }
    }
    const double wanted = double(top_p) * total;
    std::int32_t count = 0;
    std::uint32_t cut = 0;
    for (int level = 0; level < 3; ++level) {
        std::array<double, 2048> mass{};
        std::array<std::int32_t, 2048> number{};
        for (std::size_t b = candidates.begin; b < candidates.end; ++b) {
            const std::uint32_t key = rank_key(candidates.scores[b]);
            if (key == 0 || prefix_of(key, level) != prefix_of(cut, level)) { continue; }
            mass[digit_of(key, level)] += mass_of(candidates.scores[b]);
            ++number[digit_of(key, level)];
        }
        std::uint32_t digit = (1U << kDigitBits[level]) - 1;
        // +inf blocks have no share but are always taken.
        const auto taken_whole = [&](std::uint32_t d) {
            return reached + mass[d] < wanted ||
                   ((cut | (d << kDigitShift[level])) >> kDigitShift[level]) > (kInfinityKey >> kDigitShift[level]);
        };
        while (digit > 0 && taken_whole(digit)) {
            reached += mass[digit];
            count += number[digit--];
        }
        cut |= digit << kDigitShift[level];
        if (level < 2) { continue; }
        // Equal scores have equal masses: take as many as are needed.
        const double each = number[digit] > 0 ? mass[digit] / number[digit] : 0.0;
        for (std::int32_t i = 0; i < number[digit] && count < limit && (reached < wanted || cut == kInfinityKey);
             ++i, ++count) {
            reached += each;
        }
    }
    return std::min(count, limit);
}

} // namespace detail

/// A `SelectionPolicy`. Order: forced blocks, +inf, finite scores downwards, NaN; -inf is never chosen unless forced;
/// ties go to the lower position. With top_p below 1 the may set ends once the estimated mass of the chosen blocks
/// (softmax of the finite scores, forced blocks counted) reaches top_p; +inf blocks are always in it. Throws
/// `InvalidArgument` for budgets below the number of forced blocks. Cost: four passes over the scores, no memory from
/// the heap.
struct TopKSelection {
    /// Ranks the scores and chooses by both budgets.
    void select(const SelectionInput& in, SelectionOutput& out) const
    {
        const std::int32_t forced = check(in, out);
        const std::size_t n = in.scores.size();
        detail::Candidates candidates{
            in.scores, std::size_t(std::clamp<std::int64_t>(std::int64_t(in.sink_end) - in.first, 0, std::int64_t(n))),
            n};
        candidates.end = std::size_t(std::clamp<std::int64_t>(std::int64_t(in.recent_begin) - in.first,
                                                              std::int64_t(candidates.begin), std::int64_t(n)));

        std::array<detail::Cut, 3> cuts{};
        auto& [must, may, rank] = cuts;
        may.count = in.may_blocks - forced;
        if (in.top_p < 1.0F) { may.count = detail::count_for_mass(candidates, in.top_p, may.count); }
        must.count = std::min(in.must_blocks - forced, may.count);
        rank.count = std::max(in.rank_blocks - forced, 0);
        detail::find_cuts(candidates, cuts);
        emit(in, candidates, cuts, out);
    }

private:
    /// Returns the number of forced blocks.
    static std::int32_t check(const SelectionInput& in, const SelectionOutput& out)
    {
        using detail::expects;
        constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
        expects(in.first >= 0, "select: the first block is ", in.first);
        expects(in.scores.size() <= std::size_t(kMost) - std::size_t(in.first), "select: ", in.scores.size(),
                " scores from block ", in.first, " on are too many: block positions end at ", kMost);
        const auto n = static_cast<std::int64_t>(in.scores.size());
        const std::int64_t end = in.first + n;
        const std::int64_t sink_end = std::clamp<std::int64_t>(in.sink_end, in.first, end);
        const std::int64_t recent_begin = std::clamp<std::int64_t>(in.recent_begin, sink_end, end);
        const std::int64_t forced = (sink_end - in.first) + (end - recent_begin);
        expects(in.must_blocks >= forced && in.may_blocks >= forced, "select: ", forced,
                " sink and recent blocks are forced, but the fetch budget is ", in.must_blocks,
                " blocks and the attend budget ", in.may_blocks);
        expects(in.must_blocks <= in.may_blocks, "select: the fetch budget of ", in.must_blocks,
                " blocks exceeds the attend budget of ", in.may_blocks);
        expects(in.rank_blocks <= 0 || in.rank_blocks >= forced, "select: ", in.rank_blocks, " blocks to rank, but ",
                forced, " are forced");
        expects(in.top_p >= 0.0F, "select: top_p is ", in.top_p);
        const auto needed = [n](std::int32_t blocks) {
            return std::size_t(std::min<std::int64_t>(std::max(blocks, 0), n));
        };
        expects(out.ids.size() >= needed(in.may_blocks), "select: room for ", out.ids.size(), " ids, ",
                needed(in.may_blocks), " needed");
        expects(out.must.size() >= out.ids.size(), "select: ", out.must.size(), " must flags for ", out.ids.size(),
                " ids");
        expects(out.ranked.size() >= needed(in.rank_blocks), "select: room for ", out.ranked.size(), " ranked ids, ",
                needed(in.rank_blocks), " needed");
        return static_cast<std::int32_t>(forced);
    }

    static void emit(const SelectionInput& in, const detail::Candidates& candidates, std::array<detail::Cut, 3>& cuts,
                     SelectionOutput& out)
    {
        auto& [must, may, rank] = cuts;
        const std::uint32_t lowest = std::min({must.key, may.key, rank.key});
        out.count = 0;
        out.must_count = 0;
        out.ranked_count = 0;
        for (std::size_t b = 0; b < in.scores.size(); ++b) {
            const bool forced = b < candidates.begin || b >= candidates.end;
            const std::uint32_t key = detail::rank_key(in.scores[b]);
            if (!forced && key < lowest) { continue; }
            const std::int32_t position = in.first + static_cast<std::int32_t>(b);
            // Every cut is asked, so that each counts its own ties.
            const bool is_must = forced || must.takes(key);
            const bool is_may = forced || may.takes(key);
            const bool is_ranked = in.rank_blocks > 0 && (forced || rank.takes(key));
            if (is_may) {
                out.must[std::size_t(out.count)] = is_must;
                out.ids[std::size_t(out.count++)] = position;
                out.must_count += is_must;
            }
            if (is_ranked) { out.ranked[std::size_t(out.ranked_count++)] = position; }
        }
        std::fill(out.ids.begin() + out.count, out.ids.end(), -1);
        std::fill(out.must.begin() + out.count, out.must.end(), std::uint8_t{0});
        std::fill(out.ranked.begin() + out.ranked_count, out.ranked.end(), -1);
    }
};

} // namespace oasis
