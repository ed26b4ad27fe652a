// SPDX-License-Identifier: Apache-2.0
//
// Launches the kernels of one (channels, code, spread, blocks); sources of a few lines instantiate them.
#pragma once

#include "cuda/score_launch.hpp"

#include <oasis/cuda/score.cuh>

namespace oasis::cuda::detail {

template <class K> void launch(Queue queue, ScoreArgs args)
{
    const ScoreParams& p = args.params;
    args.columns = (p.rows * p.group + 8 * K::kTiles - 1) / (8 * K::kTiles) * 8 * K::kTiles;
    int device = 0;
    int sms = 0;
    int most = 0;
    check(::cudaGetDevice(&device), "cudaGetDevice");
    check(::cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    check(::cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
    // At least 8 stages: as many as the producer fills at a time.
    for (args.log2_stages = 5; args.log2_stages > 3 && args.bytes<K>() > std::uint32_t(most); --args.log2_stages) {}
    if (args.bytes<K>() > std::uint32_t(most)) {
        throw Unsupported(text("enqueue_score: ", p.rows, " rows of ", p.group, " query heads with ", K::kChannels, " channels need ",
                               args.bytes<K>(), " bytes of shared memory, the device has ", most));
    }
    const auto shared = static_cast<int>(args.bytes<K>());
    check(::cudaFuncSetAttribute(score_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "cudaFuncSetAttribute of ", shared,
          " bytes of shared memory for the scoring kernel");
    score_kernel<K><<<unsigned(sms), K::kThreads, std::size_t(shared), queue.stream()>>>(args);
    check_launch("score_kernel", " of ", p.sequences, " sequences, ", p.rows, " rows, ", p.kv_heads, " KV heads, group ", p.group);
}

template <int kChannels, SummaryCode kCode, bool kSpread, int kBlocks> void launch_score(Queue queue, const ScoreArgs& args)
{
    const std::int32_t columns = args.params.rows * args.params.group;
    if constexpr (kCode == SummaryCode::kF16) { // all groups are native: eight columns at a time
        launch<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 1>>(queue, args);
    } else if (columns <= 8) {
        launch<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 1>>(queue, args);
    } else if (columns <= 16) {
        launch<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 2>>(queue, args);
    } else {
        launch<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 4>>(queue, args);
    }
}

} // namespace oasis::cuda::detail
