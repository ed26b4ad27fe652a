// SPDX-License-Identifier: Apache-2.0
//
// The first of two translation units that see every header (ODR): what main calls comes from both.
#include "api.hpp"

int main()
{
    const long expected = 4950;
    if (sum_in_first(100) != expected || sum_in_second(100) != expected) { return 1; }
    if (address_in_first() != address_in_second()) { return 2; }
#if defined(OASIS_COMPILED)
    if (oasis::linked_version() != oasis::kVersion) { return 3; }
#endif
    return 0;
}

long sum_in_first(int n) { return sum(n); }
const void* address_in_first() { return &oasis::kVersion; }
