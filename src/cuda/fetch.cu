// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/fetch.cuh>
#include <oasis/cuda/launch.cuh>

namespace oasis::cuda {
namespace {

/// Counters may wrap: they are compared by their difference.
__global__ void wait_layer(const LayerWait wait)
{
    using kernels::load_acquire;
    const std::uint32_t expected = load_acquire(wait.expected + wait.layer);
    std::uint64_t begin = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    while (static_cast<std::int32_t>(load_acquire(wait.over + wait.layer) - expected) < 0) {
        std::uint64_t now = 0;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - begin > wait.deadline_ns) {
            if (wait.late) { kernels::store_relaxed(wait.late, 1); }
            return;
        }
        __nanosleep(100);
    }
}

void expect_transfer(const char* call, const TransferParams& p, TransferGrid grid)
{
    detail::expects(p.unit_bytes > 0 && p.unit_bytes % 16 == 0 && p.slot_stride % 16 == 0 && p.unit_bytes <= p.slot_stride, call,
                    ": units of ", p.unit_bytes, " bytes in slots of ", p.slot_stride,
                    "; both must be multiples of 16, and a unit no larger than a slot.");
    detail::expects(p.first >= 0 && p.most >= 0 && p.slot_count >= 0 && p.layers >= 0, call, ": first ", p.first, ", most ", p.most, ", ",
                    p.slot_count, " slots, ", p.layers, " layers");
    detail::expects(p.tier && p.slots && p.pieces && p.count && p.generation && p.marks && p.layer_over && p.counters && p.ticket, call,
                    ": a pointer is null.");
    detail::expects(grid.ctas > 0 && grid.threads > 0 && grid.threads <= kernels::kMaxThreads && grid.threads % 32 == 0, call, ": ",
                    grid.ctas, " CTAs of ", grid.threads, " threads; threads must be a multiple of 32, at most ", kernels::kMaxThreads,
                    ".");
}

} // namespace

void enqueue_fetch(Queue queue, const TransferParams& params, TransferGrid grid)
{
    expect_transfer("enqueue_fetch", params, grid);
    launch(queue, "fetch", kernels::move_pieces<kernels::Direction::kFetch>, params, unsigned(grid.ctas), unsigned(grid.threads));
}

void enqueue_write_through(Queue queue, const TransferParams& params, TransferGrid grid)
{
    expect_transfer("enqueue_write_through", params, grid);
    launch(queue, "write-through", kernels::move_pieces<kernels::Direction::kWriteThrough>, params, unsigned(grid.ctas),
           unsigned(grid.threads));
}

void enqueue_wait_layer(Queue queue, const LayerWait& wait)
{
    detail::expects(wait.over && wait.expected && wait.layer >= 0, "enqueue_wait_layer: layer ", wait.layer, ", or a pointer is null.");
    launch(queue, "wait for a layer", wait_layer, wait, 1, 1);
}

} // namespace oasis::cuda
