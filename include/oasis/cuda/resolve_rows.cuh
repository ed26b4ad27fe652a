// SPDX-License-Identifier: Apache-2.0
//
// What rows read, and the logical sets after them: the first half of the kernel behind resolve.hpp.
//
// Sets of block positions are bitmaps in shared memory, so that union, difference and membership are words, and the rank of a block in
// an ascending list is a popcount. Sets with an order (a logical set, a unit's slots) are arrays with the last used first: a row is a
// stable partition, and victims are at the end. Code is kept small (loops are not unrolled): a launch meets a cold instruction cache,
// and runs each part once.
#pragma once

#include <oasis/cuda/resolve.hpp>
#include <oasis/cuda/resolve_bits.cuh>

#include <cstddef>
#include <cstdint>

namespace oasis::cuda::kernels::resolve {

/// Places in dynamic shared memory. Bitmaps have `words` words, a multiple of 4.
struct ResolveLayout {
    static constexpr std::uint32_t kBitmaps = 7 + 2 * kMaxResolveRows;
    std::uint32_t words;
    std::uint32_t owned;
    std::uint32_t logical;

    __host__ __device__ std::uint32_t bytes() const { return 4 * (kBitmaps * words + 4 * owned + 4 * logical); }
};

/// One CTA's work: a (sequence, KV head) of a layer. Every method is called by all threads, and ends with a barrier unless it says
/// otherwise.
class RowSets {
public:
    __device__ RowSets(const ResolveParams& p, ResolveLayout layout, std::uint32_t* shared, std::int32_t sequence, std::int32_t head)
        : p_(p),
          sequence_(sequence),
          head_(head),
          first_row_(p.row_starts[sequence]),
          rows_(min(p.row_starts[sequence + 1] - first_row_, p.residency.max_rows)),
          verify_(min(p.verify_rows[sequence], rows_)),
          max_words_(layout.words)
    {
        const std::int64_t cell = p.cells[sequence];
        unit_ = (cell * p.residency.layers + p.layer) * p.residency.kv_heads + head;
        accepted_ = p.accepted[cell];
        guarded_ = p.residency.guarded[unit_];
        first_position_ = std::int32_t(p.position[first_row_]);
        block_shift_ = __ffs(p.block_tokens) - 1;
        prefetch_inputs();
        std::uint32_t* at = shared;
        for (std::uint32_t** bitmap : {&held_, &set_, &has_, &landed_, &guess_, &needed_, &read_}) {
            *bitmap = at;
            at += max_words_;
        }
        bits_ = at;
        may_ = bits_ + kMaxResolveRows * max_words_;
        owned_ = reinterpret_cast<OwnedSlot*>(may_ + kMaxResolveRows * max_words_);
        state_ = reinterpret_cast<std::uint32_t*>(owned_ + layout.owned);
        missing_ = reinterpret_cast<std::int32_t*>(state_ + layout.owned);
        members_ = reinterpret_cast<LogicalMember*>(missing_ + layout.owned);
        next_members_ = members_ + layout.logical;
        strided(ResolveLayout::kBitmaps * max_words_ / 4, [&](std::int32_t i) { reinterpret_cast<uint4*>(shared)[i] = uint4{}; });
        words_ = min(max_words_, std::uint32_t(blocks_at(rows_ - 1) + 31) / 32);
        __syncthreads();
    }

protected:
    enum State : std::uint32_t { kFlying = 1, kNew = 2 };

    // Rows and blocks.
    __device__ std::int32_t blocks_at(std::int32_t row) const { return min(((first_position_ + row) >> block_shift_) + 1, p_.max_blocks); }
    /// Blocks from here on are read in native form by the row.
    __device__ std::int32_t first_native(std::int32_t row) const { return max(first_position_ + row + 1 - p_.recent, 0) >> block_shift_; }
    __device__ std::uint32_t* row_bits(std::int32_t row) const { return bits_ + std::uint32_t(row) * max_words_; }
    __device__ std::uint32_t* may_bits(std::int32_t row) const { return may_ + std::uint32_t(row) * max_words_; }

