// SPDX-License-Identifier: Apache-2.0
//
// Copies by the device's copy engines, for few and large runs, and the table that says when they beat the gather kernel.
// Runs are known to the host, and the batched call cannot be captured in a graph: what a captured step moves goes by fetch.hpp.
#pragma once

#include <oasis/cuda/queue.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace oasis::cuda {

/// Runs to be copied in one call. A queue of copies is served in order, so runs are cut into pieces of at most 4 MiB: a demand
/// that comes later then waits for one of them at most. Cuts lie where the host address is a multiple of 4 MiB, because one copy
/// must not span two registrations of pinned memory (HostTier's chunks).
class CopyBatch {
public:
    /// Of a piece.
    static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

    /// `host` is pinned.
    ///@{
    void add_to_device(void* device, const void* host, std::size_t bytes) { add(device, host, host, bytes); }
    void add_to_host(void* host, const void* device, std::size_t bytes) { add(host, device, host, bytes); }
    ///@}
    /// Pieces that were added.
    std::size_t pieces() const noexcept { return sizes_.size(); }
    /// Forgets them.
    void clear() noexcept;
    /// Copies everything added, in any order among themselves, after the queue's earlier work. The batch may be cleared and filled again at once.
    void enqueue(Queue queue);

private:
    void add(void* target, const void* source, const void* host, std::size_t bytes);

    std::vector<void*> targets_;
    std::vector<const void*> sources_;
    std::vector<std::size_t> sizes_;
};

/// How bytes cross the link: a kernel that reads host memory, or the copy engines.
enum class TransferPath : std::uint8_t { kGather, kDma };

/// Rates of both paths on this device and host, by bytes of a contiguous run and number of runs. The gather kernel moves a run in
/// units.
class TransferTable {
public:
    /// What is measured: bytes of a run, and runs.
    ///@{
    static constexpr std::array<std::size_t, 6> kRunBytes{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
    static constexpr std::array<std::size_t, 3> kRuns{1, 8, 64};
    ///@}

    /// Measures (about 0.1 s) with the first bytes of `tier` (pinned host memory) and of `slots` (device memory), whose content in the slots is
    /// lost; neither may be in use. Blocks. Combinations larger than either are estimated from the next smaller one.
    static TransferTable measure(Queue queue, std::byte* tier, std::size_t tier_bytes, std::byte* slots, std::size_t slot_bytes,
                                 std::uint32_t unit_bytes);

    /// The faster path for `runs` runs of `run_bytes` each: nearest measured combination.
    TransferPath choose(std::size_t run_bytes, std::size_t runs) const noexcept;
    /// Measured GB/s of the nearest combination.
    double gbps(TransferPath path, std::size_t run_bytes, std::size_t runs) const noexcept;

private:
    using Rates = std::array<std::array<double, kRuns.size()>, kRunBytes.size()>;
    Rates gather_{};
    Rates dma_{};
};

} // namespace oasis::cuda
