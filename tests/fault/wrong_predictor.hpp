// SPDX-License-Identifier: Apache-2.0
//
// Guesses that are wrong in one way each, to see that a guess changes time and never results.
#pragma once

#include <oasis/lookahead/lookahead_predictor.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <vector>

namespace oasis::fault {

enum class Wrong : std::uint8_t {
    kRandom, ///< blocks of the sequence, at random
    kNothing,
    kStale,      ///< the set of many rows ago
    kForeign,    ///< positions that no sequence has, negative and huge ones among them
    kDuplicates, ///< one block, again and again
    kNeighbour,  ///< what another sequence read, where there is one
};
inline constexpr int kWrongs = 6;

class WrongPredictor {
public:
    explicit WrongPredictor(Wrong kind) : kind_(kind) {}
    explicit WrongPredictor(const LookaheadOptions& = {}) : WrongPredictor(Wrong::kRandom) {}

    void observe_row(SequenceId sequence, LayerId layer, std::int32_t set, std::int32_t,
                     std::span<const std::int32_t> must, bool)
    {
        auto& seen = seen_[{raw(sequence), layer, set}];
        seen.emplace_back(must.begin(), must.end());
        if (seen.size() > kStaleRows) { seen.erase(seen.begin()); }
    }
    std::size_t predict(SequenceId sequence, LayerId layer, std::int32_t set, std::span<std::int32_t> out)
    {
        const auto found = seen_.find({raw(sequence), layer, set});
        if (kind_ == Wrong::kNothing || found == seen_.end() || found->second.front().empty()) { return 0; }
        const std::vector<std::int32_t>& old = found->second.front();
        if (kind_ == Wrong::kStale) { return write(old, out); }
        if (kind_ == Wrong::kNeighbour) { return write(neighbour(sequence, layer, set), out); }
        const auto& recent = found->second.back();
        const std::int32_t last = recent.empty() ? 0 : *std::max_element(recent.begin(), recent.end());
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (kind_ == Wrong::kRandom) {
                out[i] = static_cast<std::int32_t>(random_() % (static_cast<std::uint32_t>(std::max(last, 0)) + 1U));
            } else if (kind_ == Wrong::kForeign) {
                constexpr std::int32_t kOdd[] = {-1, std::numeric_limits<std::int32_t>::min(),
                                                 std::numeric_limits<std::int32_t>::max(), 1 << 20};
                out[i] = kOdd[i % 4] - static_cast<std::int32_t>(i % 4 == 2 ? i : 0);
            } else {
                out[i] = old.front();
            }
        }
        return out.size();
    }

    void accepted(SequenceId, std::int32_t) const noexcept {}

    void copy(SequenceId from, SequenceId to)
    {
        forget(to);
        decltype(seen_) copies;
        for (const auto& [key, rows] : seen_) {
            const auto& [owner, layer, set] = key;
            if (owner == raw(from)) { copies.emplace(std::tuple{raw(to), layer, set}, rows); }
        }
        seen_.merge(copies);
    }

    void forget(SequenceId sequence)
    {
        std::erase_if(seen_, [&](const auto& entry) { return std::get<0>(entry.first) == raw(sequence); });
    }

private:
    static constexpr std::size_t kStaleRows = 20;

    static std::size_t write(const std::vector<std::int32_t>& blocks, std::span<std::int32_t> out)
    {
        const std::size_t n = std::min(blocks.size(), out.size());
        std::copy_n(blocks.begin(), n, out.begin());
        return n;
    }

    /// The latest set of the next sequence that has one of this (layer, set), else nothing.
    std::vector<std::int32_t> neighbour(SequenceId sequence, LayerId layer, std::int32_t set) const
    {
        const auto is_other = [&](const auto& entry) {
            const auto& [owner, its_layer, its_set] = entry.first;
            return owner != raw(sequence) && its_layer == layer && its_set == set;
        };
        const auto after = std::find_if(seen_.upper_bound({raw(sequence), layer, set}), seen_.end(), is_other);
        const auto other = after != seen_.end() ? after : std::find_if(seen_.begin(), seen_.end(), is_other);
        return other != seen_.end() ? other->second.back() : std::vector<std::int32_t>{};
    }

    Wrong kind_;
    std::map<std::tuple<std::int64_t, LayerId, std::int32_t>, std::vector<std::vector<std::int32_t>>> seen_;
    std::mt19937 random_{17};
};

static_assert(check_lookahead<WrongPredictor>());

} // namespace oasis::fault
