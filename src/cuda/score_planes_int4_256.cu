// SPDX-License-Identifier: Apache-2.0
#include "cuda/score_launch.cuh"

namespace oasis::cuda::detail {

template void launch_score<256, SummaryCode::kInt4, false, 8>(Queue, const ScoreArgs&);
template void launch_score<256, SummaryCode::kInt4, false, 16>(Queue, const ScoreArgs&);

} // namespace oasis::cuda::detail
