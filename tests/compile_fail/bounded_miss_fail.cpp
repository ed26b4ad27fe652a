// SPDX-License-Identifier: Apache-2.0
//
// Misses may be given up only where the summaries are upper bounds.
// EXPECT-ERROR: the Scorer policy must be an upper bound
#include <oasis/oasis.hpp>

struct Bounded : oasis::DefaultPolicies<oasis::cpu::Backend, float> {
    static constexpr oasis::MissPolicy kMiss = oasis::MissPolicy::kBounded;
};
const oasis::KVCache<oasis::cpu::Backend, float, Bounded> cache(oasis::CacheConfig{});
