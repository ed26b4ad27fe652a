// SPDX-License-Identifier: Apache-2.0
//
// The logical set of one (sequence, layer, KV head), slowly: stamps in a map, states kept whole for rows that may be rejected.
// Shares no code with the library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace oasis::oracle {

struct ResidencyRules {
    std::int64_t block_tokens = 16;
    std::size_t logical_blocks = 0;
    std::int64_t dense_below = 0;
    bool may_none = false;
};

class LogicalModel {
public:
    explicit LogicalModel(ResidencyRules rules) : rules_(rules), states_(1) {}

    /// The first `accepted` rows of the last step stand; the next row is at `position`, and later blocks do not exist.
    void begin_step(std::size_t accepted, std::int64_t position)
    {
        State state = states_.at(accepted);
        std::erase_if(state.stamps, [&](const auto& member) { return member.first > position / rules_.block_tokens; });
        states_.assign(1, state);
    }

    /// The blocks that a verify row reads; `may` holds those that are not in `must`. `best` is what a first sparse row ranks best.
    std::set<std::int32_t> row(std::int64_t position, const std::set<std::int32_t>& must, const std::set<std::int32_t>& may,
                               const std::set<std::int32_t>& best)
    {
        State state = states_.back();
        std::set<std::int32_t> read = must;
        if (position + 1 <= rules_.dense_below) {
            read.insert(may.begin(), may.end());
            states_.push_back(state);
            return read;
        }
        if (!state.filled) {
            state = {.filled = true, .stamps = {}};
            for (const std::int32_t block : best) { state.stamps[block] = position; }
        }
        for (const std::int32_t block : may) {
            if (!rules_.may_none && state.stamps.count(block) > 0) { read.insert(block); }
        }
        for (const std::int32_t block : read) { state.stamps[block] = position + 1; }
        while (state.stamps.size() > rules_.logical_blocks) {
            auto victim = state.stamps.begin(); // least recently read; of equals the highest position
            for (auto it = state.stamps.begin(); it != state.stamps.end(); ++it) {
                if (it->second <= victim->second) { victim = it; }
            }
            state.stamps.erase(victim);
        }
        states_.push_back(state);
        return read;
    }

    std::size_t rows() const { return states_.size() - 1; }
    bool filled(std::size_t rows) const { return states_[rows].filled; }
    bool contains(std::size_t rows, std::int32_t block) const { return states_[rows].stamps.count(block) > 0; }
    /// Members after so many rows of the step, last read first, and of those of one row the lower position first.
    std::vector<std::pair<std::int32_t, std::int64_t>> members(std::size_t rows) const
    {
        std::vector<std::pair<std::int32_t, std::int64_t>> order(states_[rows].stamps.begin(), states_[rows].stamps.end());
        std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
        return order;
    }

private:
    struct State {
        bool filled = false;
        std::map<std::int32_t, std::int64_t> stamps; ///< block: when it was last read
    };

    ResidencyRules rules_;
    std::vector<State> states_; ///< before the step, and after each of its verify rows
};

} // namespace oasis::oracle
