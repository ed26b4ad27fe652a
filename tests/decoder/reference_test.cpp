// SPDX-License-Identifier: Apache-2.0
//
// The whole library under two real models: logits and greedy ids of the cache against stored float32 references, and
// the sparse path that reads every block against the dense one.
#include "app/decoding.hpp"
#include "app/settings.hpp"
#include "decoder/fake_cache.hpp"
#include "decoder/reference.hpp"

namespace oasis_decode::test {
namespace {

constexpr std::int32_t kRows = 384; // no multiple of it ends with a prompt

std::unique_ptr<Engine> open(const std::filesystem::path& path)
{
    return std::make_unique<Engine>(load_model(path), std::size_t{0}, real_maker());
}

std::vector<float> logits_of(Engine& engine, int row)
{
    std::vector<float> out(engine.vocabulary());
    engine.llama.logits(std::span(&row, 1), out);
    return out;
}

/// Prefills the text in chunks through a dense cache, then decodes greedily, token by token.
void follow(Engine& engine, const ReferenceText& text)
{
    const auto context = static_cast<std::int64_t>(text.ids.size() + text.greedy.size());
    Session session(engine, dense_config({}, engine.config().shape(), context, kRows));
    std::size_t checked = 0;
    std::int64_t done = 0;
    session.prefill(text.ids, nullptr, [&](std::int64_t rows) {
        for (const Expected& e : text.expected) {
            if (e.position < done || e.position >= done + rows) { continue; }
            expect_logits(e, logits_of(engine, static_cast<int>(e.position - done)));
            ++checked;
        }
        done += rows;
    });
    std::span<const float> last = session.last_logits();
    for (std::size_t i = 0; i < text.greedy.size(); ++i) {
        ASSERT_EQ(likeliest(last), text.greedy[i]) << "greedy token " << i;
        if (i + 1 == text.greedy.size()) { break; }
        last = session.decode(std::span(text.greedy).subspan(i, 1));
        for (const Expected& e : text.expected) {
            if (e.position != session.length() - 1) { continue; }
            expect_logits(e, last);
            ++checked;
        }
    }
    EXPECT_EQ(checked, text.expected.size());
}

class RetrievalReference : public testing::Test {
protected:
    static void SetUpTestSuite()
    {
        engine_ = open(data_dir() / "retrieval-14m");
        reference_ = read_json(data_dir() / "retrieval-14m" / "reference.json", 100'000'000);
    }
    static void TearDownTestSuite() { engine_.reset(); }

    static inline std::unique_ptr<Engine> engine_;
    static inline Json reference_;
};

TEST_F(RetrievalReference, Records) { follow(*engine_, retrieval_text(reference_, "kv_dense")); }

TEST_F(RetrievalReference, Table)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for 11,296 tokens"; }
    follow(*engine_, retrieval_text(reference_, "json"));
}

class SmolLM2Reference : public testing::Test {
protected:
    void SetUp() override
    {
        const auto path = smollm2_path();
        if (path.empty()) { GTEST_SKIP() << kNeedsSmolLM2; }
        if (engine_) { return; }
        engine_ = open(path);
        reference_ = read_json(data_dir() / "smollm2-135m" / "reference.json", 100'000'000);
    }
    static void TearDownTestSuite() { engine_.reset(); }

    static inline std::unique_ptr<Engine> engine_;
    static inline Json reference_;
};

TEST_F(SmolLM2Reference, Short) { follow(*engine_, smollm2_text(reference_, "short")); }
TEST_F(SmolLM2Reference, Chat) { follow(*engine_, smollm2_text(reference_, "chat")); }
TEST_F(SmolLM2Reference, Mixed) { follow(*engine_, smollm2_text(reference_, "mixed")); }
TEST_F(SmolLM2Reference, LongText) { follow(*engine_, smollm2_text(reference_, "long-2048")); }
TEST_F(SmolLM2Reference, LongerText)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for 7,168 tokens"; }
    follow(*engine_, smollm2_text(reference_, "long-7168"));
}

/// Sparse at any length, with budgets that hold the whole context.
oasis::CacheConfig everything_config(const oasis::ModelShape& shape, std::int64_t context, oasis::MayRule may)
{
    Settings settings;
    settings.attend_budget = static_cast<std::int32_t>((context + 15) / 16 * 16);
    settings.fetch_budget = may == oasis::MayRule::kNone ? settings.attend_budget : 1024;
    settings.may = may;
    settings.dense_below = 0;
    return to_config(settings, shape, context, kRows);
}

struct Agreement {
    double difference = 0; ///< largest, over all steps and logits
    std::vector<TokenId> dense;
    std::vector<TokenId> sparse;
    oasis::Counters counters;
};

