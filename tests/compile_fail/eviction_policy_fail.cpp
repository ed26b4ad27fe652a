// SPDX-License-Identifier: Apache-2.0
//
// A `victim` that takes plain functions alone is refused with a sentence.
// EXPECT-ERROR: EvictionPolicy: `victim` must take any callable
#include <oasis/core/check.hpp>

struct PlainFunctions {
    void resize(std::size_t) {}
    void on_insert(oasis::SlotId, std::uint64_t) {}
    void on_access(oasis::SlotId, std::uint64_t) {}
    void on_erase(oasis::SlotId) {}
    std::optional<oasis::SlotId> victim(bool (*)(oasis::SlotId)) { return {}; }
};
static_assert(oasis::check_eviction<PlainFunctions>());
