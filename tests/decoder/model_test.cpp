// SPDX-License-Identifier: Apache-2.0
//
// Logits and greedy ids against stored float32 references of two models.
#include "decoder/reference.hpp"

namespace oasis_decode::test {
namespace {

constexpr std::size_t kChunk = 256;

/// Prefills `ids` in chunks, then decodes along `greedy` token by token; checks every expected position on the way.
void follow(const std::shared_ptr<const LoadedModel>& model, const ReferenceText& text)
{
    const auto& [ids, greedy, expected] = text;
    oasis::ThreadPool threads;
    DenseRun run(model, threads, kChunk, static_cast<std::int64_t>(ids.size() + greedy.size()));
    std::size_t checked = 0;
    std::vector<float> last;
    for (std::size_t begin = 0; begin < ids.size(); begin += kChunk) {
        const std::size_t count = std::min(kChunk, ids.size() - begin);
        run.forward(std::span(ids).subspan(begin, count));
        for (const auto& e : expected) {
            const std::int64_t row = e.position - static_cast<std::int64_t>(begin);
            if (row < 0 || row >= static_cast<std::int64_t>(count)) { continue; }
            expect_logits(e, run.logits(static_cast<int>(row)));
            ++checked;
        }
    }
    if (!greedy.empty()) { last = run.logits(static_cast<int>((ids.size() - 1) % kChunk)); }
    for (std::size_t i = 0; i < greedy.size(); ++i) {
        ASSERT_EQ(likeliest(last), greedy[i]) << "answer token " << i;
        if (i + 1 == greedy.size()) { break; }
        run.forward(std::span(greedy).subspan(i, 1));
        last = run.logits(0);
        for (const auto& e : expected) {
            if (e.position == run.next() - 1) {
                expect_logits(e, last);
                ++checked;
            }
        }
    }
    EXPECT_GT(checked, 0U);
}

class Retrieval : public testing::Test {
protected:
    static void SetUpTestSuite()
    {
        model_ = load_model(data_dir() / "retrieval-14m");
        reference_ = read_json(data_dir() / "retrieval-14m" / "reference.json", 100'000'000);
    }
    static void TearDownTestSuite() { model_.reset(); }

    void check(const std::string& task, std::size_t most_tokens)
    {
        ReferenceText text = retrieval_text(reference_, task);
        if (text.ids.size() > most_tokens) {
            text.ids.resize(most_tokens);
            text.greedy.clear();
        }
        follow(model_, text);
    }

    static inline std::shared_ptr<const LoadedModel> model_;
    static inline Json reference_;
};

TEST_F(Retrieval, LoadsWithoutWarnings)
{
    EXPECT_TRUE(model_->warnings.empty());
    EXPECT_TRUE(model_->config.tied);
    EXPECT_EQ(model_->config.shape(), (oasis::ModelShape{8, 6, 2, 64}));
    EXPECT_EQ(model_->config.eos, (std::vector<TokenId>{1, 0}));
    EXPECT_FALSE(model_->config.bos.has_value());
    EXPECT_EQ(model_->id.size(), 64U);
}

TEST_F(Retrieval, LogitsOfTheFirst1700TokensOfRecords) { check("kv_dense", 1700); }
TEST_F(Retrieval, LogitsOfTheFirst1024TokensOfATable) { check("json", 1024); }

TEST_F(Retrieval, GreedyIdsOfRecords)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for the whole prompts"; }
    check("kv_dense", SIZE_MAX);
}

TEST_F(Retrieval, GreedyIdsOfATable)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for the whole prompts"; }
    check("json", SIZE_MAX);
}

// The chunks of a prefill and few-row steps agree within rounding; few-row steps agree with each other to the bit.
TEST_F(Retrieval, RowsDoNotDependOnTheirNeighbours)
{
    const auto ids = retrieval_text(reference_, "kv_dense").ids;
    oasis::ThreadPool two(2);
    oasis::InlineExecutor one;
    DenseRun wide(model_, two, 64, 64), eight(model_, two, 8, 64), single(model_, one, 1, 64);
    wide.forward(std::span(ids).first(40));
    for (std::size_t at = 0; at < 40; at += 8) { eight.forward(std::span(ids).subspan(at, 8)); }
    for (std::size_t at = 0; at < 40; ++at) { single.forward(std::span(ids).subspan(at, 1)); }
    const auto a = wide.logits(39), b = eight.logits(7), c = single.logits(0);
    EXPECT_EQ(b, c);
    for (std::size_t i = 0; i < a.size(); ++i) { ASSERT_NEAR(a[i], b[i], 1e-3F) << "token " << i; }
    EXPECT_EQ(std::memcmp(eight.llama().hidden().last(384).data(), single.llama().hidden().data(), 384 * sizeof(float)),
              0);
}

