// SPDX-License-Identifier: Apache-2.0
//
// A lookahead that never forgets is refused with a sentence.
// EXPECT-ERROR: LookaheadPolicy: needs `forget\(SequenceId\)`
#include <oasis/core/check.hpp>

struct Elephant {
    void observe_row(oasis::SequenceId, oasis::LayerId, std::int32_t, std::int32_t, std::span<const std::int32_t>, bool) {}
    std::size_t predict(oasis::SequenceId, oasis::LayerId, std::int32_t, std::span<std::int32_t>) { return 0; }
    void accepted(oasis::SequenceId, std::int32_t) {}
    void copy(oasis::SequenceId, oasis::SequenceId) {}
};
static_assert(oasis::check_lookahead<Elephant>());
