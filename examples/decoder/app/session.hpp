// SPDX-License-Identifier: Apache-2.0
//
// One sequence in one cache, driven by the model: this is all that an engine does with the library.
#pragma once

#include "app/drafts.hpp"
#include "app/traced_cache.hpp"
#include "model/llama.hpp"

#include <oasis/any_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
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
    /// On a slow tier of the user's choice.
    std::function<std::unique_ptr<oasis::AnyKVCache>(const oasis::CacheConfig&, const oasis::StoreFactory&)> make_on{};
};

/// The cache that is studied.
struct SparseCache {
    oasis::CacheConfig config;
    std::size_t decode_fast_bytes = 0; ///< with automatic fast memory: what it shrinks to after the prompt; else 0
    oasis::StoreFactory store{};       ///< empty: ordinary memory
    std::shared_ptr<Drawing> drawing{}; ///< not null: its steps are drawn

    std::size_t fast_bytes() const noexcept { return decode_fast_bytes ? decode_fast_bytes : config.fast_bytes; }
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

    /// A draft head for this model, read once. Throws `ModelError` that names the file.
    std::shared_ptr<const MtpWeights> head(const std::filesystem::path& path);

private:
    std::map<std::filesystem::path, std::shared_ptr<const MtpWeights>> heads_;
};

/// K and V of a prompt, after RoPE, as the model made them; fed to every cache of a comparison. With `hidden` set the
/// residuals of that width too, for draft heads.
class KvStore {
public:
    KvStore(const oasis::ModelShape& shape, std::int64_t capacity, std::int32_t hidden = 0);

    void append(int layer, const float* k, const float* v, std::int32_t rows);
    void append_rows(std::span<const oasis::TokenId> ids, std::span<const float> residuals);
    std::int64_t tokens() const noexcept;
    const float* k(int layer, std::int64_t position) const;
    const float* v(int layer, std::int64_t position) const;
    std::span<const oasis::TokenId> ids() const noexcept { return ids_; }
    std::span<const float> residuals() const noexcept { return residuals_; }

private:
    struct Layer {
        std::vector<float> k;
        std::vector<float> v;
    };
    std::size_t row_;
    std::int32_t hidden_;
    std::vector<oasis::TokenId> ids_;
    std::vector<float> residuals_;
    std::vector<Layer> layers_;
};

/// Fast memory that decodes one sequence of the configuration's context, and no more.
std::size_t needed_fast_bytes(const oasis::Footprint& footprint, const oasis::CacheConfig& config);

/// What prefilling takes beyond that: a chunk of the prompt is in native form until it is committed.
std::size_t prefill_fast_bytes(const oasis::Footprint& footprint, const oasis::CacheConfig& config);

class Session {
public:
    /// Makes the cache and its only sequence. `decode_fast_bytes`: when not 0, what fast memory shrinks to after the
    /// prompt. The drafter is shown every row that stands. Throws `oasis::Error` when a tier is too small.
    Session(Engine& engine, const SparseCache& cache, Drafting drafting = {});
    /// The same in ordinary memory.
    Session(Engine& engine, const oasis::CacheConfig& config) : Session(engine, SparseCache{config}) {}

    /// Runs the prompt densely, in chunks, and keeps its K and V in `capture` when given. `on_chunk` gets the tokens done.
    void prefill(std::span<const oasis::TokenId> ids, KvStore* capture = nullptr,
                 const std::function<void(std::int64_t)>& on_chunk = {});

    /// Takes K and V in without attending. `engine.llama` is not used.
    void ingest(const KvStore& store);

    /// The tokens of a step: those to verify, 1..8, and those of lookahead rows, which never stand.
    struct StepTokens {
        std::span<const oasis::TokenId> verify;
        std::span<const oasis::TokenId> lookahead;
    };
    /// Gets the logits of the verify rows, [rows, vocabulary], and says how many of them stand: at least one.
    using Judge = std::function<std::int32_t(std::span<const float>)>;
    /// One step; the rows that do not stand leave no trace. Returns how many do.
    std::int32_t verify(const StepTokens& tokens, const Judge& judge);

    /// One step of 1..8 tokens, all accepted. The logits of its rows, [rows, vocabulary], valid until the next call.
    std::span<const float> decode(std::span<const oasis::TokenId> tokens);

    /// Logits of the last row that `prefill` ran.
    std::span<const float> last_logits();

    oasis::TokenIndex length() const { return cache_->length(sequence_); }
    oasis::Stats stats() const { return cache_->stats(); }
    std::vector<oasis::LayerStats> layer_stats() const { return cache_->layer_stats(); }
    const oasis::CacheConfig& config() const noexcept { return cache_->config(); }
    const Drafting& drafting() const noexcept { return drafting_; }

private:
    oasis::Step begin(const oasis::RowGroup& group);
    void attend(oasis::Step& step, int layer, const float* q, const float* k, const float* v, float* out);
    void commit(oasis::Step&& step, std::int32_t rows);
    void settle();
    void compute_logits();
    void show(std::span<const oasis::TokenId> tokens, std::span<const float> residuals);
    template <class Element>
    void attend_as(oasis::Step& step, int layer, const float* q, const float* k, const float* v, float* out);

    Engine& engine_;
    std::unique_ptr<oasis::AnyKVCache> cache_;
    std::size_t decode_fast_bytes_;
    Drafting drafting_;
    oasis::SequenceId sequence_ = oasis::SequenceId::kNone;
    std::shared_ptr<Drawing> drawing_;
    oasis::Queue queue_;
    std::vector<oasis::TokenId> tokens_;
    std::vector<std::int64_t> positions_;
    std::vector<int> rows_;
    std::vector<float> logits_;
    std::vector<std::byte> converted_;
};

} // namespace oasis_decode
