// SPDX-License-Identifier: Apache-2.0
//
// A selection that changes itself is refused: the same input must give the same sets.
// EXPECT-ERROR: SelectionPolicy: needs `select\(const SelectionInput&, SelectionOutput&\) const`
#include <oasis/core/check.hpp>

struct Mutable {
    void select(const oasis::SelectionInput&, oasis::SelectionOutput&) {}
};
static_assert(oasis::check_selection<Mutable>());
