// SPDX-License-Identifier: Apache-2.0
//
// A toy engine for tests of the whole step: K, V and Q are functions of (stream, layer, position), so that any schedule of prefill, drafts,
// rejections, forks and truncations of the same streams must give the same outputs.
#pragma once

#include <oasis/oasis.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace oasis::test {

inline CacheConfig small_config()
{
    CacheConfig c;
    c.shape = {.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 32};
    c.budgets = {.attend = 256, .fetch = 128, .logical_resident = 256, .sink = 32, .recent = 48, .top_p = 1.0F};
    c.limits = {.max_sequences = 4, .max_rows = 256, .max_context = 2048};
    return c;
}

enum class Kind : std::uint64_t { kQ, kK, kV };

/// One vector of the stream. Keys drift slowly, so that blocks differ in their mass as those of a language model do.
inline void fill_vector(std::uint64_t stream, Kind kind, LayerId layer, std::int32_t head, TokenIndex position, std::span<float> out)
{
    std::uint64_t state = (stream * 0x9E3779B97F4A7C15ULL) ^ (std::uint64_t(kind) << 60) ^ (std::uint64_t(layer) << 48) ^ (std::uint64_t(head) << 40) ^ std::uint64_t(position);
    std::uint64_t slow = (stream * 0xD6E8FEB86659FD93ULL) ^ (std::uint64_t(layer) << 48) ^ (std::uint64_t(head) << 40) ^ std::uint64_t(position / 24);
    const auto next = [](std::uint64_t& s) {
        s += 0x9E3779B97F4A7C15ULL;
        std::uint64_t z = s;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        return float(std::int64_t(z ^ (z >> 31)) >> 40) / float(1 << 23);
    };
    for (float& x : out) { x = next(state) + (kind == Kind::kV ? 0.0F : 2.0F * next(slow)); }
}

