// SPDX-License-Identifier: Apache-2.0
//
// The whole decode step of one layer on one thread (append, score, select, resolve, fetch, attend), sparse and dense with the same cache code,
// and where its time goes. 9 query heads, 3 KV heads, 64 channels, float; attend 2,048, fetch 1,024.
#include <oasis/cache.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <time.h>

namespace {

using namespace oasis;

constexpr ModelShape kShape{.layers = 1, .q_heads = 9, .kv_heads = 3, .head_dim = 64};
constexpr std::int64_t kGrowth = 512; ///< tokens decoded before the sequence is cut back to the benchmark's context

/// Sums the processor time of each stage on the thread that drives the cache.
struct StageClock {
    static constexpr bool enabled = true;
    std::array<double, 9> seconds{};
    std::array<double, 9> begun{};
    void on_event(const Event&) const noexcept {}
    void begin_span(Stage stage, LayerId) { begun[std::size_t(stage)] = now(); }
    void end_span(Stage stage, LayerId) { seconds[std::size_t(stage)] += now() - begun[std::size_t(stage)]; }

private:
    static double now()
    {
        timespec t{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
    }
};

struct ClockPolicies : DefaultPolicies<cpu::Backend, float> {
    using Telemetry = StageClock;
};

CacheConfig config_of(std::int64_t context, bool dense)
{
    CacheConfig c;
    c.shape = kShape;
    c.limits = {.max_sequences = 1, .max_rows = 512, .max_context = context + kGrowth + 1};
    c.dense_below = dense ? c.limits.max_context : 0;
    return c;
}

/// One sequence of `context` tokens, and queries that turn slowly, so that consecutive rows read mostly the same blocks.
template <class Policies>
class Scene {
public:
    Scene(std::int64_t context, bool dense) : cache_(config_of(context, dense)), context_(context), queue_(executor_)
    {
        id_ = cache_.create({}).id;
        query_.resize(std::size_t(kShape.q_heads * kShape.head_dim));
        out_.resize(query_.size());
        for (float& x : query_) { x = normal_(random_); }
        queries_.reserve(kVariants);
        while (cache_.length(id_) < context) { append(std::int32_t(std::min<std::int64_t>(512, context - cache_.length(id_)))); }
        make_keys(kVariants);
        for (std::size_t i = 0; i < kVariants; ++i) {
            for (float& x : query_) { x = 0.95F * x + 0.3F * normal_(random_); }
            queries_.push_back(query_);
        }
        for (int i = 0; i < 20; ++i) { decode(); }
    }

    void decode()
    {
        if (cache_.length(id_) >= context_ + kGrowth) { cache_.truncate(id_, context_); }
        const std::size_t turn = steps_ / kVariants % 2 == 0 ? steps_ % kVariants : kVariants - 1 - steps_ % kVariants; // to and fro: no jumps
        ++steps_;
        const std::size_t row = turn * std::size_t(kShape.kv_heads * kShape.head_dim);
        run({.sequence = id_, .verify_rows = 1}, {.q = queries_[turn].data(), .k = keys_.data() + row, .v = values_.data() + row, .out = out_.data()});
    }

    KVCache<cpu::Backend, float, Policies>& cache() { return cache_; }

private:
    void make_keys(std::int32_t rows)
    {
        keys_.resize(std::size_t(rows * kShape.kv_heads * kShape.head_dim));
        values_.resize(keys_.size());
        if (topic_.empty()) { topic_.resize(std::size_t(kShape.kv_heads * kShape.head_dim)); }
        for (std::size_t i = 0; i < keys_.size(); ++i) {
            const std::size_t channel = i % topic_.size();
            if (random_() % 32 == 0) { topic_[channel] = normal_(random_); }
            keys_[i] = topic_[channel] + 0.5F * normal_(random_);
            values_[i] = normal_(random_);
        }
    }
    void append(std::int32_t rows)
    {
        make_keys(rows);
        const std::vector<float> q(std::size_t(rows) * query_.size());
        run({.sequence = id_, .prefill_tokens = rows}, {.q = q.data(), .k = keys_.data(), .v = values_.data()});
    }
    void run(const RowGroup& group, const AttendArgs& args)
    {
        Step step = cache_.begin_step(queue_, {&group, 1});
        cache_.enqueue_attend(queue_, step, 0, args);
        const Accepted all{group.rows(), {}};
        cache_.commit(queue_, std::move(step), {&all, 1});
    }

    KVCache<cpu::Backend, float, Policies> cache_;
    std::int64_t context_;
    InlineExecutor executor_;
    Queue queue_;
    SequenceId id_{};
    std::mt19937 random_{7};
    std::normal_distribution<float> normal_;
    std::vector<float> topic_;
    static constexpr std::size_t kVariants = 256; ///< rows made beforehand
    std::vector<std::vector<float>> queries_;
    std::size_t steps_ = 0;
    std::vector<float> query_, keys_, values_, out_;
};

void step_bench(benchmark::State& state, bool dense)
{
    const std::int64_t context = state.range(0);
    Scene<DefaultPolicies<cpu::Backend, float>> scene(context, dense);
    const Counters before = scene.cache().stats().counters;
    for (auto _ : state) { scene.decode(); }
    const Counters after = scene.cache().stats().counters;
    const auto steps = double(state.iterations());
    const double row_bytes = 2.0 * kShape.head_dim * sizeof(float);
    const double tokens = dense ? double(kShape.kv_heads) * double(context) : double(after.attended_tokens - before.attended_tokens) / steps;
    const double summaries = dense ? 0.0 : double(scene.cache().stats().summary_bytes);
    state.SetBytesProcessed(std::int64_t(steps * (tokens * row_bytes + summaries)));
    state.counters["tokens_per_head"] = tokens / kShape.kv_heads;
    state.counters["fetched_tokens_per_head"] = double(after.fetched_tokens - before.fetched_tokens) / steps / kShape.kv_heads;
}
void sparse_step(benchmark::State& state) { step_bench(state, false); }
void dense_step(benchmark::State& state) { step_bench(state, true); }

/// The same steps with a clock at every stage: microseconds of a step.
void sparse_stages(benchmark::State& state)
{
    Scene<ClockPolicies> scene(state.range(0), false);
    scene.cache().telemetry().seconds = {};
    for (auto _ : state) { scene.decode(); }
    for (const Stage stage : {Stage::kAppend, Stage::kSeal, Stage::kScore, Stage::kSelect, Stage::kResolve, Stage::kFetch, Stage::kAttend}) {
        state.counters[std::string(name(stage)) + "_us"] = scene.cache().telemetry().seconds[std::size_t(stage)] * 1e6 / double(state.iterations());
    }
}

/// A copy of as many bytes as the dense step reads.
void copy(benchmark::State& state)
{
    const std::size_t bytes = std::size_t(state.range(0)) * std::size_t(kShape.kv_heads * kShape.head_dim) * 2 * sizeof(float);
    std::vector<char> from(bytes, 1), to(bytes);
    for (auto _ : state) {
        std::memcpy(to.data(), from.data(), bytes);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(bytes));
}

BENCHMARK(sparse_step)->Arg(8192)->Arg(32768)->Unit(benchmark::kMicrosecond);
BENCHMARK(dense_step)->Arg(8192)->Arg(32768)->Unit(benchmark::kMicrosecond);
BENCHMARK(sparse_stages)->Arg(8192)->Arg(32768)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy)->Arg(8192)->Arg(32768)->Unit(benchmark::kMicrosecond);

} // namespace
