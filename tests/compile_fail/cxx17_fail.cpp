// SPDX-License-Identifier: Apache-2.0
//
// A compiler in C++17 mode is told what is missing, in a sentence, before any concept confuses it.
// EXPECT-ERROR: OasisKV needs C\+\+20
#undef __cplusplus
#define __cplusplus 201703L
#include <oasis/version.hpp>
