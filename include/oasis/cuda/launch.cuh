// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches that report their own failure and leave the errors of others alone.
#pragma once

#include <oasis/cuda/queue.hpp>

#include <cuda_runtime.h>

#include <cstddef>

namespace oasis::cuda {

/// Puts `kernel(params)` on the queue. Throws `CudaError` with the kernel's name and grid when the launch is refused.
template <class Params>
void launch(Queue queue, const char* name, void (*kernel)(Params), const Params& params, unsigned ctas, unsigned threads,
            std::size_t shared_bytes = 0)
{
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = queue.stream();
    check(::cudaLaunchKernelEx(&config, kernel, params), name, " with ", ctas, " CTAs of ", threads, " threads and ", shared_bytes,
          " bytes");
}

} // namespace oasis::cuda
