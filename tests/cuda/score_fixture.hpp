// SPDX-License-Identifier: Apache-2.0
//
// Sequences whose summaries the CPU backend wrote, copied to the device with their groups scattered over a pool.
#pragma once

#include "support.hpp"
#include "unit/score_fixture.hpp"

#include <oasis/cuda/score.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace oasis::cuda::test {

struct ScoreCase {
    SummaryOptions options{};
    int head_dim = 64;
    int block_tokens = 16;
    int kv_heads = 2;
    int group = 2;
    int rows = 1;
    int recent = 32;
    int window = 0;
    DType dtype = DType::kF32;
    std::vector<std::int64_t> lengths{};
    unsigned seed = 1;

    std::string text() const
    {
        std::string all = tests::describe(options) + " head_dim " + std::to_string(head_dim) + " block " + std::to_string(block_tokens) +
                          " heads " + std::to_string(kv_heads) + " group " + std::to_string(group) + " rows " + std::to_string(rows) +
                          " recent " + std::to_string(recent) + " lengths";
        for (const std::int64_t n : lengths) { all += " " + std::to_string(n); }
        return all;
    }
};

class ScoreWorld {
public:
    using Sequence = tests::Sequence<>;

    explicit ScoreWorld(ScoreCase of) : c(std::move(of)), random_(c.seed)
    {
        for (const std::int64_t n : c.lengths) {
            for (int h = 0; h < c.kv_heads; ++h) {
                sequences.push_back(tests::stock_sequence(c.options, c.head_dim, c.block_tokens, c.recent));
                sequences.back().set_keys(tests::grid_values(std::size_t(n) * std::size_t(c.head_dim), random_));
            }
            for (int r = 0; r < c.rows; ++r) { positions.push_back(n - c.rows + r); } // below 0: padding
        }
        q = tests::grid_values(positions.size() * std::size_t(c.kv_heads * c.group * c.head_dim), random_); // exact in every type
        const std::int64_t longest = c.lengths.empty() ? 1 : *std::max_element(c.lengths.begin(), c.lengths.end());
        groups = (longest + layout().group_tokens() - 1) / layout().group_tokens();
        stride = (groups * layout().blocks_per_group() + 3) / 4 * 4;
    }

    const SummaryLayout& layout() const { return layout_; }
    Sequence& sequence(std::size_t s, int head) { return sequences[s * std::size_t(c.kv_heads) + std::size_t(head)]; }
    int q_heads() const { return c.kv_heads * c.group; }
    float scale() const { return 1.0F / std::sqrt(float(c.head_dim)); }
    oracle::Row query(std::size_t row, int head) const
    {
        const auto from = q.begin() + std::ptrdiff_t((row * std::size_t(q_heads()) + std::size_t(head)) * std::size_t(c.head_dim));
        return {from, from + c.head_dim};
    }
    bool has_tail(std::size_t row) const { return positions[row] >= 0 && (positions[row] + 1) % c.options.tokens != 0; }

    /// Copies everything to the device. Call again after a change of keys.
    void upload(Queue queue)
    {
        const std::size_t pool = std::size_t(groups) * c.lengths.size() + 3;
        std::vector<std::int32_t> ids(pool);
        std::iota(ids.begin(), ids.end(), 0);
        std::shuffle(ids.begin(), ids.end(), random_);
        const std::size_t native = layout().native_bytes();
        const std::size_t coded = layout().coded_bytes();
        std::vector<std::byte> natives(pool * native * std::size_t(c.kv_heads), std::byte{0xFF});
        std::vector<std::byte> codeds(pool * coded * std::size_t(c.kv_heads), std::byte{0xFF});
        std::vector<std::int32_t> table(std::size_t(groups) * c.lengths.size(), -1);
        for (std::size_t s = 0; s < c.lengths.size(); ++s) {
            for (std::size_t g = 0; g < std::size_t(groups); ++g) {
                if (std::int64_t(g) * layout().group_tokens() >= c.lengths[s]) { continue; }
                const auto id = std::size_t(ids[s * std::size_t(groups) + g]);
                table[s * std::size_t(groups) + g] = std::int32_t(id);
                for (int h = 0; h < c.kv_heads; ++h) {
                    const std::size_t at = id * std::size_t(c.kv_heads) + std::size_t(h);
                    std::memcpy(natives.data() + at * native, sequence(s, h).native(g), native);
                    std::memcpy(codeds.data() + at * coded, sequence(s, h).coded(g), coded);
                }
            }
        }
        const std::size_t tail = layout().tail_bytes();
        std::vector<std::byte> tails(positions.size() * std::size_t(c.kv_heads) * tail, std::byte{0xFF});
        for (std::size_t row = 0; row < positions.size(); ++row) {
            if (!has_tail(row)) { continue; }
            const std::int64_t begin = positions[row] / c.options.tokens * c.options.tokens;
            for (int h = 0; h < c.kv_heads; ++h) {
                Sequence& keys = sequence(row / std::size_t(c.rows), h);
                keys.scorer().write_tail(tails.data() + (row * std::size_t(c.kv_heads) + std::size_t(h)) * tail,
                                         keys.rows(begin, positions[row] + 1));
            }
        }
        native_ = test::upload(queue, natives);
        coded_ = test::upload(queue, codeds);
        ids_ = test::upload(queue, table);
        tails_ = test::upload(queue, tails);
        q_ = test::upload(queue, encode(c.dtype, q));
        positions_ = test::upload(queue, positions);
        counter_ = test::upload(queue, std::vector<std::uint32_t>{0, 0});
        mass_ = poisoned<float>(queue, positions.size() * std::size_t(q_heads()) * std::size_t(stride));
    }

