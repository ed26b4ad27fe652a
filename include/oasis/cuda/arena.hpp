// SPDX-License-Identifier: Apache-2.0
//
// Arena: device memory at an address that never changes while it grows and shrinks. The range is reserved up front; memory
// is mapped into it from the front, granule by granule. Slots, native tails and summaries live in arenas, so kernels and
// captured graphs keep their base pointers.
#pragma once

#include <oasis/cuda/error.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace oasis::cuda {

/// How far an arena may grow, and in what steps.
struct ArenaOptions {
    std::size_t reserve_bytes = 0;                     ///< most it can ever hold; costs addresses only
    std::size_t granule_bytes = std::size_t{64} << 20; ///< unit of growth, rounded up to what the device maps
};

/// Not thread-safe; move-only. Memory is uninitialised.
class Arena {
public:
    /// On the current device. Throws `CudaError` where the driver is missing or refuses.
    explicit Arena(const ArenaOptions& options);
    /// It moves; what it is moved from is empty.
    ///@{
    Arena(Arena&& other) noexcept
        : device_(other.device_),
          data_(std::exchange(other.data_, nullptr)),
          reserved_(std::exchange(other.reserved_, 0)),
          committed_(std::exchange(other.committed_, 0)),
          granule_(other.granule_),
          peers_(std::move(other.peers_))
    {
    }
    Arena& operator=(Arena&& other) noexcept
    {
        std::swap(device_, other.device_);
        std::swap(data_, other.data_);
        std::swap(reserved_, other.reserved_);
        std::swap(committed_, other.committed_);
        std::swap(granule_, other.granule_);
        std::swap(peers_, other.peers_);
        return *this;
    }
    ///@}
    /// The device must be done with the memory.
    ~Arena();

    /// Where it begins; the address stays.
    std::byte* data() const noexcept { return data_; }
    /// Bytes of addresses, the most it can hold.
    std::size_t reserved() const noexcept { return reserved_; }
    /// Bytes from `data()` on that can be used.
    std::size_t committed() const noexcept { return committed_; }
    /// What it grows by.
    std::size_t granule() const noexcept { return granule_; }

    /// At least `bytes` can be used afterwards; false, with nothing changed, when the device has no memory for it. Throws
    /// `InvalidArgument` beyond `reserved()`.
    [[nodiscard]] bool try_grow(std::size_t bytes);

    /// Gives back the granules that lie wholly beyond `bytes`. The device must be done with them: synchronise first.
    void shrink(std::size_t bytes);

    /// Kernels of `device` may use it too, what it grows by included.
    void allow_access(int device);

private:
    void unmap(std::size_t from, std::size_t to) noexcept;
    void set_access(int device, std::size_t from, std::size_t to) const;

    int device_ = 0;
    std::byte* data_ = nullptr;
    std::size_t reserved_ = 0;
    std::size_t committed_ = 0;
    std::size_t granule_ = 0;
    std::vector<int> peers_;
};

} // namespace oasis::cuda
