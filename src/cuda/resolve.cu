// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/launch.cuh>
#include <oasis/cuda/resolve.cuh>

namespace oasis::cuda {
namespace {

struct ClearJob {
    ResidencyRef residency;
    std::int32_t cell;
};

__global__ void __launch_bounds__(kernels::resolve::kResolveThreads) clear_units(const __grid_constant__ ClearJob job)
{
    const ResidencyRef& r = job.residency;
    const std::int64_t unit = std::int64_t{job.cell} * r.layers * r.kv_heads + blockIdx.x;
    for (std::int32_t i = int(threadIdx.x); i < r.owned_slots; i += kernels::resolve::kResolveThreads) {
        r.owned[unit * r.owned_slots + i].block = -1;
    }
    const std::int32_t versions = r.max_rows + 1;
    for (std::int32_t i = int(threadIdx.x); i < versions; i += kernels::resolve::kResolveThreads) {
        r.member_counts[unit * versions + i] = -1;
    }
    if (threadIdx.x == 0) { r.guarded[unit] = 0; }
}

/// What a launch without sequences leaves: empty plans.
__global__ void plan_nothing(const __grid_constant__ ResolveParams params) { kernels::resolve::publish_plans(params); }

void expect_residency(const char* call, const ResidencyRef& r)
{
    detail::expects(r.owned && r.guarded && r.members && r.member_counts && r.generation && r.marks, call,
                    ": a pointer of the residency is null.");
    detail::expects(r.layers > 0 && r.kv_heads > 0 && r.logical_blocks > 0 && r.owned_slots > 0 && r.owned_slots <= kMaxOwnedSlots &&
                        r.max_rows > 0 && r.max_rows <= kMaxResolveRows,
                    call, ": ", r.layers, " layers, ", r.kv_heads, " KV heads, logical sets of ", r.logical_blocks, " blocks, ",
                    r.owned_slots, " slots a unit (at most ", kMaxOwnedSlots, "), ", r.max_rows, " rows (at most ", kMaxResolveRows, ")");
}

void expect_resolve(const ResolveParams& p)
{
    const ResidencyRef& r = p.residency;
    expect_residency("enqueue_resolve", r);
    detail::expects(p.must && p.may && p.row_starts && p.verify_rows && p.position && p.cells && p.accepted && p.tier_blocks &&
                        p.native_cells && p.blocks && p.block_counts && p.demand.pieces && p.demand.count && p.ticket,
                    "enqueue_resolve: a pointer is null.");
    detail::expects(p.sequences >= 0 && p.layer >= 0 && p.layer < r.layers && p.block_tokens > 0 && p.block_tokens <= 64 &&
                        (p.block_tokens & (p.block_tokens - 1)) == 0 && p.recent >= 0 && p.native_ring > 0 && p.prefetch_cap >= 0 &&
                        p.max_blocks > 0 && p.max_blocks <= kMaxResolveBlocks,
                    "enqueue_resolve: ", p.sequences, " sequences, layer ", p.layer, " of ", r.layers, ", blocks of ", p.block_tokens,
                    " tokens, ", p.recent, " recent, a ring of ", p.native_ring, " native blocks, cap ", p.prefetch_cap, ", ", p.max_blocks,
                    " blocks of a sequence (at most ", kMaxResolveBlocks, ")");
    detail::expects(p.must_blocks > 0 && p.must_blocks <= p.may_blocks && p.may_blocks <= r.logical_blocks, "enqueue_resolve: must ",
                    p.must_blocks, ", may ", p.may_blocks, ", logical ", r.logical_blocks,
                    " blocks; each must be at least the one before.");
    const std::int32_t slots = resolve_slots(r.logical_blocks, r.max_rows, p.must_blocks, p.prefetch_cap);
    detail::expects(r.owned_slots >= slots, "enqueue_resolve: ", r.owned_slots, " slots a unit; logical sets of ", r.logical_blocks,
                    " blocks, ", r.max_rows, " rows of ", p.must_blocks, " and a cap of ", p.prefetch_cap, " need ", slots, ".");
    detail::expects(p.dense_below <= p.may_blocks * p.block_tokens, "enqueue_resolve: dense below ", p.dense_below, " tokens; ",
                    p.may_blocks, " may blocks of ", p.block_tokens, " hold fewer.");
    detail::expects(p.list_blocks >= r.max_rows * p.may_blocks, "enqueue_resolve: lists of ", p.list_blocks, " blocks; ", r.max_rows,
                    " rows of ", p.may_blocks, " need ", r.max_rows * p.may_blocks, ".");
    detail::expects(p.demand.capacity >= resolve_pieces(p), "enqueue_resolve: room for ", p.demand.capacity, " pieces; up to ",
                    resolve_pieces(p), " may be needed.");
    const std::int64_t guesses = std::int64_t{p.sequences} * r.kv_heads * p.prefetch_cap;
    detail::expects(guesses == 0 || (p.guess.pieces && p.guess.count && p.guess.capacity >= guesses), "enqueue_resolve: room for ",
                    p.guess.capacity, " guesses; up to ", guesses, " may be planned.");
}

} // namespace

void enqueue_resolve(Queue queue, const ResolveParams& params)
{
    expect_resolve(params);
    if (params.sequences == 0) {
        launch(queue, "resolve of no sequences", plan_nothing, params, 1, 32);
        return;
    }
    const ResidencyRef& r = params.residency;
    const kernels::resolve::ResolveLayout layout{std::uint32_t(params.max_blocks + 127) / 128 * 4, std::uint32_t(r.owned_slots),
                                                 std::uint32_t(r.logical_blocks)};
    if (const std::size_t most = allow_shared_memory(kernels::resolve::resolve_units); layout.bytes() > most) {
        throw Unsupported(detail::text("enqueue_resolve: ", layout.bytes(), " bytes of shared memory for ",
                                       params.max_blocks, " blocks, ", r.owned_slots, " slots and logical sets of ",
                                       r.logical_blocks, " blocks are more than a CTA has, ", most, "."));
    }
    launch(queue, "resolve", kernels::resolve::resolve_units, kernels::resolve::ResolveJob{params, layout},
           unsigned(params.sequences) * unsigned(r.kv_heads), kernels::resolve::kResolveThreads, layout.bytes());
}

void enqueue_clear_cell(Queue queue, const ResidencyRef& residency, std::int32_t cell)
{
    expect_residency("enqueue_clear_cell", residency);
    detail::expects(cell >= 0, "enqueue_clear_cell: cell ", cell);
    launch(queue, "clear a cell", clear_units, ClearJob{residency, cell}, unsigned(residency.layers) * unsigned(residency.kv_heads),
           kernels::resolve::kResolveThreads);
}

} // namespace oasis::cuda
