// SPDX-License-Identifier: Apache-2.0
//
// What summaries, scores and the selection are, slowly and in float64. Shares no code with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace oasis::oracle {

using Row = std::vector<double>;

enum class Kind { kSpread, kCuboid, kMinMax, kMean };
enum class Code { kF32, kF16, kInt8, kInt4 };

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// x on the grid of IEEE half precision: direction 0 to nearest even, +1 up, -1 down.
inline double half(double x, int direction)
{
    if (x == 0.0) { return 0.0; }
    const int exponent = std::max(std::ilogb(x), -14);
    const double step = std::ldexp(1.0, exponent - 10);
    const double scaled = x / step;
    const double whole = direction == 0  ? std::nearbyint(scaled)
                         : direction > 0 ? std::ceil(scaled)
                                         : std::floor(scaled);
    return std::clamp(whole * step, -65504.0, 65504.0);
}

struct SubBlock {
    Row plane[2];
    double root = 0.0; ///< root of the spread
    bool poisoned = false;
    bool unbounded = false;
    std::size_t tokens = 0;
};

struct Shape {
    Kind kind;
    Code code;
    std::size_t sub_tokens;
    std::size_t block_tokens;
    std::size_t head_dim;
    std::int64_t recent;

    bool two_planes() const { return kind == Kind::kCuboid || kind == Kind::kMinMax; }
    int direction(int plane) const { return kind != Kind::kMinMax ? 0 : plane == 0 ? 1 : -1; }
};

/// The summary of keys [begin, end), as the native form keeps it.
inline SubBlock summarise(const Shape& shape, const std::vector<Row>& keys, std::size_t begin, std::size_t end)
{
    SubBlock result;
    result.tokens = end - begin;
    const double n = double(end - begin);
    double spread = 0.0;
    for (std::size_t c = 0; c < shape.head_dim; ++c) {
        double sum = 0.0;
        double high = -kInf;
        double low = kInf;
        for (std::size_t t = begin; t < end; ++t) {
            result.poisoned |= !std::isfinite(keys[t][c]);
            sum += keys[t][c];
            high = std::max(high, keys[t][c]);
            low = std::min(low, keys[t][c]);
        }
        const double mean = sum / n;
        for (std::size_t t = begin; t < end; ++t) { spread += (keys[t][c] - mean) * (keys[t][c] - mean) / n; }
        switch (shape.kind) {
        case Kind::kCuboid:
            high = (high + mean) / 2;
            low = (low + mean) / 2;
            break;
        case Kind::kMinMax: break;
        default: high = mean; break;
        }
        result.plane[0].push_back(high);
        result.plane[1].push_back(low);
    }
    result.root = std::sqrt(spread);
    if (shape.code == Code::kF32 || result.poisoned) { return result; }
    result.root = half(result.root, 0);
    for (int p = 0; p < 2; ++p) {
        for (double& x : result.plane[p]) {
            if (shape.kind == Kind::kMinMax && (p == 0 ? x > 65504 : x < -65504)) { result.unbounded = true; }
            x = half(x, shape.direction(p));
        }
    }
    return result;
}

/// Replaces the values of one channel by what an affine code of `levels` steps keeps of them.
inline void code_values(std::vector<double*> values, int levels, int direction)
{
    if (values.empty()) { return; }
    double low = kInf;
    double high = -kInf;
    for (const double* x : values) {
        low = std::min(low, *x);
        high = std::max(high, *x);
    }
    const double scale = half((high - low) / levels, direction < 0 ? -1 : 1); // the extremes stay in reach
    for (double* x : values) {
        if (scale == 0.0) { break; }
        const double steps = (*x - low) / scale;
        const double code = direction == 0  ? std::floor(steps + 0.5)
                            : direction > 0 ? std::ceil(steps)
                                            : std::floor(steps);
        *x = low + scale * std::min(code, double(levels));
    }
}

/// Codes 64 sub-blocks: what the coded form keeps.
inline void code_group(const Shape& shape, std::vector<SubBlock>& group)
{
    if (shape.code == Code::kF32 || shape.code == Code::kF16) { return; }
    std::vector<SubBlock*> good;
    for (SubBlock& sub : group) {
        if (!sub.poisoned) { good.push_back(&sub); }
    }
    std::vector<double*> values(good.size());
    for (int p = 0; p < (shape.two_planes() ? 2 : 1); ++p) {
        for (std::size_t c = 0; c < shape.head_dim; ++c) {
            for (std::size_t i = 0; i < good.size(); ++i) { values[i] = &good[i]->plane[p][c]; }
            code_values(values, shape.code == Code::kInt8 ? 255 : 15, shape.direction(p));
        }
    }
    for (std::size_t i = 0; i < good.size(); ++i) { values[i] = &good[i]->root; }
    code_values(values, 255, 0);
}

