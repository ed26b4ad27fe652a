// SPDX-License-Identifier: Apache-2.0
//
// Pipeline: rows enter (append), blocks and groups that leave the recent window are coded (seal), forms come back (reopen).
#pragma once

#include <oasis/cpu/pipeline.hpp>

namespace oasis::cpu {

template <class Policies>
void Pipeline<Policies>::append(Queue queue, const StepGroup& group, LayerId layer, const AttendArgs& args)
{
    const SpanGuard span(sink_, Stage::kAppend, layer);
    const std::size_t row_bytes = std::size_t(model_.head_dim) * size_of(config_.dtype);
    queue.executor().parallel_for(std::size_t(model_.kv_heads), [&](std::size_t task) {
        const auto head = static_cast<std::int32_t>(task);
        for (std::int32_t i = 0; i < group.rows.rows(); ++i) {
            const TokenIndex position = group.begin + i;
            std::byte* block = pool_.native(group.sequence->blocks[std::size_t(position / config_.block_tokens)], layer, head);
            const std::size_t at = std::size_t(position % config_.block_tokens) * row_bytes;
            const std::size_t from = (std::size_t(group.first_row + i) * std::size_t(model_.kv_heads) + task) * row_bytes;
            std::memcpy(block + at, static_cast<const std::byte*>(args.k.data) + from, row_bytes);
            std::memcpy(block + shape_.head_block.native_v_offset() + at, static_cast<const std::byte*>(args.v.data) + from, row_bytes);
        }
        if (shape_.summary.planes > 0) { summarise_head(group, layer, head); }
    });
}

/// Summaries of the sub-blocks that are now complete, and the tails of decode rows that end inside one.
template <class Policies>
void Pipeline<Policies>::summarise_head(const StepGroup& group, LayerId layer, std::int32_t head)
{
    const std::int32_t tokens = config_.summary.tokens;
    const std::int32_t d = model_.head_dim;
    float* keys = keys_.data() + std::size_t(head) * std::size_t(config_.block_tokens) * std::size_t(d);
    const auto load = [&](TokenIndex begin, std::int32_t count) {
        const std::byte* block = pool_.native(group.sequence->blocks[std::size_t(begin / config_.block_tokens)], layer, head);
        const std::size_t at = std::size_t(begin % config_.block_tokens) * std::size_t(d) * size_of(config_.dtype);
        kernels_.to_float(config_.dtype, block + at, std::size_t(count) * std::size_t(d), 1.0F, keys);
        return KeyRows{keys, count, d, d};
    };
    for (TokenIndex s = group.begin / tokens; (s + 1) * tokens <= group.end(); ++s) {
        const GroupId id = group.sequence->groups[std::size_t(s / SummaryLayout::kGroupSubBlocks)];
        scorer_.write_sub_block(pool_.native_group(id, layer, head), static_cast<std::int32_t>(s % SummaryLayout::kGroupSubBlocks), load(s * tokens, tokens));
    }
    if (group.is_prefill()) { return; }
    for (std::int32_t i = 0; i < group.rows.rows(); ++i) {
        const TokenIndex position = group.begin + i;
        const auto partial = static_cast<std::int32_t>((position + 1) % tokens);
        if (partial == 0) { continue; }
        std::byte* tail = tails_.data() + (std::size_t(head) * kDecodeRows + std::size_t(i)) * shape_.summary.tail_bytes();
        scorer_.write_tail(tail, load(position + 1 - partial, partial));
    }
}

/// Codes and writes through, for this layer, what no row after this step reads in native form any more. Blocks that hold uncommitted tokens of a
/// prefill chunk are coded too, because later rows of the chunk read them so; the commit says what of it stands.
template <class Policies>
void Pipeline<Policies>::seal(Queue queue, const StepGroup& group, LayerId layer, Journal& journal)
{
    Sequence& sequence = *group.sequence;
    const auto whole = static_cast<std::int32_t>(group.end() / config_.block_tokens);
    const std::int32_t end = std::min(whole, shape_.first_native_block(group.end()));
    const auto sets = std::size_t(shape_.sets);
    const auto batch = static_cast<std::int32_t>(kWaveTokens / config_.block_tokens);
    for (std::int32_t first = sequence.native_begin; first < end; first += batch) {
        const SpanGuard span(sink_, Stage::kSeal, layer);
        const auto count = std::size_t(std::min(batch, end - first));
        failed_.assign(count * sets, 0);
        for (std::size_t i = 0; i < count; ++i) { // a copy of what it held before it was opened again may be under way
            if (is_new(sequence.blocks[std::size_t(first) + i], layer)) { engine_.finish_block(sequence.blocks[std::size_t(first) + i]); }
        }
        collect(journal); // before a slot of what came meanwhile is emptied again
        queue.executor().parallel_for(count * sets, [&](std::size_t task) {
            const auto block = first + static_cast<std::int32_t>(task / sets);
            failed_[task] = !seal_unit(sequence, block, layer, static_cast<std::int32_t>(task % sets), staging_.data() + task * shape_.unit_bytes);
        });
        if (config_.block_code != BlockCode::kNative && shape_.summary.planes > 0) {
            // By head: blocks of one group write to the same cell.
            queue.executor().parallel_for(std::size_t(model_.kv_heads), [&](std::size_t head) {
                const std::size_t set = head / std::size_t(shape_.heads_per_set);
                const std::size_t at = head % std::size_t(shape_.heads_per_set) * shape_.head_block.coded_bytes();
                for (std::size_t i = 0; i < count; ++i) {
                    const std::byte* coded = staging_.data() + (i * sets + set) * shape_.unit_bytes + at;
                    summarise_sealed(sequence, first + static_cast<std::int32_t>(i), layer, static_cast<std::int32_t>(head), coded);
                }
            });
        }
        for (std::size_t task = 0; task < count * sets; ++task) {
            const auto block = first + static_cast<std::int32_t>(task / sets);
            const auto set = static_cast<std::int32_t>(task % sets);
            const BlockId id = sequence.blocks[std::size_t(block)];
            if (failed_[task]) {
                journal.event({EventKind::kRefused, EventReason::kStoreFailed, Tier::kSlow, id, layer, set, shape_.unit_bytes});
                throw StoreError(oasis::detail::text("slow tier: write of block ", raw(id), " layer ", layer, " set ", set, " of sequence ", raw(sequence.id), " (",
                                              shape_.unit_bytes, " bytes) failed"));
            }
            if (is_new(id, layer)) {
                journal.counters.sealed_bytes += shape_.unit_bytes;
                journal.event({EventKind::kStored, EventReason::kSeal, Tier::kSlow, id, layer, set, shape_.unit_bytes});
            }
            place_sealed(sequence, block, layer, set, staging_.data() + task * shape_.unit_bytes, journal);
        }
        for (std::size_t i = 0; i < count; ++i) { mark_coded(sequence.blocks[std::size_t(first) + i], layer); }
    }
    if (shape_.summary.planes == 0) { return; }
    const auto whole_groups = static_cast<std::int32_t>(group.end() / shape_.group_tokens());
    const std::int32_t end_group = std::min(whole_groups, shape_.first_native_group(group.end()));
    for (std::int32_t g = sequence.native_group_begin; g < end_group; ++g) {
        const GroupId id = sequence.groups[std::size_t(g)];
        if (pool_.groups()[id].closed) { continue; }
        queue.executor().parallel_for(std::size_t(model_.kv_heads), [&](std::size_t task) {
            const auto head = static_cast<std::int32_t>(task);
            const std::byte* from = pool_.groups()[id].sealed ? pool_.sealed_group(id, layer, head) : pool_.native_group(id, layer, head);
            scorer_.close_group(from, SummaryLayout::kGroupSubBlocks, pool_.coded_group(id, layer, head));
        });
    }
}

/// The coded bytes of one unit into `staging`, and into the slow tier unless they are there.
template <class Policies>
bool Pipeline<Policies>::seal_unit(const Sequence& sequence, std::int32_t block, LayerId layer, std::int32_t set, std::byte* staging)
{
    const BlockId id = sequence.blocks[std::size_t(block)];
    for (std::int32_t i = 0; i < shape_.heads_per_set; ++i) {
        const std::int32_t head = set * shape_.heads_per_set + i;
        std::byte* coded = staging + std::size_t(i) * shape_.head_block.coded_bytes();
        if (config_.block_code == BlockCode::kNative) {
            std::memcpy(coded, pool_.native(id, layer, head), shape_.head_block.native_bytes());
        } else {
            kernels_.encode_int8(format_, pool_.native(id, layer, head), config_.block_tokens, coded);
            std::memset(coded + shape_.head_block.int8_tag_offset(), 0, shape_.head_block.int8_bytes() - shape_.head_block.int8_tag_offset());
        }
    }
    return !is_new(id, layer) || pool_.blocks().store().write({id, layer, set, staging});
}

/// Summaries of the coded keys: what the group's coded form will be made from.
template <class Policies>
void Pipeline<Policies>::summarise_sealed(const Sequence& sequence, std::int32_t block, LayerId layer, std::int32_t head, const std::byte* coded)
{
    thread_local std::vector<std::byte> native;
    thread_local std::vector<float> keys;
    native.resize(shape_.head_block.native_bytes());
    keys.resize(shape_.head_block.elements());
    kernels_.decode_int8(format_, coded, native.data());
    kernels_.to_float(config_.dtype, native.data(), keys.size(), 1.0F, keys.data());
    const std::int32_t tokens = config_.summary.tokens;
    const std::int32_t per_block = config_.block_tokens / tokens;
    const GroupId id = sequence.groups[std::size_t(block / shape_.group_blocks)];
    if (pool_.groups()[id].closed) { return; }
    for (std::int32_t s = 0; s < per_block; ++s) {
        const KeyRows rows{keys.data() + std::size_t(s) * std::size_t(tokens) * std::size_t(model_.head_dim), tokens, model_.head_dim, model_.head_dim};
        scorer_.write_sub_block(pool_.sealed_group(id, layer, head), block % shape_.group_blocks * per_block + s, rows);
    }
}

/// A block that is logically resident when it leaves the window stays in fast memory: its coded bytes take a slot.
template <class Policies>
void Pipeline<Policies>::place_sealed(Sequence& sequence, std::int32_t block, LayerId layer, std::int32_t set, const std::byte* coded, Journal& journal)
{
    const std::int32_t unit = layer * shape_.sets + set;
    const std::int64_t key = unit_of(sequence, layer, set, block);
    if (!sequence.logical.filled(unit) && sequence.logical.size(unit) < shape_.dense_capacity(layer, sequence.logical_blocks, sequence.dense_below)) {
        sequence.logical.insert_dense(unit, block, pool_.logical_observer(sequence));
    }
    auto& slots = pool_.slots();
    if (!sequence.logical.contains(unit, block) || slots.slot_of(key) != SlotId::kNone) { return; }
    const auto slot = slots.try_acquire(key, now_);
    if (!slot) { return; } // fetched when it is needed
    std::memcpy(slots.data(*slot), coded, shape_.unit_bytes);
    slots.land(*slot, slots.generation(*slot));
    if (journal.wants_events) { pool_.drain_evictions(journal); }
    journal.event({EventKind::kPromoted, EventReason::kSeal, Tier::kFast, sequence.blocks[std::size_t(block)], layer, set, shape_.unit_bytes});
}

template <class Policies>
BlockId Pipeline<Policies>::reopen(Queue queue, Sequence& sequence, const Reopened& reopened)
{
    const auto heads = std::size_t(model_.kv_heads);
    const auto layers = std::size_t(model_.layers);
    std::mutex mutex;
    std::vector<BlockId> failed;
    const auto fail = [&](BlockId block) {
        const std::scoped_lock lock(mutex);
        failed.push_back(block);
    };
    queue.executor().parallel_for(reopened.blocks.size() * layers * heads, [&](std::size_t task) {
        const auto& entry = reopened.blocks[task / (layers * heads)];
        const auto layer = static_cast<LayerId>(task / heads % layers);
        const auto head = static_cast<std::int32_t>(task % heads);
        std::byte* to = entry.to + (std::size_t(layer) * heads + std::size_t(head)) * shape_.head_block.native_bytes();
        if (!read_native(entry.from, layer, head, to)) { fail(entry.from); }
    });
    if (shape_.summary.planes > 0) {
        queue.executor().parallel_for(reopened.groups.size() * layers * heads, [&](std::size_t task) {
            const std::int32_t g = reopened.groups[task / (layers * heads)];
            const BlockId unread = rebuild_group(sequence, g, static_cast<LayerId>(task / heads % layers), static_cast<std::int32_t>(task % heads), false);
            if (unread != BlockId::kNone) { fail(unread); }
        });
    }
    for (const std::int32_t g : reopened.close) { // one after another: native forms are large
        const GroupId id = sequence.groups[std::size_t(g)];
        pool_.groups().retain_native(id);
        queue.executor().parallel_for(shape_.summary.planes > 0 ? layers * heads : 0, [&](std::size_t task) {
            const BlockId unread = rebuild_group(sequence, g, static_cast<LayerId>(task / heads), static_cast<std::int32_t>(task % heads), true);
            if (unread != BlockId::kNone) { fail(unread); }
        });
        pool_.groups().release_native(id);
        if (failed.empty()) { pool_.close_group(sequence, g); }
    }
    if (failed.empty()) { return BlockId::kNone; }
    const auto at = [&](BlockId block) { return std::find(sequence.blocks.begin(), sequence.blocks.end(), block); };
    return *std::min_element(failed.begin(), failed.end(), [&](BlockId a, BlockId b) { return at(a) < at(b); });
}

/// The native form of a sealed head-block from its coded one, in a slot or in the slow tier. False, with `to` as it was, when neither delivers.
template <class Policies>
bool Pipeline<Policies>::read_native(BlockId block, LayerId layer, std::int32_t head, std::byte* to)
{
    const std::int32_t set = head / shape_.heads_per_set;
    const SlotId slot = pool_.slots().slot_of(pool_.slots().unit(layer, set, block));
    const std::byte* unit = nullptr;
    if (slot != SlotId::kNone && pool_.slots().landed(slot)) {
        unit = pool_.slots().data(slot);
    } else {
        thread_local std::vector<std::byte> staging;
        staging.resize(shape_.unit_bytes);
        if (!pool_.blocks().store().read({block, layer, set, staging.data()})) { return false; }
        unit = staging.data();
    }
    const std::byte* coded = unit + std::size_t(head % shape_.heads_per_set) * shape_.head_block.coded_bytes();
    if (config_.block_code == BlockCode::kNative) {
        std::memcpy(to, coded, shape_.head_block.native_bytes());
    } else {
        kernels_.decode_int8(format_, coded, to);
    }
    return true;
}

/// Native summaries of a group from the keys of its blocks, and the coded form if asked for. Returns the first block that could not be read.
template <class Policies>
BlockId Pipeline<Policies>::rebuild_group(const Sequence& sequence, std::int32_t g, LayerId layer, std::int32_t head, bool close)
{
    thread_local std::vector<std::byte> native;
    thread_local std::vector<float> keys;
    keys.resize(shape_.head_block.elements());
    native.resize(shape_.head_block.native_bytes());
    const GroupId id = sequence.groups[std::size_t(g)];
    const std::int32_t tokens = config_.summary.tokens;
    const std::int32_t d = model_.head_dim;
    const std::int32_t last = std::min(static_cast<std::int32_t>(sequence.blocks.size()), (g + 1) * shape_.group_blocks);
    BlockId unread = BlockId::kNone;
    for (std::int32_t block = g * shape_.group_blocks; block < last; ++block) {
        const BlockId block_id = sequence.blocks[std::size_t(block)];
        const std::byte* source = pool_.blocks()[block_id].native ? pool_.native(block_id, layer, head) : native.data();
        if (source == native.data() && !read_native(block_id, layer, head, native.data())) {
            unread = unread == BlockId::kNone ? block_id : unread;
            continue;
        }
        kernels_.to_float(config_.dtype, source, keys.size(), 1.0F, keys.data());
        const auto valid = static_cast<std::int32_t>(std::min<TokenIndex>(config_.block_tokens, sequence.length - TokenIndex{block} * config_.block_tokens));
        for (std::int32_t s = 0; (s + 1) * tokens <= valid; ++s) {
            const KeyRows rows{keys.data() + std::size_t(s) * std::size_t(tokens) * std::size_t(d), tokens, d, d};
            const std::int32_t index = block % shape_.group_blocks * (config_.block_tokens / tokens) + s;
            scorer_.write_sub_block(pool_.native_group(id, layer, head), index, rows);
            if (pool_.groups()[id].sealed) { scorer_.write_sub_block(pool_.sealed_group(id, layer, head), index, rows); }
        }
    }
    if (close && unread == BlockId::kNone) {
        const std::byte* from = pool_.groups()[id].sealed ? pool_.sealed_group(id, layer, head) : pool_.native_group(id, layer, head);
        scorer_.close_group(from, SummaryLayout::kGroupSubBlocks, pool_.coded_group(id, layer, head));
    }
    return unread;
}

} // namespace oasis::cpu
