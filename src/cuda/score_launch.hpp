// SPDX-License-Identifier: Apache-2.0
//
// What the dispatch of the scoring kernels and their instantiations share.
#pragma once

#include <oasis/core/options.hpp>
#include <oasis/cuda/score.hpp>

namespace oasis::cuda::detail {

struct ScoreArgs;

/// `blocks` of a group: 4, 8 or 16.
template <int kChannels, SummaryCode kCode, bool kSpread> void launch_score(Queue queue, const ScoreArgs& args, std::int32_t blocks);

} // namespace oasis::cuda::detail
