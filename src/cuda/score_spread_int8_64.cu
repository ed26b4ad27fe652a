// SPDX-License-Identifier: Apache-2.0
#include "cuda/score_launch.cuh"

namespace oasis::cuda::detail {

template void launch_score<64, SummaryCode::kInt8, true, 8>(Queue, const ScoreArgs&);
template void launch_score<64, SummaryCode::kInt8, true, 16>(Queue, const ScoreArgs&);

} // namespace oasis::cuda::detail
