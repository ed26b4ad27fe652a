// SPDX-License-Identifier: Apache-2.0
//
// Which blocks of a sequence are in fast memory, step by step, as the cache's events tell.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/telemetry.hpp>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace oasis_decode {

/// Takes the events of a cache with one sequence, from its beginning, and keeps a row per decode step.
class ResidencyGrid {
public:
    explicit ResidencyGrid(const oasis::CacheConfig& config);

    void on_event(const oasis::Event& event);
    /// After the commit of a decode step; `tokens` is the sequence's length.
    void end_step(oasis::TokenIndex tokens);

    /// {block_tokens, units, steps: [{tokens, demand, ahead, resident: [...]}]}: of a block's `units` (layer, KV head)
    /// those in fast memory, by position; and how many units of any block a step brought in, on demand and ahead.
    nlohmann::ordered_json to_json() const;

private:
    struct Row {
        oasis::TokenIndex tokens = 0;
        std::int32_t demand = 0;
        std::int32_t ahead = 0;
        std::vector<std::int32_t> resident;
    };

    std::int32_t& sealed(oasis::BlockId block);

    std::int32_t block_tokens_;
    std::int32_t units_;
    std::unordered_map<oasis::BlockId, std::size_t> index_; ///< of sealed blocks: one sequence seals in the order of its text
    std::vector<std::int32_t> resident_;                    ///< units of the sealed blocks
    Row open_{};
    std::vector<Row> rows_;
};

} // namespace oasis_decode
