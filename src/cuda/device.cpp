// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/device.hpp>

namespace oasis::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device)
{
    int value = 0;
    check(::cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute ", int(which), " of device ", device);
    return value;
}

} // namespace

int device_count(std::string* reason)
{
    int count = 0;
    const cudaError_t code = ::cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0) { return count; }
    static_cast<void>(::cudaGetLastError());
    if (reason) { *reason = code == cudaSuccess ? "the driver shows no device" : ::cudaGetErrorString(code); }
    return 0;
}

int current_device()
{
    int device = 0;
    check(::cudaGetDevice(&device), "cudaGetDevice");
    return device;
}

DeviceInfo device_info(int device)
{
    cudaDeviceProp properties{};
    check(::cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties of device ", device);
    return {.id = device,
            .name = properties.name,
            .architecture = 10 * properties.major + properties.minor,
            .sm_count = properties.multiProcessorCount,
            .l2_bytes = std::size_t(properties.l2CacheSize),
            .memory_bytes = properties.totalGlobalMem,
            .shared_bytes = std::size_t(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device))};
}

void require_supported(const DeviceInfo& device)
{
    if (device.architecture >= kMinimumArchitecture) { return; }
    throw Unsupported(detail::text("device ", device.id, " (", device.name, ") is sm_", device.architecture, "; the CUDA backend needs sm_",
                                   kMinimumArchitecture, " (Hopper) or newer."));
}

} // namespace oasis::cuda
