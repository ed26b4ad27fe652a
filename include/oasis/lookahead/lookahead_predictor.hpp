// SPDX-License-Identifier: Apache-2.0
//
// Guesses which blocks the next step must read. A lookahead row has asked the next step's question already, with a
// drafted token; without one, the last row's answer is the best guess, since consecutive rows read mostly the same
// blocks.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/error.hpp>
#include <oasis/core/options.hpp>
#include <oasis/core/step.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oasis {

/// What a predictor is made for.
struct LookaheadOptions {
    std::int32_t layers = 0;                         ///< of the model
    std::int32_t sets = 0;                           ///< selection sets of a layer
    std::int32_t must_blocks = 0;                    ///< fetch budget in blocks; what a row has beyond it is not remembered
    LookaheadSource source = LookaheadSource::kRows; ///< which row's set is the guess
};

/// How well guesses fit: mean over guesses of |guess and actual| / |actual|, for the row that really followed.
struct Agreement {
    double mean = 0;         ///< 0 without guesses
    std::uint64_t terms = 0; ///< guesses that a row followed
};

/// Guesses nothing.
struct NoLookahead {
    /// See the concept `LookaheadPolicy`.
    ///@{
    void observe_row(SequenceId, LayerId, std::int32_t, std::int32_t, std::span<const std::int32_t>,
                     bool) const noexcept
    {
    }
    std::size_t predict(SequenceId, LayerId, std::int32_t, std::span<std::int32_t>) const noexcept { return 0; }
    void accepted(SequenceId, std::int32_t) const noexcept {}
    void copy(SequenceId, SequenceId) const noexcept {}
    void forget(SequenceId) const noexcept {}
    ///@}
};

/// The must sets of one step's rows, and what they say of the next step. Memory is taken once per live sequence, at its
/// first row, and used again by later sequences. One thread at a time.
class LookaheadPredictor {
public:
    /// Rows of one sequence in a step: verify rows, then lookahead rows.
    static constexpr std::int32_t kStepRows = kMaxVerifyRows + kMaxLookaheadRows;

    /// Throws `InvalidArgument` for sizes below 1.
    explicit LookaheadPredictor(const LookaheadOptions& options) : options_(options)
    {
        detail::expects(options.layers >= 1 && options.sets >= 1 && options.must_blocks >= 1,
                        "LookaheadPredictor: ", options.layers, " layers, ", options.sets, " sets, ",
                        options.must_blocks, " must blocks; all must be at least 1.");
        tallies_.resize(std::size_t(options.layers));
        sorted_.resize(std::size_t(kStepRows) * std::size_t(options.must_blocks));
    }

    /// The must set, of distinct block positions, of row `row` of the sequence's rows in this step. Rows of a (layer,
    /// set) come in ascending order, and a dense row may be left out. A row that does not ascend, without `accepted`
    /// before it, starts the step over.
    void observe_row(SequenceId sequence, LayerId layer, std::int32_t set, std::int32_t row,
                     std::span<const std::int32_t> must, bool lookahead)
    {
        const std::size_t at = index(layer, set);
        detail::expects(row >= 0 && row < kStepRows, "LookaheadPredictor: row ", row, " of sequence ", raw(sequence),
                        " is outside the ", kStepRows, " rows of a step.");
        if (options_.source == LookaheadSource::kNone) { return; }
        Memory& memory = memory_of(sequence);
        Head& head = memory.heads[at];
        if (head.step != memory.step) {
            // Row 0 is the row that followed the last step's accepted ones, which still lie in the places of this step.
            if (row == 0) { measure(layer, guess(memory, at), must); }
            head = Head{};
            head.step = memory.step;
        } else if (row <= head.last_row) {
            head = Head{};
            head.step = memory.step;
        }
        const auto kept = ids(memory, at, row);
        const std::size_t count = std::min(must.size(), kept.size());
        std::copy_n(must.begin(), count, kept.begin());
        head.count[std::size_t(row)] = static_cast<std::int32_t>(count);
        head.last_row = row;
        (lookahead ? head.lookahead_rows : head.verify_rows) |= 1U << row;
    }

