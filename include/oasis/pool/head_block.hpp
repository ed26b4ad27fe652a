// SPDX-License-Identifier: Apache-2.0
//
// The layout of a head-block: K and V of one (layer, KV head, block), K first. The unit of residency and transfer.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace oasis {

/// Every part of the arena begins at a multiple of this.
inline constexpr std::size_t kStrideAlign = 128;

/// The next multiple.
constexpr std::size_t align_up(std::size_t n, std::size_t to = kStrideAlign) noexcept { return (n + to - 1) / to * to; }

/// Native form: [2][block_tokens][head_dim] elements, K then V, padded to 128 bytes.
/// int8 form: [2][block_tokens][head_dim] codes, then f16 scales [2][block_tokens] (K's, then V's), then a 64-byte tag, padded
/// to 128 bytes. 16 tokens of 128 channels: 4,096 + 64 + 64 = 4,224 bytes.
struct HeadBlockLayout {
    DType dtype = DType::kF32; ///< of the native form
    BlockCode code = BlockCode::kNative; ///< of the form in slots and in the slow tier
    std::int32_t block_tokens = 16; ///< 16, 32 or 64
    std::int32_t head_dim = 64; ///< channels

    constexpr std::size_t elements() const noexcept { return std::size_t(block_tokens) * std::size_t(head_dim); } ///< of K, or of V
    /// The native form: its bytes, and where V begins.
    ///@{
    constexpr std::size_t native_bytes() const noexcept { return align_up(2 * elements() * size_of(dtype)); }
    constexpr std::size_t native_v_offset() const noexcept { return elements() * size_of(dtype); }
    ///@}

    /// The int8 form: where the scales and the tag begin, and its bytes.
    ///@{
    constexpr std::size_t int8_scales_offset() const noexcept { return 2 * elements(); }
    constexpr std::size_t int8_tag_offset() const noexcept { return int8_scales_offset() + 4 * std::size_t(block_tokens); }
    constexpr std::size_t int8_bytes() const noexcept { return align_up(int8_tag_offset() + kTagBytes); }
    ///@}

    /// Bytes of the form that lives in slots and in the slow tier.
    constexpr std::size_t coded_bytes() const noexcept { return code == BlockCode::kNative ? native_bytes() : int8_bytes(); }

    /// Of the int8 form's tag.
    static constexpr std::size_t kTagBytes = 64;
};

static_assert(HeadBlockLayout{DType::kBF16, BlockCode::kInt8, 16, 128}.int8_bytes() == 4224);

} // namespace oasis
