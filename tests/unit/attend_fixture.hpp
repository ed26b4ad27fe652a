// SPDX-License-Identifier: Apache-2.0
//
// Head-blocks with random K and V beside what the oracle needs of them. Memory that no token owns is poisoned.
#pragma once

#include <oasis/core/half.hpp>
#include <oasis/cpu/attend_kernels.hpp>
#include <oasis/pool/head_block.hpp>

#include "oracle/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace oasis::test {

using cpu::AttendKernels;
using cpu::BlockFormat;
using cpu::BlockRef;

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline void store(DType type, std::byte* to, float x)
{
    const f16 half = to_f16(x);
    const bf16 brain = to_bf16(x);
    if (type == DType::kF32) { std::memcpy(to, &x, 4); }
    if (type == DType::kF16) { std::memcpy(to, &half, 2); }
    if (type == DType::kBF16) { std::memcpy(to, &brain, 2); }
}

inline double rounded(DType type, float x)
{
    if (type == DType::kF16) { return to_float(to_f16(x)); }
    if (type == DType::kBF16) { return to_float(to_bf16(x)); }
    return x;
}

/// Blocks of one sequence and KV head, from position 0.
struct Blocks {
    BlockFormat format;
    std::int32_t tokens = 0;
    std::vector<oracle::Row> keys; ///< as the native form holds them
    std::vector<oracle::Row> values;
    std::vector<oracle::Row> coded_keys; ///< as the int8 form holds them
    std::vector<oracle::Row> coded_values;
    std::vector<std::vector<std::byte>> native;
    std::vector<std::vector<std::byte>> coded;

    HeadBlockLayout layout(BlockCode code) const { return {format.dtype, code, format.block_tokens, format.head_dim}; }
    std::int32_t blocks() const { return static_cast<std::int32_t>(native.size()); }
    std::int32_t fill(std::int32_t block) const
    {
        return std::min(format.block_tokens, tokens - block * format.block_tokens);
    }

    std::vector<BlockRef> refs(bool as_coded = false) const
    {
        std::vector<BlockRef> result;
        for (std::int32_t j = 0; j < blocks(); ++j) {
            const auto& bytes = as_coded ? coded[std::size_t(j)] : native[std::size_t(j)];
            result.push_back({bytes.data(), 0, static_cast<std::int16_t>(fill(j)), as_coded});
        }
        return result;
    }

    /// Writes one element of K (plane 0) or V (plane 1) into the native form and the lists of the oracle.
    void set(std::int32_t plane, std::int32_t token, std::int32_t channel, float x)
    {
        const std::size_t at =
            std::size_t(plane * format.block_tokens + token % format.block_tokens) * std::size_t(format.head_dim) +
            std::size_t(channel);
        store(format.dtype, native[std::size_t(token / format.block_tokens)].data() + at * size_of(format.dtype), x);
        (plane ? values : keys)[std::size_t(token)][std::size_t(channel)] = rounded(format.dtype, x);
    }
};

inline std::vector<float> random_floats(std::size_t n, unsigned seed, float spread = 1.0F)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, spread);
    std::vector<float> result(n);
    for (float& x : result) { x = normal(random); }
    return result;
}

