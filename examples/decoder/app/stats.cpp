// SPDX-License-Identifier: Apache-2.0
#include "stats.hpp"

#include <oasis/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace oasis_decode {

using oasis::detail::expects;

std::size_t argmax(std::span<const float> row)
{
    expects(!row.empty(), "argmax: the row is empty");
    std::size_t best = 0;
    for (std::size_t i = 1; i < row.size(); ++i) {
        if (row[i] > row[best] || std::isnan(row[best])) { best = i; }
    }
    return best;
}

double log_sum_exp(std::span<const float> row)
{
    expects(!row.empty(), "log_sum_exp: the row is empty");
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) { sum += std::exp(x - top); }
    return top + std::log(sum);
}

double kl_divergence(std::span<const float> reference, std::span<const float> other)
{
    expects(reference.size() == other.size(), "kl_divergence: rows of ", reference.size(), " and ", other.size(),
            " logits");
    const double reference_z = log_sum_exp(reference);
    const double other_z = log_sum_exp(other);
    double sum = 0;
    for (std::size_t i = 0; i < reference.size(); ++i) {
        const double log_p = reference[i] - reference_z;
        sum += std::exp(log_p) * (log_p - (other[i] - other_z));
    }
    return sum;
}

double negative_log_likelihood(std::span<const float> row, std::int32_t token)
{
    expects(token >= 0 && static_cast<std::size_t>(token) < row.size(), "negative_log_likelihood: token ", token,
            " with a vocabulary of ", row.size());
    return log_sum_exp(row) - row[static_cast<std::size_t>(token)];
}

Interval wilson(std::size_t successes, std::size_t trials)
{
    expects(successes <= trials, "wilson: ", successes, " successes of ", trials, " trials");
    if (trials == 0) { return {}; }
    constexpr double z = 1.959963984540054;
    const double n = static_cast<double>(trials);
    const double p = static_cast<double>(successes) / n;
    const double centre = (p + z * z / (2 * n)) / (1 + z * z / n);
    const double half = z / (1 + z * z / n) * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    return {successes == 0 ? 0.0 : std::max(0.0, centre - half),
            successes == trials ? 1.0 : std::min(1.0, centre + half)};
}

double ratio(double a, double b) noexcept { return b != 0 ? a / b : std::numeric_limits<double>::quiet_NaN(); }

double Mean::value() const noexcept { return ratio(sum_, weight_); }

void RowComparison::add(std::span<const float> dense, std::span<const float> sparse, std::int32_t next)
{
    kl_.add(kl_divergence(dense, sparse));
    top1_.add(argmax(dense) == argmax(sparse) ? 1.0 : 0.0);
    if (next < 0) { return; }
    dense_nll_.add(negative_log_likelihood(dense, next));
    sparse_nll_.add(negative_log_likelihood(sparse, next));
}

double RowComparison::dense_perplexity() const noexcept { return std::exp(dense_nll()); }

double RowComparison::perplexity_ratio() const noexcept { return std::exp(sparse_nll() - dense_nll()); }

} // namespace oasis_decode
