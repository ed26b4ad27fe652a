// SPDX-License-Identifier: Apache-2.0
//
// A sink without `enabled` is refused with a sentence.
// EXPECT-ERROR: Telemetry: needs `static constexpr bool enabled`
#include <oasis/core/check.hpp>

struct NoSwitch {
    void on_event(const oasis::Event&) {}
    void begin_span(oasis::Stage, oasis::LayerId) {}
    void end_span(oasis::Stage, oasis::LayerId) {}
};
static_assert(oasis::check_telemetry<NoSwitch>());