    template <class Do> __device__ void each_word(Do&& act) const
    {
        each(std::int32_t(words_), [&](std::int32_t w) { act(std::uint32_t(w)); });
    }
    template <class Do> __device__ void each_row(std::int32_t begin, std::int32_t end, Do&& act) const
    {
#pragma unroll 1
        for (std::int32_t row = begin; row < end; ++row) { act(row); }
    }
    __device__ const std::int32_t* selected(const std::int32_t* ids, std::int32_t stride, std::int32_t row) const
    {
        return ids + ((std::int64_t{first_row_} + row) * p_.residency.kv_heads + head_) * stride;
    }
    /// What select wrote: at first a row's bits are its must set. No barrier.
    __device__ void load_selected(const std::int32_t* ids, std::int32_t stride, std::uint32_t* bits) const
    {
        strided(rows_ * stride, [&](std::int32_t i) {
            const std::int32_t row = i / stride;
            const std::int32_t block = selected(ids, stride, row)[i % stride];
            if (block >= 0 && block < blocks_at(row)) { set_bit(bits + std::uint32_t(row) * max_words_, block); }
        });
    }
    /// Lines that the loads below need, all at once. No barrier.
    __device__ void prefetch_inputs() const
    {
        constexpr std::int32_t kLine = 128;
        const auto lines = [](const auto* from, std::int32_t n) {
            const auto* bytes = reinterpret_cast<const std::byte*>(from);
            strided((n * std::int32_t(sizeof(*from)) + kLine - 1) / kLine, [&](std::int32_t i) { prefetch_line(bytes + i * kLine); });
        };
        lines(p_.residency.owned + unit_ * p_.residency.owned_slots, p_.residency.owned_slots);
        lines(p_.residency.members + version(accepted_) * p_.residency.logical_blocks, p_.residency.logical_blocks);
        lines(p_.native_cells + std::int64_t{sequence_} * p_.native_ring, p_.native_ring);
        each_row(0, rows_, [&](std::int32_t row) {
            lines(selected(p_.must, p_.must_blocks, row), p_.must_blocks);
            lines(selected(p_.may, p_.may_blocks, row), p_.may_blocks);
        });
    }
    // The logical set.
    __device__ std::int64_t version(std::int32_t rows) const { return unit_ * (p_.residency.max_rows + 1) + rows; }
    /// Keeps the set for the rows that may stand. No barrier.
    __device__ void save(std::int32_t rows) const
    {
        LogicalMember* to = p_.residency.members + version(rows) * p_.residency.logical_blocks;
        strided(member_count_, [&](std::int32_t i) { to[i] = members_[i]; });
        if (threadIdx.x == 0) { p_.residency.member_counts[version(rows)] = filled_ ? member_count_ : -1; }
    }

    __device__ void load()
    {
        const std::int32_t saved = p_.residency.member_counts[version(accepted_)];
        const std::int32_t count = max(saved, 0);
        filled_ = saved >= 0;
        load_selected(p_.must, p_.must_blocks, bits_);
        load_selected(p_.may, p_.may_blocks, may_);
        const LogicalMember* from = p_.residency.members + version(accepted_) * p_.residency.logical_blocks;
        strided(count, [&](std::int32_t i) { next_members_[i] = from[i]; });
        strided(p_.residency.owned_slots, [&](std::int32_t i) {
            OwnedSlot own = p_.residency.owned[unit_ * p_.residency.owned_slots + i];
            if (own.block >= first_native(0)) { own.block = -1; } // coded for rows that did not stand
            const bool flying = own.slot >= 0 && p_.residency.marks[own.slot] != p_.residency.generation[own.slot];
            owned_[i] = own;
            state_[i] = flying ? kFlying : 0;
            if (own.slot >= 0 && own.block >= 0) { set_bit(has_, own.block); }
        });
        __syncthreads();
        // The sequence may have been cut: what does not exist yet is forgotten.
        const auto exists = [&](std::int32_t i) { return next_members_[i].block < blocks_at(0); };
        std::uint32_t kept = 0;
        each(count, [&](std::int32_t i) { kept += exists(i); });
        const Sum at = sum(kept);
        auto rank = std::uint32_t(at.before);
        each(count, [&](std::int32_t i) {
            if (!exists(i)) { return; }
            members_[rank++] = next_members_[i];
            set_bit(set_, next_members_[i].block);
            set_bit(held_, next_members_[i].block);
        });
        member_count_ = std::int32_t(at.total);
        __syncthreads();
        save(0);
    }

    /// A sequence's first sparse row: its best blocks become the set.
    __device__ void fill(std::int32_t row)
    {
        if (p_.ranked) {
            const std::int64_t of = (std::int64_t{sequence_} * p_.residency.kv_heads + head_) * p_.residency.logical_blocks;
            strided(p_.residency.logical_blocks, [&](std::int32_t i) {
                const std::int32_t block = p_.ranked[of + i];
                if (block >= 0 && block < blocks_at(row)) { set_bit(set_, block); }
            });
            __syncthreads();
        } else {
            each_word([&](std::uint32_t w) { set_[w] = row_bits(row)[w] | may_bits(row)[w]; });
        }
        std::uint32_t n = 0;
        each_word([&](std::uint32_t w) {
            held_[w] |= set_[w];
            n += __popc(set_[w]);
        });
        const Sum at = sum(n);
        auto rank = std::int32_t(at.before);
        each_word([&](std::uint32_t w) {
            each_bit(set_[w], w, [&](std::int32_t block) {
                if (rank < p_.residency.logical_blocks) { members_[rank] = {block, first_position_ + row}; }
                ++rank;
            });
        });
        member_count_ = min(std::int32_t(at.total), p_.residency.logical_blocks);
        filled_ = true;
        __syncthreads();
    }

