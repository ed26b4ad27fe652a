// SPDX-License-Identifier: Apache-2.0
//
// A sparse decode step of one sequence and layer, slowly and in float64: estimates, scores, selection by sorting, the logical set, attention.
// Shares no code with the library.
#pragma once

#include "attention.hpp"
#include "scoring.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace oasis::oracle {

enum class Reduction { kSoftmaxMax, kMax, kMean };

struct StepShape {
    Shape summary; ///< block and sub-block tokens, head_dim, recent, kind and code
    std::size_t q_heads = 0;
    std::size_t kv_heads = 0;
    Reduction reduction = Reduction::kSoftmaxMax;
    bool one_set = false;     ///< one set of a layer for all its heads
    bool may_logical = true;  ///< false: only must blocks are read
    bool int8 = false;        ///< blocks older than the window are read as int8
    std::int64_t fetch = 0;   ///< tokens, as the others
    std::int64_t attend = 0;
    std::int64_t logical = 0;
    std::int64_t sink = 0;
    std::int64_t dense_below = 0;

    std::size_t sets() const { return one_set ? 1 : kv_heads; }
    std::int64_t block() const { return static_cast<std::int64_t>(summary.block_tokens); }
};

struct StepRow {
    std::vector<Row> out;            ///< [q_heads]
    bool dense = false;
    std::uint64_t attended = 0;      ///< tokens, summed over sets
    std::uint64_t must = 0;
    std::uint64_t logical_misses = 0;///< must tokens of coded blocks that the logical set did not hold
    double closest = kInf;           ///< smallest difference of scores at a cut that decides something
    std::vector<std::vector<std::int32_t>> read; ///< [sets] blocks
};

class StepModel {
public:
    explicit StepModel(StepShape shape) : shape_(std::move(shape)), keys_(shape_.kv_heads), values_(shape_.kv_heads), coded_keys_(shape_.kv_heads),
                                          coded_values_(shape_.kv_heads), sets_(shape_.sets())
    {
    }

    /// K and V of the next position: [kv_heads].
    void append(const std::vector<Row>& k, const std::vector<Row>& v)
    {
        for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
            keys_[h].push_back(k[h]);
            values_[h].push_back(v[h]);
            coded_keys_[h].push_back(shape_.int8 ? quantise(k[h]).decoded : k[h]);
            coded_values_[h].push_back(shape_.int8 ? quantise(v[h]).decoded : v[h]);
        }
    }

    /// The row at the last appended position: [q_heads] queries, not scaled.
    StepRow decode(const std::vector<Row>& q)
    {
        StepRow result;
        const auto position = static_cast<std::int64_t>(keys_[0].size()) - 1;
        const auto blocks = static_cast<std::int32_t>(position / shape_.block()) + 1;
        result.dense = position + 1 <= shape_.dense_below;
        for (std::size_t set = 0; set < shape_.sets(); ++set) {
            std::vector<std::int32_t> read(static_cast<std::size_t>(blocks));
            std::iota(read.begin(), read.end(), 0);
            if (!result.dense) { read = choose(set, scores_of(set, q, position), position, result); }
            result.read.push_back(read);
        }
        for (std::size_t head = 0; head < shape_.q_heads; ++head) {
            result.out.push_back(attend_head(head, q[head], result.read[shape_.one_set ? 0 : head / group()], position));
        }
        return result;
    }

