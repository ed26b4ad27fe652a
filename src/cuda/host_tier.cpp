// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/dma.hpp>
#include <oasis/cuda/host_tier.hpp>
#include <oasis/pool/head_block.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include <sys/mman.h>

namespace oasis::cuda {
namespace {

constexpr std::size_t kAlign = CopyBatch::kMostBytes; ///< of the range and its chunks, where CopyBatch cuts; two huge pages
constexpr std::size_t kPage = 4096;
constexpr std::size_t kTouchBytes = std::size_t{32} << 20; ///< what a thread takes at a time

/// First number of a file, or of its line that begins with `key`; the largest one when there is none.
std::size_t read_number(const std::string& path, const std::string& key = {})
{
    std::ifstream file(path);
    std::string word;
    while (!key.empty() && file >> word && word != key) {}
    std::size_t number = 0;
    return file >> number ? number : std::numeric_limits<std::size_t>::max();
}

} // namespace

std::size_t available_host_bytes(const std::string& root)
{
    constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();
    const std::size_t kilobytes = read_number(root + "/proc/meminfo", "MemAvailable:");
    std::size_t available = kilobytes == kUnknown ? kUnknown : kilobytes * 1024;
    const std::string group = root + "/sys/fs/cgroup/memory.";
    const std::size_t most = read_number(group + "max"); // "max" is no number: no limit
    const std::size_t used = read_number(group + "current");
    if (most != kUnknown && used != kUnknown) {
        const std::size_t pages = read_number(group + "stat", "inactive_file");
        const std::size_t held = used - (pages == kUnknown ? 0 : std::min(pages, used));
        available = std::min(available, most - std::min(held, most));
    }
    return available;
}

std::optional<HostTier> HostTier::try_create(const HostTierOptions& options, PinFailure& failure)
{
    detail::expects(options.bytes > 0 && options.bytes < std::numeric_limits<std::size_t>::max() / 2, "HostTier: ", options.bytes,
                    " bytes.");
    detail::expects(options.chunk_bytes >= kAlign, "HostTier: chunk_bytes is ", options.chunk_bytes, ", expected at least ", kAlign);
    detail::expects(options.threads >= 0, "HostTier: ", options.threads, " threads");
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t bytes = align_up(options.bytes, kAlign);
    const auto refuse = [&](std::size_t pinned, const std::string& reason) {
        failure = {.full = {Tier::kSlow, bytes, pinned}, .reason = detail::text("pinned host tier of ", bytes, " bytes: ", reason)};
        return std::nullopt;
    };
    if (const std::size_t available = available_host_bytes(); options.check_available && bytes > available) {
        return refuse(0, detail::text("the host has ", available, " bytes available"));
    }
    HostTier tier;
    tier.chunk_bytes_ = align_up(options.chunk_bytes, kAlign);
    tier.map(bytes, options.huge_pages);
    if (!tier.data_) { return refuse(0, "mmap: " + std::system_category().message(errno)); }
    const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const cudaError_t code = tier.touch_and_register(options.threads ? options.threads : std::min(8, processors));
    if (code != cudaSuccess) {
        static_cast<void>(::cudaGetLastError());
        return refuse(tier.registered_, detail::text("cudaHostRegister of bytes [", tier.registered_, ", ",
                                                     std::min(bytes, tier.registered_ + tier.chunk_bytes_), "): ", ::cudaGetErrorName(code),
                                                     " (", ::cudaGetErrorString(code), ")"));
    }
    tier.seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return tier;
}

/// An aligned address range.
void HostTier::map(std::size_t bytes, bool huge_pages)
{
    const std::size_t padded = bytes + kAlign;
    void* mapped = ::mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) { return; }
    auto* first = static_cast<std::byte*>(mapped);
    const std::size_t before = align_up(reinterpret_cast<std::uintptr_t>(first), kAlign) - reinterpret_cast<std::uintptr_t>(first);
    if (before) { ::munmap(first, before); }
    if (padded - before > bytes) { ::munmap(first + before + bytes, padded - before - bytes); }
    data_ = first + before;
    bytes_ = bytes;
    if (huge_pages) { static_cast<void>(::madvise(data_, bytes_, MADV_HUGEPAGE)); } // a wish: small pages do as well
}

/// Threads touch pieces in order; this one registers a chunk as soon as its last piece is touched. The first failure ends it.
cudaError_t HostTier::touch_and_register(int threads)
{
    const std::size_t pieces = (bytes_ + kTouchBytes - 1) / kTouchBytes;
    std::atomic<std::size_t> next{0};
    std::atomic<bool> stop{false};
    std::vector<std::atomic<bool>> touched(pieces);
    const auto touch = [&] {
        for (std::size_t i = next.fetch_add(1); i < pieces && !stop; i = next.fetch_add(1)) {
            const std::size_t end = std::min(bytes_, (i + 1) * kTouchBytes);
            for (std::size_t at = i * kTouchBytes; at < end; at += kPage) { static_cast<volatile std::byte&>(data_[at]) = std::byte{0}; }
            touched[i] = true;
            touched[i].notify_one();
        }
    };
    std::vector<std::jthread> workers;
    for (int t = 0; t < threads; ++t) { workers.emplace_back(touch); }
    cudaError_t code = cudaSuccess;
    while (code == cudaSuccess && registered_ < bytes_) {
        const std::size_t size = std::min(chunk_bytes_, bytes_ - registered_);
        for (std::size_t i = registered_ / kTouchBytes; i * kTouchBytes < registered_ + size; ++i) { touched[i].wait(false); }
        std::byte* chunk = data_ + registered_;
        code = ::cudaHostRegister(chunk, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
        if (code != cudaSuccess) { break; }
        registered_ += size;
        void* device = nullptr;
        code = ::cudaHostGetDevicePointer(&device, chunk, 0);
        if (code == cudaSuccess && device != chunk) { code = cudaErrorNotSupported; } // offsets count from one base
    }
    stop = true;
    return code;
}

HostTier::~HostTier()
{
    if (!data_) { return; }
    for (std::size_t at = 0; at < registered_; at += chunk_bytes_) { static_cast<void>(::cudaHostUnregister(data_ + at)); }
    ::munmap(data_, bytes_);
}

} // namespace oasis::cuda
