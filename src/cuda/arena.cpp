// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/arena.hpp>
#include <oasis/cuda/device.hpp>
#include <oasis/pool/head_block.hpp>

#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>

namespace oasis::cuda {
namespace {

/// The driver's virtual memory calls, found at run time: nothing links against libcuda.
struct Driver {
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 free;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuGetErrorName_v6000 error_name;

    static const Driver& get()
    {
        static const Driver driver;
        return driver;
    }

private:
    Driver()
    {
        find(reserve, "cuMemAddressReserve");
        find(free, "cuMemAddressFree");
        find(create, "cuMemCreate");
        find(release, "cuMemRelease");
        find(map, "cuMemMap");
        find(unmap, "cuMemUnmap");
        find(set_access, "cuMemSetAccess");
        find(granularity, "cuMemGetAllocationGranularity");
        find(error_name, "cuGetErrorName");
    }
    template <class Function> static void find(Function& function, const char* name)
    {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
        check(::cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), "cudaGetDriverEntryPointByVersion ",
              name);
#else
        check(::cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result), "cudaGetDriverEntryPoint ", name);
#endif
        if (result != cudaDriverEntryPointSuccess || !found) {
            throw CudaError(cudaErrorSymbolNotFound, detail::text("the driver has no ", name));
        }
        function = reinterpret_cast<Function>(found);
    }
};

template <class... Parts> void check_driver(CUresult code, const Parts&... parts)
{
    if (code == CUDA_SUCCESS) { return; }
    const char* name = nullptr;
    static_cast<void>(Driver::get().error_name(code, &name));
    throw CudaError(cudaErrorUnknown, detail::text(parts..., ": ", name ? name : "?", " (", int(code), ")"));
}

CUmemAllocationProp on_device(int device)
{
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return properties;
}

CUdeviceptr address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

} // namespace

Arena::Arena(const ArenaOptions& options) : device_(current_device())
{
    detail::expects(options.reserve_bytes > 0 && options.granule_bytes > 0, "Arena: ", options.reserve_bytes, " bytes in granules of ",
                    options.granule_bytes);
    check(::cudaFree(nullptr), "cudaFree(nullptr)"); // makes the device's context, which the driver's calls need
    const CUmemAllocationProp properties = on_device(device_);
    std::size_t smallest = 0;
    check_driver(Driver::get().granularity(&smallest, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                 "cuMemGetAllocationGranularity of device ", device_);
    granule_ = align_up(options.granule_bytes, smallest);
    const std::size_t bytes = align_up(options.reserve_bytes, granule_);
    CUdeviceptr base = 0;
    check_driver(Driver::get().reserve(&base, bytes, 0, 0, 0), "cuMemAddressReserve of ", bytes, " bytes");
    data_ = reinterpret_cast<std::byte*>(base);
    reserved_ = bytes;
}

bool Arena::try_grow(std::size_t bytes)
{
    detail::expects(bytes <= reserved_, "Arena: asked for ", bytes, " bytes of ", reserved_, " reserved.");
    const std::size_t end = align_up(bytes, granule_);
    if (end <= committed_) { return true; }
    const Driver& driver = Driver::get();
    const CUmemAllocationProp properties = on_device(device_);
    std::size_t at = committed_;
    try {
        for (; at < end; at += granule_) {
            CUmemGenericAllocationHandle handle{};
            const CUresult code = driver.create(&handle, granule_, &properties, 0);
            if (code == CUDA_ERROR_OUT_OF_MEMORY) {
                unmap(committed_, at);
                return false;
            }
            check_driver(code, "cuMemCreate of ", granule_, " bytes on device ", device_);
            const CUresult mapped = driver.map(address(data_ + at), granule_, 0, handle, 0);
            static_cast<void>(driver.release(handle)); // the mapping keeps the memory
            check_driver(mapped, "cuMemMap of ", granule_, " bytes at offset ", at);
        }
        set_access(device_, committed_, end);
        for (const int peer : peers_) { set_access(peer, committed_, end); }
    } catch (...) {
        unmap(committed_, at);
        throw;
    }
    committed_ = end;
    return true;
}

void Arena::shrink(std::size_t bytes)
{
    const std::size_t keep = align_up(bytes, granule_);
    if (keep >= committed_) { return; }
    unmap(keep, committed_);
    committed_ = keep;
}

void Arena::allow_access(int device)
{
    if (device == device_ || std::find(peers_.begin(), peers_.end(), device) != peers_.end()) { return; }
    if (committed_) { set_access(device, 0, committed_); }
    peers_.push_back(device);
}

void Arena::set_access(int device, std::size_t from, std::size_t to) const
{
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check_driver(Driver::get().set_access(address(data_ + from), to - from, &access, 1), "cuMemSetAccess of ", to - from,
                 " bytes for device ", device);
}

void Arena::unmap(std::size_t from, std::size_t to) noexcept
{
    // One call per granule: a call may not cut a mapping.
    for (; from < to; from += granule_) { static_cast<void>(Driver::get().unmap(address(data_ + from), granule_)); }
}

Arena::~Arena()
{
    if (!data_) { return; }
    unmap(0, committed_);
    static_cast<void>(Driver::get().free(address(data_), reserved_));
}

} // namespace oasis::cuda
