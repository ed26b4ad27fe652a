// SPDX-License-Identifier: Apache-2.0
//
// The geometry of a prefill job: which rows see which tokens of which key tile, and in which form. No arithmetic on
// data.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/cpu/attend_jobs.hpp>
#include <oasis/pool/head_block.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace oasis::cpu::detail {

using oasis::detail::expects;

/// Tokens [begin, end) relative to the first token of a key tile.
struct TokenRange {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    constexpr bool empty() const noexcept { return begin >= end; }
    friend constexpr bool operator==(TokenRange, TokenRange) = default;
};

/// Consecutive rows that see a part of one key tile, all with the same blocks in coded form.
struct PrefillSpan {
    TokenIndex tile_begin = 0;     ///< position of the tile's first token
    std::int32_t first_block = 0;  ///< index into job.blocks of the tile's first block
    std::int32_t blocks = 0;       ///< of the tile
    std::int32_t coded_blocks = 0; ///< the first ones of them are read coded, the others native
    std::int32_t row_begin = 0;
    std::int32_t row_end = 0;
    TokenRange tokens{}; ///< union over the rows
};

inline void check_format(const BlockFormat& format, std::int32_t group)
{
    expects(format.head_dim >= 32 && format.head_dim <= 256 && format.head_dim % 16 == 0,
            "attention kernel: head_dim is ", format.head_dim, ", allowed are 32 to 256 in steps of 16");
    expects(format.block_tokens == 16 || format.block_tokens == 32 || format.block_tokens == 64,
            "attention kernel: block_tokens is ", format.block_tokens, ", allowed are 16, 32 and 64");
    expects(group >= 1, "attention kernel: group is ", group, ", it must be at least 1");
}

/// What row `row` sees of the span's tile.
inline TokenRange visible(const PrefillJob& job, std::int32_t row, TokenIndex tile_begin,
                          std::int32_t tile_tokens) noexcept
{
    const TokenIndex position = job.first_position + row - tile_begin;
    const TokenIndex end = std::min<TokenIndex>(position + 1, tile_tokens);
    const TokenIndex begin = job.window > 0 ? std::max<TokenIndex>(position - job.window + 1, 0) : 0;
    if (begin >= end) { return {}; }
    return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
}

/// Walks the spans of a job, tiles in ascending order.
class PrefillSpans {
public:
    explicit PrefillSpans(const PrefillJob& job) : job_(job), tile_blocks_(kPrefillTileTokens / job.format.block_tokens)
    {
        check_format(job.format, job.group);
        expects(job.rows >= 0 && job.first_position >= 0 && job.window >= 0 && job.recent >= 0, "prefill: rows ",
                job.rows, ", first_position ", job.first_position, ", window ", job.window, ", recent ", job.recent,
                ": none may be negative");
        expects(job.first_block >= 0 && job.first_block % tile_blocks_ == 0, "prefill: first_block is ",
                job.first_block, ", it must be a multiple of ", tile_blocks_);
    }

    bool next(PrefillSpan& span)
    {
        while (tile_ < static_cast<std::int32_t>(job_.blocks.size())) {
            span.first_block = tile_;
            span.blocks = std::min(tile_blocks_, static_cast<std::int32_t>(job_.blocks.size()) - tile_);
            span.tile_begin = TokenIndex{job_.format.block_tokens} * (job_.first_block + tile_);
            const std::int32_t tokens = span.blocks * job_.format.block_tokens;
            while (row_ < job_.rows && visible(job_, row_, span.tile_begin, tokens).empty()) { ++row_; }
            if (row_ < job_.rows) {
                take_rows(span, tokens);
                return true;
            }
            tile_ += tile_blocks_;
            row_ = 0;
        }
        return false;
    }

private:
    /// How many of the tile's blocks row `row` reads in coded form.
    std::int32_t coded_blocks(std::int32_t row, const PrefillSpan& span) const noexcept
    {
        if (job_.format.code == BlockCode::kNative) { return 0; }
        const TokenIndex tokens = job_.first_position + row - job_.recent + 1 - span.tile_begin;
        return static_cast<std::int32_t>(std::clamp<TokenIndex>(tokens / job_.format.block_tokens, 0, span.blocks));
    }

    void take_rows(PrefillSpan& span, std::int32_t tokens)
    {
        span.row_begin = row_;
        span.coded_blocks = coded_blocks(row_, span);
        span.tokens = visible(job_, row_, span.tile_begin, tokens);
        for (++row_; row_ < job_.rows && coded_blocks(row_, span) == span.coded_blocks; ++row_) {
            const TokenRange range = visible(job_, row_, span.tile_begin, tokens);
            if (range.empty()) { break; }
            span.tokens.end = range.end;
        }
        span.row_end = row_;
    }

    const PrefillJob& job_;
    std::int32_t tile_blocks_;
    std::int32_t tile_ = 0;
    std::int32_t row_ = 0;
};

/// The bytes of block `i` of the span in the form its rows read.
inline BlockRef block_of(const PrefillJob& job, const PrefillSpan& span, std::int32_t i)
{
    const PrefillBlock& block = job.blocks[static_cast<std::size_t>(span.first_block) + static_cast<std::size_t>(i)];
    const bool coded = i < span.coded_blocks;
    const std::int32_t size = job.format.block_tokens;
    const std::int32_t begin = std::clamp(span.tokens.begin - i * size, 0, size);
    const std::int32_t end = std::clamp(span.tokens.end - i * size, 0, size);
    const std::byte* data = coded ? block.coded : block.native;
    expects(data != nullptr || begin >= end, "prefill: block ", job.first_block + span.first_block + i,
            " is read by rows at ", job.first_position + span.row_begin, " to ", job.first_position + span.row_end - 1,
            " in its ", coded ? "coded" : "native", " form, which is null");
    return {data, static_cast<std::int16_t>(begin), static_cast<std::int16_t>(end), coded};
}

inline HeadBlockLayout layout_of(const BlockFormat& format, bool coded) noexcept
{
    return {format.dtype, coded ? BlockCode::kInt8 : BlockCode::kNative, format.block_tokens, format.head_dim};
}

} // namespace oasis::cpu::detail
