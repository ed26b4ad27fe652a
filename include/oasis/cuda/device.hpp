// SPDX-License-Identifier: Apache-2.0
//
// What the backend asks of a device before it uses it.
#pragma once

#include <oasis/cuda/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace oasis::cuda {

/// The oldest architecture the kernels are written for: Hopper.
inline constexpr int kMinimumArchitecture = 90;

/// What kernels and plans have to know of a device.
struct DeviceInfo {
    int id = 0;                   ///< as CUDA counts them
    std::string name{};           ///< as the driver calls it
    int architecture = 0;         ///< 90 for sm_90
    int sm_count = 0;             ///< streaming multiprocessors
    std::size_t l2_bytes = 0;     ///< of the level 2 cache
    std::size_t memory_bytes = 0; ///< of device memory in all
    std::size_t shared_bytes = 0; ///< the most shared memory that one CTA may ask for
};

/// Devices that can be used; 0 also without a driver, with the driver's words in `reason`.
int device_count(std::string* reason = nullptr);

/// The device that CUDA calls of this thread go to.
int current_device();

/// Throws `CudaError` for a device that is not there.
DeviceInfo device_info(int device);

/// Throws `Unsupported` with the device's name unless the kernels run on it.
void require_supported(const DeviceInfo& device);

/// The current device, which the kernels run on. Asked and required once per device, so that a launch can call it; any thread.
const DeviceInfo& supported_device();

/// Lets a launch of `kernel` on the current device ask for all the dynamic shared memory that a CTA can have beside the kernel's
/// static one, and returns how much that is. Once per kernel and device, and not as much as a launch needs: the limit is the
/// kernel's, not the launch's, and others rely on it. Any thread.
std::size_t allow_shared_memory(const void* kernel);

} // namespace oasis::cuda
