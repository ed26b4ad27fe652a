// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/device.hpp>

#include <map>
#include <mutex>
#include <utility>

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

const DeviceInfo& supported_device()
{
    static std::mutex mutex;
    static std::map<int, DeviceInfo> known; // references stay
    const int device = current_device();
    const std::lock_guard lock(mutex);
    const auto found = known.find(device);
    if (found != known.end()) { return found->second; }
    DeviceInfo info = device_info(device);
    require_supported(info);
    return known.emplace(device, std::move(info)).first->second;
}

std::size_t allow_shared_memory(const void* kernel)
{
    static std::mutex mutex;
    static std::map<std::pair<const void*, int>, std::size_t> allowed;
    const DeviceInfo& device = supported_device();
    const std::lock_guard lock(mutex);
    const auto found = allowed.find({kernel, device.id});
    if (found != allowed.end()) { return found->second; }
    cudaFuncAttributes attributes{};
    check(::cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    const std::size_t bytes = device.shared_bytes - attributes.sharedSizeBytes;
    check(::cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          "cudaFuncSetAttribute of ", bytes, " bytes of shared memory");
    allowed.emplace(std::pair{kernel, device.id}, bytes);
    return bytes;
}

} // namespace oasis::cuda
