// SPDX-License-Identifier: Apache-2.0
//
// A cache in the plainest form, for tests of the program around it: every K and V in float, attention in double. Where
// the real cache selects, this one reads the last `budgets.attend` tokens: wrong on purpose, and measurably so.
#pragma once

#include "app/session.hpp"

#include <oasis/any_cache.hpp>
#include <oasis/core/half.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace oasis_decode::test {

class FakeCache final : public oasis::AnyKVCache, private oasis::detail::StepOwner {
public:
    explicit FakeCache(const oasis::CacheConfig& config)
        : config_(config), layers_(static_cast<std::size_t>(config.shape.layers))
    {
    }

    const oasis::CacheConfig& config() const noexcept override { return config_; }
    oasis::CreateResult create(const oasis::SequenceOptions&) override { return {.id = oasis::SequenceId{1}}; }
    oasis::ForkResult fork(oasis::SequenceId) override { throw oasis::Unsupported("FakeCache::fork"); }
    void truncate(oasis::SequenceId, oasis::TokenIndex length) override { length_ = length; }
    oasis::RemoveResult remove(oasis::SequenceId) override { return oasis::RemoveResult::kRemoved; }
    void request_remove(oasis::SequenceId) override {}
    void request_cancel(oasis::SequenceId) override {}
    oasis::PreemptResult preempt(oasis::SequenceId) override { return {}; }
    oasis::PreemptResult resume(oasis::SequenceId) override { return {}; }
    std::vector<oasis::LayerStats> layer_stats() const override { return {}; }
    oasis::SelectedSlots enqueue_select(oasis::Queue, oasis::Step&, oasis::LayerId, const oasis::AttendArgs&) override
    {
        throw oasis::Unsupported("FakeCache::enqueue_select");
    }
    oasis::TokenIndex length(oasis::SequenceId) const override { return length_; }
    oasis::SequenceState state(oasis::SequenceId) const override { return {}; }
    void drop_cached_prefixes() override {}
    std::size_t resize_fast(std::size_t bytes) override { return bytes; }

    oasis::Step begin_step(oasis::Queue, std::span<const oasis::RowGroup> groups) override
    {
        group_ = groups.front();
        if (length_ + group_.rows() > config_.limits.max_context) {
            return oasis::Step::refused({oasis::Tier::kSlow, 2, 1});
        }
        return oasis::Step::open(*this, ++serial_, group_.rows());
    }

    void enqueue_attend(oasis::Queue queue, oasis::Step& step, oasis::LayerId layer,
                        const oasis::AttendArgs& args) override
    {
        const auto rows = static_cast<std::size_t>(step.rows());
        append(layers_[static_cast<std::size_t>(layer)], args, rows);
        if (!args.out.data) { return; }
        queue.executor().parallel_for(rows, [&](std::size_t row) { attend_row(layer, args, row); });
        if (group_.verify_rows > 0) { count(rows); }
    }

    oasis::CommitResult commit(oasis::Queue, oasis::Step&& step, std::span<const oasis::Accepted> accepted) override
    {
        step.release();
        length_ += accepted.front().rows;
        ++stats_.counters.steps;
        return {.committed_rows = accepted.front().rows};
    }

    oasis::Stats stats() const override
    {
        oasis::Stats out = stats_;
        out.fast_bytes = 1000;
        out.slow_bytes = 2000;
        return out;
    }

private:
    struct Layer {
        std::vector<float> k;
        std::vector<float> v;
    };

    void roll_back(std::uint64_t) noexcept override
    {
        for (Layer& layer : layers_) {
            layer.k.resize(static_cast<std::size_t>(length_) * kv_row());
            layer.v.resize(static_cast<std::size_t>(length_) * kv_row());
        }
    }

    std::size_t kv_row() const noexcept
    {
        return static_cast<std::size_t>(config_.shape.kv_heads) * static_cast<std::size_t>(config_.shape.head_dim);
    }
    bool is_dense(std::int64_t context) const noexcept
    {
        return group_.prefill_tokens > 0 ||
               context <= (config_.dense_below < 0 ? config_.budgets.attend : config_.dense_below);
    }

    static float load(const void* data, oasis::DType type, std::size_t i)
    {
        switch (type) {
        case oasis::DType::kF16: return oasis::to_float(static_cast<const oasis::f16*>(data)[i]);
        case oasis::DType::kBF16: return oasis::to_float(static_cast<const oasis::bf16*>(data)[i]);
        case oasis::DType::kF32: break;
        }
        return static_cast<const float*>(data)[i];
    }
    static void store(void* data, oasis::DType type, std::size_t i, float x)
    {
        switch (type) {
        case oasis::DType::kF16: static_cast<oasis::f16*>(data)[i] = oasis::to_f16(x); return;
        case oasis::DType::kBF16: static_cast<oasis::bf16*>(data)[i] = oasis::to_bf16(x); return;
        case oasis::DType::kF32: static_cast<float*>(data)[i] = x; return;
        }
    }

