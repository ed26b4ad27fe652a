// SPDX-License-Identifier: Apache-2.0
//
// BlockScorer: writes summaries, codes closed groups, and scores the blocks of a sequence for the query rows of a step
// in one pass. A log mass depends on the row's query and position and the summaries it may read, never on the other
// rows or groups of a job.
#pragma once

#include <oasis/concepts.hpp>
#include <oasis/core/error.hpp>
#include <oasis/cpu/score_kernels.hpp>
#include <oasis/score/reduce.hpp>
#include <oasis/score/summaries.hpp>
#include <oasis/score/summary_code.hpp>
#include <oasis/score/summary_layout.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

namespace oasis {

/// Rows of one sequence and one KV head. A row at position p reads a group in coded form exactly if the group's last
/// position is <= p - recent, else in native form; of that, the sub-blocks that are complete at p. Its last, incomplete
/// sub-block [p / t * t, p] comes from its tail. A row at a negative position is padding: all its log masses are -inf.
struct ScoreJob {
    const float* q = nullptr;                  ///< [rows, group, head_dim], not scaled
    std::int64_t q_row_stride = 0;             ///< floats between rows
    std::int32_t rows = 0;                     ///< verify and lookahead rows
    std::int32_t group = 0;                    ///< query heads of the KV head
    float scale = 0.0F;                        ///< of the logits
    const TokenIndex* position = nullptr;      ///< [rows]
    const std::byte* const* tail = nullptr;    ///< [rows]; not read where (position + 1) is a multiple of the sub-block
    std::span<const SummaryGroupRef> groups{}; ///< groups[i] is group first_group + i
    std::int32_t first_group = 0;              ///< position of groups[0]
    std::int32_t recent = 0;                   ///< tokens of the native window
    float* log_mass = nullptr;                 ///< [rows, group, stride], entry (block - first_group * blocks_per_group); -inf beyond the row's position
    std::int64_t stride = 0;                   ///< at least groups.size() * blocks_per_group
};

/// Summaries of keys, and what a query makes of them.
///
/// Not thread-bound: every member is const and may run on many threads at once, but one group is written by one thread at a
/// time: its sub-blocks share a header. Nothing allocates.
template <SummaryPolicy S = StockSummary> class BlockScorer {
public:
    /// Throws `InvalidArgument` for shapes that are not supported, with the value.
    BlockScorer(S policy, SummaryOptions options, int head_dim, int block_tokens,
                const cpu::ScoreKernels& kernels = cpu::score_kernels());

    /// Where the parts of a group lie.
    const SummaryLayout& layout() const noexcept { return layout_; }
    /// Whether no block holds more mass than its score says.
    bool is_upper_bound() const noexcept { return layout_.upper_bound; }

    /// Summary of sub-block `s` of a group from its keys (1..tokens of them), rounded as the native form rounds.
    /// Overwrites.
    void write_sub_block(std::byte* native, std::int32_t s, KeyRows keys) const;
    /// The same for the last, incomplete sub-block of a row.
    void write_tail(std::byte* tail, KeyRows keys) const;
    /// Codes the first `sub_blocks` sub-blocks of a group from its native form.
    void close_group(const std::byte* native, std::int32_t sub_blocks, std::byte* coded) const;
    /// Estimates the log mass of every block for every row and query head: one pass over the summaries.
    void score(const ScoreJob& job) const;

private:
    struct Pass; // as many (row, head) pairs as fit the stack
    static constexpr std::int32_t kMaxPairs = 32;
    static constexpr std::int32_t kWeightFloats = 8192;

    detail::SubBlockFlags summarise(KeyRows keys, float* planes, float& root) const;
    void check(const ScoreJob& job) const;
    void weigh(const ScoreJob& job, Pass& pass) const;
    void score_group(const ScoreJob& job, Pass& pass, std::int32_t index) const;
    void score_form(const ScoreJob& job, Pass& pass, std::int32_t index, const std::byte* group, bool coded,
                    std::span<const std::int32_t> pairs) const;
    void finish_pair(const ScoreJob& job, const Pass& pass, std::int32_t index, SummaryHeader header, std::int32_t pair,
                     float* estimates) const;
    float tail_estimate(const std::byte* tail, const float* weights) const;

    [[no_unique_address]] S policy_;
    SummaryLayout layout_;
    const cpu::ScoreKernels* kernels_;
};

template <SummaryPolicy S> struct BlockScorer<S>::Pass {
    std::int32_t first = 0; // pair = row * group + head
    std::int32_t count = 0;
    std::int32_t weight_stride = 0;
    alignas(64) float weights[kWeightFloats + kMaxPairs * 16];
    alignas(64) float estimates[kMaxPairs * 64];
    float tails[kMaxPairs];

    const float* weights_of(std::int32_t pair) const noexcept { return weights + pair * weight_stride; }
};

namespace detail {

inline void check_summary_shape(const SummaryOptions& options, int head_dim, int block_tokens, int planes)
{
    expects(block_tokens == 16 || block_tokens == 32 || block_tokens == 64, "BlockScorer: block_tokens is ",
            block_tokens, ", expected 16, 32 or 64");
    expects(head_dim >= 32 && head_dim <= 256 && head_dim % 16 == 0, "BlockScorer: head_dim is ", head_dim,
            ", expected 32 to 256, a multiple of 16");
    const std::int32_t t = options.tokens;
    expects(t == block_tokens || t == 1 || t == 2 || t == 4 || t == 8 || t == 16, "BlockScorer: a sub-block has ", t,
            " tokens, expected 1, 2, 4, 8, 16 or the block's ", block_tokens);
    expects(static_cast<int>(options.code) <= static_cast<int>(SummaryCode::kInt4),
            "BlockScorer: unknown summary code ", int(options.code));
    expects(planes >= 0 && planes <= 2, "BlockScorer: the summary policy has ", planes, " planes, expected 1 or 2");
}

} // namespace detail

template <SummaryPolicy S>
BlockScorer<S>::BlockScorer(S policy, SummaryOptions options, int head_dim, int block_tokens,
                            const cpu::ScoreKernels& kernels)
    : policy_(std::move(policy)), kernels_(&kernels)
{
    detail::check_summary_shape(options, head_dim, block_tokens, policy_.planes());
    if constexpr (std::same_as<S, StockSummary>) {
        detail::expects(policy_.kind() == options.kind, "BlockScorer: the options ask for summary kind ",
                        int(options.kind), ", the policy is of kind ", int(policy_.kind()));
    }
    layout_ = SummaryLayout{.options = options,
                            .planes = policy_.planes(),
                            .head_dim = head_dim,
                            .block_tokens = block_tokens,
                            .spread = policy_.has_spread(),
                            .upper_bound = policy_.is_upper_bound()};
}

template <SummaryPolicy S>
detail::SubBlockFlags BlockScorer<S>::summarise(KeyRows keys, float* planes, float& root) const
{
    detail::expects(keys.tokens >= 1 && keys.tokens <= layout_.options.tokens, "BlockScorer: ", keys.tokens,
                    " keys for a sub-block of ", layout_.options.tokens, " tokens");
    detail::expects(keys.head_dim == layout_.head_dim, "BlockScorer: keys have head_dim ", keys.head_dim, ", expected ",
                    layout_.head_dim);
    detail::expects(layout_.planes > 0, "BlockScorer: the oracle has no summaries to write");
    detail::SubBlockFlags flags{.poisoned = !detail::all_finite(keys)};
    root = 0.0F;
    if (flags.poisoned) {
        std::fill_n(planes, layout_.channels(), 0.0F);
        return flags;
    }
    const bool keep_f32 = layout_.options.code == SummaryCode::kF32;
    float spread = 0.0F;
    policy_.summarise(keys, SummaryRow{.plane = {planes, layout_.planes == 2 ? planes + layout_.head_dim : nullptr},
                                       .spread = layout_.spread ? &spread : nullptr});
    for (std::int32_t p = 0; p < layout_.planes; ++p) {
        const auto rounding = detail::rounding_of(layout_, p);
        float* plane = planes + p * layout_.head_dim;
        for (std::int32_t c = 0; c < layout_.head_dim; ++c) {
            flags.unbounded |= rounding == detail::Rounding::kUp ? plane[c] > kMaxF16 : plane[c] < -kMaxF16;
            plane[c] = detail::round_native(plane[c], rounding, keep_f32);
        }
    }
    const float exact = std::sqrt(std::clamp(spread, 0.0F, std::numeric_limits<float>::max()));
    flags.unbounded = (flags.unbounded || exact > kMaxF16) && layout_.upper_bound && !keep_f32;
    root =
        detail::round_native(exact, layout_.upper_bound ? detail::Rounding::kUp : detail::Rounding::kNearest, keep_f32);
    return flags;
}

template <SummaryPolicy S> void BlockScorer<S>::write_sub_block(std::byte* native, std::int32_t s, KeyRows keys) const
{
    detail::expects(s >= 0 && s < SummaryLayout::kGroupSubBlocks, "BlockScorer: sub-block ", s, " of a group of 64");
    float planes[2 * 256];
    float root = 0.0F;
    const detail::SubBlockFlags flags = summarise(keys, planes, root);
    const bool keep_f32 = layout_.options.code == SummaryCode::kF32;
    const auto slot = std::size_t(layout_.slot(s));
    std::byte* data = native + sizeof(SummaryHeader);
    for (std::int32_t c = 0; c < layout_.channels(); ++c) {
        detail::store_native(data, slot, planes[c], keep_f32);
        data += layout_.native_channel_bytes();
    }
    if (layout_.spread) { detail::store_native(native + layout_.native_spread_offset(), slot, root, keep_f32); }
    SummaryHeader header;
    std::memcpy(&header, native, sizeof(header));
    detail::set_bit(header.poisoned, s, flags.poisoned);
    detail::set_bit(header.unbounded, s, flags.unbounded);
    std::memcpy(native, &header, sizeof(header));
}

template <SummaryPolicy S> void BlockScorer<S>::write_tail(std::byte* tail, KeyRows keys) const
{
    float planes[2 * 256];
    float root = 0.0F;
    const detail::SubBlockFlags flags = summarise(keys, planes, root);
    const SummaryTail head{.log_tokens = std::log(static_cast<float>(keys.tokens)),
                           .spread = root * root,
                           .poisoned = flags.poisoned,
                           .unbounded = flags.unbounded};
    std::memcpy(tail, &head, sizeof(head));
    std::memcpy(tail + sizeof(head), planes, std::size_t(layout_.channels()) * sizeof(float));
}

template <SummaryPolicy S>
void BlockScorer<S>::close_group(const std::byte* native, std::int32_t sub_blocks, std::byte* coded) const
{
    detail::expects(sub_blocks >= 0 && sub_blocks <= SummaryLayout::kGroupSubBlocks, "BlockScorer: closing a group of ",
                    sub_blocks, " sub-blocks, expected 0 to 64");
    if (layout_.plain()) {
        std::memcpy(coded, native, layout_.native_bytes());
        return;
    }
    SummaryHeader open;
    std::memcpy(&open, native, sizeof(open));
    SummaryHeader header; // what was never written holds garbage, flags included: equal keys give equal bytes all the same
    std::uint64_t valid = 0; // by slot
    for (std::int32_t s = 0; s < sub_blocks; ++s) {
        detail::set_bit(header.poisoned, s, ((open.poisoned >> s) & 1U) != 0);
        detail::set_bit(header.unbounded, s, ((open.unbounded >> s) & 1U) != 0);
        detail::set_bit(valid, layout_.slot(s), ((open.poisoned >> s) & 1U) == 0);
    }
    detail::code_group(layout_, native, valid, header, coded);
}

template <SummaryPolicy S> void BlockScorer<S>::score(const ScoreJob& job) const
{
    check(job);
    const std::int32_t pairs = job.rows * job.group;
    const std::int32_t width = std::min(kMaxPairs, kWeightFloats / layout_.channels());
    Pass pass;
    pass.weight_stride = layout_.channels() + 16;
    for (pass.first = 0; pass.first < pairs; pass.first += width) {
        pass.count = std::min(width, pairs - pass.first);
        weigh(job, pass);
        for (std::size_t i = 0; i < job.groups.size(); ++i) { score_group(job, pass, std::int32_t(i)); }
    }
}

template <SummaryPolicy S> void BlockScorer<S>::check(const ScoreJob& job) const
{
    detail::expects(layout_.planes > 0, "BlockScorer: the oracle has no summaries to score");
    detail::expects(job.rows >= 0 && job.group >= 1, "BlockScorer: a job of ", job.rows, " rows and ", job.group,
                    " heads");
    const std::int64_t blocks = std::int64_t(job.groups.size()) * layout_.blocks_per_group();
    detail::expects(job.stride >= blocks, "BlockScorer: log_mass has room for ", job.stride,
                    " blocks, the groups have ", blocks);
    detail::expects(std::int64_t(job.rows) * job.group <= std::numeric_limits<std::int32_t>::max(),
                    "BlockScorer: ", job.rows, " rows of ", job.group, " heads are too many");
}

template <SummaryPolicy S> void BlockScorer<S>::weigh(const ScoreJob& job, Pass& pass) const
{
    for (std::int32_t i = 0; i < pass.count; ++i) {
        const std::int32_t row = (pass.first + i) / job.group;
        const std::int32_t head = (pass.first + i) % job.group;
        float* weights = pass.weights + i * pass.weight_stride;
        const float* q = job.q + row * job.q_row_stride + std::int64_t(head) * layout_.head_dim;
        policy_.weigh(q, layout_.head_dim, job.scale,
                      QueryWeights{.plane = {weights, layout_.planes == 2 ? weights + layout_.head_dim : nullptr},
                                   .spread = layout_.spread ? weights + layout_.channels() : nullptr});
        const TokenIndex position = job.position[row];
        pass.tails[i] = position >= 0 && (position + 1) % layout_.options.tokens != 0
                            ? tail_estimate(job.tail[row], weights)
                            : 0.0F;
    }
}

template <SummaryPolicy S> float BlockScorer<S>::tail_estimate(const std::byte* tail, const float* weights) const
{
    SummaryTail head;
    std::memcpy(&head, tail, sizeof(head));
    float sums[16] = {};
    float values[16];
    for (std::int32_t c = 0; c < layout_.channels(); c += 16) {
        std::memcpy(values, tail + sizeof(head) + std::size_t(c) * sizeof(float), sizeof(values));
        for (std::int32_t i = 0; i < 16; ++i) { sums[i] += weights[c + i] * values[i]; }
    }
    float total = head.log_tokens + (layout_.spread ? weights[layout_.channels()] * head.spread : 0.0F);
    for (const float sum : sums) { total += sum; }
    return total;
}

template <SummaryPolicy S> void BlockScorer<S>::score_group(const ScoreJob& job, Pass& pass, std::int32_t index) const
{
    const SummaryGroupRef& group = job.groups[std::size_t(index)];
    const TokenIndex begin = TokenIndex(job.first_group + std::int64_t(index)) * layout_.group_tokens();
    std::int32_t lists[3][kMaxPairs]; // native, coded, nothing complete
    std::int32_t counts[3] = {};
    for (std::int32_t i = 0; i < pass.count; ++i) {
        const TokenIndex position = job.position[(pass.first + i) / job.group];
        const bool complete = position - begin + 1 >= layout_.options.tokens;
        const int list = !complete ? 2 : begin + layout_.group_tokens() - 1 <= position - job.recent ? 1 : 0;
        lists[list][counts[list]++] = i;
    }
    score_form(job, pass, index, group.native, false, {lists[0], std::size_t(counts[0])});
    score_form(job, pass, index, group.coded, true, {lists[1], std::size_t(counts[1])});
    for (std::int32_t i = 0; i < counts[2]; ++i) {
        finish_pair(job, pass, index, SummaryHeader{}, lists[2][i], pass.estimates);
    }
}

template <SummaryPolicy S>
void BlockScorer<S>::score_form(const ScoreJob& job, Pass& pass, std::int32_t index, const std::byte* group, bool coded,
                                std::span<const std::int32_t> pairs) const
{
    if (pairs.empty()) { return; }
    detail::expects(group != nullptr, "BlockScorer: group ", job.first_group + index, " has no ",
                    coded ? "coded" : "native", " form, but a row needs it");
    const float* weights[kMaxPairs];
    for (std::size_t i = 0; i < pairs.size(); ++i) { weights[i] = pass.weights_of(pairs[i]); }
    kernels_->estimate({.layout = layout_,
                        .group = group,
                        .coded = coded,
                        .weights = weights,
                        .pairs = std::int32_t(pairs.size()),
                        .estimates = pass.estimates});
    SummaryHeader header;
    std::memcpy(&header, group, sizeof(header));
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        finish_pair(job, pass, index, header, pairs[i], pass.estimates + 64 * i);
    }
}

