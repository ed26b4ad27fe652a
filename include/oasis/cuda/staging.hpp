// SPDX-License-Identifier: Apache-2.0
//
// StagingRing: what the host decides for a step (plans, tables) on its way to the device, while the host is some steps ahead.
#pragma once

#include <oasis/cuda/memory.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace oasis::cuda {

/// Pinned buffers used in turn, each guarded by an event: none is written again before the copy that reads it has run.
template <class T> class StagingRing {
public:
    /// `depth` buffers of `capacity` elements: how many uploads the host may be ahead.
    StagingRing(std::size_t capacity, std::size_t depth)
    {
        detail::expects(depth > 0, "StagingRing: depth is 0.");
        for (std::size_t i = 0; i < depth; ++i) { entries_.push_back({PinnedBuffer<T>(capacity), Event()}); }
    }

    /// Memory to fill for the next `enqueue`. Blocks while the device still reads it.
    std::span<T> next()
    {
        Entry& entry = entries_[at_];
        if (entry.used) { entry.copied.synchronize(); }
        entry.used = false;
        return {entry.memory.data(), entry.memory.size()};
    }

    /// Copies the first `count` elements of what `next` gave to `target` (device memory).
    void enqueue(Queue queue, T* target, std::size_t count)
    {
        Entry& entry = entries_[at_];
        detail::expects(!entry.used && count <= entry.memory.size(), "StagingRing: enqueue of ", count, " of ", entry.memory.size(),
                        " elements", entry.used ? " without a call of next" : "");
        enqueue_copy(queue, target, std::span<const T>(entry.memory.data(), count));
        entry.copied.record(queue);
        entry.used = true;
        at_ = (at_ + 1) % entries_.size();
    }

private:
    struct Entry {
        PinnedBuffer<T> memory;
        Event copied;
        bool used = false;
    };
    std::vector<Entry> entries_;
    std::size_t at_ = 0;
};

} // namespace oasis::cuda
