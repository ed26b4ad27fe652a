// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets that kernels are compiled for, whichever ones this version of Highway knows. Comes before <hwy/foreach_target.h>.
#pragma once

#include <hwy/detect_targets.h>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (~(HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_NEON | HWY_SCALAR | HWY_EMU128))
