// SPDX-License-Identifier: Apache-2.0
//
// Guesses which blocks the next step must read. A lookahead row has asked the next step's question already, with a
// drafted token; without one, the last row's answer is the best guess, since consecutive rows read mostly the same
// blocks.
#pragma once

#include <oasis/core/check.hpp>
#include <oasis/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oasis {

struct LookaheadOptions {
    std::int32_t layers = 0;
    std::int32_t sets = 0;        ///< selection sets of a layer
    std::int32_t must_blocks = 0; ///< fetch budget in blocks; what a row has beyond it is not remembered
};

/// How well guesses fit: mean over guesses of |predicted and actual| / |actual|, for the row that really followed.
struct Agreement {
    double mean = 0;
    std::uint64_t terms = 0; ///< guesses that a row followed
};

/// Guesses nothing.
struct NoLookahead {
    void observe_row(SequenceId, LayerId, std::int32_t, std::span<const std::int32_t>, bool) const noexcept {}
    std::size_t predict(SequenceId, LayerId, std::int32_t, std::span<std::int32_t>) const noexcept { return 0; }
    void forget(SequenceId) const noexcept {}
};

/// Source of a guess: the lookahead rows of the last step, first row first; else the last verify row; else nothing.
/// Rows of a step are observed in position order, verify rows before lookahead rows. Memory is taken once per
/// sequence, at its first row, and used again by later sequences. One thread at a time.
class LookaheadPredictor {
public:
    explicit LookaheadPredictor(const LookaheadOptions& options) : options_(options)
    {
        detail::expects(options.layers >= 1 && options.sets >= 1 && options.must_blocks >= 1,
                        "LookaheadPredictor: ", options.layers, " layers, ", options.sets, " sets, ",
                        options.must_blocks, " must blocks; all must be at least 1.");
    }

    void observe_row(SequenceId sequence, LayerId layer, std::int32_t set, std::span<const std::int32_t> must,
                     bool lookahead)
    {
        const std::size_t at = index(layer, set);
        Memory& memory = memory_of(sequence);
        Head& head = memory.heads[at];
        if (!lookahead) {
            measure(head, ids(memory, at, kPredicted), must);
            head.count[kVerify] = 0;
            head.count[kLookahead] = 0;
        }
        const Part part = lookahead ? kLookahead : kVerify;
        const auto kept = ids(memory, at, part);
        std::size_t& count = head.count[part];
        const std::size_t before = count;
        for (const std::int32_t block : must) {
            if (count == kept.size()) { break; }
            // Only a second lookahead row can meet blocks that are there already.
            const auto known = kept.first(before);
            if (std::find(known.begin(), known.end(), block) == known.end()) { kept[count++] = block; }
        }
    }

    /// Writes at most `out.size()` block positions, those of the nearer row first; returns their number.
    std::size_t predict(SequenceId sequence, LayerId layer, std::int32_t set, std::span<std::int32_t> out)
    {
        const std::size_t at = index(layer, set);
        const auto found = memories_.find(raw(sequence));
        if (found == memories_.end()) { return 0; }
        Memory& memory = *found->second;
        Head& head = memory.heads[at];
        const Part part = head.count[kLookahead] > 0 ? kLookahead : kVerify;
        const auto source = ids(memory, at, part).first(std::min(head.count[part], out.size()));
        std::copy(source.begin(), source.end(), out.begin());
        const auto predicted = ids(memory, at, kPredicted).first(source.size());
        std::copy(source.begin(), source.end(), predicted.begin());
        std::sort(predicted.begin(), predicted.end());
        head.count[kPredicted] = source.size();
        head.open = !source.empty();
        return source.size();
    }

    void forget(SequenceId sequence)
    {
        const auto found = memories_.find(raw(sequence));
        if (found == memories_.end()) { return; }
        spare_.push_back(std::move(found->second));
        memories_.erase(found);
    }

    Agreement agreement() const noexcept { return {terms_ > 0 ? sum_ / static_cast<double>(terms_) : 0.0, terms_}; }

private:
    enum Part : std::uint8_t { kVerify, kLookahead, kPredicted, kParts };

    struct Head {
        std::size_t count[kParts] = {0, 0, 0};
        bool open = false; ///< a guess was given and no row has followed yet
    };
    struct Memory {
        std::vector<Head> heads;       ///< [layers, sets]
        std::vector<std::int32_t> ids; ///< [layers, sets, parts, kept_blocks]
    };

    /// Two lookahead rows may differ in every block.
    std::size_t kept_blocks() const noexcept { return 2 * std::size_t(options_.must_blocks); }

    std::size_t index(LayerId layer, std::int32_t set) const
    {
        detail::expects(layer >= 0 && layer < options_.layers && set >= 0 && set < options_.sets,
                        "LookaheadPredictor: layer ", layer, " set ", set, " is outside ", options_.layers,
                        " layers x ", options_.sets, " sets.");
        return std::size_t(layer) * std::size_t(options_.sets) + std::size_t(set);
    }

    std::span<std::int32_t> ids(Memory& memory, std::size_t at, Part part) const
    {
        return std::span(memory.ids).subspan((at * kParts + part) * kept_blocks(), kept_blocks());
    }

    Memory& memory_of(SequenceId sequence)
    {
        auto& memory = memories_[raw(sequence)];
        if (!memory) {
            if (spare_.empty()) {
                memory = std::make_unique<Memory>();
            } else {
                memory = std::move(spare_.back());
                spare_.pop_back();
            }
            const std::size_t heads = std::size_t(options_.layers) * std::size_t(options_.sets);
            memory->heads.assign(heads, Head{});
            memory->ids.resize(heads * kParts * kept_blocks());
        }
        return *memory;
    }

    void measure(Head& head, std::span<const std::int32_t> predicted, std::span<const std::int32_t> actual)
    {
        if (!std::exchange(head.open, false) || actual.empty()) { return; }
        const auto guess = predicted.first(head.count[kPredicted]);
        const auto common = std::count_if(actual.begin(), actual.end(), [&](std::int32_t block) {
            return std::binary_search(guess.begin(), guess.end(), block);
        });
        sum_ += static_cast<double>(common) / static_cast<double>(actual.size());
        ++terms_;
    }

    LookaheadOptions options_;
    std::unordered_map<std::int64_t, std::unique_ptr<Memory>> memories_;
    std::vector<std::unique_ptr<Memory>> spare_;
    double sum_ = 0;
    std::uint64_t terms_ = 0;
};

static_assert(check_lookahead<LookaheadPredictor>() && check_lookahead<NoLookahead>());

} // namespace oasis
