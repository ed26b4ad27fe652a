// SPDX-License-Identifier: Apache-2.0
#include "app/session.hpp"

#include "app/table.hpp"
#include "app/terminal.hpp"

#include <oasis/core/half.hpp>
#include <oasis/cpu/attend_kernels.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace oasis_decode {

using oasis::detail::expects;

Engine::Engine(std::shared_ptr<const LoadedModel> loaded, std::size_t thread_count, CacheMaker maker)
    : model(std::move(loaded)), caches(std::move(maker)), threads(thread_count), llama(model, threads, kChunkRows)
{
}

std::shared_ptr<const MtpWeights> Engine::head(const std::filesystem::path& path)
{
    std::shared_ptr<const MtpWeights>& weights = heads_[path];
    if (!weights) { weights = load_mtp(path, config(), model->compute); }
    return weights;
}

KvStore::KvStore(const oasis::ModelShape& shape, std::int64_t capacity, std::int32_t hidden)
    : row_(static_cast<std::size_t>(shape.kv_heads) * static_cast<std::size_t>(shape.head_dim)),
      hidden_(hidden),
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

void KvStore::append_rows(std::span<const oasis::TokenId> ids, std::span<const float> residuals)
{
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    if (hidden_ > 0) { residuals_.insert(residuals_.end(), residuals.begin(), residuals.end()); }
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

namespace {

std::unique_ptr<oasis::AnyKVCache> make_cache_of(const Engine& engine, const SparseCache& cache)
{
    if (cache.drawing) { return make_traced_cache(cache.config, cache.store, cache.drawing); }
    return cache.store ? engine.caches.make_on(cache.config, cache.store) : engine.caches.make(cache.config);
}

} // namespace

Session::Session(Engine& engine, const SparseCache& cache, Drafting drafting)
    : engine_(engine),
      cache_(make_cache_of(engine, cache)),
      decode_fast_bytes_(cache.decode_fast_bytes),
      drafting_(std::move(drafting)),
      drawing_(cache.drawing),
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
    const oasis::cpu::AttendKernels& kernels = oasis::cpu::attend_kernels();
    const auto narrow = [&](const float* from, std::size_t count, Element* to) {
        kernels.from_float(config().dtype, from, count, to);
        return to;
    };
    const Element* const k16 = narrow(k, kv_count, base);
    const Element* const v16 = narrow(v, kv_count, base + kv_count);
    oasis::AttendArgs args{.k = k16, .v = v16};
    args.window = engine_.config().window(layer);
    if (!out) {
        args.q = k16; // not read
        cache_->enqueue_attend(queue_, step, layer, args);
        return;
    }
    Element* const out16 = base + 2 * kv_count + q_count;
    args.q = narrow(q, q_count, base + 2 * kv_count);
    args.out = out16;
    cache_->enqueue_attend(queue_, step, layer, args);
    kernels.to_float(config().dtype, out16, q_count, 1.0F, out);
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
    args.window = engine_.config().window(layer);
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

void Session::show(std::span<const oasis::TokenId> tokens, std::span<const float> residuals)
{
    if (drafting_.drafter) { drafting_.drafter->observe(tokens, residuals); }
}

void Session::prefill(std::span<const oasis::TokenId> ids, KvStore* capture,
                      const std::function<void(std::int64_t)>& on_chunk)
{
    const std::int32_t most = std::min(kChunkRows, config().limits.max_rows);
    const std::int64_t prompt_end = length() + static_cast<std::int64_t>(ids.size());
    while (!ids.empty()) {
        if (interrupted()) { throw Interrupted(); }
        const auto rows = static_cast<std::int32_t>(std::min<std::size_t>(ids.size(), static_cast<std::size_t>(most)));
        oasis::Step step = begin({.sequence = sequence_, .prefill_tokens = rows});
        positions_.resize(static_cast<std::size_t>(rows));
        std::iota(positions_.begin(), positions_.end(), length());
        engine_.llama.forward(
            ids.first(static_cast<std::size_t>(rows)), positions_,
            [&](int layer, const float* q, const float* k, const float* v, float* out) {
                if (capture) { capture->append(layer, k, v, rows); }
                attend(step, layer, q, k, v, out);
            },
            prompt_end);
        commit(std::move(step), rows);
        const std::span<const oasis::TokenId> chunk = ids.first(static_cast<std::size_t>(rows));
        if (capture) { capture->append_rows(chunk, engine_.llama.hidden()); }
        show(chunk, engine_.llama.hidden());
        ids = ids.subspan(chunk.size());
        rows_.assign(1, rows - 1);
        if (on_chunk) { on_chunk(rows); }
    }
    settle();
}

std::span<const float> Session::last_logits()
{
    expects(rows_.size() == 1, "Session::last_logits: no prefill before it");
    compute_logits();
    return logits_;
}

void Session::compute_logits()
{
    logits_.resize(rows_.size() * engine_.vocabulary());
    engine_.llama.logits(rows_, logits_);
    // Without this the first token would be chosen again and again, and look like an answer.
    unsigned wrong = 0;
    for (const float x : logits_) { wrong |= static_cast<unsigned>(!(std::abs(x) <= std::numeric_limits<float>::max())); }
    if (wrong != 0) {
        throw oasis::Error(fmt::format("the logits at token {} are not finite: the model's weights, or K and V in {}, are "
                                       "beyond the range of their types",
                                       positions_.empty() ? 0 : positions_.back(), oasis::name(config().dtype)));
    }
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
    expects(!drafting_.drafter || !drafting_.drafter->needs_residuals() || !store.residuals().empty(),
            "Session::ingest: the drafter needs residuals and the store of ", store.tokens(), " tokens has none");
    show(store.ids(), store.residuals());
}

std::int32_t Session::verify(const StepTokens& tokens, const Judge& judge)
{
    const auto verified = static_cast<std::int32_t>(tokens.verify.size());
    oasis::Step step = begin({.sequence = sequence_,
                              .verify_rows = verified,
                              .lookahead_rows = static_cast<std::int32_t>(tokens.lookahead.size())});
    tokens_.assign(tokens.verify.begin(), tokens.verify.end());
    tokens_.insert(tokens_.end(), tokens.lookahead.begin(), tokens.lookahead.end());
    positions_.resize(tokens_.size());
    std::iota(positions_.begin(), positions_.end(), length());
    engine_.llama.forward(tokens_, positions_,
                          [&](int layer, const float* q, const float* k, const float* v, float* out) {
                              attend(step, layer, q, k, v, out);
                          });
    rows_.resize(tokens.verify.size());
    std::iota(rows_.begin(), rows_.end(), 0);
    compute_logits();
    const std::int32_t stood = judge(logits_);
    expects(stood >= 1 && stood <= verified, "Session::verify: ", stood, " of ", verified, " rows stand");
    commit(std::move(step), stood);
    if (drawing_ && drawing_->residency) { drawing_->residency->end_step(length()); }
    const auto kept = static_cast<std::size_t>(stood);
    show(std::span(tokens_).first(kept),
         engine_.llama.hidden().first(kept * static_cast<std::size_t>(engine_.config().hidden)));
    return stood;
}

std::span<const float> Session::decode(std::span<const oasis::TokenId> tokens)
{
    static_cast<void>(
        verify({tokens, {}}, [&](std::span<const float>) { return static_cast<std::int32_t>(tokens.size()); }));
    return logits_;
}

} // namespace oasis_decode