// Products of integers round the same way for any number of rows.
TEST_F(Retrieval, RowsOfIntegersDoNotDependOnTheirNeighbours)
{
    const auto model = load_model(data_dir() / "retrieval-14m", Compute::kQ8);
    ASSERT_EQ(model->warnings.size(), 1U);
    EXPECT_NE(model->warnings[0].find("Q8_0"), std::string::npos) << model->warnings[0];
    ASSERT_EQ(model->blocks[0].qkv.code(), Matrix::Code::kInt8);
    const auto ids = retrieval_text(reference_, "kv_dense").ids;
    oasis::ThreadPool two(2);
    oasis::InlineExecutor one;
    DenseRun wide(model, two, 64, 64), eight(model, two, 8, 64), single(model, one, 1, 64), floats(model_, one, 64, 64);
    wide.forward(std::span(ids).first(40));
    floats.forward(std::span(ids).first(40));
    for (std::size_t at = 0; at < 40; at += 8) { eight.forward(std::span(ids).subspan(at, 8)); }
    for (std::size_t at = 0; at < 40; ++at) { single.forward(std::span(ids).subspan(at, 1)); }
    EXPECT_EQ(wide.logits(39), eight.logits(7));
    EXPECT_EQ(wide.logits(39), single.logits(0));
    double apart = 0, size = 0;
    const auto exact = floats.logits(39), rounded = wide.logits(39);
    for (std::size_t i = 0; i < exact.size(); ++i) {
        apart += std::pow(static_cast<double>(exact[i]) - static_cast<double>(rounded[i]), 2);
        size += std::pow(static_cast<double>(exact[i]), 2);
    }
    EXPECT_LT(std::sqrt(apart / size), 0.05);
    EXPECT_GT(apart, 0);
}

TEST_F(Retrieval, ForwardRefusesWrongRows)
{
    oasis::InlineExecutor executor;
    Llama llama(model_, executor, 2);
    const Attention none = [](int, const float*, const float*, const float*, float*) {};
    const std::vector<TokenId> tokens = {1, 4096, 2};
    const std::vector<std::int64_t> positions = {0, 1, 2};
    std::vector<float> logits(4096);
    const auto text_of = [](const auto& call) -> std::string {
        try {
            call();
        } catch (const oasis::InvalidArgument& error) {
            return error.what();
        }
        return "no error";
    };
    EXPECT_NE(
        text_of([&] { llama.forward(std::span(tokens).first(2), std::span(positions).first(2), none); }).find("4096"),
        std::string::npos);
    const std::vector<TokenId> three = {1, 2, 3};
    EXPECT_NE(text_of([&] { llama.forward(three, positions, none); }).find("3 rows"), std::string::npos);
    EXPECT_NE(text_of([&] { llama.forward(three, std::span(positions).first(2), none); }).find("2 positions"),
              std::string::npos);
    const std::vector<std::int64_t> negative = {-5};
    EXPECT_NE(text_of([&] { llama.forward(std::span(three).first(1), negative, none); }).find("-5"), std::string::npos);
    EXPECT_THROW(Llama(model_, executor, 0), oasis::InvalidArgument);
    llama.forward(std::span(three).first(1), std::span(positions).first(1),
                  [](int, const float*, const float*, const float*, float* out) { std::fill_n(out, 384, 0.0F); });
    const int wrong = 1;
    EXPECT_NE(text_of([&] { llama.logits(std::span(&wrong, 1), logits); }).find("row 1"), std::string::npos);
}

class SmolLM2 : public testing::Test {
protected:
    void SetUp() override
    {
        const auto path = smollm2_path();
        if (path.empty()) { GTEST_SKIP() << kNeedsSmolLM2; }
        if (!model_) {
            model_ = load_model(path);
            reference_ = read_json(data_dir() / "smollm2-135m" / "reference.json", 100'000'000);
        }
    }
    static void TearDownTestSuite() { model_.reset(); }

    void check(const std::string& name) { follow(model_, smollm2_text(reference_, name)); }

    static inline std::shared_ptr<const LoadedModel> model_;
    static inline Json reference_;
};

TEST_F(SmolLM2, DEC_07_NineHeadsOnThree)
{
    EXPECT_EQ(model_->config.shape(), (oasis::ModelShape{30, 9, 3, 64}));
    EXPECT_TRUE(model_->config.tied);
    EXPECT_TRUE(model_->warnings.empty());
    check("short");
}
TEST_F(SmolLM2, Chat) { check("chat"); }
TEST_F(SmolLM2, Mixed) { check("mixed"); }
TEST_F(SmolLM2, LongText)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for 2,048 tokens"; }
    check("long-2048");
}
TEST_F(SmolLM2, LongerText)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for 7,168 tokens"; }
    check("long-7168");
}

} // namespace
} // namespace oasis_decode::test
