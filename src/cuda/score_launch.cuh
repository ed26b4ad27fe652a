// SPDX-License-Identifier: Apache-2.0
//
// Launches the kernels of one (channels, code, spread, blocks); sources of a few lines instantiate them.
#pragma once

#include "cuda/score_launch.hpp"

#include <oasis/cuda/launch.cuh>
#include <oasis/cuda/score.cuh>

namespace oasis::cuda::detail {

template <class K> void launch_kernel(Queue queue, ScoreArgs args)
{
    const ScoreParams& p = args.params;
    args.columns = (p.rows * p.group + 8 * K::kTiles - 1) / (8 * K::kTiles) * 8 * K::kTiles;
    const std::size_t most = allow_shared_memory(score_kernel<K>);
    // At least 8 stages: as many as the producer fills at a time.
    for (args.log2_stages = 5; args.log2_stages > 3 && args.bytes<K>() > most; --args.log2_stages) {}
    if (args.bytes<K>() > most) {
        throw Unsupported(text("enqueue_score: ", p.rows, " rows of ", p.group, " query heads with ", K::kChannels,
                               " channels need ", args.bytes<K>(), " bytes of shared memory, a CTA has ", most));
    }
    launch(queue, "score", score_kernel<K>, args, unsigned(supported_device().sm_count), K::kThreads, args.bytes<K>());
}

template <int kChannels, SummaryCode kCode, bool kSpread, int kBlocks> void launch_score(Queue queue, const ScoreArgs& args)
{
    const std::int32_t columns = args.params.rows * args.params.group;
    if constexpr (kCode == SummaryCode::kF16) { // all groups are native: eight columns at a time
        launch_kernel<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 1>>(queue, args);
    } else if (columns <= 8) {
        launch_kernel<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 1>>(queue, args);
    } else if (columns <= 16) {
        launch_kernel<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 2>>(queue, args);
    } else {
        launch_kernel<ScoreKernel<kChannels, kCode, kBlocks, kSpread, 4>>(queue, args);
    }
}

} // namespace oasis::cuda::detail
