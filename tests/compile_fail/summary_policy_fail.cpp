// SPDX-License-Identifier: Apache-2.0
//
// A summary policy without `weigh` is refused with a sentence.
// EXPECT-ERROR: SummaryPolicy: needs `weigh
#include <oasis/core/check.hpp>

struct NoWeigh {
    int planes() const { return 1; }
    bool has_spread() const { return false; }
    bool is_upper_bound() const { return false; }
    void summarise(oasis::KeyRows, oasis::SummaryRow) const {}
};
static_assert(oasis::check_summary<NoWeigh>());
