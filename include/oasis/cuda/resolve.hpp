// SPDX-License-Identifier: Apache-2.0
//
// Resolve on the device: from the must and may sets of a step's rows to what each row reads, what has to be copied and into which
// slots, and the logical sets after each row. One kernel for a layer, one CTA for each (sequence, KV head); nothing is decided on
// the host, so it can be captured in a graph. docs/design/cuda-resolve.md has the rules.
#pragma once

#include <oasis/core/types.hpp>
#include <oasis/cuda/attend.hpp>
#include <oasis/cuda/fetch.hpp>
#include <oasis/cuda/queue.hpp>

#include <cstddef>
#include <cstdint>

namespace oasis::cuda {

/// A slot that belongs to a unit, and the position of the block whose bytes are, or will be, in it; -1: of none.
struct OwnedSlot {
    std::int32_t slot = -1;
    std::int32_t block = -1;
};

/// A block of a logical set, and 1 + the position of the row that last read it.
struct LogicalMember {
    std::int32_t block = -1;
    std::int32_t stamp = 0;
};

/// What the device knows of residency, for every unit: (cell, layer, KV head), where a cell is a place for a sequence. Device
/// pointers; the view is passed by value. At first `marks` equal `generation`, and every cell is cleared.
struct ResidencyRef {
    /// [cells, layers, kv_heads, owned_slots] last used first, empty slots after them, entries without a slot last
    OwnedSlot* owned = nullptr;
    /// [cells, layers, kv_heads] so many slots in front were expected to be read in this step
    std::int32_t* guarded = nullptr;
    /// [cells, layers, kv_heads, max_rows + 1, logical_blocks] sets before the last step and after each of its rows, last read first
    LogicalMember* members = nullptr;
    /// [cells, layers, kv_heads, max_rows + 1]; -1: no sparse row yet
    std::int32_t* member_counts = nullptr;
    std::uint32_t* generation = nullptr;  ///< [slots] as in `TransferParams`
    const std::uint32_t* marks = nullptr; ///< [slots] as in `TransferParams`: the generation, once the slot's bytes are there
    std::int32_t layers = 0;
    std::int32_t kv_heads = 0;
    std::int32_t owned_slots = 0;    ///< up to `kMaxOwnedSlots`
    std::int32_t logical_blocks = 0; ///< capacity of a logical set
    std::int32_t max_rows = 1;       ///< of a sequence's step, up to 8
};

/// What is to be copied, for `enqueue_fetch`.
struct ResolvePlan {
    TransferPiece* pieces = nullptr;
    std::int32_t* count = nullptr;
    std::int32_t capacity = 0; ///< of `pieces`, at least `resolve_pieces`
    std::uint32_t* expected =
        nullptr; ///< [2, layers] pieces planned so far, before this launch and with it, for `enqueue_wait_layer`; may be null
};

/// Blocks, summed over launches.
struct ResolveCounters {
    std::uint64_t read = 0;     ///< entries of the lists
    std::uint64_t fetched = 0;  ///< pieces that verify rows need
    std::uint64_t late = 0;     ///< needed, and on their way since an earlier step
    std::uint64_t guessed = 0;  ///< pieces for the next step
    std::uint64_t unserved = 0; ///< needed, and no slot could be given away: the cell has too few, and rows were computed without them
};

/// Scratch of launches that do not overlap: zero at first, and zero again after each.
struct ResolveTicket {
    std::uint32_t demand = 0;
    std::uint32_t guess = 0;
    std::uint32_t left = 0;
    std::uint32_t reserved = 0;
};

/// One layer of a step. Device pointers. Rows of a sequence: `verify_rows` of them first, then lookahead rows.
struct ResolveParams {
    ResidencyRef residency{};
    // What `enqueue_select` wrote.
    const std::int32_t* must = nullptr; ///< [rows, kv_heads, must_blocks], -1 where there is none
    const std::int32_t* may = nullptr;  ///< [rows, kv_heads, may_blocks]
    /// [sequences, kv_heads, logical_blocks] what a sequence's first sparse row ranks best, then -1; null: its must and may sets
    const std::int32_t* ranked = nullptr;
    std::int32_t must_blocks = 0;
    std::int32_t may_blocks = 0;
    // The step.
    const std::int32_t* row_starts = nullptr;  ///< [sequences + 1], as in `AttendParams`
    const std::int32_t* verify_rows = nullptr; ///< [sequences]
    const TokenIndex* position = nullptr;      ///< [rows], as in `SelectParams`
    const std::int32_t* cells = nullptr;       ///< [sequences]; -1: padding
    const std::int32_t* accepted = nullptr;    ///< [cells] verify rows of the cell's last step that stand
    std::int32_t sequences = 0;
    LayerId layer = 0;
    // Where blocks are.
    const std::int32_t* tier_blocks = nullptr;  ///< [sequences, max_blocks] place of the block in the large tier, in blocks
    const std::int64_t* native_cells = nullptr; ///< [sequences, native_ring] byte offset of the native cell of block b at b mod native_ring
    std::int64_t tier_block_bytes = 0;          ///< all layers and heads of a block
    std::int64_t unit_bytes = 0; ///< of a coded head-block in the tier: (layer, head) at (layer * kv_heads + head) * unit_bytes
    std::int64_t slot_stride = 0;
    std::int64_t native_unit_bytes = 0;
    std::int32_t native_ring = 0;
    std::int32_t max_blocks = 0; ///< of a sequence
    std::int32_t block_tokens = 0;
    std::int32_t recent = 0;       ///< tokens, as in `Budgets`
    std::int32_t dense_below = 0;  ///< tokens, at most the may budget: such rows read all that is selected and leave the set alone
    std::int32_t prefetch_cap = 0; ///< blocks kept for the next step
    bool may_rule_none = false;    ///< read must sets only
    // Results.
    AttendBlock* blocks = nullptr;        ///< [sequences, kv_heads, list_blocks]
    std::int32_t* block_counts = nullptr; ///< [sequences, kv_heads]
    std::int32_t list_blocks = 0;         ///< at least max_rows * may_blocks
    ResolvePlan demand{};
    ResolvePlan guess{};                 ///< not looked at when prefetch_cap is 0
    ResolveCounters* counters = nullptr; ///< may be null
    ResolveTicket* ticket = nullptr;
};

inline constexpr std::int32_t kMaxResolveRows = 8;
inline constexpr std::int32_t kMaxResolveBlocks = 65536;
inline constexpr std::int32_t kMaxOwnedSlots = 2048;

/// Slots with which a unit can always serve its rows: its logical set, the rows' must sets, the guesses.
constexpr std::int32_t resolve_slots(std::int32_t logical_blocks, std::int32_t rows, std::int32_t must_blocks, std::int32_t prefetch_cap)
{
    return logical_blocks + rows * must_blocks + prefetch_cap;
}

/// The most pieces that one launch plans for verify rows; for guesses it is sequences * kv_heads * prefetch_cap.
constexpr std::int64_t resolve_pieces(const ResolveParams& p)
{
    return std::int64_t{p.sequences} * p.residency.kv_heads *
           resolve_slots(p.residency.logical_blocks, p.residency.max_rows, p.must_blocks, 0);
}

/// Throws `InvalidArgument` with the numbers that do not fit together, and `Unsupported` for more shared memory than a CTA has.
void enqueue_resolve(Queue queue, const ResolveParams& params);

/// Makes a cell ready for another sequence: its slots are empty, its logical sets not filled. `accepted` is the caller's to zero.
void enqueue_clear_cell(Queue queue, const ResidencyRef& residency, std::int32_t cell);

} // namespace oasis::cuda