    void append(Layer& layer, const oasis::AttendArgs& args, std::size_t rows)
    {
        layer.k.resize(static_cast<std::size_t>(length_) * kv_row());
        layer.v.resize(static_cast<std::size_t>(length_) * kv_row());
        for (std::size_t i = 0; i < rows * kv_row(); ++i) {
            layer.k.push_back(load(args.k.data, args.k.dtype, i));
            layer.v.push_back(load(args.v.data, args.v.dtype, i));
        }
    }

    void attend_row(int layer_index, const oasis::AttendArgs& args, std::size_t row) const
    {
        const Layer& layer = layers_[static_cast<std::size_t>(layer_index)];
        const auto d = static_cast<std::size_t>(config_.shape.head_dim);
        const auto heads = static_cast<std::size_t>(config_.shape.q_heads);
        const std::size_t end = static_cast<std::size_t>(length_) + row + 1;
        const auto window = static_cast<std::size_t>(config_.budgets.attend);
        const std::size_t begin = is_dense(static_cast<std::int64_t>(end)) || end < window ? 0 : end - window;
        std::vector<float> q(d);
        std::vector<double> weight(end - begin);
        for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t kv = h / static_cast<std::size_t>(config_.shape.group()) * d;
            for (std::size_t c = 0; c < d; ++c) { q[c] = load(args.q.data, args.q.dtype, (row * heads + h) * d + c); }
            double top = -1e300;
            for (std::size_t t = begin; t < end; ++t) {
                float dot = 0;
                for (std::size_t c = 0; c < d; ++c) { dot += q[c] * layer.k[t * kv_row() + kv + c]; }
                weight[t - begin] = static_cast<double>(dot) / std::sqrt(static_cast<double>(d));
                top = std::max(top, weight[t - begin]);
            }
            double sum = 0;
            std::vector<double> out(d, 0.0);
            for (std::size_t t = begin; t < end; ++t) {
                const double p = std::exp(weight[t - begin] - top);
                sum += p;
                for (std::size_t c = 0; c < d; ++c) {
                    out[c] += p * static_cast<double>(layer.v[t * kv_row() + kv + c]);
                }
            }
            for (std::size_t c = 0; c < d; ++c) {
                store(args.out.data, args.out.dtype, (row * heads + h) * d + c, static_cast<float>(out[c] / sum));
            }
        }
    }

    /// The first row of the sequence fetches 100 tokens per set, later ones 3, of 10 must tokens 7 are resident.
    void count(std::size_t rows)
    {
        const auto sets = static_cast<std::uint64_t>(config_.shape.kv_heads) * rows;
        if (is_dense(length_ + 1)) {
            stats_.counters.dense_row_sets += sets;
            return;
        }
        stats_.counters.sparse_row_sets += sets;
        stats_.counters.attended_tokens += sets * static_cast<std::uint64_t>(config_.budgets.attend);
        stats_.counters.fetched_tokens += sets * (stats_.counters.steps == first_sparse_step() ? 100 : 3);
        stats_.counters.must_tokens += sets * 10;
        stats_.counters.resident_must_tokens += sets * 7;
    }
    std::uint64_t first_sparse_step()
    {
        if (first_ == 0) { first_ = stats_.counters.steps + 1; }
        return first_ - 1;
    }

    oasis::CacheConfig config_;
    std::vector<Layer> layers_;
    oasis::RowGroup group_{};
    oasis::TokenIndex length_ = 0;
    std::uint64_t serial_ = 0;
    std::uint64_t first_ = 0;
    oasis::Stats stats_{};
};

inline oasis::Footprint fake_footprint(const oasis::CacheConfig& config)
{
    oasis::Footprint out;
    out.kv_bytes_per_token = 2 * oasis::size_of(config.dtype) * static_cast<std::size_t>(config.shape.layers) *
                             static_cast<std::size_t>(config.shape.kv_heads) *
                             static_cast<std::size_t>(config.shape.head_dim);
    out.slow_bytes_per_token = out.kv_bytes_per_token;
    out.summary_bytes_per_token = out.kv_bytes_per_token / 16;
    out.fast_bytes_per_sequence = static_cast<std::size_t>(config.budgets.logical_resident) * out.kv_bytes_per_token;
    return out;
}

/// What the program itself makes.
inline CacheMaker real_maker()
{
    return {.make = [](const oasis::CacheConfig& config) { return oasis::make_cache(config); },
            .footprint = oasis::footprint,
            .make_on = [](const oasis::CacheConfig& config,
                          const oasis::StoreFactory& store) { return oasis::make_cache(config, {}, store); }};
}

inline CacheMaker fake_maker()
{
    return {.make = [](const oasis::CacheConfig& config) -> std::unique_ptr<oasis::AnyKVCache> {
                return std::make_unique<FakeCache>(config);
            },
            .footprint = fake_footprint};
}

} // namespace oasis_decode::test
