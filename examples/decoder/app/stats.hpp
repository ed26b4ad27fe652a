// SPDX-License-Identifier: Apache-2.0
//
// The measures of a comparison: divergence, agreement, likelihood, intervals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis_decode {

/// Index of the largest value, the lowest on ties. NaN never wins; an empty row throws.
std::size_t argmax(std::span<const float> row);

/// log(sum(exp(row))), in double.
double log_sum_exp(std::span<const float> row);

/// KL(reference || other) in nats of the two softmax distributions.
double kl_divergence(std::span<const float> reference, std::span<const float> other);

/// -log p(token) under the softmax of `row`.
double negative_log_likelihood(std::span<const float> row, std::int32_t token);

struct Interval {
    double low = 0;
    double high = 1;
};

/// Wilson score interval of a proportion at 95 %. No trials: [0, 1].
Interval wilson(std::size_t successes, std::size_t trials);

/// A mean that knows whether it saw anything: NaN when not.
class Mean {
public:
    void add(double value, double weight = 1.0) noexcept
    {
        sum_ += value * weight;
        weight_ += weight;
    }
    double value() const noexcept;

private:
    double sum_ = 0;
    double weight_ = 0;
};

/// a / b, NaN when b is 0.
double ratio(double a, double b) noexcept;

/// How one decoded stretch compares with the dense one, row by row.
class RowComparison {
public:
    /// `next` is the true next token; negative: unknown, the row then counts for KL and top-1 only.
    void add(std::span<const float> dense, std::span<const float> sparse, std::int32_t next);

    double kl() const noexcept { return kl_.value(); }
    double top1() const noexcept { return top1_.value(); }
    double dense_nll() const noexcept { return dense_nll_.value(); }
    double sparse_nll() const noexcept { return sparse_nll_.value(); }
    double dense_perplexity() const noexcept;
    double perplexity_ratio() const noexcept;

private:
    Mean kl_;
    Mean top1_;
    Mean dense_nll_;
    Mean sparse_nll_;
};

} // namespace oasis_decode