    /// Writes at most `out.size()` block positions, without repeats, and returns their number. Within a step: what the
    /// next one is likely to need, so far as this (layer, set)'s rows were observed. After `accepted`, until the next
    /// step's first row: the guess for the row that really follows.
    std::size_t predict(SequenceId sequence, LayerId layer, std::int32_t set, std::span<std::int32_t> out)
    {
        const std::size_t at = index(layer, set);
        const auto found = memories_.find(raw(sequence));
        if (found == memories_.end()) { return 0; }
        Memory& memory = found->second;
        const Head& head = memory.heads[at];
        if (head.step != memory.step) { return append(guess(memory, at), out, 0); }
        if (options_.source == LookaheadSource::kRows && head.lookahead_rows != 0) {
            std::size_t count = 0;
            for (std::int32_t row = 0; row <= head.last_row; ++row) {
                if ((head.lookahead_rows >> row & 1U) != 0) { count = append(row_ids(memory, at, row), out, count); }
            }
            return count;
        }
        for (std::int32_t row = head.last_row; row >= 0; --row) {
            if ((head.verify_rows >> row & 1U) != 0) { return append(row_ids(memory, at, row), out, 0); }
        }
        return 0;
    }

    /// Ends the sequence's step: its first `rows` verify rows stand. 0, a step that was rolled back, leaves no guess, and
    /// neither does prefill, with any number of rows.
    void accepted(SequenceId sequence, std::int32_t rows)
    {
        detail::expects(rows >= 0, "LookaheadPredictor: ", rows, " accepted rows of sequence ", raw(sequence), ".");
        const auto found = memories_.find(raw(sequence));
        if (found == memories_.end()) { return; }
        ++found->second.step;
        found->second.accepted_rows = rows;
    }

    /// `to`, a fork of `from`, goes on as `from` would.
    void copy(SequenceId from, SequenceId to)
    {
        if (from == to) { return; }
        if (!memories_.contains(raw(from))) {
            forget(to);
            return;
        }
        Memory& target = memory_of(to);
        target = memories_.find(raw(from))->second;
    }

    /// The sequence is gone.
    void forget(SequenceId sequence)
    {
        const auto found = memories_.find(raw(sequence));
        if (found != memories_.end()) { spare_.push_back(memories_.extract(found)); }
    }

    /// Over all layers.
    Agreement agreement() const noexcept
    {
        Tally sum;
        for (const Tally& tally : tallies_) {
            sum.shares += tally.shares;
            sum.terms += tally.terms;
        }
        return mean_of(sum);
    }

    /// Of one layer.
    Agreement agreement(LayerId layer) const
    {
        detail::expects(layer >= 0 && layer < options_.layers, "LookaheadPredictor: layer ", layer, " is outside ",
                        options_.layers, " layers.");
        return mean_of(tallies_[std::size_t(layer)]);
    }

private:
    /// The rows of one (layer, set) in its latest step.
    struct Head {
        std::uint64_t step = 0; ///< 0: none yet
        std::int32_t last_row = -1;
        std::uint32_t verify_rows = 0;    ///< bit r: row r was observed
        std::uint32_t lookahead_rows = 0; ///< the same for lookahead rows
        std::array<std::int32_t, kStepRows> count{};
    };
    struct Memory {
        std::uint64_t step = 1;
        std::int32_t accepted_rows = 0; ///< of the step before
        std::vector<Head> heads;        ///< [layers, sets]
        std::vector<std::int32_t> ids;  ///< [layers, sets, step rows, must_blocks]
    };
    struct Tally {
        double shares = 0;
        std::uint64_t terms = 0;
    };
    using Memories = std::unordered_map<std::int64_t, Memory>;

    static Agreement mean_of(const Tally& tally) noexcept
    {
        return {tally.terms > 0 ? tally.shares / static_cast<double>(tally.terms) : 0.0, tally.terms};
    }

    std::size_t index(LayerId layer, std::int32_t set) const
    {
        detail::expects(layer >= 0 && layer < options_.layers && set >= 0 && set < options_.sets,
                        "LookaheadPredictor: layer ", layer, " set ", set, " is outside ", options_.layers,
                        " layers x ", options_.sets, " sets.");
        return std::size_t(layer) * std::size_t(options_.sets) + std::size_t(set);
    }