/// Decodes greedily with both caches; the dense one's tokens are fed to both. `prompt` holds K and V of all but the
/// last token of the text.
Agreement decode_beside(Engine& engine, const ReferenceText& text, const KvStore& prompt,
                        const oasis::CacheConfig& config, const KvStore& sparse_prompt, std::size_t steps)
{
    Session dense(engine, dense_config({}, engine.config().shape(), config.limits.max_context, kRows));
    dense.ingest(prompt);
    Session sparse(engine, config);
    sparse.ingest(sparse_prompt);
    Agreement out;
    TokenId token = text.ids.back();
    for (std::size_t i = 0; i < steps; ++i) {
        const auto a = dense.decode(std::span(&token, 1));
        const auto b = sparse.decode(std::span(&token, 1));
        for (std::size_t j = 0; j < a.size(); ++j) {
            out.difference = std::max(out.difference, std::abs(static_cast<double>(a[j]) - static_cast<double>(b[j])));
        }
        token = likeliest(a);
        out.dense.push_back(token);
        out.sparse.push_back(likeliest(b));
    }
    out.counters = sparse.stats().counters;
    return out;
}

KvStore run_prompt(Engine& engine, const ReferenceText& text)
{
    const auto tokens = static_cast<std::int64_t>(text.ids.size()) - 1;
    KvStore out(engine.config().shape(), tokens);
    Session session(engine, dense_config({}, engine.config().shape(), tokens, kRows));
    session.prefill(std::span(text.ids).first(text.ids.size() - 1), &out);
    return out;
}

KvStore with_k_and_v_swapped(const KvStore& store, const oasis::ModelShape& shape, int swapped)
{
    KvStore out(shape, store.tokens());
    for (int layer = 0; layer < shape.layers; ++layer) {
        const bool swap = layer == swapped;
        out.append(layer, swap ? store.v(layer, 0) : store.k(layer, 0), swap ? store.k(layer, 0) : store.v(layer, 0),
                   static_cast<std::int32_t>(store.tokens()));
    }
    return out;
}

void expect_agreement(const Agreement& agreement, const ReferenceText& text, const oasis::ModelShape& shape)
{
    EXPECT_LE(agreement.difference, 1e-3);
    EXPECT_EQ(agreement.sparse, agreement.dense);
    ASSERT_GE(agreement.sparse.size(), text.greedy.size());
    EXPECT_TRUE(std::equal(text.greedy.begin(), text.greedy.end(), agreement.sparse.begin()));
    const auto sets = agreement.sparse.size() * static_cast<std::size_t>(shape.layers * shape.kv_heads);
    EXPECT_EQ(agreement.counters.sparse_row_sets, sets) << "the sparse path must be the one that was taken";
}

TEST_F(RetrievalReference, ATTN_10_EveryBlockSelectedEqualsDense)
{
    constexpr std::size_t steps = 256;
    const ReferenceText text = retrieval_text(reference_, "kv_dense");
    const oasis::ModelShape shape = engine_->config().shape();
    const KvStore prompt = run_prompt(*engine_, text);
    const auto context = static_cast<std::int64_t>(text.ids.size() + steps);
    for (const auto may : {oasis::MayRule::kNone, oasis::MayRule::kLogical}) {
        SCOPED_TRACE(may == oasis::MayRule::kNone ? "all fetched" : "fetch 1,024, the rest resident");
        const oasis::CacheConfig config = everything_config(shape, context, may);
        const Agreement agreement = decode_beside(*engine_, text, prompt, config, prompt, steps);
        expect_agreement(agreement, text, shape);
        std::size_t tokens = 0;
        for (std::size_t i = 0; i < steps; ++i) { tokens += text.ids.size() + i; }
        EXPECT_EQ(agreement.counters.attended_tokens, tokens * static_cast<std::size_t>(shape.layers * shape.kv_heads));
    }
    // The comparison sees a wrong layer.
    for (const int layer : {0, 4, 7}) {
        const KvStore wrong = with_k_and_v_swapped(prompt, shape, layer);
        const Agreement agreement =
            decode_beside(*engine_, text, prompt, everything_config(shape, context, oasis::MayRule::kNone), wrong, 4);
        EXPECT_GT(agreement.difference, 0.1) << "K and V of layer " << layer << " swapped";
    }
}

TEST_F(SmolLM2Reference, ATTN_10_EveryBlockSelectedEqualsDense)
{
    constexpr std::size_t steps = 64;
    const ReferenceText text = smollm2_text(reference_, "long-2048");
    const oasis::ModelShape shape = engine_->config().shape();
    const KvStore prompt = run_prompt(*engine_, text);
    const oasis::CacheConfig config =
        everything_config(shape, static_cast<std::int64_t>(text.ids.size() + steps), oasis::MayRule::kNone);
    expect_agreement(decode_beside(*engine_, text, prompt, config, prompt, steps), text, shape);
    const KvStore wrong = with_k_and_v_swapped(prompt, shape, 15);
    EXPECT_GT(decode_beside(*engine_, text, prompt, config, wrong, 2).difference, 0.1);
}

} // namespace
} // namespace oasis_decode::test
