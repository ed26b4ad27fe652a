// SPDX-License-Identifier: Apache-2.0
//
// RoPE scaling of long contexts, and shapes in which heads and channels do not go together as usual.
#include "decoder/fake_cache.hpp"
#include "decoder/reference_llama.hpp"

#include "app/session.hpp"
#include "app/settings.hpp"

#include <numbers>

namespace oasis_decode::test {
namespace {

constexpr std::int64_t kLongContext = 131'072;

const Json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 32.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};

std::vector<double> plain_frequencies(double theta, std::int64_t head_dim)
{
    std::vector<double> out;
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        out.push_back(1 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
    }
    return out;
}

/// Llama 3's rule for factor 32, low 1, high 4, original 8192, in closed form: by the turns of a pair in the original context.
std::vector<double> llama3_frequencies(double theta, std::int64_t head_dim)
{
    std::vector<double> out = plain_frequencies(theta, head_dim);
    for (double& frequency : out) {
        const double turns = 8192 * frequency / (2 * std::numbers::pi);
        const double kept = std::clamp((turns - 1) / (4 - 1), 0.0, 1.0);
        frequency = kept * frequency + (1 - kept) * frequency / 32;
    }
    return out;
}

/// The decoder on a real cache.
class Decoder {
public:
    explicit Decoder(const std::filesystem::path& folder, std::int64_t context)
        : engine_(load_model(folder), 1, real_maker()),
          session_(engine_, dense_config(Settings{}, engine_.config().shape(), context, kChunkRows))
    {
    }
    std::span<const float> prefill(std::span<const TokenId> ids)
    {
        session_.prefill(ids);
        return session_.last_logits();
    }
    std::span<const float> decode(TokenId id) { return session_.decode(std::span(&id, 1)); }

private:
    Engine engine_;
    Session session_;
};

template <class Logits> TokenId likeliest(const Logits& logits)
{
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<TokenId> tokens(std::size_t count)
{
    std::vector<TokenId> out;
    std::mt19937 random(5);
    while (out.size() < count) { out.push_back(static_cast<TokenId>(random() % TinyModel::kVocab)); }
    return out;
}

std::vector<TokenId> reference_text(const RandomLlama& model, const std::vector<double>& frequencies,
                                    const std::vector<TokenId>& prompt, std::size_t count)
{
    ReferenceLlama reference(model, frequencies);
    for (std::size_t i = 0; i + 1 < prompt.size(); ++i) { reference.append(prompt[i]); }
    std::vector<TokenId> out{likeliest(reference.logits(prompt.back()))};
    while (out.size() < count) { out.push_back(likeliest(reference.logits(out.back()))); }
    return out;
}

TEST(DecoderCases, DEC_05_Llama3FrequenciesAreTheClosedForm)
{
    const Json config = {{"rope_theta", 500'000.0}, {"rope_scaling", kLlama3}};
    const Rope rope(rope_from_json(config, kLongContext, "config"), 64);
    const std::vector<double> plain = plain_frequencies(500'000, 64), expected = llama3_frequencies(500'000, 64);
    ASSERT_EQ(rope.frequencies().size(), 32U);
    for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_NEAR(rope.frequencies()[i] / expected[i], 1.0, 1e-6) << "pair " << i;
        if (i <= 14) { EXPECT_DOUBLE_EQ(expected[i], plain[i]); }
        if (i >= 15 && i <= 17) { EXPECT_TRUE(expected[i] < plain[i] && expected[i] > plain[i] / 32) << i; }
        if (i >= 18) { EXPECT_DOUBLE_EQ(expected[i], plain[i] / 32); }
    }
}

TEST(DecoderCases, DEC_05_TheOldKeyIsReadAndAnUnknownTypeIsAnError)
{
    Json old = kLlama3;
    old["type"] = old["rope_type"];
    old.erase("rope_type");
    const auto read = [](const Json& scaling) {
        return rope_from_json({{"rope_theta", 500'000.0}, {"rope_scaling", scaling}}, kLongContext, "config");
    };
    EXPECT_EQ(read(old).scaling, RopeScaling::kLlama3);
    EXPECT_EQ(read(old).factor, 32.0);
    for (const char* key : {"type", "rope_type"}) {
        try {
            static_cast<void>(read({{key, "foo"}, {"factor", 32.0}}));
            FAIL() << key;
        } catch (const ModelError& error) {
            EXPECT_NE(std::string(error.what()).find("foo"), std::string::npos) << error.what();
        }
    }
}

TEST(DecoderCases, DEC_05_TextAfterSixThousandTokensIsTheReferences)
{
    const RandomLlama model({.context = kLongContext, .theta = 500'000}, 11);
    TemporaryFolder folder;
    model.write(folder.path(), {{"rope_scaling", kLlama3}});
    const std::vector<TokenId> prompt = tokens(6000);
    const auto expected = reference_text(model, llama3_frequencies(500'000, 64), prompt, 32);
    ASSERT_NE(expected, reference_text(model, plain_frequencies(500'000, 64), prompt, 32)) << "scaling must matter";

    Decoder decoder(folder.path(), 6032);
    std::vector<TokenId> text{likeliest(decoder.prefill(prompt))};
    while (text.size() < 32) { text.push_back(likeliest(decoder.decode(text.back()))); }
    EXPECT_EQ(text, expected);
}

TEST(DecoderCases, DEC_07_ShapesWhereHeadsAndChannelsDiffer)
{
    const std::vector<LlamaShape> shapes{
        {.hidden = 1536, .heads = 16, .kv_heads = 8, .head_dim = 128}, // heads wider than the hidden state
        {.hidden = 576, .heads = 9, .kv_heads = 3, .head_dim = 64},
        {.hidden = 512, .heads = 32, .kv_heads = 4, .head_dim = 64},
        {.hidden = 128, .heads = 4, .kv_heads = 4, .head_dim = 32},
    };
    const std::vector<TokenId> prompt = tokens(5);
    for (const LlamaShape& shape : shapes) {
        SCOPED_TRACE(testing::Message() << shape.hidden << " channels, " << shape.heads << " heads on " << shape.kv_heads
                                        << " of " << shape.head_dim);
        const RandomLlama model(shape, 3);
        TemporaryFolder folder;
        model.write(folder.path());
        ReferenceLlama reference(model, plain_frequencies(shape.theta, shape.head_dim));
        for (std::size_t i = 0; i + 1 < prompt.size(); ++i) { reference.append(prompt[i]); }
        const std::vector<double> expected = reference.logits(prompt.back());
        Decoder decoder(folder.path(), 64);
        const std::span<const float> logits = decoder.prefill(prompt);
        ASSERT_EQ(logits.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_NEAR(static_cast<double>(logits[i]), expected[i], 1e-3) << "token " << i;
        }
    }
}

} // namespace
} // namespace oasis_decode::test