/// Random tokens; what is beyond them holds `poison`. Both forms are filled, the coded one by the scalar kernel.
inline Blocks make_blocks(BlockFormat format, std::int32_t tokens, unsigned seed, float poison = kNaN,
                          float spread = 1.0F)
{
    Blocks result{format, tokens, {}, {}, {}, {}, {}, {}};
    const std::size_t d = std::size_t(format.head_dim);
    result.keys.assign(std::size_t(tokens), oracle::Row(d));
    result.values = result.keys;
    const std::vector<float> x = random_floats(2 * std::size_t(tokens) * d, seed, spread);
    for (std::int32_t begin = 0; begin < tokens; begin += format.block_tokens) {
        auto& bytes = result.native.emplace_back(result.layout(BlockCode::kNative).native_bytes());
        for (std::size_t i = 0; i < 2 * result.layout(BlockCode::kNative).elements(); ++i) {
            store(format.dtype, bytes.data() + i * size_of(format.dtype), poison);
        }
    }
    for (std::int32_t plane = 0, i = 0; plane < 2; ++plane) {
        for (std::int32_t t = 0; t < tokens; ++t) {
            for (std::int32_t c = 0; c < format.head_dim; ++c) { result.set(plane, t, c, x[std::size_t(i++)]); }
        }
    }
    for (std::int32_t j = 0; j < result.blocks(); ++j) {
        auto& bytes = result.coded.emplace_back(result.layout(BlockCode::kInt8).int8_bytes(), std::byte{0x7F});
        cpu::scalar_attend_kernels().encode_int8(format, result.native[std::size_t(j)].data(), result.fill(j),
                                                 bytes.data());
    }
    for (const auto& row : result.keys) { result.coded_keys.push_back(oracle::quantise(row).decoded); }
    for (const auto& row : result.values) { result.coded_values.push_back(oracle::quantise(row).decoded); }
    return result;
}

struct State {
    std::vector<float> out;
    std::vector<float> lse;
};

/// Attention over a list of blocks cut into chunks, merged in order.
inline State attend(const AttendKernels& kernels, const BlockFormat& format, const std::vector<float>& q,
                    std::int32_t group, const std::vector<BlockRef>& refs)
{
    const std::size_t n = std::size_t(group) * std::size_t(format.head_dim);
    State total{std::vector<float>(n, 0.0F), std::vector<float>(std::size_t(group), -kInf)};
    State part{std::vector<float>(n, kNaN), std::vector<float>(std::size_t(group), kNaN)};
    const std::size_t step = std::size_t(cpu::kChunkTokens / format.block_tokens);
    for (std::size_t first = 0; first == 0 || first < refs.size(); first += step) {
        const std::span<const BlockRef> blocks(refs.data() + first, std::min(step, refs.size() - first));
        kernels.attend_chunk({format, q.data(), group, blocks, part.out.data(), part.lse.data()});
        cpu::merge_states(group, format.head_dim, part.out.data(), part.lse.data(), total.out.data(), total.lse.data());
    }
    return total;
}

inline std::vector<oracle::Row> rows_of(const std::vector<float>& x, std::size_t d)
{
    std::vector<oracle::Row> rows;
    for (std::size_t i = 0; i < x.size(); i += d) {
        rows.emplace_back(x.begin() + std::ptrdiff_t(i), x.begin() + std::ptrdiff_t(i + d));
    }
    return rows;
}

/// out [heads, d] and lse [heads] against the oracle over the listed tokens.
inline void expect_attention(const std::vector<float>& q, const std::vector<oracle::Row>& keys,
                             const std::vector<oracle::Row>& values, const float* out, const float* lse, std::size_t d,
                             double tolerance)
{
    const std::vector<oracle::Row> queries = rows_of(q, d);
    for (std::size_t h = 0; h < queries.size(); ++h) {
        const oracle::Attention expected = oracle::attend(queries[h], keys, values);
        if (keys.empty()) {
            ASSERT_EQ(lse[h], -kInf);
        } else {
            ASSERT_NEAR(lse[h], expected.lse, tolerance * std::max(1.0, std::abs(expected.lse))) << "head " << h;
        }
        for (std::size_t i = 0; i < d; ++i) {
            ASSERT_NEAR(out[h * d + i], expected.out[i], tolerance) << "head " << h << " channel " << i;
        }
    }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b)
{
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A suite that runs on every table of this machine.
class OnEveryTable : public testing::TestWithParam<const AttendKernels*> {
protected:
    const AttendKernels& kernels() const { return *GetParam(); }
};

inline auto every_table()
{
    const auto tables = cpu::all_attend_kernels();
    return testing::ValuesIn(std::vector<const AttendKernels*>(tables.begin(), tables.end()));
}

inline std::string table_name(const testing::TestParamInfo<const AttendKernels*>& info) { return info.param->name; }

} // namespace oasis::test
