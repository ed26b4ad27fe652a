// SPDX-License-Identifier: Apache-2.0
//
// Pipeline: dense causal attention of a prefill chunk over everything before it. Slow blocks are streamed through in waves, so a prompt may
// be larger than fast memory.
#pragma once

#include <oasis/cpu/pipeline.hpp>

namespace oasis::cpu {

template <class Policies>
void Pipeline<Policies>::prefill(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args, Journal& journal)
{
    const SpanGuard span(sink_, Stage::kPrefill, layer);
    const auto rows = std::size_t(group.rows.rows());
    const auto heads_per_group = std::size_t(model_.group());
    const auto d = std::size_t(model_.head_dim);
    const float scale = args.scale != 0.0F ? args.scale : 1.0F / std::sqrt(static_cast<float>(model_.head_dim));
    const std::size_t states = std::size_t(model_.q_heads) * rows;
    float* out = state_.data();
    float* max = out + states * d;
    float* sum = max + states;
    std::fill_n(out, states * d, 0.0F);
    std::fill_n(max, states, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, states, 0.0F);
    queue.executor().parallel_for(rows, [&](std::size_t row) {
        for (std::size_t head = 0; head < std::size_t(model_.kv_heads); ++head) {
            const std::size_t from = ((std::size_t(group.first_row) + row) * std::size_t(model_.q_heads) + head * heads_per_group) * d;
            kernels_.to_float(config_.dtype, static_cast<const std::byte*>(args.q.data) + from * size_of(config_.dtype), heads_per_group * d, scale,
                              q_scaled_.data() + (head * rows + row) * heads_per_group * d);
        }
    });
    const std::int32_t wave = kWaveTokens / config_.block_tokens;
    const std::int32_t blocks = blocks_at(group.end() - 1);
    const std::int32_t tile_blocks = kPrefillTileTokens / config_.block_tokens;
    const TokenIndex first_token = args.window > 0 ? std::max<TokenIndex>(0, group.begin + 1 - args.window) : 0;
    const auto first = static_cast<std::int32_t>(first_token / config_.block_tokens) / tile_blocks * tile_blocks;
    for (std::int32_t block = first; block < blocks; block += wave) {
        prefill_wave(queue, group, layer, args.window, block, std::min(blocks, block + wave), journal);
    }
    queue.executor().parallel_for(std::size_t(model_.kv_heads) * rows, [&](std::size_t task) {
        const std::size_t head = task / rows;
        const std::size_t row = task % rows;
        const std::size_t at = task * heads_per_group;
        float lse[kMaxGroup];
        finish_prefill(1, model_.group(), model_.head_dim, max + at, sum + at, out + at * d, lse);
        write_row(args, group.first_row + static_cast<std::int64_t>(row), static_cast<std::int32_t>(head), out + at * d, lse);
    });
}

/// Finds or brings the bytes of blocks [first, last).
template <class Policies>
void Pipeline<Policies>::bring_wave(Queue queue, const StepGroup& group, LayerId layer, std::int32_t first, std::int32_t last, Journal& journal)
{
    const Sequence& sequence = *group.sequence;
    const auto count = std::size_t(last - first);
    const auto sets = std::size_t(shape_.sets);
    failed_.assign(count * sets, 0);
    queue.executor().parallel_for(count * sets, [&](std::size_t task) {
        const auto block = first + static_cast<std::int32_t>(task / sets);
        const auto set = static_cast<std::int32_t>(task % sets);
        const BlockId id = sequence.blocks[std::size_t(block)];
        const bool has_native = pool_.blocks()[id].native != nullptr;
        const bool coded_read = block < shape_.first_native_block(group.end() - 1); // by the chunk's last row at least
        for (std::int32_t i = 0; i < shape_.heads_per_set; ++i) {
            const std::int32_t head = set * shape_.heads_per_set + i;
            PrefillBlock& entry = wave_blocks_[std::size_t(head) * count + task / sets];
            entry = {has_native ? pool_.native(id, layer, head) : nullptr, nullptr};
            if (!coded_read || (has_native && config_.block_code == BlockCode::kNative)) { continue; }
            std::byte* staging = wave_.data() + task * shape_.unit_bytes;
            const std::byte* coded = staging + std::size_t(i) * shape_.head_block.coded_bytes(); // the unit is there after its first head
            if (i == 0) {
                const std::int64_t key = unit_of(sequence, layer, set, block);
                const SlotId slot = pool_.slots().slot_of(key);
                if (slot != SlotId::kNone && pool_.slots().landed(slot)) {
                    std::memcpy(staging, pool_.slots().data(slot), shape_.unit_bytes);
                } else {
                    failed_[task] = pool_.blocks().store().read({id, layer, set, staging}) ? 2 : 1;
                }
            }
            (config_.block_code == BlockCode::kNative ? entry.native : entry.coded) = coded;
        }
    });
    for (std::size_t task = 0; task < count * sets; ++task) {
        if (failed_[task] == 1) {
            const BlockId id = sequence.blocks[std::size_t(first) + task / sets];
            journal.lost.emplace_back(sequence.id, id);
            throw StoreError(oasis::detail::text("slow tier: read of block ", raw(id), " layer ", layer, " set ", task % sets, " of sequence ", raw(sequence.id), " (",
                                          shape_.unit_bytes, " bytes) failed"));
        }
        if (failed_[task] == 2) { journal.counters.streamed_bytes += shape_.unit_bytes; }
    }
}

/// Blocks [first, last) for all rows of the chunk: tasks of (KV head, some rows) read what `bring_wave` found.
template <class Policies>
void Pipeline<Policies>::prefill_wave(Queue queue, const StepGroup& group, LayerId layer, std::int32_t window, std::int32_t first, std::int32_t last,
                                      Journal& journal)
{
    bring_wave(queue, group, layer, first, last, journal);
    const auto count = std::size_t(last - first);
    const std::int32_t rows = group.rows.rows();
    const auto group_heads = std::size_t(model_.group());
    const auto d = std::size_t(model_.head_dim);
    const std::size_t states = std::size_t(model_.q_heads) * std::size_t(rows);
    const auto tiles = std::size_t((rows + kPrefillTileRows - 1) / kPrefillTileRows);
    queue.executor().parallel_for(std::size_t(model_.kv_heads) * tiles, [&](std::size_t task) {
        thread_local std::vector<float> scratch;
        scratch.resize(prefill_scratch_floats(format_, model_.group()));
        const std::size_t head = task / tiles;
        const auto row = static_cast<std::int32_t>(task % tiles) * kPrefillTileRows;
        const std::int32_t tile_rows = std::min(kPrefillTileRows, rows - row);
        const TokenIndex last_position = group.begin + row + tile_rows - 1;
        if (last_position < TokenIndex{first} * config_.block_tokens) { return; }
        const std::size_t at = (head * std::size_t(rows) + std::size_t(row)) * group_heads;
        const auto visible = std::min<std::size_t>(count, std::size_t(blocks_at(last_position) - first));
        kernels_.prefill({.format = format_,
                          .q = q_scaled_.data() + at * d,
                          .rows = tile_rows,
                          .group = model_.group(),
                          .first_position = group.begin + row,
                          .first_block = first,
                          .recent = config_.budgets.recent,
                          .window = window,
                          .blocks = {wave_blocks_.data() + head * count, visible},
                          .out = state_.data() + at * d,
                          .max = state_.data() + states * d + at,
                          .sum = state_.data() + states * (d + 1) + at,
                          .scratch = scratch.data()});
    });
}

} // namespace oasis::cpu
