// SPDX-License-Identifier: Apache-2.0
//
// Launches the kernel of one (channels, code, spread); each is instantiated in a source of its own.
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
    static_assert(kMostStages == 32);
    for (args.log2_stages = 5; args.log2_stages > 2 && args.bytes<K>() > std::uint32_t(most); --args.log2_stages) {}
    const auto shared = static_cast<int>(args.bytes<K>());
    check(::cudaFuncSetAttribute(score_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "cudaFuncSetAttribute of ", shared,
          " bytes of shared memory for the scoring kernel");
    score_kernel<K><<<unsigned(sms), K::kThreads, std::size_t(shared), queue.stream()>>>(args);
    check_launch("score_kernel", " of ", p.sequences, " sequences, ", p.rows, " rows, ", p.kv_heads, " KV heads, group ", p.group);
}

template <int kChannels, SummaryCode kCode, bool kSpread, int kBlocks> void launch_columns(Queue queue, const ScoreArgs& args)
{
    const std::int32_t columns = args.params.rows * args.params.group;
    if (columns <= 8 || kCode == SummaryCode::kF16) {
        launch<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 1>>(queue, args);
    } else if (columns <= 16) {
        launch<ScoreKernel<kChannels, kCode, kBlocks, kSpread, kCode == SummaryCode::kF16 ? 1 : 2>>(queue, args);
    } else {
        launch<ScoreKernel<kChannels, kCode, kBlocks, kSpread, kCode == SummaryCode::kF16 ? 1 : 4>>(queue, args);
    }
}

template <int kChannels, SummaryCode kCode, bool kSpread> void launch_score(Queue queue, const ScoreArgs& args, std::int32_t blocks)
{
    switch (blocks) {
    case 4: launch_columns<kChannels, kCode, kSpread, 4>(queue, args); return;
    case 8: launch_columns<kChannels, kCode, kSpread, 8>(queue, args); return;
    default: launch_columns<kChannels, kCode, kSpread, 16>(queue, args); return;
    }
}

} // namespace oasis::cuda::detail
