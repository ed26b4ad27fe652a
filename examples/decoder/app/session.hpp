// SPDX-License-Identifier: Apache-2.0
//
// One sequence in one cache, driven by the model: this is all that an engine does with the library.
#pragma once

#include "model/llama.hpp"

#include <oasis/any_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace oasis_decode {

/// Ctrl-C between two steps.
class Interrupted : public std::exception {
public:
    const char* what() const noexcept override { return "interrupted"; }
};

/// How caches come into being; tests put their own here.
struct CacheMaker {
    std::function<std::unique_ptr<oasis::AnyKVCache>(const oasis::CacheConfig&)> make;
    std::function<oasis::Footprint(const oasis::CacheConfig&)> footprint;
};

/// Rows of a prefill chunk.
inline constexpr std::int32_t kChunkRows = 512;

/// The loaded model with its threads: one of it, shared by all sessions.
struct Engine {
    Engine(std::shared_ptr<const LoadedModel> loaded, std::size_t threads, CacheMaker maker);

    std::shared_ptr<const LoadedModel> model;
    CacheMaker caches;
    oasis::ThreadPool threads;
    Llama llama;

    const ModelConfig& config() const noexcept { return model->config; }
    std::size_t vocabulary() const noexcept { return static_cast<std::size_t>(model->config.vocab); }
};

/// K and V of a prompt, after RoPE, as the model made them; fed to every cache of a comparison.
class KvStore {
public:
    KvStore(const oasis::ModelShape& shape, std::int64_t capacity);

    void append(int layer, const float* k, const float* v, std::int32_t rows);
    std::int64_t tokens() const noexcept;
    const float* k(int layer, std::int64_t position) const;
    const float* v(int layer, std::int64_t position) const;

private:
    struct Layer {
        std::vector<float> k;
        std::vector<float> v;
    };
    std::size_t row_;
    std::vector<Layer> layers_;
};

/// Fast memory that decodes one sequence of the configuration's context, and no more.
std::size_t needed_fast_bytes(const oasis::Footprint& footprint, const oasis::CacheConfig& config);

/// What prefilling takes beyond that: a chunk of the prompt is in native form until it is committed.
std::size_t prefill_fast_bytes(const oasis::Footprint& footprint, const oasis::CacheConfig& config);

class Session {
public:
    /// Makes the cache and its only sequence. `decode_fast_bytes`: when not 0, what fast memory shrinks to after the
    /// prompt. Throws `oasis::Error` when a tier is too small.
    Session(Engine& engine, const oasis::CacheConfig& config, std::size_t decode_fast_bytes = 0);

    /// Runs the prompt densely, in chunks, and keeps its K and V in `capture` when given. `on_chunk` gets the tokens done.
    void prefill(std::span<const oasis::TokenId> ids, KvStore* capture = nullptr,
                 const std::function<void(std::int64_t)>& on_chunk = {});

    /// Takes K and V in without attending. `engine.llama` is not used.
    void ingest(const KvStore& store);

    /// One step of 1..8 tokens, all accepted. The logits of its rows, [rows, vocabulary], valid until the next call.
    std::span<const float> decode(std::span<const oasis::TokenId> tokens);

    /// Logits of the last row that `prefill` ran.
    std::span<const float> last_logits();

    oasis::TokenIndex length() const { return cache_->length(sequence_); }
    oasis::Stats stats() const { return cache_->stats(); }
    const oasis::CacheConfig& config() const noexcept { return cache_->config(); }

private:
    oasis::Step begin(const oasis::RowGroup& group);
    void attend(oasis::Step& step, int layer, const float* q, const float* k, const float* v, float* out);
    void commit(oasis::Step&& step, std::int32_t rows);
    void settle();
    template <class Element>
    void attend_as(oasis::Step& step, int layer, const float* q, const float* k, const float* v, float* out);

    Engine& engine_;
    std::unique_ptr<oasis::AnyKVCache> cache_;
    std::size_t decode_fast_bytes_;
    oasis::SequenceId sequence_ = oasis::SequenceId::kNone;
    oasis::Queue queue_;
    std::vector<std::int64_t> positions_;
    std::vector<int> rows_;
    std::vector<float> logits_;
    std::vector<std::byte> converted_;
};

/// What a stretch of decoding cost, from differences of the cache's counters.
struct Usage {
    std::int64_t rows = 0;
    double seconds = 0;
    double captured_mass = 0;   ///< NaN unless measured
    double attended_tokens = 0; ///< per row, layer and set
    double fetched_tokens = 0;  ///< the same, rows after the first: the first fills the resident set
    double resident_at_use = 0; ///< share of the must tokens that were in fast memory, rows after the first
    std::size_t fast_bytes = 0;
    std::size_t slow_bytes = 0;

    double tokens_per_second() const noexcept;
};

/// Called for each decoded row with its index and logits.
using RowSink = std::function<void(std::size_t, std::span<const float>)>;

/// Decodes `tokens` as given (teacher-forced), the first alone, then up to `rows_per_step` at once. Throws `Interrupted`.
Usage decode_forced(Session& session, std::span<const oasis::TokenId> tokens, std::int32_t rows_per_step,
                    const RowSink& sink);

/// The usage between three readings of the counters.
Usage usage_between(const oasis::Counters& start, const oasis::Counters& after_first, const oasis::Counters& end);

} // namespace oasis_decode
