// SPDX-License-Identifier: Apache-2.0
#include "append_fixture.hpp"

namespace oasis::cuda::test {
namespace {

constexpr std::int32_t kHeads = 3;
constexpr std::int32_t kLayers = 2;
constexpr LayerId kLayer = 1;

class Append : public CpuBytes {
protected:
    /// Rows of a step and how many cells and tails they need.
    struct Rows {
        std::vector<AppendRow> rows{};
        std::size_t blocks = 0;
        std::size_t groups = 0;
        std::int32_t tails = 0;
    };

    /// Of the form's bytes of (layer, head) in a cell that begins at `cell`.
    static std::size_t at(std::int64_t cell, std::int32_t head, std::size_t size)
    {
        return std::size_t(cell) + (std::size_t(kLayer) * kHeads + std::size_t(head)) * size;
    }

    /// Nine sequences that begin anywhere: six of 1 to 8 decode rows, three prefill chunks of 40.
    Rows random_rows() const
    {
        const auto& summary = scorer.layout();
        const std::size_t cell = head_block.native_bytes() * kHeads * kLayers;
        const std::size_t group_cell = summary.native_bytes() * kHeads * kLayers;
        std::mt19937_64 random(std::uint64_t(GetParam().tokens * 1000 + head_block.head_dim));
        Rows step;
        for (int s = 0; s < 9; ++s) {
            const TokenIndex begin = TokenIndex(random() % 1000) + (s == 0 ? TokenIndex{1} << 33 : 0);
            const std::int32_t count = s < 6 ? 1 + std::int32_t(random() % 8) : 40;
            const TokenIndex block = begin / head_block.block_tokens;
            const TokenIndex group = begin / summary.group_tokens();
            for (TokenIndex p = begin; p < begin + count; ++p) {
                step.rows.push_back({.block = std::int64_t((step.blocks + std::size_t(p / head_block.block_tokens - block)) * cell),
                                     .group = std::int64_t((step.groups + std::size_t(p / summary.group_tokens() - group)) * group_cell),
                                     .position = p,
                                     .rows_before = std::int32_t(p - begin),
                                     .tail = s < 6 ? step.tails++ : -1});
            }
            step.blocks += std::size_t((begin + count - 1) / head_block.block_tokens - block + 1);
            step.groups += std::size_t((begin + count - 1) / summary.group_tokens() - group + 1);
        }
        return step;
    }

    /// What the CPU backend makes of the step.
    void append_on_cpu(const Rows& step, const Bytes& k, const Bytes& v, Bytes& native, Bytes& group_bytes, Bytes& tail_bytes)
    {
        const auto& summary = scorer.layout();
        const std::size_t row_bytes = std::size_t(head_block.head_dim) * size_of(head_block.dtype);
        const auto& rows = step.rows;
        for (std::int32_t head = 0; head < kHeads; ++head) {
            for (std::size_t r = 0; r < rows.size(); ++r) {
                const std::size_t to = at(rows[r].block, head, head_block.native_bytes()) +
                                       std::size_t(rows[r].position % head_block.block_tokens) * row_bytes;
                const std::size_t from = (r * kHeads + std::size_t(head)) * row_bytes;
                std::memcpy(native.data() + to, k.data() + from, row_bytes);
                std::memcpy(native.data() + head_block.native_v_offset() + to, v.data() + from, row_bytes);
            }
            for (const AppendRow& row : rows) {
                const auto in_sub_block = std::int32_t(row.position % summary.options.tokens) + 1;
                const auto token = std::int32_t(row.position % head_block.block_tokens);
                const std::uint8_t* block = native.data() + at(row.block, head, head_block.native_bytes());
                const KeyRows rows_of_it = keys(block, token - in_sub_block + 1, in_sub_block);
                if (in_sub_block == summary.options.tokens) {
                    scorer.write_sub_block(bytes(group_bytes, at(row.group, head, summary.native_bytes())),
                                           std::int32_t(row.position / summary.options.tokens % 64), rows_of_it);
                } else if (row.tail >= 0) {
                    scorer.write_tail(bytes(tail_bytes, (std::size_t(row.tail) * kHeads + std::size_t(head)) * summary.tail_bytes()),
                                      rows_of_it);
                }
            }
        }
    }
};

TEST_P(Append, RowsSummariesAndTailsAreTheCpusBytes)
{
    const auto& summary = scorer.layout();
    const Rows step = random_rows();
    const std::size_t elements = step.rows.size() * kHeads * std::size_t(head_block.head_dim);
    const Bytes k = random_elements(elements, 1);
    const Bytes v = random_elements(elements, 2);
    // Blocks hold what came before, groups anything.
    Bytes native = random_elements(step.blocks * head_block.native_bytes() * kHeads * kLayers / size_of(head_block.dtype), 3);
    Bytes group_bytes = random_bytes(step.groups * summary.native_bytes() * kHeads * kLayers, 4);
    Bytes tail_bytes(std::size_t(step.tails) * kHeads * summary.tail_bytes(), 0xFF);

    const auto d_k = upload(queue(), k);
    const auto d_v = upload(queue(), v);
    const auto d_native = upload(queue(), native);
    const auto d_groups = upload(queue(), group_bytes);
    const auto d_tails = upload(queue(), tail_bytes);
    const auto d_count = upload(queue(), std::vector<std::int32_t>{std::int32_t(step.rows.size())});
    auto padded = step.rows;
    padded.resize(step.rows.size() + 5, AppendRow{.block = INT64_MAX / 2}); // beyond the count: must not be looked at
    const auto d_rows = upload(queue(), padded);
    enqueue_append(queue(), {.k = d_k.data(),
                             .v = d_v.data(),
                             .head_block = head_block,
                             .kv_heads = kHeads,
                             .layer = kLayer,
                             .rows = d_rows.data(),
                             .row_count = d_count.data(),
                             .max_rows = std::int32_t(padded.size()),
                             .native = bytes(d_native),
                             .summary = summary,
                             .groups = bytes(d_groups),
                             .tails = bytes(d_tails)});
    append_on_cpu(step, k, v, native, group_bytes, tail_bytes);
    expect_same(download(queue(), d_native), native, head_block.native_bytes(), "native blocks");
    expect_same(download(queue(), d_groups), group_bytes, summary.native_bytes(), "groups");
    const Bytes mine = download(queue(), d_tails);
    // The padding of a tail is nobody's.
    const std::size_t used = sizeof(SummaryTail) + std::size_t(summary.channels()) * sizeof(float);
    Bytes cut_mine;
    Bytes cut_cpu;
    for (std::size_t t = 0; t * summary.tail_bytes() < mine.size(); ++t) {
        const auto begin = std::ptrdiff_t(t * summary.tail_bytes());
        cut_mine.insert(cut_mine.end(), mine.begin() + begin, mine.begin() + begin + std::ptrdiff_t(used));
        cut_cpu.insert(cut_cpu.end(), tail_bytes.begin() + begin, tail_bytes.begin() + begin + std::ptrdiff_t(used));
    }
    expect_same(cut_mine, cut_cpu, used, "tails");
}

INSTANTIATE_TEST_SUITE_P(Shapes, Append, ::testing::ValuesIn(kShapes));

} // namespace
} // namespace oasis::cuda::test