private:
    struct Set {
        bool filled = false;
        std::map<std::int32_t, std::int64_t> stamps; ///< block: when it was last read
    };

    std::size_t group() const { return shape_.q_heads / shape_.kv_heads; }
    double scale() const { return 1.0 / std::sqrt(double(shape_.summary.head_dim)); }
    /// Blocks from here on hold one of the last `recent` tokens of a row at `position`.
    std::int32_t recent_begin(std::int64_t position) const
    {
        return static_cast<std::int32_t>(std::max<std::int64_t>(0, position + 1 - shape_.summary.recent) / shape_.block());
    }
    std::uint64_t tokens_in(std::int32_t block, std::int64_t position) const
    {
        return static_cast<std::uint64_t>(std::min(shape_.block(), position + 1 - block * shape_.block()));
    }

    /// Estimated log mass of every block for one query; groups that left the window whole are coded, from coded keys.
    Row masses(std::size_t kv_head, const Row& q, std::int64_t position)
    {
        const Shape& s = shape_.summary;
        const auto tokens = static_cast<std::size_t>(position + 1);
        const std::size_t group_tokens = 64 * s.sub_tokens;
        Row result;
        Row block;
        for (std::size_t begin = 0; begin < tokens; begin += group_tokens) {
            const bool coded = std::int64_t(begin + group_tokens) - 1 <= position - s.recent;
            std::vector<SubBlock> fresh;
            if (!coded) { fresh = summaries(keys_[kv_head], begin, std::min(begin + group_tokens, tokens)); }
            for (const SubBlock& sub : coded ? coded_group(kv_head, begin) : fresh) {
                block.push_back(estimate(s, sub, q, scale()));
                if (block.size() == s.block_tokens / s.sub_tokens) { result.push_back(log_sum_exp(std::exchange(block, {}))); }
            }
        }
        if (!block.empty()) { result.push_back(log_sum_exp(block)); }
        return result;
    }
    std::vector<SubBlock> summaries(const std::vector<Row>& keys, std::size_t begin, std::size_t end) const
    {
        std::vector<SubBlock> result;
        for (std::size_t t = begin; t < end; t += shape_.summary.sub_tokens) {
            result.push_back(summarise(shape_.summary, keys, t, std::min(t + shape_.summary.sub_tokens, end)));
        }
        return result;
    }
    const std::vector<SubBlock>& coded_group(std::size_t kv_head, std::size_t begin)
    {
        auto& kept = coded_groups_[{kv_head, begin}];
        if (kept.empty()) {
            kept = summaries(coded_keys_[kv_head], begin, begin + 64 * shape_.summary.sub_tokens);
            code_group(shape_.summary, kept);
        }
        return kept;
    }

    Row scores_of(std::size_t set, const std::vector<Row>& q, std::int64_t position)
    {
        std::vector<Row> heads;
        for (std::size_t head = 0; head < shape_.q_heads; ++head) {
            if (!shape_.one_set && head / group() != set) { continue; }
            Row mass = masses(head / group(), q[head], position);
            const double all = shape_.reduction == Reduction::kMax ? 0.0 : log_sum_exp(mass);
            for (double& x : mass) { x -= all; }
            heads.push_back(std::move(mass));
        }
        Row scores(heads[0].size());
        for (std::size_t j = 0; j < scores.size(); ++j) {
            Row column;
            for (const Row& head : heads) { column.push_back(head[j]); }
            scores[j] = shape_.reduction == Reduction::kMean ? log_sum_exp(column) - std::log(double(column.size()))
                                                             : *std::max_element(column.begin(), column.end());
        }
        return scores;
    }

    /// The best blocks for a budget of tokens; notes how close the decision was.
    std::set<std::int32_t> best(const Row& scores, std::int64_t budget, std::int64_t position, double& closest) const
    {
        const auto sink_end = static_cast<std::int32_t>((shape_.sink + shape_.block() - 1) / shape_.block());
        const auto count = static_cast<std::size_t>(budget / shape_.block());
        std::set<std::int32_t> chosen;
        std::vector<std::int32_t> order;
        for (std::int32_t j = 0; j < static_cast<std::int32_t>(scores.size()); ++j) {
            if (j < sink_end || j >= recent_begin(position)) {
                chosen.insert(j);
            } else {
                order.push_back(j);
            }
        }
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return scores[std::size_t(a)] > scores[std::size_t(b)]; });
        const std::size_t more = std::min(order.size(), count - std::min(count, chosen.size()));
        if (more > 0 && more < order.size()) {
            closest = std::min(closest, scores[std::size_t(order[more - 1])] - scores[std::size_t(order[more])]);
        }
        chosen.insert(order.begin(), order.begin() + std::ptrdiff_t(more));
        return chosen;
    }

    std::vector<std::int32_t> choose(std::size_t index, const Row& scores, std::int64_t position, StepRow& result)
    {
        Set& set = sets_[index];
        const auto must = best(scores, shape_.fetch, position, result.closest);
        const auto may = best(scores, shape_.attend, position, result.closest);
        if (!set.filled) { // the first sparse row: the best blocks count as resident
            set.filled = true;
            for (const std::int32_t block : best(scores, shape_.logical, position, result.closest)) { set.stamps[block] = position; }
        }
        std::vector<std::int32_t> read;
        for (const std::int32_t block : may) {
            const bool needed = must.count(block) > 0;
            const bool resident = set.stamps.count(block) > 0;
            if (!needed && !(shape_.may_logical && resident)) { continue; }
            read.push_back(block);
            result.attended += tokens_in(block, position);
            if (needed) { result.must += tokens_in(block, position); }
            if (needed && !resident && block < recent_begin(position)) { result.logical_misses += tokens_in(block, position); }
        }
        for (const std::int32_t block : read) { set.stamps[block] = position + 1; }
        while (set.stamps.size() > static_cast<std::size_t>(shape_.logical / shape_.block())) {
            auto victim = set.stamps.begin(); // least recently read; of equals the highest position
            for (auto it = set.stamps.begin(); it != set.stamps.end(); ++it) {
                if (it->second <= victim->second) { victim = it; }
            }
            set.stamps.erase(victim);
        }
        return read;
    }

    Row attend_head(std::size_t head, Row q, const std::vector<std::int32_t>& blocks, std::int64_t position) const
    {
        const std::size_t kv = head / group();
        std::vector<Row> keys, values;
        for (const std::int32_t block : blocks) {
            const bool coded = block < recent_begin(position);
            for (std::uint64_t i = 0; i < tokens_in(block, position); ++i) {
                const std::size_t t = std::size_t(block * shape_.block()) + i;
                keys.push_back(coded ? coded_keys_[kv][t] : keys_[kv][t]);
                values.push_back(coded ? coded_values_[kv][t] : values_[kv][t]);
            }
        }
        for (double& x : q) { x *= scale(); }
        return attend(q, keys, values).out;
    }

    StepShape shape_;
    std::vector<std::vector<Row>> keys_, values_;             ///< [kv_heads][tokens]
    std::vector<std::vector<Row>> coded_keys_, coded_values_; ///< what a reader of the int8 code sees
    std::map<std::pair<std::size_t, std::size_t>, std::vector<SubBlock>> coded_groups_;
    std::vector<Set> sets_;
};

} // namespace oasis::oracle