/// Hides what lies beyond the row, puts in its tail, reduces to blocks and marks the blocks without a finite estimate.
template <SummaryPolicy S>
void BlockScorer<S>::finish_pair(const ScoreJob& job, const Pass& pass, std::int32_t index, SummaryHeader header,
                                 std::int32_t pair, float* estimates) const
{
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const std::int32_t row = (pass.first + pair) / job.group;
    const TokenIndex begin = TokenIndex(job.first_group + std::int64_t(index)) * layout_.group_tokens();
    const TokenIndex tokens = std::clamp<TokenIndex>(job.position[row] + 1 - begin, 0, layout_.group_tokens());
    const auto complete = std::int32_t(tokens / layout_.options.tokens);
    if (complete < 64) {
        const std::uint64_t mask = (std::uint64_t{1} << complete) - 1;
        header.poisoned &= mask;
        header.unbounded &= mask;
        for (std::int32_t s = complete; s < 64; ++s) { estimates[layout_.slot(s)] = -kInfinity; }
        if (tokens % layout_.options.tokens != 0) {
            SummaryTail tail;
            std::memcpy(&tail, job.tail[row], sizeof(tail));
            detail::set_bit(header.poisoned, complete, tail.poisoned != 0);
            detail::set_bit(header.unbounded, complete, tail.unbounded != 0);
            estimates[layout_.slot(complete)] = pass.tails[pair];
        }
    }
    float* log_mass = job.log_mass + (pass.first + std::int64_t(pair)) * job.stride +
                      std::int64_t(index) * layout_.blocks_per_group();
    kernels_->block_log_mass(estimates, layout_.blocks_per_group(), log_mass);
    for (std::uint64_t rest = header.unbounded; rest != 0; rest &= rest - 1) {
        log_mass[std::countr_zero(rest) / layout_.sub_blocks_per_block()] = kInfinity;
    }
    for (std::uint64_t rest = header.poisoned; rest != 0; rest &= rest - 1) {
        log_mass[std::countr_zero(rest) / layout_.sub_blocks_per_block()] = std::numeric_limits<float>::quiet_NaN();
    }
}

} // namespace oasis
