// SPDX-License-Identifier: Apache-2.0
//
// What the next rows of a sequence depend on, as values: two sequences with equal states go on equally.
#pragma once

#include <oasis/oasis.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

namespace oasis::test {

struct SequenceDigest {
    TokenIndex length = 0;
    std::size_t blocks = 0;
    std::size_t groups = 0;
    std::int32_t native_begin = 0;
    std::int32_t native_group_begin = 0;
    std::vector<bool> sealed{};
    std::vector<bool> closed{};
    std::vector<std::byte> native{};        ///< K and V of tokens below the length
    std::vector<std::byte> summaries{};     ///< native form, of whole sub-blocks below the length
    std::vector<std::byte> coded{};         ///< closed groups
    std::vector<std::int32_t> logical{};    ///< members and stamps
};

/// The first field in which two digests differ, and where; empty when they are equal.
inline std::string difference(const SequenceDigest& a, const SequenceDigest& b)
{
    const auto at = [](const char* field, const auto& x, const auto& y) {
        if (x == y) { return std::string(); }
        const auto first = std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin();
        return std::string(field) + " differ from entry " + std::to_string(first) + " of " + std::to_string(x.size()) + " and " + std::to_string(y.size());
    };
    for (const auto& [field, x, y] : {std::tuple{"lengths", a.length, b.length}, {"blocks", TokenIndex(a.blocks), TokenIndex(b.blocks)},
                                      {"groups", TokenIndex(a.groups), TokenIndex(b.groups)}, {"native windows", TokenIndex(a.native_begin), TokenIndex(b.native_begin)},
                                      {"native groups", TokenIndex(a.native_group_begin), TokenIndex(b.native_group_begin)}}) {
        if (x != y) { return std::string(field) + " differ: " + std::to_string(x) + " and " + std::to_string(y); }
    }
    for (const std::string& found : {at("sealed blocks", a.sealed, b.sealed), at("closed groups", a.closed, b.closed), at("native bytes", a.native, b.native),
                                     at("summaries", a.summaries, b.summaries), at("coded summaries", a.coded, b.coded), at("logical sets", a.logical, b.logical)}) {
        if (!found.empty()) { return found; }
    }
    return {};
}

namespace digest {

inline void append(std::vector<std::byte>& to, const std::byte* from, std::size_t bytes) { to.insert(to.end(), from, from + bytes); }

/// Sub-blocks [0, count) of a native group: every channel's and the spread's values, and the header's bits.
inline void append_group(std::vector<std::byte>& to, const SummaryLayout& layout, const std::byte* group, std::int32_t count)
{
    const std::size_t element = layout.native_element();
    const std::size_t rows = std::size_t(layout.channels()) + (layout.spread ? 1 : 0);
    for (std::size_t row = 0; row < rows; ++row) {
        const std::byte* values = group + sizeof(SummaryHeader) + row * layout.native_channel_bytes();
        for (std::int32_t s = 0; s < count; ++s) { append(to, values + std::size_t(layout.slot(s)) * element, element); }
    }
}

} // namespace digest

template <class Pool>
SequenceDigest digest_of(Pool& pool, SequenceId id)
{
    const Sequence& s = *pool.find(id);
    const PoolShape& shape = pool.shape();
    const HeadBlockLayout& block = shape.head_block;
    SequenceDigest state{.length = s.length,
                        .blocks = s.blocks.size(),
                        .groups = s.groups.size(),
                        .native_begin = s.native_begin,
                        .native_group_begin = s.native_group_begin};
    // What is still native may have been sealed too, by rows that were rejected: nobody reads it so.
    for (auto j = 0; j < s.native_begin; ++j) { state.sealed.push_back(pool.blocks()[s.blocks[std::size_t(j)]].sealed); }
    for (auto g = 0; g < s.native_group_begin; ++g) { state.closed.push_back(pool.groups()[s.groups[std::size_t(g)]].closed); }
    const std::size_t row = std::size_t(block.head_dim) * size_of(block.dtype);
    for (LayerId layer = 0; layer < shape.config.shape.layers; ++layer) {
        for (std::int32_t head = 0; head < shape.config.shape.kv_heads; ++head) {
            for (auto j = std::size_t(s.native_begin); j < s.blocks.size(); ++j) {
                const auto tokens = std::size_t(std::min<TokenIndex>(block.block_tokens, s.length - TokenIndex(j) * block.block_tokens));
                const std::byte* data = pool.native(s.blocks[j], layer, head);
                digest::append(state.native, data, tokens * row);
                digest::append(state.native, data + block.native_v_offset(), tokens * row);
            }
            for (std::size_t g = 0; g < s.groups.size(); ++g) {
                if (g >= std::size_t(s.native_group_begin)) {
                    const TokenIndex tokens = std::min<TokenIndex>(shape.group_tokens(), s.length - TokenIndex(g) * shape.group_tokens());
                    digest::append_group(state.summaries, shape.summary, pool.native_group(s.groups[g], layer, head),
                                               static_cast<std::int32_t>(tokens / shape.config.summary.tokens));
                }
                if (g < std::size_t(s.native_group_begin) && state.closed[g]) {
                    const SummaryLayout& l = shape.summary;
                    const std::byte* coded = pool.coded_group(s.groups[g], layer, head);
                    digest::append(state.coded, coded, offsetof(SummaryHeader, reserved));
                    digest::append(state.coded, coded + sizeof(SummaryHeader), l.codes_offset() - sizeof(SummaryHeader) + std::size_t(l.channels()) * l.channel_bytes());
                }
            }
        }
    }
    s.logical.save(state.logical);
    return state;
}

} // namespace oasis::test
