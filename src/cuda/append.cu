// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/append.cuh>
#include <oasis/cuda/launch.cuh>
#include <oasis/cuda/seal.cuh>

#include <algorithm>
#include <array>
#include <cmath>

namespace oasis::cuda {
namespace {

constexpr unsigned kMostCtas = 1024; ///< of kernels with a CTA per job; further jobs are taken in turn

template <class Params> using Kernel = void (*)(Params);

template <class Params> Kernel<Params> for_type(DType type, Kernel<Params> f32, Kernel<Params> half, Kernel<Params> brain)
{
    switch (type) {
    case DType::kF16: return half;
    case DType::kBF16: return brain;
    default: return f32;
    }
}

void expect_head_block(const char* call, const HeadBlockLayout& h)
{
    detail::expects(h.head_dim >= 32 && h.head_dim <= 256 && h.head_dim % 16 == 0, call, ": head_dim is ", h.head_dim,
                    ", expected 32 to 256, a multiple of 16.");
    detail::expects(h.block_tokens == 16 || h.block_tokens == 32 || h.block_tokens == 64, call, ": block_tokens is ", h.block_tokens,
                    ", expected 16, 32 or 64.");
}

void expect_summary(const char* call, const SummaryLayout& s, std::int32_t head_dim, std::int32_t block_tokens)
{
    if (s.planes == 0) { return; }
    detail::expects(s.head_dim == head_dim && s.block_tokens == block_tokens, call, ": summaries of head_dim ", s.head_dim,
                    " and blocks of ", s.block_tokens, ", head-blocks of ", head_dim, " and ", block_tokens, ".");
    detail::expects(s.options.tokens > 0 && block_tokens % s.options.tokens == 0, call, ": sub-blocks of ", s.options.tokens,
                    " tokens in blocks of ", block_tokens, ".");
}

/// Logs of 1 to 63, from the host's library as on the CPU.
const float* log_table()
{
    static const auto table = [] {
        std::array<float, 64> logs{};
        for (int n = 1; n < 64; ++n) { logs[std::size_t(n)] = std::log(static_cast<float>(n)); }
        return logs;
    }();
    return table.data();
}

} // namespace

void enqueue_append(Queue queue, const AppendParams& params)
{
    expect_head_block("enqueue_append", params.head_block);
    expect_summary("enqueue_append", params.summary, params.head_block.head_dim, params.head_block.block_tokens);
    detail::expects(params.kv_heads > 0 && params.layer >= 0 && params.max_rows >= 0, "enqueue_append: ", params.kv_heads,
                    " KV heads, layer ", params.layer, ", ", params.max_rows, " rows");
    if (params.max_rows == 0) { return; }
    AppendParams p = params;
    std::copy_n(log_table(), 64, p.log_tokens);
    const std::int64_t items = std::int64_t{p.max_rows} * p.kv_heads;
    const auto kernel =
        for_type<AppendParams>(p.head_block.dtype, kernels::append_rows<float>, kernels::append_rows<f16>, kernels::append_rows<bf16>);
    launch(queue, "append", kernel, p, unsigned((items + 15) / 16), 256);
}

void enqueue_seal(Queue queue, const SealParams& params)
{
    expect_head_block("enqueue_seal", params.head_block);
    expect_summary("enqueue_seal", params.summary, params.head_block.head_dim, params.head_block.block_tokens);
    if (params.max_jobs == 0) { return; }
    const auto kernel =
        for_type<SealParams>(params.head_block.dtype, kernels::seal_blocks<float>, kernels::seal_blocks<f16>, kernels::seal_blocks<bf16>);
    launch(queue, "seal", kernel, params, std::min(kMostCtas, unsigned(params.max_jobs)), kernels::kSealThreads);
}

void enqueue_close_groups(Queue queue, const CloseParams& params)
{
    detail::expects(params.summary.planes > 0, "enqueue_close_groups: the oracle has no summaries.");
    if (params.max_jobs == 0) { return; }
    launch(queue, "close groups", Kernel<CloseParams>{kernels::close_groups}, params, std::min(kMostCtas, unsigned(params.max_jobs)),
           kernels::kSealThreads);
}

} // namespace oasis::cuda
