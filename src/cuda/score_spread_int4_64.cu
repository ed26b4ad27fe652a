// SPDX-License-Identifier: Apache-2.0
#include "cuda/score_launch.cuh"

template void oasis::cuda::detail::launch_score<64, oasis::SummaryCode::kInt4, true>(Queue, const ScoreArgs&, std::int32_t);
