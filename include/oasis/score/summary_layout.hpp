// SPDX-License-Identifier: Apache-2.0
//
// Where the bytes of summaries lie. A summary group is 64 sub-blocks of one (layer, KV head), aligned to position 0, in
// one of two forms: native (f16, or f32 when the code is f32; written sub-block by sub-block) and coded (made once,
// when no row needs the native one).
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace oasis {

/// First 64 bytes of a group in either form. Bit s of a mask is sub-block s.
struct SummaryHeader {
    std::uint64_t poisoned = 0;  ///< a key was NaN or infinite: the log mass of the block is NaN
    std::uint64_t unbounded = 0; ///< upper bounds only: beyond what f16 holds, the log mass of the block is +inf
    f16 spread_scale{};          ///< coded form
    f16 spread_zero{};
    std::uint8_t reserved[44] = {};
};
static_assert(sizeof(SummaryHeader) == 64);

/// First 64 bytes of a row's tail; [planes, head_dim] floats follow, rounded as the native form rounds.
struct SummaryTail {
    float log_tokens = 0.0F;
    float spread = 0.0F;
    std::uint32_t poisoned = 0;
    std::uint32_t unbounded = 0;
    std::uint8_t reserved[48] = {};
};
static_assert(sizeof(SummaryTail) == 64);

/// The shape of a group and its offsets in bytes. Inside a group everything is channel-major, [plane][channel][64
/// slots], so that a kernel works on 64 sub-blocks at a time. Slots are ordered by (sub-block within its block, block
/// within the group): the reduction over the sub-blocks of a block is then vertical.
///
/// native: header | [planes][head_dim][64] f16 or f32 | [64] roots of the spread
/// coded:  header | [planes][head_dim] f16 scales | zeros | [64] uint8 spread | [planes][head_dim][64] codes
/// int4: byte i of a channel's 32 holds slot i low and slot i + 32 high. value = zero + scale * code.
struct SummaryLayout {
    SummaryOptions options{};
    std::int32_t planes = 0; ///< 1 or 2; 0: no summaries (the oracle)
    std::int32_t head_dim = 0;
    std::int32_t block_tokens = 0;
    bool spread = false;      ///< one more scalar per sub-block
    bool upper_bound = false; ///< the estimate is one: plane 0 is rounded up, plane 1 down; else to nearest

    static constexpr std::int32_t kGroupSubBlocks = 64;

    constexpr std::int32_t group_tokens() const noexcept { return kGroupSubBlocks * options.tokens; }
    constexpr std::int32_t sub_blocks_per_block() const noexcept { return block_tokens / options.tokens; }
    constexpr std::int32_t blocks_per_group() const noexcept { return kGroupSubBlocks / sub_blocks_per_block(); }
    constexpr std::int32_t channels() const noexcept { return planes * head_dim; }

    /// Slot of sub-block s of a group.
    constexpr std::int32_t slot(std::int32_t s) const noexcept
    {
        return s % sub_blocks_per_block() * blocks_per_group() + s / sub_blocks_per_block();
    }

    /// Whether the coded form is a copy of the native one.
    constexpr bool plain() const noexcept
    {
        return options.code == SummaryCode::kF32 || options.code == SummaryCode::kF16;
    }
    constexpr std::size_t native_element() const noexcept { return options.code == SummaryCode::kF32 ? 4 : 2; }
    constexpr std::size_t channel_bytes() const noexcept
    {
        return options.code == SummaryCode::kInt4 ? 32 : 64;
    } ///< of codes

    constexpr std::size_t native_channel_bytes() const noexcept { return native_element() * kGroupSubBlocks; }
    constexpr std::size_t native_spread_offset() const noexcept
    {
        return sizeof(SummaryHeader) + std::size_t(channels()) * native_channel_bytes();
    }
    constexpr std::size_t scales_offset() const noexcept { return sizeof(SummaryHeader); }
    constexpr std::size_t zeros_offset() const noexcept { return scales_offset() + 2 * std::size_t(channels()); }
    constexpr std::size_t coded_spread_offset() const noexcept { return zeros_offset() + 2 * std::size_t(channels()); }
    constexpr std::size_t codes_offset() const noexcept
    {
        return coded_spread_offset() + (spread ? std::size_t(kGroupSubBlocks) : 0);
    }

    /// Bytes of one (KV head, group); multiples of 128.
    constexpr std::size_t native_bytes() const noexcept
    {
        return planes == 0 ? 0 : padded(native_spread_offset() + (spread ? native_channel_bytes() : 0));
    }
    constexpr std::size_t coded_bytes() const noexcept
    {
        if (planes == 0 || plain()) { return native_bytes(); }
        return padded(codes_offset() + std::size_t(channels()) * channel_bytes());
    }
    /// Bytes of one row's tail, a multiple of 128.
    constexpr std::size_t tail_bytes() const noexcept
    {
        return planes == 0 ? 0 : padded(sizeof(SummaryTail) + std::size_t(channels()) * sizeof(float));
    }

private:
    static constexpr std::size_t padded(std::size_t n) noexcept { return (n + 127) / 128 * 128; }
};

/// Both forms of one group; the one that a row needs is not null.
struct SummaryGroupRef {
    const std::byte* native = nullptr;
    const std::byte* coded = nullptr;
};

} // namespace oasis
