// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches that report their own failure and leave the errors of others alone.
#pragma once

#include <oasis/cuda/device.hpp>
#include <oasis/cuda/queue.hpp>

#include <cuda_runtime.h>

#include <cstddef>

namespace oasis::cuda {

/// As `allow_shared_memory`.
template <class Params> std::size_t allow_shared_memory(void (*kernel)(Params))
{
    return allow_shared_memory(reinterpret_cast<const void*>(kernel));
}

/// Puts `kernel(params)` on the queue, in clusters of `cluster` CTAs. More than 48 KiB of shared memory have to be allowed before
/// (`allow_shared_memory`). Throws `CudaError` with the kernel's name and grid when the launch is refused, `Unsupported` on a
/// device that the kernels do not run on.
template <class Params>
void launch(Queue queue, const char* name, void (*kernel)(Params), const Params& params, unsigned ctas,
            unsigned threads, std::size_t shared_bytes = 0, unsigned cluster = 1)
{
    static_cast<void>(supported_device());
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = queue.stream();
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    check(::cudaLaunchKernelEx(&config, kernel, params), name, " with ", ctas, " CTAs of ", threads, " threads and ", shared_bytes,
          " bytes");
}

} // namespace oasis::cuda
