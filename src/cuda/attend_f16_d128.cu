// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/attend.cuh>

template oasis::cuda::detail::AttendKernel oasis::cuda::detail::attend_kernel<oasis::f16, 128>(BlockCode, std::int32_t);
