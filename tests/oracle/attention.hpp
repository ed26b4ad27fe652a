// SPDX-License-Identifier: Apache-2.0
//
// What attention is, slowly and in float64. Shares no code with the library.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace oasis::oracle {

using Row = std::vector<double>;

/// The result of one query over a list of tokens.
struct Attention {
    Row out;        ///< softmax-weighted mean of the values; zeros for an empty list
    double lse = 0; ///< natural log of the sum of exponentials; -inf for an empty list
};

inline double dot(const Row& a, const Row& b)
{
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) { sum += a[i] * b[i]; }
    return sum;
}

/// Dense attention of one (already scaled) query over the listed tokens.
inline Attention attend(const Row& query, const std::vector<Row>& keys, const std::vector<Row>& values)
{
    Attention result{Row(query.size(), 0.0), -std::numeric_limits<double>::infinity()};
    if (keys.empty()) { return result; }
    Row logits;
    double top = -std::numeric_limits<double>::infinity();
    for (const Row& key : keys) {
        logits.push_back(dot(query, key));
        top = std::max(top, logits.back());
    }
    double sum = 0;
    for (const double logit : logits) { sum += std::exp(logit - top); }
    for (std::size_t t = 0; t < keys.size(); ++t) {
        const double weight = std::exp(logits[t] - top) / sum;
        for (std::size_t i = 0; i < query.size(); ++i) { result.out[i] += weight * values[t][i]; }
    }
    result.lse = top + std::log(sum);
    return result;
}

/// The smallest finite value of binary16 that is not below x >= 0; 65504 above that.
inline double half_not_below(double x)
{
    if (x >= 65504.0) { return 65504.0; }
    if (x <= 0) { return 0; }
    int exponent = 0;
    std::frexp(x, &exponent); // x = fraction * 2^exponent, fraction in [0.5, 1)
    const double step = std::ldexp(1.0, std::max(exponent - 11, -24));
    return std::ceil(x / step) * step;
}

/// The int8 code of one row: what a reader of the code sees.
struct Int8Row {
    double scale = 0;
    std::vector<int> codes;
    Row decoded;
};

inline Int8Row quantise(const Row& row)
{
    Int8Row result;
    double amax = 0;
    for (const double x : row) { amax = std::max(amax, std::abs(x)); }
    // The library divides in float: the same rounding first.
    result.scale = half_not_below(static_cast<double>(static_cast<float>(amax / 127.0)));
    for (const double x : row) {
        double code = result.scale > 0 ? std::nearbyint(x / result.scale) : 0.0;
        code = std::min(127.0, std::max(-127.0, code));
        result.codes.push_back(static_cast<int>(code));
        result.decoded.push_back(code * result.scale);
    }
    return result;
}

} // namespace oasis::oracle
