// SPDX-License-Identifier: Apache-2.0
#include "api.hpp"

long sum_in_second(int n) { return sum(n); }
const void* address_in_second() { return &oasis::kVersion; }
