// SPDX-License-Identifier: Apache-2.0
//
// What the dispatch of the scoring kernels and their instantiations share.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/cuda/score.hpp>

namespace oasis::cuda::detail {

struct ScoreArgs;

template <int kChannels, SummaryCode kCode, bool kSpread, int kBlocks> void launch_score(Queue queue, const ScoreArgs& args);

} // namespace oasis::cuda::detail
