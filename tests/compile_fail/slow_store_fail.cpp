// SPDX-License-Identifier: Apache-2.0
//
// A store that cannot say that a read failed is refused with a sentence.
// EXPECT-ERROR: SlowStore: needs `bool read
#include <oasis/core/check.hpp>

struct NeverFails {
    bool reserve(oasis::BlockId) { return true; }
    void release(oasis::BlockId) {}
    bool write(const oasis::StorePiece&) { return true; }
    void read(const oasis::StorePiece&) {}
    std::size_t bytes_used() const { return 0; }
    std::size_t capacity_bytes() const { return 0; }
};
static_assert(oasis::check_store<NeverFails>());
