// SPDX-License-Identifier: Apache-2.0
//
// Which selection kernel takes rows of how many blocks.
#include <oasis/cuda/launch.cuh>
#include <oasis/cuda/select.cuh>

namespace oasis::cuda {
namespace {

template <class C> void launch_select(Queue queue, const SelectParams& p)
{
    static_assert(C::kCapacity <= kMaxSelectBlocks);
    launch(queue, "select", detail::select_kernel<C>, p, unsigned(p.rows * p.kv_heads * C::kCluster), C::kThreads, 0,
           C::kCluster);
}

struct Entry {
    std::int32_t blocks;
    void (*launch)(Queue, const SelectParams&);
};

template <class C> constexpr Entry entry{C::kCapacity, launch_select<C>};

/// By the longest row, shortest first.
constexpr Entry kKernels[] = {entry<detail::SelectConfig<256, 8, 1>>,  entry<detail::SelectConfig<512, 8, 1>>,
                              entry<detail::SelectConfig<1024, 8, 1>>, entry<detail::SelectConfig<1024, 8, 2>>,
                              entry<detail::SelectConfig<1024, 8, 4>>, entry<detail::SelectConfig<1024, 8, 8>>};

void validate(const SelectParams& p)
{
    using detail::expects;
    expects(p.rows >= 0 && p.kv_heads >= 1, "enqueue_select: ", p.rows, " rows, ", p.kv_heads, " KV heads");
    expects(std::int64_t(p.rows) * p.kv_heads <= 1 << 24, "enqueue_select: ", p.rows, " rows of ", p.kv_heads, " KV heads are too many");
    expects(p.group >= 1 && p.group <= kMaxSelectGroup, "enqueue_select: group is ", p.group, ", expected 1 to ", kMaxSelectGroup);
    expects(p.block_tokens == 16 || p.block_tokens == 32 || p.block_tokens == 64, "enqueue_select: block_tokens is ", p.block_tokens);
    expects(p.mass_stride % 4 == 0 && p.mass_stride >= p.max_blocks, "enqueue_select: mass_stride is ", p.mass_stride,
            " for rows of up to ", p.max_blocks, " blocks; expected a multiple of 4");
    expects(reinterpret_cast<std::uintptr_t>(p.log_mass) % 16 == 0, "enqueue_select: log_mass at ", static_cast<const void*>(p.log_mass),
            " is not aligned to 16 bytes");
    expects(p.sink >= 0 && p.recent >= 0 && p.window >= 0, "enqueue_select: sink is ", p.sink, ", recent ", p.recent, ", window ",
            p.window);
    // The recent window of a row in the middle of a block touches one block more than its length.
    const std::int64_t forced =
        (std::int64_t(p.sink) + p.block_tokens - 1) / p.block_tokens + (std::int64_t(p.recent) + p.block_tokens - 1) / p.block_tokens + 1;
    expects(p.must_blocks >= std::min<std::int64_t>(forced, p.max_blocks), "enqueue_select: up to ", forced,
            " sink and recent blocks are forced, but the fetch budget is ", p.must_blocks, " blocks");
    expects(p.must_blocks <= p.may_blocks, "enqueue_select: the fetch budget of ", p.must_blocks, " blocks exceeds the attend budget of ",
            p.may_blocks);
    if (p.reduction != GroupReduction::kSoftmaxMax && p.reduction != GroupReduction::kMax) {
        throw Unsupported(detail::text("enqueue_select: reduction ", int(p.reduction), " has no kernel; there are kSoftmaxMax and kMax."));
    }
}

} // namespace

void enqueue_select(Queue queue, const SelectParams& params)
{
    validate(params);
    if (params.rows == 0) { return; }
    for (const Entry& kernel : kKernels) {
        if (params.max_blocks > kernel.blocks) { continue; }
        kernel.launch(queue, params);
        return;
    }
    throw Unsupported(detail::text("enqueue_select: rows of ", params.max_blocks, " blocks, expected up to ", kMaxSelectBlocks));
}

} // namespace oasis::cuda
