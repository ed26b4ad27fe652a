// SPDX-License-Identifier: Apache-2.0
//
// Comparisons of attention results: with the oracle, and bit for bit.
#pragma once

#include "attend_world.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace oasis::cuda::test {

/// Fails where a row differs from the oracle by more than its type's tolerance (times `scale`).
inline void expect_attention(const AttendWorld& world, const AttendResult& result, DType dtype, double scale = 1.0)
{
    const double tolerance = scale * (dtype == DType::kF16 ? 2e-3 : 1e-2);
    const auto dim = result.out.size() / result.lse.size();
    std::size_t at = 0; // (row, query head)
    for (std::size_t s = 0; s < world.sequences().size(); ++s) {
        for (std::int32_t i = 0; i < world.sequences()[s].rows * world.kv_heads(); ++i) {
            for (const oracle::Attention& expected : world.expected(s, i / world.kv_heads(), i % world.kv_heads())) {
                double worst = 0.0;
                for (std::size_t c = 0; c < dim; ++c) {
                    const double error = std::abs(double(result.out[at * dim + c]) - expected.out[c]);
                    worst = error <= worst ? worst : error; // NaN counts as worse
                }
                ASSERT_LE(worst, tolerance) << "sequence " << s << ", (row, query head) " << at;
                if (std::isinf(expected.lse)) {
                    ASSERT_EQ(result.lse[at], -std::numeric_limits<float>::infinity());
                } else {
                    ASSERT_NEAR(result.lse[at], expected.lse, 2e-3) << "sequence " << s << ", (row, query head) " << at;
                }
                ++at;
            }
        }
    }
}

/// Equal in every bit, NaN included.
template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b)
{
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

} // namespace oasis::cuda::test
