// SPDX-License-Identifier: Apache-2.0
//
// Every architecture, RoPE scaling and type of weights against logits of a float64 reference, through the cache: a
// prompt in chunks, then token by token, both beyond the context that the scalings start from.
#include "app/settings.hpp"
#include "decoder/fake_cache.hpp"
#include "decoder/reference.hpp"
#include "decoder/tiny_family.hpp"

#include "app/setup.hpp"

namespace oasis_decode::test {
namespace {

// Logits have a standard deviation of 0.8 to 2.5; the largest difference seen was 1.7e-5.
constexpr float kTolerance = 1e-4F;

const Json& references()
{
    static const Json kReferences = read_json(data_dir() / "model-references.json", 1'000'000);
    return kReferences;
}

const Json& case_named(const std::string& name)
{
    for (const Json& one : references()["cases"]) {
        if (one["name"] == name) { return one; }
    }
    throw std::runtime_error("no case " + name);
}

void follow(const std::filesystem::path& path, const Json& reference, bool sparse)
{
    Engine engine(load_model(path), 1, real_maker());
    EXPECT_TRUE(engine.model->warnings.empty()) << engine.model->warnings.front();
    const auto tokens = references()["tokens"].get<std::vector<TokenId>>();
    const auto context = static_cast<std::int64_t>(tokens.size());
    EXPECT_GE(engine.config().context, context);
    // 37 rows: no multiple of it ends with a prompt.
    oasis::CacheConfig config = dense_config({}, engine.config().shape(), context, 37);
    if (sparse) { config.dense_below = 0; } // the budgets hold the whole context
    Session session(engine, config);
    const std::size_t prompt = reference["prompt"];
    session.prefill(std::span(tokens).first(prompt));
    std::vector<Expected> expected = expectations(reference["expected"], "ids", "logits");
    std::size_t checked = 0;
    const auto check = [&](std::span<const float> logits) {
        for (const Expected& e : expected) {
            if (e.position != session.length() - 1) { continue; }
            expect_logits(e, logits, kTolerance);
            ++checked;
        }
    };
    check(session.last_logits());
    for (std::size_t i = prompt; i < tokens.size(); ++i) { check(session.decode(std::span(tokens).subspan(i, 1))); }
    EXPECT_EQ(checked, expected.size());
}

class Families : public testing::TestWithParam<std::string> {};

TEST_P(Families, LogitsAgreeWithTheReference)
{
    const Json& reference = case_named(GetParam());
    const TinyFamily model(reference);
    TemporaryFolder folder;
    if (model.has_folder()) {
        for (const std::size_t shards : {1U, 3U}) {
            SCOPED_TRACE(shards);
            const auto path = folder / ("hf-" + std::to_string(shards));
            model.write_folder(path, shards);
            follow(path, reference, shards > 1);
        }
    }
    if (model.has_gguf()) {
        SCOPED_TRACE("gguf");
        write_file(folder / "model.gguf", model.gguf().str());
        follow(folder / "model.gguf", reference, false);
    }
}

std::vector<std::string> case_names()
{
    std::vector<std::string> names;
    for (const Json& one : references()["cases"]) { names.push_back(one["name"]); }
    return names;
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(case_names()), [](const auto& one) {
    std::string name = one.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

// What a config.json leaves out is what Hugging Face's class has then.
TEST(FamilyConfig, DefaultsOfTheFamilies)
{
    const auto config_with = [](const std::string& name, const Json& patch) {
        Json config = case_named(name)["config"];
        config.merge_patch(patch); // null takes a key away
        return config_from_json(config, "config.json");
    };
    const ModelConfig mistral = config_with("mistral", {{"sliding_window", nullptr}, {"head_dim", nullptr}});
    EXPECT_EQ(mistral.windows, (std::vector<std::int32_t>{4096, 4096}));
    EXPECT_EQ(mistral.head_dim, 32);
    EXPECT_TRUE(config_from_json(case_named("mistral-full")["config"], "config.json").windows.empty());
    EXPECT_EQ(config_with("qwen3", {{"head_dim", nullptr}}).head_dim, 128);
    EXPECT_TRUE(config_with("qwen2-windows", {{"use_sliding_window", false}}).windows.empty());
    EXPECT_TRUE(config_with("qwen2-windows", {{"max_window_layers", nullptr}}).windows.empty());
    EXPECT_EQ(config_with("qwen2-windows", {{"sliding_window", nullptr}}).windows,
              (std::vector<std::int32_t>{0, 4096}));
    Json no_window = case_named("qwen2-windows")["config"];
    no_window["sliding_window"] = nullptr;
    EXPECT_TRUE(config_from_json(no_window, "config.json").windows.empty());
    const Json types = {"sliding_attention", "full_attention"};
    EXPECT_EQ(config_with("qwen2-windows", {{"layer_types", types}}).windows, (std::vector<std::int32_t>{24, 0}));
    EXPECT_EQ(config_with("llama", {{"architectures", nullptr}}).architecture, "LlamaForCausalLM");
    EXPECT_EQ(config_with("llama-linear", Json::object()).context, 256);
    EXPECT_EQ(config_with("llama-yarn", {{"max_position_embeddings", 64}}).context, 256);
    EXPECT_EQ(config_with("llama-llama3", Json::object()).context, 256);
}

// The tolerance tells the cases apart: whoever ignores a setting fails.
TEST(FamilyReferences, DifferByMoreThanTheTolerance)
{
    std::vector<std::pair<std::string, std::vector<float>>> last;
    for (const Json& one : references()["cases"]) {
        last.emplace_back(one["name"], one["expected"].back()["logits"].get<std::vector<float>>());
    }
    for (std::size_t a = 0; a < last.size(); ++a) {
        for (std::size_t b = 0; b < a; ++b) {
            // A Mistral without a window is a Llama.
            if (last[a].first == "mistral-full" && last[b].first == "llama") { continue; }
            float most = 0;
            for (std::size_t i = 0; i < last[a].second.size(); ++i) {
                most = std::max(most, std::abs(last[a].second[i] - last[b].second[i]));
            }
            EXPECT_GT(most, 10 * kTolerance) << last[a].first << " and " << last[b].first;
        }
    }
}

TEST(FamilyBlocks, UnpackToTheValuesOfTheFormat)
{
    for (const Json& block : references()["blocks"]) {
        const std::string type = block["type"];
        const auto expected = block["values"].get<std::vector<float>>();
        GgufWriter writer;
        const auto count = static_cast<std::int64_t>(expected.size());
        writer.add_raw("block", {1, count}, tiny_type(type).number, tiny_bytes("block", type, expected.size()));
        TemporaryFolder folder;
        write_file(folder / "model.gguf", writer.str());
        const GgufFile file(folder / "model.gguf");
        const TensorView& tensor = *file.find("block");
        EXPECT_EQ(name(tensor.type), type);
        std::vector<float> values(expected.size());
        dequantise(tensor, values);
        EXPECT_EQ(values, expected) << type;
        // A matrix in the type's own code and in the code that holds every quantised type.
        for (const auto code : {Matrix::code_for(tensor.type, count), Matrix::Code::kQ8Affine}) {
            Matrix matrix(code, 1, count);
            matrix.set_row(0, tensor.type, tensor.bytes);
            matrix.row(0, values.data());
            EXPECT_EQ(values, expected) << type << " in code " << static_cast<int>(code);
        }
    }
}

TEST(FamilyText, SaysArchitectureScalingWindowAndTypes)
{
    const auto text_of = [](const std::string& name) {
        TemporaryFolder folder;
        const TinyFamily model(case_named(name));
        if (model.has_folder()) {
            model.write_folder(folder / "model", 1);
        } else {
            write_file(folder / "model", model.gguf().str());
        }
        return model_text(read_head(folder / "model"));
    };
    const auto expect_line = [](const std::string& text, const std::string& line) {
        EXPECT_NE(text.find(line + "\n"), std::string::npos) << line << " is not in\n" << text;
    };
    const std::string mistral = text_of("mistral"), yarn = text_of("llama-yarn"), mixed = text_of("qwen2-mixed");
    expect_line(mistral, "architecture   MistralForCausalLM");
    expect_line(mistral, "window         24 tokens in 2 of 2 layers");
    expect_line(mistral, "RoPE           theta 10000");
    expect_line(yarn, "RoPE           theta 10000, yarn 4 x 64 tokens");
    expect_line(yarn, "window         none");
    EXPECT_NE(mixed.find("architecture   qwen2\n"), std::string::npos) << mixed;
    EXPECT_NE(mixed.find("11 F32, 6 Q4_K, 5 Q6_K, 2 Q8_0, 2 Q5_0 ("), std::string::npos) << mixed;
}

} // namespace
} // namespace oasis_decode::test
