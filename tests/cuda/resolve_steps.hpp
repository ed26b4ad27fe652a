// SPDX-License-Identifier: Apache-2.0
//
// Random steps: who takes part, what rows select, how many stand.
#pragma once

#include "resolve_fixture.hpp"

namespace oasis::cuda::test {

/// The recent window, the first block and what is hot, sometimes something else.
inline ResolveWorld::Row ResolveWorld::select(std::int64_t of, TokenIndex position)
{
    const auto blocks = std::int32_t(position / kBlockTokens) + 1;
    Blocks& hot = hot_[std::size_t(of)];
    if (draw(4) == 0) { hot.clear(); }
    while (std::int32_t(hot.size()) < std::min(blocks, 2 * shape.may)) { hot.insert(draw(blocks)); }
    if (draw(2) == 0) { hot.erase(hot.begin()); }
    Row row;
    row.must.insert(0);
    for (std::int32_t b = first_native(position); b < blocks; ++b) { row.must.insert(b); }
    std::vector<std::int32_t> order;
    for (const std::int32_t b : hot) {
        if (b < blocks && row.must.count(b) == 0) { order.push_back(b); }
    }
    for (std::int32_t b = 0; b < blocks && std::int32_t(order.size()) < shape.may; ++b) {
        if (row.must.count(b) == 0 && hot.count(b) == 0) { order.push_back(b); }
    }
    if (draw(2) == 0) { std::shuffle(order.begin(), order.end(), random_); }
    for (const std::int32_t b : order) {
        if (std::int32_t(row.must.size()) < shape.must) {
            row.must.insert(b);
        } else if (std::int32_t(row.must.size() + row.may.size()) < shape.may) {
            row.may.insert(b);
        }
    }
    row.best = row.must;
    row.best.insert(row.may.begin(), row.may.end());
    while (shape.ranked && std::int32_t(row.best.size()) < std::min(blocks, shape.logical)) { row.best.insert(draw(blocks)); }
    return row;
}

inline void ResolveWorld::begin_step()
{
    std::vector<std::int32_t> order(std::size_t(shape.cells));
    for (std::size_t i = 0; i < order.size(); ++i) { order[i] = std::int32_t(i); }
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<std::int32_t> starts{0}, verify, cells;
    std::vector<TokenIndex> positions;
    for (std::size_t s = 0; s < batch.size(); ++s) {
        SequenceStep& step = batch[s];
        step = {};
        if (s < order.size() && draw(8) != 0) {
            step.cell = order[s];
            step.verify = 1 + draw(shape.max_rows);
            step.rows = std::min(shape.max_rows, step.verify + draw(3));
            step.first = length_[std::size_t(step.cell)];
            auto& versions = versions_[std::size_t(step.cell)];
            for (auto b = std::size_t(first_native(step.first)); b < versions.size(); ++b) {
                ++versions[b];
            } // sealed in this step, or later
        }
        for (std::int32_t r = 0; r < step.rows; ++r) { positions.push_back(step.first + r); }
        starts.push_back(std::int32_t(positions.size()));
        verify.push_back(step.verify);
        cells.push_back(step.cell);
    }
    positions.resize(std::size_t(total_rows()), -1);
    tier_blocks_.resize(batch.size() * std::size_t(shape.max_blocks));
    for (auto& block : tier_blocks_) { block = draw(1 << 30); }
    native_cells_.resize(batch.size() * kRing);
    for (auto& cell : native_cells_) { cell = (std::int64_t{1} << 33) + std::int64_t{draw(1 << 20)} * 1024; }
    rows_.assign(std::size_t(shape.layers * total_rows() * shape.kv_heads), {});
    std::vector<std::int32_t> must(must_.size(), -1), may(may_.size(), -1), ranked(ranked_.size(), -1);
    for (LayerId layer = 0; layer < shape.layers; ++layer) {
        for (std::size_t s = 0; s < batch.size(); ++s) {
            for (std::int32_t r = 0; r < batch[s].rows; ++r) {
                for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
                    const auto at = std::size_t((layer * total_rows() + first_row(s) + r) * shape.kv_heads + h);
                    rows_[at] = select(unit(batch[s].cell, layer, h), batch[s].first + r);
                    std::copy(rows_[at].must.begin(), rows_[at].must.end(), must.begin() + std::ptrdiff_t(at) * shape.must);
                    std::copy(rows_[at].may.begin(), rows_[at].may.end(), may.begin() + std::ptrdiff_t(at) * shape.may);
                    if (r > 0) { continue; }
                    const auto list =
                        std::ptrdiff_t((std::size_t(layer) * batch.size() + s) * std::size_t(shape.kv_heads) + std::size_t(h));
                    std::copy(rows_[at].best.begin(), rows_[at].best.end(), ranked.begin() + list * shape.logical);
                }
            }
        }
    }
    enqueue_copy(queue_, must_.data(), must);
    enqueue_copy(queue_, may_.data(), may);
    enqueue_copy(queue_, starts_.data(), starts);
    enqueue_copy(queue_, verify_.data(), verify);
    enqueue_copy(queue_, cells_.data(), cells);
    enqueue_copy(queue_, position_.data(), positions);
    enqueue_copy(queue_, tier_.data(), tier_blocks_);
    enqueue_copy(queue_, native_.data(), native_cells_);
    enqueue_copy(queue_, accepted_device_.data(), accepted_);
    enqueue_copy(queue_, ranked_.data(), ranked);
    queue_.synchronize();
}

inline void ResolveWorld::end_step()
{
    for (const SequenceStep& step : batch) {
        if (step.cell < 0) { continue; }
        const auto cell = std::size_t(step.cell);
        const std::int32_t stand = draw(4) == 0 ? 0 : 1 + draw(step.verify);
        accepted_[cell] = stand;
        length_[cell] += stand;
        if (draw(shape.steps_a_cut) == 0) { length_[cell] = std::max<TokenIndex>(1, length_[cell] - draw(100)); }
        if (draw(40) == 0 || length_[cell] + 2 * shape.max_rows > TokenIndex{shape.max_blocks} * kBlockTokens) { new_sequence(step.cell); }
    }
}

} // namespace oasis::cuda::test
