// SPDX-License-Identifier: Apache-2.0
//
// The kernel behind resolve.hpp: the slots of what the rows read, the plans of what is to be copied, the lists for attention.
#pragma once

#include <oasis/cuda/resolve_rows.cuh>

namespace oasis::cuda::kernels::resolve {

/// One CTA's work: a (sequence, KV head) of a layer.
class Resolver : RowSets {
public:
    using RowSets::RowSets;

    __device__ void run()
    {
        load();
        each_row(0, verify_, [&](std::int32_t row) { resolve_row(row); });
        demand();
        if (verify_ < rows_) { look_ahead(); }
        store_owned();
        write_list();
    }

private:
    /// What verify rows need and what has no slot takes the slots that were used longest ago, except those of the logical set (as it was
    /// before the step, for rows may be rejected), of this step and those into which something is on its way.
    __device__ void demand()
    {
        each_word([&](std::uint32_t w) {
            std::uint32_t needed = 0;
            std::uint32_t read = 0;
            each_row(0, verify_, [&](std::int32_t row) {
                read |= row_bits(row)[w];
                needed |= row_bits(row)[w] & below(first_native(row), w);
            });
            needed_[w] = needed;
            read_[w] = read;
            held_[w] |= needed;
        });
        __syncthreads();
        std::uint32_t late = 0;
        each(p_.residency.owned_slots,
             [&](std::int32_t i) { late += state_[i] == kFlying && owned_[i].block >= 0 && test(needed_, owned_[i].block); });
        count(&ResolveCounters::late, late);
        const Given given = give_slots(needed_, held_, 0, p_.demand, &p_.ticket->demand);
        each(given.asked - given.served, [&](std::int32_t i) { // a cell with too few slots
            const std::int32_t block = missing_[given.served + i];
            each_row(0, verify_, [&](std::int32_t row) {
                if (block < first_native(row)) { clear_bit(row_bits(row), block); }
            });
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            count(&ResolveCounters::fetched, std::uint32_t(given.served));
            count(&ResolveCounters::unserved, std::uint32_t(given.asked - given.served));
        }
    }

    struct Given {
        std::int32_t asked;
        std::int32_t served;
    };
    /// Gives slots to the blocks of `wanted` that have none, in ascending order, while there are slots to take: from the end of the list
    /// on, not those that hold blocks of `kept`, nor the first `guarded` ones unless they are empty. `missing_` lists what was asked for.
    __device__ Given give_slots(const std::uint32_t* wanted, const std::uint32_t* kept, std::int32_t guarded, const ResolvePlan& plan,
                                std::uint32_t* planned)
    {
        const std::int32_t slots = p_.residency.owned_slots;
        const auto takeable = [&](std::int32_t i) {
            const OwnedSlot own = owned_[i];
            return own.slot >= 0 && state_[i] == 0 && (own.block < 0 || (i >= guarded && !test(kept, own.block)));
        };
        std::uint64_t n = 0;
        each_word([&](std::uint32_t w) { n += __popc(wanted[w] & ~has_[w]); });
        each(slots, [&](std::int32_t i) { n += std::uint64_t{takeable(slots - 1 - i)} << 32; });
        const Sum at = sum(n);
        const std::int32_t asked = min(std::int32_t(at.total), slots);
        const std::int32_t served = min(asked, std::int32_t(at.total >> 32));
        if (asked == 0) { return {0, 0}; }
        __shared__ std::int32_t base;
        if (threadIdx.x == 0 && served > 0) { base = std::int32_t(atomicAdd(planned, std::uint32_t(served))); }
        auto rank = std::int32_t(at.before);
        each_word([&](std::uint32_t w) {
            each_bit(wanted[w] & ~has_[w], w, [&](std::int32_t block) {
                if (rank < slots) { missing_[rank] = block; }
                ++rank;
            });
        });
        __syncthreads();
        rank = std::int32_t(at.before >> 32);
        each(slots, [&](std::int32_t i) {
            if (rank >= served || !takeable(slots - 1 - i)) { return; }
            assign(slots - 1 - i, missing_[rank], plan.pieces + base + rank);
            ++rank;
        });
        __syncthreads();
        return {asked, served};
    }

    __device__ void assign(std::int32_t i, std::int32_t block, TransferPiece* piece)
    {
        OwnedSlot& own = owned_[i];
        if (own.block >= 0) { clear_bit(has_, own.block); }
        own.block = block;
        state_[i] = kNew;
        set_bit(has_, block);
        const std::uint32_t generation = p_.residency.generation[own.slot] + 1;
        p_.residency.generation[own.slot] = generation;
        const std::int64_t in_block = (std::int64_t{p_.layer} * p_.residency.kv_heads + head_) * p_.unit_bytes;
        const std::int64_t place =
            std::int64_t{p_.tier_blocks[std::int64_t{sequence_} * p_.max_blocks + block]} * p_.tier_block_bytes + in_block;
        *piece = {std::uint64_t(place), own.slot, generation, p_.layer, 0};
    }

    /// Lookahead rows say what to keep or bring for the next step, and read what is there.
    __device__ void look_ahead()
    {
        std::uint64_t flying = 0; // guesses of earlier steps count too, until they have landed
        each(p_.residency.owned_slots, [&](std::int32_t i) {
            const OwnedSlot own = owned_[i];
            if (own.slot >= 0 && state_[i] == kFlying && (own.block < 0 || !test(held_, own.block))) { ++flying; }
            if (own.block >= 0 && state_[i] == 0) { set_bit(landed_, own.block); }
        });
        std::int32_t left = p_.prefetch_cap - std::int32_t(sum(flying).total);
        each_row(verify_, rows_, [&](std::int32_t row) {
            if (left > 0) { left -= guess_row(row, left); }
        });
        each_word([&](std::uint32_t w) {
            each_row(verify_, rows_, [&](std::int32_t row) {
                const std::uint32_t bits = (row_bits(row)[w] | may_bits(row)[w]) & (landed_[w] | ~below(first_native(row), w));
                row_bits(row)[w] = bits;
                read_[w] |= bits;
            });
            landed_[w] = held_[w] | guess_[w] | read_[w]; // no victims
        });
        __syncthreads();
        if (p_.prefetch_cap <= 0) { return; }
        const Given given = give_slots(guess_, landed_, guarded_, p_.guess, &p_.ticket->guess);
        each(given.asked - given.served, [&](std::int32_t i) { clear_bit(guess_, missing_[given.served + i]); });
        __syncthreads();
        if (threadIdx.x == 0) { count(&ResolveCounters::guessed, std::uint32_t(given.served)); }
    }

    /// Adds up to `most` must blocks of a lookahead row to the guesses; returns how many.
    __device__ std::int32_t guess_row(std::int32_t row, std::int32_t most)
    {
        const std::uint32_t* bits = row_bits(row);
        const auto fresh = [&](std::uint32_t w) { return bits[w] & below(first_native(0), w) & ~set_[w] & ~guess_[w]; };
        std::uint32_t n = 0;
        each_word([&](std::uint32_t w) { n += __popc(fresh(w)); });
        const Sum at = sum(n);
        auto rank = std::int32_t(at.before);
        each_word([&](std::uint32_t w) {
            std::uint32_t taken = 0;
            each_bit(fresh(w), w, [&](std::int32_t block) {
                if (rank++ < most) { taken |= 1U << (block % 32); }
            });
            guess_[w] |= taken;
        });
        __syncthreads();
        return min(std::int32_t(at.total), most);
    }

    /// The unit's slots for the next step: guesses, what was read, the rest, what is empty.
    __device__ void store_owned() const
    {
        const auto shift_of = [&](const OwnedSlot& own) {
            if (own.block < 0) { return 48; }
            return test(guess_, own.block) ? 0 : test(read_, own.block) ? 16 : 32;
        };
        std::uint64_t n = 0;
        each(p_.residency.owned_slots, [&](std::int32_t i) { n += owned_[i].slot >= 0 ? std::uint64_t{1} << shift_of(owned_[i]) : 0; });
        const Sum at = sum(n);
        std::uint64_t to =
            at.before + (at.total << 16) + (at.total << 32) + (at.total << 48); // each class begins where those before it end
        OwnedSlot* out = p_.residency.owned + unit_ * p_.residency.owned_slots;
        each(p_.residency.owned_slots, [&](std::int32_t i) {
            const OwnedSlot own = owned_[i];
            if (own.slot < 0) { return; }
            const int shift = shift_of(own);
            out[(to >> shift) & 0xFFFF] = own;
            to += std::uint64_t{1} << shift;
        });
        if (threadIdx.x == 0) { p_.residency.guarded[unit_] = std::int32_t(at.total & 0xFFFF); }
        __syncthreads();
    }

    /// What attention reads, ascending, with the rows that read it. A block that some rows read coded and others native is there twice.
    __device__ void write_list()
    {
        std::uint32_t* coded = has_;
        std::uint32_t* native = landed_;
        std::uint32_t* before = guess_;
        std::uint32_t n = 0;
        each_word([&](std::uint32_t w) {
            coded[w] = native[w] = 0;
            if (read_[w] == 0) { return; }
            each_row(0, rows_, [&](std::int32_t row) {
                const std::uint32_t old = below(first_native(row), w);
                coded[w] |= row_bits(row)[w] & old;
                native[w] |= row_bits(row)[w] & ~old;
            });
            n += __popc(coded[w]) + __popc(native[w]);
        });
        const Sum at = sum(n);
        auto rank = std::uint32_t(at.before);
        each_word([&](std::uint32_t w) {
            before[w] = rank;
            rank += __popc(coded[w]) + __popc(native[w]);
        });
        __syncthreads();
        const std::int64_t list = std::int64_t{sequence_} * p_.residency.kv_heads + head_;
        AttendBlock* out = p_.blocks + list * p_.list_blocks;
        const auto place = [&](std::int32_t block) {
            const std::uint32_t w = std::uint32_t(block) / 32;
            const std::uint32_t lower = (1U << (block % 32)) - 1;
            return before[w] + __popc(coded[w] & lower) + __popc(native[w] & lower);
        };
        const auto entry = [&](std::int64_t offset, std::int32_t block, bool as_native, std::uint8_t flags) {
            std::uint32_t rows = 0;
            each_row(0, rows_, [&](std::int32_t row) {
                rows |= std::uint32_t(test(row_bits(row), block) && (block >= first_native(row)) == as_native) << row;
            });
            return AttendBlock{offset, block, std::uint8_t(rows), flags, 0};
        };
        strided(p_.residency.owned_slots, [&](std::int32_t i) {
            const OwnedSlot own = owned_[i];
            if (own.slot < 0 || own.block < 0 || !test(coded, own.block)) { return; }
            out[place(own.block)] = entry(own.slot * p_.slot_stride, own.block, false, state_[i] != 0 ? AttendBlock::kLate : 0);
        });
        each_word([&](std::uint32_t w) {
            each_bit(native[w], w, [&](std::int32_t block) {
                const std::int64_t cell = p_.native_cells[std::int64_t{sequence_} * p_.native_ring + block % p_.native_ring];
                const std::int64_t in_cell = (std::int64_t{p_.layer} * p_.residency.kv_heads + head_) * p_.native_unit_bytes;
                out[place(block) + test(coded, block)] = entry(cell + in_cell, block, true, AttendBlock::kNativeForm);
            });
        });
        if (threadIdx.x == 0) {
            p_.block_counts[list] = std::int32_t(at.total);
            count(&ResolveCounters::read, std::uint32_t(at.total));
        }
    }

    /// By threads that have something to add. No barrier.
    __device__ void count(std::uint64_t ResolveCounters::*counter, std::uint32_t blocks) const
    {
        if (p_.counters && blocks > 0) {
            atomicAdd(reinterpret_cast<unsigned long long*>(&(p_.counters->*counter)), static_cast<unsigned long long>(blocks));
        }
    }
};

/// The last CTA publishes the plans' counts and leaves the ticket as it was found.
__device__ inline void publish_plans(const ResolveParams& p)
{
    __syncthreads();
    if (threadIdx.x != 0) { return; }
    __threadfence();
    if (atomicAdd(&p.ticket->left, 1U) != gridDim.x - 1) { return; }
    __threadfence();
    const auto publish = [&](const ResolvePlan& plan, std::uint32_t& planned) {
        const std::uint32_t n = atomicExch(&planned, 0U);
        *plan.count = std::int32_t(n);
        if (plan.expected) {
            std::uint32_t* const expected = plan.expected + p.layer;
            expected[0] = expected[p.residency.layers];
            expected[p.residency.layers] += n;
        }
    };
    publish(p.demand, p.ticket->demand);
    if (p.prefetch_cap > 0) { publish(p.guess, p.ticket->guess); }
    p.ticket->left = 0;
}

struct ResolveJob {
    ResolveParams params;
    ResolveLayout layout;
};

static __global__ void __launch_bounds__(kResolveThreads) resolve_units(const __grid_constant__ ResolveJob job)
{
    extern __shared__ __align__(16) std::uint32_t resolve_shared[];
    const ResolveParams& p = job.params;
    const auto sequence = std::int32_t(blockIdx.x) / p.residency.kv_heads;
    const auto head = std::int32_t(blockIdx.x) % p.residency.kv_heads;
    if (p.cells[sequence] >= 0 && p.row_starts[sequence + 1] > p.row_starts[sequence]) {
        Resolver(p, job.layout, resolve_shared, sequence, head).run();
    } else if (threadIdx.x == 0) {
        p.block_counts[blockIdx.x] = 0;
    }
    publish_plans(p);
}

} // namespace oasis::cuda::kernels::resolve
