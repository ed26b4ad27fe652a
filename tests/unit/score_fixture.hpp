// SPDX-License-Identifier: Apache-2.0
//
// A sequence's keys and its summary groups as a cache would keep them, for tests of the scorer.
#pragma once

#include "oracle/scoring.hpp"

#include <oasis/score/block_scorer.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace oasis::tests {

struct alignas(128) Line {
    std::byte bytes[128];
};

inline std::vector<Line> lines(std::size_t bytes, std::byte fill = std::byte{0xFF}) // NaN in every float format
{
    std::vector<Line> result(bytes / 128);
    for (Line& line : result) { std::memset(line.bytes, int(fill), 128); }
    return result;
}

inline std::byte* at(std::vector<Line>& storage, std::size_t offset = 0) { return storage.data()->bytes + offset; }

/// Normal values on a grid of 1/64, so that sums in float are exact.
inline std::vector<float> grid_values(std::size_t n, std::mt19937& random, float spread = 1.0F)
{
    std::normal_distribution<float> normal(0.0F, spread);
    std::vector<float> result(n);
    for (float& x : result) { x = std::round(normal(random) * 64.0F) / 64.0F; }
    return result;
}

template <class S = StockSummary> class Sequence {
public:
    Sequence(BlockScorer<S> scorer, std::int32_t recent) : scorer_(std::move(scorer)), recent_(recent) {}

    const SummaryLayout& layout() const { return scorer_.layout(); }
    const BlockScorer<S>& scorer() const { return scorer_; }
    std::int64_t tokens() const { return std::int64_t(keys_.size()) / layout().head_dim; }
    float* key(std::int64_t t) { return keys_.data() + t * layout().head_dim; }

    /// Sets all keys and writes their sub-blocks, the last incomplete one included; garbage beyond.
    void set_keys(std::vector<float> keys)
    {
        keys_ = std::move(keys);
        groups_ = std::size_t((tokens() + layout().group_tokens() - 1) / layout().group_tokens());
        native_ = lines(groups_ * layout().native_bytes());
        coded_ = lines(groups_ * layout().coded_bytes());
        const std::int64_t t = layout().options.tokens;
        for (std::int64_t s = 0; s * t < tokens(); ++s) { write(s); }
        for (std::size_t g = 0; g < groups_; ++g) {
            const bool whole = std::int64_t(g + 1) * layout().group_tokens() <= tokens();
            if (whole) { scorer_.close_group(native(g), 64, coded(g)); }
        }
    }

    /// Rewrites one sub-block from its keys.
    void write(std::int64_t s)
    {
        scorer_.write_sub_block(native(std::size_t(s / 64)), std::int32_t(s % 64),
                                rows(s * layout().options.tokens, tokens()));
    }

    std::byte* native(std::size_t g) { return at(native_, g * layout().native_bytes()); }
    std::byte* coded(std::size_t g) { return at(coded_, g * layout().coded_bytes()); }

    /// Log masses [rows, group, blocks of the groups]; groups [first_group, last_group) only.
    std::vector<float> score(const std::vector<float>& q, std::int32_t group, const std::vector<TokenIndex>& positions,
                             float scale, std::int32_t first_group = 0, std::int32_t last_group = -1)
    {
        if (last_group < 0) { last_group = std::int32_t(groups_); }
        std::vector<SummaryGroupRef> refs;
        for (std::int32_t g = first_group; g < last_group; ++g) {
            refs.push_back({native(std::size_t(g)), std::int64_t(g + 1) * layout().group_tokens() <= tokens()
                                                        ? coded(std::size_t(g))
                                                        : nullptr});
        }
        std::vector<std::vector<Line>> tails;
        std::vector<const std::byte*> pointers;
        for (const TokenIndex p : positions) {
            tails.push_back(lines(layout().tail_bytes()));
            const std::int64_t begin = p < 0 ? 0 : p / layout().options.tokens * layout().options.tokens;
            const bool needed = p >= 0 && (p + 1) % layout().options.tokens != 0;
            if (needed) { scorer_.write_tail(at(tails.back()), rows(begin, p + 1)); }
            pointers.push_back(needed ? at(tails.back()) : nullptr);
        }
        const std::int64_t blocks = std::int64_t(refs.size()) * layout().blocks_per_group();
        std::vector<float> result(positions.size() * std::size_t(group * blocks), 12345.0F);
        scorer_.score({.q = q.data(),
                       .q_row_stride = std::int64_t(group) * layout().head_dim,
                       .rows = std::int32_t(positions.size()),
                       .group = group,
                       .scale = scale,
                       .position = positions.data(),
                       .tail = pointers.data(),
                       .groups = refs,
                       .first_group = first_group,
                       .recent = recent_,
                       .log_mass = result.data(),
                       .stride = blocks});
        return result;
    }

    /// Keys [begin, min(begin + sub-block, end)).
    KeyRows rows(std::int64_t begin, std::int64_t end)
    {
        const std::int64_t n = std::min<std::int64_t>(layout().options.tokens, end - begin);
        return {key(begin), std::int32_t(n), layout().head_dim, layout().head_dim};
    }

    std::vector<oracle::Row> exact_keys()
    {
        std::vector<oracle::Row> result;
        for (std::int64_t t = 0; t < tokens(); ++t) { result.emplace_back(key(t), key(t) + layout().head_dim); }
        return result;
    }

    oracle::Shape shape() const
    {
        return {oracle::Kind(int(layout().options.kind)), oracle::Code(int(layout().options.code)),
                std::size_t(layout().options.tokens),     std::size_t(layout().block_tokens),
                std::size_t(layout().head_dim),           recent_};
    }

private:
    BlockScorer<S> scorer_;
    std::int32_t recent_;
    std::size_t groups_ = 0;
    std::vector<float> keys_;
    std::vector<Line> native_;
    std::vector<Line> coded_;
};

inline Sequence<> stock_sequence(SummaryOptions options, int head_dim, int block_tokens, std::int32_t recent,
                                 const cpu::ScoreKernels& kernels = cpu::score_kernels())
{
    return {BlockScorer<>(StockSummary(options.kind), options, head_dim, block_tokens, kernels), recent};
}

constexpr SummaryKind kKinds[] = {SummaryKind::kSpread, SummaryKind::kCuboid, SummaryKind::kMinMax, SummaryKind::kMean};
constexpr SummaryCode kCodes[] = {SummaryCode::kF32, SummaryCode::kF16, SummaryCode::kInt8, SummaryCode::kInt4};

inline std::string describe(const SummaryOptions& options)
{
    return "kind " + std::to_string(int(options.kind)) + " code " + std::to_string(int(options.code)) + " tokens " +
           std::to_string(options.tokens);
}

/// Tests that take every kernel table of this machine.
class EveryTable : public testing::TestWithParam<const cpu::ScoreKernels*> {};

inline std::string table_name(const testing::TestParamInfo<const cpu::ScoreKernels*>& info) { return info.param->name; }

inline auto every_table()
{
    return testing::ValuesIn(cpu::all_score_kernels().begin(), cpu::all_score_kernels().end());
}

} // namespace oasis::tests