    ScoreParams params() const
    {
        const auto table = [&](const DeviceBuffer<>& pool, std::size_t bytes) {
            return SummaryTable{pool.data(), ids_.data(), groups, std::int64_t(bytes) * c.kv_heads, std::int64_t(bytes)};
        };
        return {.q = q_.data(),
                .q_row_stride = std::int64_t(q_heads()) * c.head_dim,
                .dtype = c.dtype,
                .position = positions_.data(),
                .coded = table(coded_, layout().coded_bytes()),
                .native = table(native_, layout().native_bytes()),
                .tail = tails_.data(),
                .log_mass = mass_.data(),
                .mass_stride = stride,
                .counter = counter_.data(),
                .sequences = std::int32_t(c.lengths.size()),
                .rows = c.rows,
                .kv_heads = c.kv_heads,
                .group = c.group,
                .scale = scale(),
                .recent = c.recent,
                .window = c.window};
    }

    std::vector<float> score(Queue queue)
    {
        enqueue_score(queue, layout(), params());
        return masses(queue);
    }
    std::vector<float> masses(Queue queue) const { return download(queue, mass_); }

    /// The CPU backend's log masses of one row and KV head: [group, stride].
    std::vector<float> cpu_masses(std::size_t row, int head)
    {
        const std::size_t n = std::size_t(c.group * c.head_dim);
        const auto from =
            q.begin() + std::ptrdiff_t((row * std::size_t(q_heads()) + std::size_t(head * c.group)) * std::size_t(c.head_dim));
        return sequence(row / std::size_t(c.rows), head).score({from, from + std::ptrdiff_t(n)}, c.group, {positions[row]}, scale());
    }

    ScoreCase c;
    std::vector<Sequence> sequences; ///< [sequences, kv_heads]
    std::vector<TokenIndex> positions;
    std::vector<float> q; ///< [rows, q_heads, head_dim]
    std::int64_t groups = 0;
    std::int64_t stride = 0;

private:
    std::mt19937 random_;
    SummaryLayout layout_ = tests::stock_sequence(c.options, c.head_dim, c.block_tokens, c.recent).layout();
    DeviceBuffer<> native_;
    DeviceBuffer<> coded_;
    DeviceBuffer<> tails_;
    DeviceBuffer<> q_;
    DeviceBuffer<std::int32_t> ids_;
    DeviceBuffer<TokenIndex> positions_;
    DeviceBuffer<std::uint32_t> counter_;
    DeviceBuffer<float> mass_;
};

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr double kTolerance = 4e-3; ///< of log masses of the size that these keys give

class CudaScore : public CudaTest {
protected:
    void expect_right(const ScoreCase& c)
    {
        ScoreWorld world(c);
        expect_right(world);
    }
    void expect_right(ScoreWorld& world)
    {
        world.upload(queue());
        expect_oracle(world, world.score(queue()));
    }
    /// Every written log mass against the oracle.
    void expect_oracle(ScoreWorld& world, const std::vector<float>& got)
    {
        const auto row_stride = std::size_t(world.q_heads()) * std::size_t(world.stride);
        for (std::size_t row = 0; row < world.positions.size(); ++row) {
            for (int h = 0; h < world.c.kv_heads; ++h) {
                auto& sequence = world.sequence(row / std::size_t(world.c.rows), h);
                const TokenIndex position = world.positions[row];
                const auto summaries =
                    position < 0 ? std::vector<oracle::SubBlock>{} : oracle::summaries(sequence.shape(), sequence.exact_keys(), position);
                for (int i = 0; i < world.c.group; ++i) {
                    const float* mass = got.data() + row * row_stride + std::size_t(h * world.c.group + i) * std::size_t(world.stride);
                    const auto expected =
                        oracle::log_masses(sequence.shape(), summaries, world.query(row, h * world.c.group + i), world.scale());
                    compare(mass, std::size_t(world.stride), expected, world.layout(), position);
                    if (HasFatalFailure()) {
                        FAIL() << world.c.text() << " row " << row << " head " << h << " query " << i << " position " << position;
                    }
                }
            }
        }
    }

private:
    static void compare(const float* mass, std::size_t stride, const oracle::Row& expected, const SummaryLayout& layout,
                        TokenIndex position)
    {
        const auto written = std::size_t((position + layout.group_tokens()) / layout.group_tokens() * layout.blocks_per_group());
        for (std::size_t b = 0; b < stride; ++b) {
            if (b >= expected.size()) {
                if (position >= 0 && b < written) {
                    ASSERT_EQ(mass[b], -kInf) << "block " << b;
                } else {
                    std::uint32_t bits;
                    std::memcpy(&bits, mass + b, 4);
                    ASSERT_EQ(bits, 0xFFFFFFFFU) << "block " << b << " was written";
                }
            } else if (std::isnan(expected[b])) {
                ASSERT_TRUE(std::isnan(mass[b])) << "block " << b;
            } else if (std::isinf(expected[b])) {
                ASSERT_EQ(mass[b], float(expected[b])) << "block " << b;
            } else {
                ASSERT_NEAR(mass[b], expected[b], kTolerance + 5e-4 * std::abs(expected[b])) << "block " << b;
            }
        }
    }
};

} // namespace oasis::cuda::test
