// SPDX-License-Identifier: Apache-2.0
//
// Sparse decode attention on CUDA: each (sequence, KV head) has a list of head-blocks in device memory, each row of the
// sequence reads those that carry its bit, and K and V of the list are read once for all rows. One kernel node with a fixed
// grid; counts come from device memory, so a launch can be captured in a CUDA graph and replayed for other lists.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/types.hpp>
#include <oasis/cuda/queue.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace oasis::cuda {

/// A head-block in a list. A row's blocks come in ascending order and once each; forms may mix.
struct alignas(16) AttendBlock {
    static constexpr std::uint8_t kNativeForm = 1; ///< native elements at `AttendParams::native`, whatever the cache's code
    static constexpr std::uint8_t kLate = 2;       ///< on its way: left to the launch of `AttendPhase::kLate`

    std::int64_t offset = 0; ///< bytes from `AttendParams::slots` (or `native`); a multiple of 16
    std::int32_t block = 0;  ///< position in the sequence: the first token is block * block_tokens
    std::uint8_t rows = 1;   ///< bit r: row r of the sequence reads the block; not looked at with one row
    std::uint8_t flags = 0;
    std::uint16_t reserved = 0;
};

/// A set with late blocks takes two launches with the same lists and workspace: kReady reduces the chunks whose blocks are all
/// there and writes no output, kLate the others, and finishes. The result has the bits of one launch of kAll.
enum class AttendPhase : std::uint8_t { kAll, kReady, kLate };

/// What a launch reads and writes: device pointers. A sequence without rows, or a list without blocks, is padding: zeros and
/// -inf for its rows, and no block is touched.
struct AttendParams {
    const void* q = nullptr;                     ///< [rows, q_heads, head_dim], 16-byte aligned
    const AttendBlock* blocks = nullptr;         ///< [sequences, kv_heads, max_blocks]
    const std::int32_t* block_counts = nullptr;  ///< [sequences, kv_heads]; what exceeds max_blocks is cut
    const std::int32_t* row_starts = nullptr;    ///< [sequences + 1]: rows [starts[s], starts[s + 1]) are those of s
    const TokenIndex* first_positions = nullptr; ///< [sequences]: row r of s sits at first + r and sees tokens up to there
    const std::byte* slots = nullptr;            ///< head-blocks in the cache's code
    const std::byte* native = nullptr;           ///< head-blocks of the recent window; may be null without kNativeForm
    void* out = nullptr;                         ///< [rows, q_heads, head_dim], 16-byte aligned
    float* lse = nullptr;                        ///< [rows, q_heads] natural-log sum of exponentials, or null
    std::byte* workspace = nullptr;              ///< `AttendPlan::workspace_bytes`, 256-byte aligned, prepared once
    std::int32_t sequences = 0;                  ///< at most max_sequences
    DType out_dtype = DType::kF32;               ///< f32, or that of q
    float scale = 0.0F;                          ///< 0: 1 / sqrt(head_dim)
    std::int32_t window = 0;                     ///< tokens of a sliding-window layer; 0: none
    AttendPhase phase = AttendPhase::kAll;
};

struct AttendConfig {
    DType dtype = DType::kBF16; ///< of q and of native head-blocks
    BlockCode code = BlockCode::kNative;
    std::int32_t head_dim = 128;
    std::int32_t q_heads = 0; ///< 1 to 16 times kv_heads
    std::int32_t kv_heads = 0;
    std::int32_t block_tokens = 16;
    std::int32_t max_sequences = 0;
    std::int32_t max_rows = 1;   ///< of one sequence, 1 to 8
    std::int32_t max_blocks = 0; ///< room of a list
    // Speed alone; 0: chosen from the shape and the device.
    std::int32_t ring_depth = 0; ///< stages of K and V in shared memory, 1 to 8
    std::int32_t ctas_per_sm = 0;
};

/// Kernel, grid and workspace for a shape: computed once, on the device that is current then.
class AttendPlan {
public:
    /// Throws `Unsupported` with the list of what is supported, and `InvalidArgument` for numbers out of range.
    explicit AttendPlan(const AttendConfig& config);

    const AttendConfig& config() const noexcept { return config_; }
    std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
    /// Zeroes the counters of a new workspace. Launches leave them zero; one that failed on the device does not.
    void enqueue_prepare(Queue queue, std::byte* workspace) const;
    void enqueue(Queue queue, const AttendParams& params) const;

private:
    AttendConfig config_;
    const void* kernel_ = nullptr;
    std::int32_t tiles_ = 1; ///< of the queries of a (sequence, KV head)
    std::size_t shared_bytes_ = 0;
    std::uint32_t grid_ = 0;
    std::size_t states_offset_ = 0;
    std::size_t sums_offset_ = 0;
    std::size_t workspace_bytes_ = 0;
};

/// "f16 and bf16, head_dim 64, 80, ...": what `AttendPlan` accepts.
std::string supported_attention();

} // namespace oasis::cuda
