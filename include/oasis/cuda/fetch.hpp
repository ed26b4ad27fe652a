// SPDX-License-Identifier: Apache-2.0
//
// Fetch and write-through: small scattered pieces between slots and the large tier (mapped pinned host memory, or a peer's
// memory), moved by a bounded grid that takes its plan, its count and the slots' generations from device memory. Nothing is
// decided on the host, so both can be captured in a graph.
#pragma once

#include <oasis/cuda/queue.hpp>

#include <cstddef>
#include <cstdint>

namespace oasis::cuda {

/// One unit (a coded head-block, or all heads of a block in layer scope) between a place of the large tier and a slot.
struct TransferPiece {
    std::uint64_t place = 0; ///< byte offset in the large tier
    std::int32_t slot = -1;
    std::uint32_t generation = 0; ///< of the slot when the plan was made
    std::int32_t layer = 0;
    std::int32_t reserved = 0;
};
static_assert(sizeof(TransferPiece) == 24);

/// What became of pieces since the counters were zeroed.
struct TransferCounters {
    std::uint32_t done = 0;
    std::uint32_t stale = 0;   ///< the slot had another generation: not copied, or copied and not marked
    std::uint32_t refused = 0; ///< place, slot or layer out of range: nothing was touched
    std::uint32_t reserved = 0;
};

/// Scratch of launches that do not overlap: zero at first, and zero again after each.
struct TransferTicket {
    std::uint32_t next = 0;
    std::uint32_t left = 0;
};

/// All pointers but `tier` are device memory. Pieces are taken in order, so put the layer that is needed first in front.
///
/// A slot's generation is whose bytes belong there. A piece whose generation is not the slot's is never marked, and since the mark
/// *is* the generation, one that goes stale in the last moment is not mistaken for another's. A slot must not be given away
/// while a piece into it may still be copied.
struct TransferParams {
    std::byte* tier = nullptr; ///< large tier; fetch reads it, write-through writes it
    std::uint64_t tier_bytes = 0;
    std::byte* slots = nullptr; ///< slot s at s * slot_stride
    std::uint64_t slot_stride = 0;
    std::int32_t slot_count = 0;
    std::uint32_t unit_bytes = 0; ///< of a piece: a multiple of 16
    const TransferPiece* pieces = nullptr;
    const std::int32_t* count = nullptr;
    std::int32_t first = 0; ///< this launch takes pieces [first, min(*count, first + most))
    std::int32_t most = 0;
    const std::uint32_t* generation = nullptr; ///< [slot_count]
    std::uint32_t* marks = nullptr;      ///< [slot_count] generation that is complete: in the slot (fetch), in the tier (write-through)
    std::uint32_t* layer_over = nullptr; ///< [layers] pieces of the layer that are over, done or not; released after their marks
    std::int32_t layers = 0;
    TransferCounters* counters = nullptr;
    TransferTicket* ticket = nullptr;
};

/// The grid is bounded, whatever the plan's length: the rest of the device belongs to the decoding.
struct TransferGrid {
    int ctas = 8;
    int threads = 512; ///< a multiple of 32, at most 1,024; a warp moves one piece at a time
};

/// Places to slots. Sources must be sealed: nobody may write them meanwhile. Throws `InvalidArgument` for units that are not whole
/// 16-byte words.
void enqueue_fetch(Queue queue, const TransferParams& params, TransferGrid grid = {});

/// Slots to places; `marks` then say which slots the tier holds a copy of. Visible to the host once the queue's work is over.
void enqueue_write_through(Queue queue, const TransferParams& params, TransferGrid grid = {});

/// Puts a wait on the queue until `over[layer]` has reached `expected[layer]` (both device memory) or `deadline_ns` have passed; then
/// `*late`, if given, is set to 1. For transfers that were enqueued before on another queue: the wait holds one warp.
struct LayerWait {
    const std::uint32_t* over = nullptr;
    const std::uint32_t* expected = nullptr;
    std::int32_t layer = 0;
    std::uint64_t deadline_ns = 1'000'000'000;
    std::uint32_t* late = nullptr;
};
void enqueue_wait_layer(Queue queue, const LayerWait& wait);

} // namespace oasis::cuda
