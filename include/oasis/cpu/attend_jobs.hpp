// SPDX-License-Identifier: Apache-2.0
//
// What the attention kernels of the CPU backend are asked to do: plain structs that point at the caller's memory.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis::cpu {

/// How head-blocks look: K then V, contiguous, see pool/head_block.hpp.
struct BlockFormat {
    DType dtype = DType::kF32;           ///< of the native form
    BlockCode code = BlockCode::kNative; ///< of the coded form
    std::int32_t block_tokens = 16;      ///< 16, 32 or 64
    std::int32_t head_dim = 64;          ///< channels
};

/// A head-block that one row reads: tokens [begin, end) of it.
struct BlockRef {
    const std::byte* data = nullptr; ///< the head-block, in fast memory
    std::int16_t begin = 0;          ///< first token that is read
    std::int16_t end = 0;            ///< one after the last
    bool coded = false;              ///< `code` form; false: native
};

} // namespace oasis::cpu

namespace oasis {

/// What `enqueue_select` gives an engine with its own attention: for each (row, KV head) of the step the blocks to read, ascending by position.
/// The views and what they point at stay valid until the next layer, commit or the step's end.
struct SelectedSlots {
    std::span<const cpu::BlockRef> blocks{};      ///< all lists, one after another
    std::span<const std::int32_t> positions{};    ///< block positions, parallel to `blocks`
    std::span<const std::int64_t> starts{};       ///< [rows * kv_heads + 1]: list i is [starts[i], starts[i + 1])
};

} // namespace oasis

namespace oasis::cpu {

/// A part of one (row, KV head): at most `kChunkTokens` tokens of its set, in position order.
struct AttendChunk {
    BlockFormat format; ///< of the blocks
    const float* q = nullptr; ///< [group, head_dim], already multiplied by the scale
    std::int32_t group = 1; ///< query heads of the KV head
    std::span<const BlockRef> blocks{}; ///< in position order
    float* out = nullptr; ///< [group, head_dim] softmax-weighted mean of V; zeros for an empty set
    float* lse = nullptr; ///< [group] natural log; -inf for an empty set
};

/// The tokens a chunk holds at most; a row's set is cut into chunks of this many tokens' worth of blocks, counted
/// along the set.
inline constexpr std::int32_t kChunkTokens = 256;

/// One block as prefill reads it: rows old enough to see it in coded form use `coded`, the others `native`.
/// With BlockCode::kNative only `native` is set, whatever tier the bytes come from.
struct PrefillBlock {
    const std::byte* native = nullptr; ///< null where no row reads it
    const std::byte* coded = nullptr;  ///< the same
};

/// Consecutive rows of one sequence and KV head against consecutive blocks. Row r sits at position first_position + r
/// and sees tokens <= its position (and, with a window, > position - window). Called with successive waves of blocks,
/// lowest first; the running state is carried in out/max/sum. A block j is read in coded form by row p exactly if (j
/// + 1) * block_tokens - 1 <= p - recent. Results do not depend on how rows are grouped into jobs, nor on how blocks
/// are cut into waves of whole key tiles.
struct PrefillJob {
    BlockFormat format; ///< of the blocks
    const float* q = nullptr; ///< [rows, group, head_dim], already scaled
    std::int32_t rows = 0; ///< consecutive ones
    std::int32_t group = 1; ///< query heads of the KV head
    TokenIndex first_position = 0; ///< of row 0
    std::int32_t first_block = 0; ///< block position of blocks[0]; a multiple of kPrefillTileTokens / block_tokens
    std::int32_t recent = 128;              ///< tokens of the native window
    std::int32_t window = 0;                ///< tokens of a sliding-window layer; 0: none
    std::span<const PrefillBlock> blocks{}; ///< consecutive ones
    float* out = nullptr;     ///< [rows, group, head_dim] running, unnormalised; zero before the first wave
    float* max = nullptr;     ///< [rows, group] running maximum; -inf before the first wave
    float* sum = nullptr;     ///< [rows, group] running sum; zero before the first wave
    float* scratch = nullptr; ///< prefill_scratch_floats() floats, one per thread
};

inline constexpr std::int32_t kPrefillTileTokens = 64; ///< keys a prefill tile reduces together, aligned to position 0
inline constexpr std::int32_t kPrefillTileRows = 32;   ///< rows a job should hold for speed

/// Exact log masses of blocks, for study: out[h * blocks + i] = log sum over the block's tokens of exp(q_h . k).
struct MassJob {
    BlockFormat format; ///< of the blocks
    const float* q = nullptr; ///< [group, head_dim], already scaled
    std::int32_t group = 1; ///< query heads of the KV head
    std::span<const BlockRef> blocks{}; ///< in position order
    float* log_mass = nullptr; ///< [group, blocks]; -inf for an empty block
};

} // namespace oasis::cpu
