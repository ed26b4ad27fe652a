// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/attend.hpp>

#include <oasis/cuda/attend_job.hpp>
#include <oasis/cuda/device.hpp>
#include <oasis/pool/head_block.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>

namespace oasis::cuda {
namespace {

using detail::AttendJob;
using detail::AttendKernel;
using detail::expects;

struct Supported {
    DType dtype;
    std::int32_t head_dim;
    AttendKernel (*kernel)(BlockCode, std::int32_t queries);
};

constexpr Supported kSupported[] = {
    {DType::kF16, 64, &detail::attend_kernel<f16, 64>},     {DType::kF16, 80, &detail::attend_kernel<f16, 80>},
    {DType::kF16, 96, &detail::attend_kernel<f16, 96>},     {DType::kF16, 128, &detail::attend_kernel<f16, 128>},
    {DType::kF16, 256, &detail::attend_kernel<f16, 256>},   {DType::kBF16, 64, &detail::attend_kernel<bf16, 64>},
    {DType::kBF16, 80, &detail::attend_kernel<bf16, 80>},   {DType::kBF16, 96, &detail::attend_kernel<bf16, 96>},
    {DType::kBF16, 128, &detail::attend_kernel<bf16, 128>}, {DType::kBF16, 256, &detail::attend_kernel<bf16, 256>},
};

constexpr std::size_t kReservedBytes = 1024; ///< of shared memory, by the driver for each CTA

std::int32_t group_of(const AttendConfig& config) { return config.q_heads / config.kv_heads; }

void check_config(const AttendConfig& c)
{
    const bool heads = c.kv_heads > 0 && c.q_heads > 0 && c.q_heads % c.kv_heads == 0 && c.q_heads / c.kv_heads <= detail::kAttendMaxGroup;
    const bool block = c.block_tokens == 16 || c.block_tokens == 32 || c.block_tokens == 64;
    if (!heads || !block) {
        throw Unsupported(detail::text("AttendPlan: ", c.q_heads, " query heads on ", c.kv_heads, " KV heads, blocks of ", c.block_tokens,
                                       " tokens; supported: ", supported_attention(), "."));
    }
    expects(c.max_sequences >= 1, "AttendPlan: max_sequences is ", c.max_sequences, ", at least 1 is needed.");
    expects(c.max_rows >= 1 && c.max_rows <= detail::kAttendMaxRows, "AttendPlan: max_rows is ", c.max_rows, ", 1 to ",
            detail::kAttendMaxRows, " are allowed.");
    expects(c.max_blocks >= 1, "AttendPlan: max_blocks is ", c.max_blocks, ", at least 1 is needed.");
    expects(c.ring_depth == 0 || (c.ring_depth >= 1 && c.ring_depth <= detail::kAttendMaxDepth), "AttendPlan: ring_depth is ", c.ring_depth,
            ", 1 to ", detail::kAttendMaxDepth, " are allowed.");
    expects(c.ctas_per_sm >= 0, "AttendPlan: ctas_per_sm is ", c.ctas_per_sm, ".");
}

AttendKernel kernel_for(const AttendConfig& config)
{
    for (const Supported& entry : kSupported) {
        if (entry.dtype == config.dtype && entry.head_dim == config.head_dim) {
            return entry.kernel(config.code, config.max_rows * group_of(config));
        }
    }
    throw Unsupported(
        detail::text("AttendPlan: ", name(config.dtype), " with head_dim ", config.head_dim, "; supported: ", supported_attention(), "."));
}

std::int32_t chunk_blocks(const AttendConfig& config) { return detail::kAttendChunkTokens / config.block_tokens; }

/// Chunks of a list of `max_blocks`; an empty list has one, which writes zeros.
std::size_t chunks_of(const AttendConfig& config)
{
    return std::size_t(config.max_blocks + chunk_blocks(config) - 1) / std::size_t(chunk_blocks(config));
}

void check_params(const AttendConfig& config, const AttendParams& params)
{
    const bool pointers = params.q && params.blocks && params.block_counts && params.row_starts && params.first_positions && params.slots &&
                          params.out && params.workspace;
    expects(pointers,
            "AttendPlan::enqueue: a null pointer among q, blocks, block_counts, row_starts, first_positions, slots, out, workspace.");
    expects(params.sequences >= 0 && params.sequences <= config.max_sequences, "AttendPlan::enqueue: ", params.sequences,
            " sequences, planned for at most ", config.max_sequences, ".");
    expects(params.out_dtype == DType::kF32 || params.out_dtype == config.dtype, "AttendPlan::enqueue: out in ", name(params.out_dtype),
            "; f32 or ", name(config.dtype), " can be written.");
    expects(params.window >= 0, "AttendPlan::enqueue: a window of ", params.window, " tokens.");
    expects(std::isfinite(params.scale) && params.scale >= 0.0F, "AttendPlan::enqueue: scale is ", params.scale, ".");
}

} // namespace

std::string supported_attention()
{
    std::string dims;
    for (const Supported& entry : kSupported) {
        if (entry.dtype == DType::kF16) { dims += (dims.empty() ? "" : ", ") + std::to_string(entry.head_dim); }
    }
    return "f16 and bf16, head_dim " + dims + ", 1 to 16 query heads on a KV head, blocks of 16, 32 or 64 tokens, native or int8";
}

AttendPlan::AttendPlan(const AttendConfig& config) : config_(config)
{
    check_config(config_);
    const AttendKernel kernel = kernel_for(config_);
    const DeviceInfo& device = supported_device();
    kernel_ = kernel.handle;
    const std::size_t most = allow_shared_memory(kernel_);
    const std::int32_t queries = config_.max_rows * group_of(config_);
    tiles_ = (queries + kernel.queries - 1) / kernel.queries;
    const std::size_t groups = std::size_t(config_.max_sequences) * std::size_t(config_.kv_heads);
    const std::size_t chunks = groups * chunks_of(config_);
    const std::size_t units = chunks * std::size_t(tiles_);
    expects(units < std::numeric_limits<std::int32_t>::max() / 2, "AttendPlan: ", units, " chunks are more than a launch can count.");

    // Few chunks: one CTA on an SM, with all of a chunk in flight. Many: several, so that one loads while another computes.
    const auto bytes_at = [&](std::int32_t depth) {
        return std::size_t(kernel.fixed_bytes) + 2 * std::size_t(depth) * std::size_t(kernel.stage_bytes);
    };
    const bool few = units <= std::size_t(device.sm_count);
    const std::size_t ctas = config_.ctas_per_sm ? std::size_t(config_.ctas_per_sm) : few ? 1 : std::size_t(kernel.ctas_per_sm);
    const std::size_t room = device.shared_bytes / ctas - (ctas > 1 ? kReservedBytes : 0);
    if (config_.ring_depth == 0) {
        config_.ring_depth = few ? 4 : 3;
        while (config_.ring_depth > 1 && bytes_at(config_.ring_depth) > room) { --config_.ring_depth; }
    }
    while (config_.ring_depth > 1 && bytes_at(config_.ring_depth) > most) { --config_.ring_depth; }
    shared_bytes_ = bytes_at(config_.ring_depth);
    if (shared_bytes_ > most) {
        throw Unsupported(detail::text("AttendPlan: ", shared_bytes_, " bytes of shared memory with head_dim ",
                                       config_.head_dim, ", a CTA of device ", device.id, " (", device.name, ") has ",
                                       most, "."));
    }
    int fit = 0;
    check(::cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel_, detail::kAttendThreads, shared_bytes_),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    config_.ctas_per_sm = std::clamp(static_cast<int>(ctas), 1, std::max(fit, 1));
    grid_ = static_cast<std::uint32_t>(std::min(units, std::size_t(device.sm_count) * std::size_t(config_.ctas_per_sm)));

    states_offset_ = align_up((1 + groups) * sizeof(std::uint32_t), 256);
    sums_offset_ = align_up(states_offset_ + chunks * std::size_t(queries) * sizeof(float2), 256);
    workspace_bytes_ = sums_offset_ + chunks * std::size_t(queries) * std::size_t(config_.head_dim) * sizeof(float);
}

void AttendPlan::enqueue_prepare(Queue queue, std::byte* workspace) const
{
    check(::cudaMemsetAsync(workspace, 0, states_offset_, queue.stream()), "cudaMemsetAsync of ", states_offset_,
          " bytes of an attention workspace");
}

void AttendPlan::enqueue(Queue queue, const AttendParams& params) const
{
    check_params(config_, params);
    if (params.sequences == 0) { return; }
    const float scale = params.scale == 0.0F ? 1.0F / std::sqrt(static_cast<float>(config_.head_dim)) : params.scale;
    AttendJob job;
    job.params = params;
    job.groups = params.sequences * config_.kv_heads;
    job.kv_heads = config_.kv_heads;
    job.heads = group_of(config_);
    job.heads_inverse = ((1 << 16) + job.heads - 1) / job.heads;
    job.block_tokens = config_.block_tokens;
    job.chunk_shift = std::countr_zero(static_cast<unsigned>(chunk_blocks(config_)));
    job.max_blocks = config_.max_blocks;
    job.max_rows = config_.max_rows;
    job.tiles = tiles_;
    job.ring_depth = config_.ring_depth;
    job.scale_log2 = scale * std::numbers::log2e_v<float>;
    job.drawn = chunks_of(config_) * std::size_t(job.groups) * std::size_t(tiles_) > grid_;
    job.ticket = reinterpret_cast<std::uint32_t*>(params.workspace);
    job.arrivals = job.ticket + 1;
    job.states = reinterpret_cast<float2*>(params.workspace + states_offset_);
    job.sums = reinterpret_cast<float*>(params.workspace + sums_offset_);
    void* arguments[] = {&job};
    check(::cudaLaunchKernel(kernel_, dim3(grid_), dim3(detail::kAttendThreads), arguments, shared_bytes_, queue.stream()),
          "attention kernel: ", grid_, " CTAs of ", detail::kAttendThreads, " threads and ", shared_bytes_, " bytes of shared memory");
}

} // namespace oasis::cuda