    std::span<std::int32_t> ids(Memory& memory, std::size_t at, std::int32_t row) const
    {
        const auto room = std::size_t(options_.must_blocks);
        return std::span(memory.ids).subspan((at * std::size_t(kStepRows) + std::size_t(row)) * room, room);
    }

    std::span<const std::int32_t> row_ids(Memory& memory, std::size_t at, std::int32_t row) const
    {
        return ids(memory, at, row).first(std::size_t(memory.heads[at].count[std::size_t(row)]));
    }

    /// What the step that was accepted last says of the row after it; empty without a guess. The row at that position
    /// is a rejected draft or the first lookahead row: its token may differ, its place does not.
    std::span<const std::int32_t> guess(Memory& memory, std::size_t at) const
    {
        const Head& head = memory.heads[at];
        const std::int32_t rows = memory.accepted_rows;
        if (head.step + 1 != memory.step || rows == 0 || rows > kMaxVerifyRows) { return {}; }
        const std::uint32_t seen = head.verify_rows | head.lookahead_rows;
        if (options_.source == LookaheadSource::kRows && (seen >> rows & 1U) != 0) { return row_ids(memory, at, rows); }
        return (seen >> (rows - 1) & 1U) != 0 ? row_ids(memory, at, rows - 1) : std::span<const std::int32_t>{};
    }

    /// Adds to the first `count` of `out` the blocks that they lack; returns the new number.
    std::size_t append(std::span<const std::int32_t> blocks, std::span<std::int32_t> out, std::size_t count)
    {
        const auto known = sorted(out.first(count));
        for (const std::int32_t block : blocks) {
            if (count == out.size()) { break; }
            if (!std::binary_search(known.begin(), known.end(), block)) { out[count++] = block; }
        }
        return count;
    }

    std::span<const std::int32_t> sorted(std::span<const std::int32_t> blocks)
    {
        const auto copy = std::span(sorted_).first(blocks.size());
        std::copy(blocks.begin(), blocks.end(), copy.begin());
        std::sort(copy.begin(), copy.end());
        return copy;
    }

    Memory& memory_of(SequenceId sequence)
    {
        const auto found = memories_.find(raw(sequence));
        if (found != memories_.end()) { return found->second; }
        if (spare_.empty()) { return new_memory(sequence); }
        auto node = std::move(spare_.back());
        spare_.pop_back();
        node.key() = raw(sequence);
        node.mapped().step = 1;
        node.mapped().accepted_rows = 0;
        std::fill(node.mapped().heads.begin(), node.mapped().heads.end(), Head{});
        return memories_.insert(std::move(node)).position->second;
    }

    Memory& new_memory(SequenceId sequence)
    {
        // With room for every memory there is, forgetting never allocates.
        spare_.reserve(memories_.size() + 1);
        Memory memory;
        memory.heads.resize(std::size_t(options_.layers) * std::size_t(options_.sets));
        memory.ids.resize(memory.heads.size() * std::size_t(kStepRows) * std::size_t(options_.must_blocks));
        return memories_.emplace(raw(sequence), std::move(memory)).first->second;
    }

    void measure(LayerId layer, std::span<const std::int32_t> guessed, std::span<const std::int32_t> actual)
    {
        if (guessed.empty() || actual.empty()) { return; }
        const auto known = sorted(guessed);
        const auto common = std::count_if(actual.begin(), actual.end(), [&](std::int32_t block) {
            return std::binary_search(known.begin(), known.end(), block);
        });
        Tally& tally = tallies_[std::size_t(layer)];
        tally.shares += static_cast<double>(common) / static_cast<double>(actual.size());
        ++tally.terms;
    }

    LookaheadOptions options_;
    Memories memories_;
    std::vector<Memories::node_type> spare_;
    std::vector<Tally> tallies_;       ///< [layers]
    std::vector<std::int32_t> sorted_; ///< scratch: [step rows, must_blocks]
};

static_assert(check_lookahead<LookaheadPredictor>() && check_lookahead<NoLookahead>());

} // namespace oasis
