// SPDX-License-Identifier: Apache-2.0
#include "app/session.hpp"

#include "app/stats.hpp"
#include "app/table.hpp"
#include "app/terminal.hpp"

#include <oasis/core/half.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>

namespace oasis_decode {

using oasis::detail::expects;

Engine::Engine(std::shared_ptr<const LoadedModel> loaded, std::size_t thread_count, CacheMaker maker)
    : model(std::move(loaded)), caches(std::move(maker)), threads(thread_count), llama(model, threads, kChunkRows)
{
}

KvStore::KvStore(const oasis::ModelShape& shape, std::int64_t capacity)
    : row_(static_cast<std::size_t>(shape.kv_heads) * static_cast<std::size_t>(shape.head_dim)),
      layers_(static_cast<std::size_t>(shape.layers))
{
    for (Layer& layer : layers_) {
        layer.k.reserve(row_ * static_cast<std::size_t>(capacity));
        layer.v.reserve(row_ * static_cast<std::size_t>(capacity));
    }
}

void KvStore::append(int layer, const float* k, const float* v, std::int32_t rows)
{
    Layer& to = layers_[static_cast<std::size_t>(layer)];
    const std::size_t count = row_ * static_cast<std::size_t>(rows);
    to.k.insert(to.k.end(), k, k + count);
    to.v.insert(to.v.end(), v, v + count);
}

std::int64_t KvStore::tokens() const noexcept
{
    return layers_.empty() ? 0 : static_cast<std::int64_t>(layers_.front().k.size() / row_);
}

const float* KvStore::k(int layer, std::int64_t position) const
{
    return layers_[static_cast<std::size_t>(layer)].k.data() + row_ * static_cast<std::size_t>(position);
}

const float* KvStore::v(int layer, std::int64_t position) const
{
    return layers_[static_cast<std::size_t>(layer)].v.data() + row_ * static_cast<std::size_t>(position);
}

std::size_t needed_fast_bytes(const oasis::Footprint& footprint, const oasis::CacheConfig& config)
{
    // Summaries are held in groups of 64 sub-blocks, at least a block.
    const std::int64_t group = std::max<std::int64_t>(64 * std::int64_t{config.summary.tokens}, config.block_tokens);
    const std::int64_t tokens = (config.limits.max_context / group + 2) * group;
    return footprint.fast_bytes_per_sequence + footprint.landing_bytes +
           footprint.summary_bytes_per_token * static_cast<std::size_t>(tokens);
}

std::size_t prefill_fast_bytes(const oasis::Footprint& footprint, const oasis::CacheConfig& config)
{
    const std::int64_t chunk = std::min<std::int64_t>({kChunkRows, config.limits.max_rows, config.limits.max_context});
    const std::int64_t tokens = chunk + config.budgets.recent + 2 * config.block_tokens;
    // An open group is f16, up to five times its coded form, and held twice beside int8 blocks.
    const std::int64_t group = 64 * std::int64_t{config.summary.tokens};
    return needed_fast_bytes(footprint, config) + footprint.kv_bytes_per_token * static_cast<std::size_t>(tokens) +
           10 * footprint.summary_bytes_per_token * static_cast<std::size_t>(tokens + 2 * group);
}

Session::Session(Engine& engine, const oasis::CacheConfig& config, std::size_t decode_fast_bytes)
    : engine_(engine),
      cache_(engine.caches.make(config)),
      decode_fast_bytes_(decode_fast_bytes),
      queue_(engine.threads),
      logits_(engine.vocabulary())
{
    const oasis::CreateResult created = cache_->create({});
    if (!created) {
        throw oasis::Error(fmt::format("the {} tier cannot take the sequence: {} needed, {} available",
                                       oasis::name(created.full->tier),
                                       bytes(static_cast<double>(created.full->needed_bytes)),
                                       bytes(static_cast<double>(created.full->available_bytes))));
    }
    sequence_ = created.id;
}

oasis::Step Session::begin(const oasis::RowGroup& group)
{
    oasis::Step step = cache_->begin_step(queue_, std::span(&group, 1));
    if (!step && step.full()) {
        throw oasis::Error(
            fmt::format("the {} tier is full at token {}: {} needed, {} available; give more --fast-bytes",
                        oasis::name(step.full()->tier), length(), bytes(static_cast<double>(step.full()->needed_bytes)),
                        bytes(static_cast<double>(step.full()->available_bytes))));
    }
    return step;
}

template <class Element>
void Session::attend_as(oasis::Step& step, int layer, const float* q, const float* k, const float* v, float* out)
{
    const oasis::ModelShape& shape = config().shape;
    const auto rows = static_cast<std::size_t>(step.rows());
    const std::size_t q_count =
        out ? rows * static_cast<std::size_t>(shape.q_heads) * static_cast<std::size_t>(shape.head_dim) : 0;
    const std::size_t kv_count =
        rows * static_cast<std::size_t>(shape.kv_heads) * static_cast<std::size_t>(shape.head_dim);
    converted_.resize(std::max(converted_.size(), (2 * q_count + 2 * kv_count) * sizeof(Element)));
    auto* const base = reinterpret_cast<Element*>(converted_.data());
    const auto narrow = [](const float* from, std::size_t count, Element* to) {
        std::transform(from, from + count, to, [](float x) { return oasis::from_float<Element>(x); });
        return to;
    };
    const Element* const k16 = narrow(k, kv_count, base);
    const Element* const v16 = narrow(v, kv_count, base + kv_count);
    oasis::AttendArgs args{.k = k16, .v = v16};
    if (!out) {
        args.q = k16; // not read
        cache_->enqueue_attend(queue_, step, layer, args);
        return;
    }
    Element* const out16 = base + 2 * kv_count + q_count;
    args.q = narrow(q, q_count, base + 2 * kv_count);
    args.out = out16;
    cache_->enqueue_attend(queue_, step, layer, args);
    std::transform(out16, out16 + q_count, out, [](Element x) { return oasis::to_float(x); });
}

void Session::attend(oasis::Step& step, int layer, const float* q, const float* k, const float* v, float* out)
{
    switch (config().dtype) {
    case oasis::DType::kF16: attend_as<oasis::f16>(step, layer, q, k, v, out); return;
    case oasis::DType::kBF16: attend_as<oasis::bf16>(step, layer, q, k, v, out); return;
    case oasis::DType::kF32: break;
    }
    oasis::AttendArgs args{.q = q ? q : k, .k = k, .v = v};
    if (out) { args.out = out; }
    cache_->enqueue_attend(queue_, step, layer, args);
}

void Session::commit(oasis::Step&& step, std::int32_t rows)
{
    const oasis::Accepted accepted{.rows = rows};
    cache_->commit(queue_, std::move(step), std::span(&accepted, 1));
}

void Session::settle()
{
    if (decode_fast_bytes_ != 0) { cache_->resize_fast(decode_fast_bytes_); }
}

void Session::prefill(std::span<const oasis::TokenId> ids, KvStore* capture,
                      const std::function<void(std::int64_t)>& on_chunk)
{
    const std::int32_t most = std::min(kChunkRows, config().limits.max_rows);
    while (!ids.empty()) {
        if (interrupted()) { throw Interrupted(); }
        const auto rows = static_cast<std::int32_t>(std::min<std::size_t>(ids.size(), static_cast<std::size_t>(most)));
        oasis::Step step = begin({.sequence = sequence_, .prefill_tokens = rows});
        positions_.resize(static_cast<std::size_t>(rows));
        std::iota(positions_.begin(), positions_.end(), length());
        engine_.llama.forward(ids.first(static_cast<std::size_t>(rows)), positions_,
                              [&](int layer, const float* q, const float* k, const float* v, float* out) {
                                  if (capture) { capture->append(layer, k, v, rows); }
                                  attend(step, layer, q, k, v, out);
                              });
        commit(std::move(step), rows);
        ids = ids.subspan(static_cast<std::size_t>(rows));
        rows_.assign(1, rows - 1);
        if (on_chunk) { on_chunk(rows); }
    }
    settle();
}

std::span<const float> Session::last_logits()
{
    expects(rows_.size() == 1, "Session::last_logits: no prefill before it");
    logits_.resize(engine_.vocabulary());
    engine_.llama.logits(rows_, logits_);
    return logits_;
}

void Session::ingest(const KvStore& store)
{
    const std::int32_t most = std::min(kChunkRows, config().limits.max_rows);
    for (std::int64_t done = 0; done < store.tokens();) {
        if (interrupted()) { throw Interrupted(); }
        const auto rows = static_cast<std::int32_t>(std::min<std::int64_t>(most, store.tokens() - done));
        oasis::Step step = begin({.sequence = sequence_, .prefill_tokens = rows});
        for (int layer = 0; layer < config().shape.layers; ++layer) {
            attend(step, layer, nullptr, store.k(layer, done), store.v(layer, done), nullptr);
        }
        commit(std::move(step), rows);
        done += rows;
    }
    settle();
}

std::span<const float> Session::decode(std::span<const oasis::TokenId> tokens)
{
    const auto rows = static_cast<std::int32_t>(tokens.size());
    oasis::Step step = begin({.sequence = sequence_, .verify_rows = rows});
    positions_.resize(tokens.size());
    std::iota(positions_.begin(), positions_.end(), length());
    engine_.llama.forward(tokens, positions_,
                          [&](int layer, const float* q, const float* k, const float* v, float* out) {
                              attend(step, layer, q, k, v, out);
                          });
    commit(std::move(step), rows);
    rows_.resize(tokens.size());
    std::iota(rows_.begin(), rows_.end(), 0);
    logits_.resize(tokens.size() * engine_.vocabulary());
    engine_.llama.logits(rows_, logits_);
    return logits_;
}

double Usage::tokens_per_second() const noexcept { return ratio(static_cast<double>(rows), seconds); }

Usage usage_between(const oasis::Counters& start, const oasis::Counters& after_first, const oasis::Counters& end)
{
    const auto share = [](auto part, auto whole) {
        return ratio(static_cast<double>(part), static_cast<double>(whole));
    };
    Usage out;
    out.captured_mass = share(end.captured_mass - start.captured_mass, end.captured_heads - start.captured_heads);
    out.attended_tokens =
        share(end.attended_tokens - start.attended_tokens, end.sparse_row_sets - start.sparse_row_sets);
    out.fetched_tokens =
        share(end.fetched_tokens - after_first.fetched_tokens, end.sparse_row_sets - after_first.sparse_row_sets);
    out.resident_at_use =
        share(end.resident_must_tokens - after_first.resident_must_tokens, end.must_tokens - after_first.must_tokens);
    return out;
}

Usage decode_forced(Session& session, std::span<const oasis::TokenId> tokens, std::int32_t rows_per_step,
                    const RowSink& sink)
{
    expects(rows_per_step >= 1 && rows_per_step <= oasis::kMaxVerifyRows, "decode_forced: ", rows_per_step,
            " rows in a step");
    const oasis::Counters start = session.stats().counters;
    oasis::Counters after_first = start;
    double seconds = 0;
    for (std::size_t done = 0; done < tokens.size();) {
        if (interrupted()) { throw Interrupted(); }
        const std::size_t rows =
            done == 0 ? 1 : std::min(tokens.size() - done, static_cast<std::size_t>(rows_per_step));
        const auto begin = std::chrono::steady_clock::now();
        const std::span<const float> logits = session.decode(tokens.subspan(done, rows));
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (done == 0) { after_first = session.stats().counters; }
        const std::size_t vocabulary = logits.size() / rows;
        for (std::size_t r = 0; r < rows; ++r) { sink(done + r, logits.subspan(r * vocabulary, vocabulary)); }
        done += rows;
    }
    const oasis::Stats stats = session.stats();
    Usage out = usage_between(start, after_first, stats.counters);
    out.rows = static_cast<std::int64_t>(tokens.size());
    out.seconds = seconds;
    out.fast_bytes = stats.fast_bytes;
    out.slow_bytes = stats.slow_bytes;
    return out;
}

} // namespace oasis_decode