    /// What a verify row reads, and the logical set after it.
    __device__ void resolve_row(std::int32_t row)
    {
        const bool dense = first_position_ + row + 1 <= p_.dense_below;
        if (!dense && !filled_) { fill(row); }
        std::uint32_t* bits = row_bits(row);
        if (dense || !p_.may_rule_none) {
            each_word([&](std::uint32_t w) { bits[w] |= may_bits(row)[w] & (dense ? ~0U : set_[w]); });
        }
        const std::int32_t now = first_position_ + row + 1;
        if (!dense) { // only after a cut are there stamps of this row, or later ones
            each(member_count_, [&](std::int32_t i) {
                if (members_[i].stamp == now) { set_bit(guess_, members_[i].block); }
            });
        }
        __syncthreads();
        if (!dense) { apply_row(bits, now); }
        save(row + 1);
    }

    /// The set stays ordered by stamps, the highest first, then by positions: later rows' members, those of this row (what it read, and
    /// `guess_`), earlier rows'. The end is cut off.
    __device__ void apply_row(const std::uint32_t* bits, std::int32_t now)
    {
        const std::int32_t capacity = p_.residency.logical_blocks;
        const auto moves = [&](const LogicalMember& member) { return member.stamp == now || test(bits, member.block); };
        std::uint64_t n = 0;
        each_word([&](std::uint32_t w) { n += __popc(bits[w] | guess_[w]); });
        each(member_count_, [&](std::int32_t i) {
            if (!moves(members_[i])) { n += std::uint64_t{1} << (members_[i].stamp > now ? 20 : 40); }
        });
        const Sum at = sum(n);
        const auto field = [](std::uint64_t x, int shift) { return std::int32_t((x >> shift) & 0xFFFFF); };
        const std::int32_t later = field(at.total, 20);
        const std::int32_t read = field(at.total, 0);
        std::int32_t rank = later + field(at.before, 0);
        each_word([&](std::uint32_t w) {
            each_bit(bits[w] | guess_[w], w, [&](std::int32_t block) {
                if (rank < capacity) { next_members_[rank] = {block, now}; }
                ++rank;
            });
            guess_[w] = 0;
        });
        std::int32_t ranks[2] = {field(at.before, 20), later + read + field(at.before, 40)};
        each(member_count_, [&](std::int32_t i) {
            if (moves(members_[i])) { return; }
            const std::int32_t to = ranks[members_[i].stamp < now]++;
            if (to < capacity) { next_members_[to] = members_[i]; }
        });
        each_word([&](std::uint32_t w) { set_[w] = 0; });
        __syncthreads();
        member_count_ = min(later + read + field(at.total, 40), capacity);
        LogicalMember* const old = members_;
        members_ = next_members_;
        next_members_ = old;
        each(member_count_, [&](std::int32_t i) { set_bit(set_, members_[i].block); });
        __syncthreads();
    }

    const ResolveParams& p_;
    std::int32_t sequence_;
    std::int32_t head_;
    std::int32_t first_row_;
    std::int32_t rows_;
    std::int32_t verify_;
    std::uint32_t words_;     ///< that the step's positions need
    std::uint32_t max_words_; ///< between bitmaps
    std::uint32_t* held_;     ///< no victims: members before the step, what verify rows read
    std::uint32_t* set_;      ///< members of the logical set
    std::uint32_t* has_;      ///< blocks with a slot
    std::uint32_t* landed_;   ///< whose bytes are there
    std::uint32_t* guess_;    ///< what is kept or brought for the next step
    std::uint32_t* needed_;   ///< what verify rows read in coded form
    std::uint32_t* read_;     ///< what any row reads
    std::uint32_t* bits_;     ///< [rows] the must set, then what the row reads
    std::uint32_t* may_;      ///< [rows] may set
    OwnedSlot* owned_;
    std::uint32_t* state_;   ///< of owned slots
    std::int32_t* missing_;  ///< blocks that want a slot
    LogicalMember* members_; ///< the logical set, last read first
    LogicalMember* next_members_;
    std::int64_t unit_;
    std::int32_t accepted_;
    std::int32_t guarded_;
    std::int32_t first_position_;
    std::int32_t block_shift_; ///< log2 of a block's tokens
    std::int32_t member_count_ = 0;
    bool filled_ = false;
};

} // namespace oasis::cuda::kernels::resolve
