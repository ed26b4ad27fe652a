// SPDX-License-Identifier: Apache-2.0
//
// HostTier: the large tier in page-locked host memory that the device reads and writes by itself. Ordinary pages (huge
// where the kernel gives them), touched by many threads and registered chunk by chunk while the next ones are touched:
// many times faster to set up than cudaHostAlloc (docs/design/cuda.md).
#pragma once

#include <oasis/core/step.hpp>
#include <oasis/cuda/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace oasis::cuda {

/// How much is pinned, and how.
struct HostTierOptions {
    std::size_t bytes = 0;                          ///< rounded up to 4 MiB
    std::size_t chunk_bytes = std::size_t{1} << 30; ///< of one cudaHostRegister, which fails beyond 512 GiB
    int threads = 0;                                ///< that touch the pages; 0: one per processor, at most 8, which was faster than 16
    bool huge_pages = true;                         ///< ask for them; on a fragmented host that can take long
    bool check_available = true; ///< refuse more than the host says it has; off for virtual machines whose memory grows as it is used
};

/// A host tier that could not be had. Nothing is held.
struct PinFailure {
    Full full{};          ///< names the tier: asked for, and pinned before it failed
    std::string reason{}; ///< of the system or of CUDA
};

/// Owns the memory; move-only. Addresses are the same on host and device, and kernels see one range; a copy by the runtime must not
/// span two chunks (CopyBatch cuts there).
class HostTier {
public:
    /// The tier, or (nothing, with `failure` filled) what was in the way. Throws `InvalidArgument` for options that can never work.
    static std::optional<HostTier> try_create(const HostTierOptions& options, PinFailure& failure);

    /// It moves; what it is moved from is empty.
    ///@{
    HostTier(HostTier&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          chunk_bytes_(other.chunk_bytes_),
          registered_(std::exchange(other.registered_, 0)),
          seconds_(other.seconds_)
    {
    }
    HostTier& operator=(HostTier&& other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(chunk_bytes_, other.chunk_bytes_);
        std::swap(registered_, other.registered_);
        std::swap(seconds_, other.seconds_);
        return *this;
    }
    ///@}
    /// The device must be done with the memory.
    ~HostTier();

    /// Zeros at first. The same address is good in kernels.
    std::byte* data() const noexcept { return data_; }
    /// Bytes.
    std::size_t size() const noexcept { return bytes_; }
    /// What `try_create` took.
    double setup_seconds() const noexcept { return seconds_; }

private:
    HostTier() = default;
    void map(std::size_t bytes, bool huge_pages);
    cudaError_t touch_and_register(int threads);

    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t chunk_bytes_ = 0;
    std::size_t registered_ = 0; ///< bytes, whole chunks
    double seconds_ = 0;
};

/// Bytes the host could still hand out: MemAvailable, or less where a control group says so; pages of files that it would drop
/// first count as free in both.
/// @param root where /proc and /sys are.
std::size_t available_host_bytes(const std::string& root = {});

} // namespace oasis::cuda