/// Token ids of a stream's prompt: equal streams share prefixes.
inline std::vector<TokenId> tokens_of(std::uint64_t stream, TokenIndex n)
{
    std::vector<TokenId> tokens;
    for (TokenIndex p = 0; p < n; ++p) { tokens.push_back(static_cast<TokenId>(stream * 100'000 + std::uint64_t(p))); }
    return tokens;
}

/// Drives one cache and keeps the output of every row it ran.
class Engine {
public:
    explicit Engine(AnyKVCache& cache, std::size_t threads = 1) : cache_(cache), pool_(threads), shape_(cache.config().shape) {}

    Queue queue() { return Queue(pool_); }

    /// A group of one step and the stream that each of its rows takes its content from.
    struct Part {
        RowGroup rows;
        std::vector<std::uint64_t> streams; ///< [rows]; one entry stands for all
        std::int32_t accept = -1;           ///< -1: all
        std::vector<TokenId> tokens;        ///< ids of the accepted rows
    };

    /// Runs one step; returns [rows][layers * q_heads * head_dim] as float. Empty when a tier was full.
    std::vector<std::vector<float>> step(const std::vector<Part>& parts, bool commit = true)
    {
        std::vector<RowGroup> groups;
        std::vector<TokenIndex> begin;
        for (const Part& part : parts) {
            groups.push_back(part.rows);
            begin.push_back(cache_.length(part.rows.sequence));
        }
        Step step = cache_.begin_step(queue(), groups);
        if (!step) {
            full = step.full();
            return {};
        }
        const auto rows = std::size_t(step.rows());
        const auto d = std::size_t(shape_.head_dim);
        std::vector<std::vector<float>> out(rows);
        std::vector<float> q(rows * std::size_t(shape_.q_heads) * d), k(rows * std::size_t(shape_.kv_heads) * d), v(k.size()), o(q.size());
        for (LayerId layer = 0; layer < shape_.layers; ++layer) {
            std::size_t row = 0;
            for (std::size_t p = 0; p < parts.size(); ++p) {
                for (std::int32_t i = 0; i < parts[p].rows.rows(); ++i, ++row) {
                    const auto& streams = parts[p].streams;
                    const std::uint64_t stream = streams[std::min(std::size_t(i), streams.size() - 1)];
                    for (std::int32_t h = 0; h < shape_.q_heads; ++h) {
                        fill_vector(stream, Kind::kQ, layer, h, begin[p] + i, {q.data() + (row * std::size_t(shape_.q_heads) + std::size_t(h)) * d, d});
                    }
                    for (std::int32_t h = 0; h < shape_.kv_heads; ++h) {
                        fill_vector(stream, Kind::kK, layer, h, begin[p] + i, {k.data() + (row * std::size_t(shape_.kv_heads) + std::size_t(h)) * d, d});
                        fill_vector(stream, Kind::kV, layer, h, begin[p] + i, {v.data() + (row * std::size_t(shape_.kv_heads) + std::size_t(h)) * d, d});
                    }
                }
            }
            attend(step, layer, q, k, v, o);
            for (std::size_t r = 0; r < rows; ++r) {
                const std::size_t n = std::size_t(shape_.q_heads) * d;
                out[r].insert(out[r].end(), o.begin() + std::ptrdiff_t(r * n), o.begin() + std::ptrdiff_t((r + 1) * n));
            }
        }
        if (commit) {
            std::vector<Accepted> accepted;
            for (const Part& part : parts) {
                const std::int32_t most = part.rows.prefill_tokens + part.rows.verify_rows;
                accepted.push_back({part.accept < 0 ? most : part.accept, part.tokens});
            }
            cache_.commit(queue(), std::move(step), accepted);
        }
        return out;
    }

    /// Prefills up to `length` in chunks.
    std::vector<std::vector<float>> prefill(SequenceId id, std::uint64_t stream, TokenIndex length, std::int32_t chunk = 100, std::vector<TokenId> tokens = {})
    {
        std::vector<std::vector<float>> out;
        while (cache_.length(id) < length) {
            const TokenIndex begin = cache_.length(id);
            const auto n = std::int32_t(std::min<TokenIndex>(chunk, length - begin));
            Part part{{.sequence = id, .prefill_tokens = n}, {stream}, -1, {}};
            if (!tokens.empty()) { part.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + n); }
            auto rows = step({part});
            if (rows.empty()) { return out; }
            std::move(rows.begin(), rows.end(), std::back_inserter(out));
        }
        return out;
    }
    /// Decodes `rows` one by one.
    std::vector<std::vector<float>> decode(SequenceId id, std::uint64_t stream, std::int32_t rows)
    {
        std::vector<std::vector<float>> out;
        for (std::int32_t i = 0; i < rows; ++i) {
            auto one = step({{{.sequence = id, .verify_rows = 1}, {stream}, -1, {}}});
            if (one.empty()) { return out; }
            out.push_back(std::move(one[0]));
        }
        return out;
    }

    std::optional<Full> full;

private:
    void attend(Step& step, LayerId layer, std::vector<float>& q, std::vector<float>& k, std::vector<float>& v, std::vector<float>& out)
    {
        switch (cache_.config().dtype) {
        case DType::kF32: cache_.enqueue_attend(queue(), step, layer, {.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()}); return;
        case DType::kF16: attend_as<f16>(step, layer, q, k, v, out); return;
        case DType::kBF16: attend_as<bf16>(step, layer, q, k, v, out); return;
        }
    }
    template <class E>
    void attend_as(Step& step, LayerId layer, std::vector<float>& q, std::vector<float>& k, std::vector<float>& v, std::vector<float>& out)
    {
        const auto convert = [](const std::vector<float>& from) {
            std::vector<E> to(from.size());
            for (std::size_t i = 0; i < from.size(); ++i) { to[i] = from_float<E>(from[i]); }
            return to;
        };
        const auto qe = convert(q), ke = convert(k), ve = convert(v);
        std::vector<E> oe(out.size());
        cache_.enqueue_attend(queue(), step, layer, {.q = qe.data(), .k = ke.data(), .v = ve.data(), .out = oe.data()});
        for (std::size_t i = 0; i < out.size(); ++i) { out[i] = to_float(oe[i]); }
    }

    AnyKVCache& cache_;
    ThreadPool pool_;
    ModelShape shape_;
};

} // namespace oasis::test
