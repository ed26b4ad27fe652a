// SPDX-License-Identifier: Apache-2.0
//
// What sources with code for several instruction sets share.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define OASIS_DECODE_X86 1
#endif
/// Inlined into the function that is compiled for an instruction set, so that it is compiled for it too.
#define OASIS_DECODE_INLINE __attribute__((always_inline)) inline