inline double estimate(const Shape& shape, const SubBlock& sub, const Row& q, double scale)
{
    if (sub.poisoned) { return kNaN; }
    if (sub.unbounded) { return kInf; }
    double sum = 0.0;
    double square = 0.0;
    for (std::size_t c = 0; c < shape.head_dim; ++c) {
        square += q[c] * q[c];
        const int plane = shape.two_planes() && q[c] * scale < 0 ? 1 : 0;
        sum += q[c] * sub.plane[plane][c];
    }
    double result = sum * scale + std::log(double(sub.tokens));
    if (shape.kind == Kind::kSpread) {
        result += 0.6 * square * sub.root * sub.root * scale * scale / double(shape.head_dim);
    }
    return result;
}

inline double log_sum_exp(const Row& x)
{
    double high = -kInf;
    for (const double v : x) {
        if (std::isnan(v)) { return kNaN; }
        high = std::max(high, v);
    }
    if (std::isinf(high)) { return high; }
    double sum = 0.0;
    for (const double v : x) { sum += std::exp(v - high); }
    return high + std::log(sum);
}

/// The summaries that a row at `position` reads.
inline std::vector<SubBlock> summaries(const Shape& shape, const std::vector<Row>& keys, std::int64_t position)
{
    const auto tokens = std::size_t(position + 1);
    const std::size_t group_tokens = 64 * shape.sub_tokens;
    std::vector<SubBlock> result;
    for (std::size_t begin = 0; begin < tokens; begin += group_tokens) {
        const bool coded = std::int64_t(begin + group_tokens) - 1 <= position - shape.recent;
        std::vector<SubBlock> group;
        for (std::size_t t = begin; t < std::min(begin + group_tokens, tokens); t += shape.sub_tokens) {
            group.push_back(summarise(shape, keys, t, std::min(t + shape.sub_tokens, tokens)));
        }
        if (coded) { code_group(shape, group); }
        result.insert(result.end(), group.begin(), group.end());
    }
    return result;
}

/// Log mass of every block for one query head.
inline Row log_masses(const Shape& shape, const std::vector<SubBlock>& summaries, const Row& q, double scale)
{
    Row result;
    const std::size_t per_block = shape.block_tokens / shape.sub_tokens;
    for (std::size_t s = 0; s < summaries.size(); s += per_block) {
        Row estimates;
        for (std::size_t i = s; i < std::min(s + per_block, summaries.size()); ++i) {
            estimates.push_back(estimate(shape, summaries[i], q, scale));
        }
        result.push_back(log_sum_exp(estimates));
    }
    return result;
}

/// The best `count` positions by (forced, score, lower position), ascending; NaN after every number, -inf never.
inline std::vector<std::int32_t> best_blocks(const std::vector<float>& scores, std::int32_t first,
                                             std::int32_t sink_end, std::int32_t recent_begin, std::size_t count)
{
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto forced = [&](std::size_t i) {
        return first + std::int32_t(i) < sink_end || first + std::int32_t(i) >= recent_begin;
    };
    const auto better = [&](std::size_t a, std::size_t b) {
        if (forced(a) || forced(b)) { return forced(a) && !forced(b); }
        if (std::isnan(scores[a]) || std::isnan(scores[b])) {
            return !std::isnan(scores[a])  ? scores[a] != -std::numeric_limits<float>::infinity()
                   : std::isnan(scores[b]) ? false
                                           : scores[b] == -std::numeric_limits<float>::infinity();
        }
        return scores[a] > scores[b];
    };
    std::stable_sort(order.begin(), order.end(), better);
    std::vector<std::int32_t> result;
    for (std::size_t i = 0; i < order.size() && result.size() < count; ++i) {
        if (!forced(order[i]) && scores[order[i]] == -std::numeric_limits<float>::infinity()) { break; }
        result.push_back(first + std::int32_t(order[i]));
    }
    std::sort(result.begin(), result.end());
    return result;
}

} // namespace oasis::oracle
