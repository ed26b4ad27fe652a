// SPDX-License-Identifier: Apache-2.0
//
// One model in two containers, output heads, and settings that must not be ignored.
#include "decoder/tiny_model.hpp"

#include "model/sha256.hpp"

namespace oasis_decode::test {
namespace {

std::shared_ptr<const LoadedModel> load_folder(const TinyModel& tiny)
{
    TemporaryFolder folder;
    tiny.write_folder(folder.path());
    return load_model(folder.path());
}

std::shared_ptr<const LoadedModel> load_gguf(const GgufWriter& writer)
{
    TemporaryFolder folder;
    write_file(folder / "model.gguf", writer.str());
    return load_model(folder / "model.gguf");
}

template <class Call> std::string error_of(const Call& call)
{
    try {
        (void)call();
    } catch (const ModelError& error) {
        return error.what();
    }
    return "no error";
}

std::string error_with(const Json& patch)
{
    TinyModel tiny;
    tiny.config.merge_patch(patch);
    return error_of([&] { return load_folder(tiny); });
}

#define OASIS_EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(LoadCases, DEC_08_BothContainersGiveTheSameKeysAndLogits)
{
    const TinyModel tiny;
    oasis::InlineExecutor executor;
    DenseRun hf(load_folder(tiny), executor, 101, 128), gguf(load_gguf(tiny.gguf()), executor, 101, 128);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 101; ++i) { tokens.push_back((i * 37 + 5) % 259); }
    hf.forward(tokens);
    gguf.forward(tokens);
    for (int layer = 0; layer < TinyModel::kLayers; ++layer) {
        for (int head = 0; head < TinyModel::kKvHeads; ++head) {
            for (const std::int64_t position : {0, 100}) {
                EXPECT_EQ(hf.attention().key(layer, head, position), gguf.attention().key(layer, head, position))
                    << "layer " << layer << ", head " << head << ", position " << position;
            }
        }
    }
    const auto a = hf.logits(100), b = gguf.logits(100);
    ASSERT_EQ(a.size(), 259U);
    for (std::size_t i = 0; i < a.size(); ++i) { ASSERT_NEAR(a[i], b[i], 1e-4F) << "token " << i; }
}

TEST(LoadCases, DEC_09_BothContainersGiveTheSameTokenizer)
{
    const TinyModel tiny;
    const auto hf = load_folder(tiny), gguf = load_gguf(tiny.gguf());
    const std::string text = "ab<s> cab \xF0\x9F\x98\x80";
    for (const auto specials : {Specials::kAsText, Specials::kRecognised}) {
        EXPECT_EQ(hf->tokenizer.encode(text, specials), gguf->tokenizer.encode(text, specials));
    }
    EXPECT_EQ(gguf->tokenizer.encode_prompt("<s>ab", Specials::kRecognised), (std::vector<TokenId>{257, 256}));
    EXPECT_FALSE(hf->tokenizer.adds_bos());
    EXPECT_TRUE(gguf->tokenizer.is_special(258));
}

TEST(LoadCases, DEC_04_TiedAndUntiedHeads)
{
    const TinyModel plain;
    const auto embedding = TinyModel().tensor("model.embed_tokens.weight").values;
    const auto with = [&](const Json& flag, const std::vector<float>* head) {
        TinyModel tiny;
        tiny.config.merge_patch({{"tie_word_embeddings", flag}});
        if (head) { tiny.add_head(*head); }
        return tiny;
    };
    auto other = embedding;
    other[70] += 1.0F;

    const auto a = load_folder(with(true, nullptr));
    EXPECT_TRUE(a->config.tied && a->head.empty() && a->warnings.empty());
    const auto b = load_folder(with(true, &embedding));
    EXPECT_TRUE(b->config.tied && b->head.empty() && b->warnings.empty());
    const auto c = load_folder(with(true, &other));
    EXPECT_FALSE(c->config.tied);
    std::vector<float> row(64);
    c->output_matrix().row(1, row.data());
    EXPECT_EQ(row[6], other[70]);
    ASSERT_EQ(c->warnings.size(), 1U);
    OASIS_EXPECT_HAS(c->warnings[0], "lm_head.weight");
    const std::string d = error_of([&] { return load_folder(with(false, nullptr)); });
    OASIS_EXPECT_HAS(d, "lm_head.weight");
    OASIS_EXPECT_HAS(d, "tie_word_embeddings");
    const auto e = load_folder(with(nullptr, nullptr)), f = load_folder(with(nullptr, &other));
    EXPECT_FALSE(e->config.tied_flag.has_value());
    EXPECT_TRUE(e->config.tied && !f->config.tied && f->warnings.empty());
    const auto g = load_folder(with(false, &other));
    EXPECT_TRUE(!g->config.tied && g->warnings.empty());
}

TEST(LoadCases, DEC_05_RopeScalingIsNeverIgnored)
{
    const auto error_of_scaling = [](const Json& scaling) { return error_with({{"rope_scaling", scaling}}); };
    EXPECT_EQ(error_of_scaling(nullptr), "no error");
    EXPECT_EQ(error_of_scaling({{"type", "default"}}), "no error");
    OASIS_EXPECT_HAS(error_of_scaling({{"type", "foo"}}), "\"type\" in \"rope_scaling\" is \"foo\"");
    OASIS_EXPECT_HAS(error_of_scaling({{"rope_type", "longrope"}, {"factor", 2}}), "longrope");
    OASIS_EXPECT_HAS(error_of_scaling({{"rope_type", "linear"}}), "\"factor\" is missing");
    OASIS_EXPECT_HAS(error_of_scaling({{"rope_type", "linear"}, {"factor", 0.5}}), "0.5");
    OASIS_EXPECT_HAS(error_of_scaling({{"rope_type", "linear"}, {"factor", 2}, {"surprise", 1}}), "surprise");
    OASIS_EXPECT_HAS(error_of_scaling({{"rope_type", "llama3"}, {"factor", 32}}), "low_freq_factor");
    OASIS_EXPECT_HAS(error_of_scaling({{"rope_type", "llama3"},
                                       {"factor", 8},
                                       {"low_freq_factor", 4},
                                       {"high_freq_factor", 4},
                                       {"original_max_position_embeddings", 64}}),
                     "high_freq_factor 4");
    OASIS_EXPECT_HAS(error_of_scaling({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 1}}), "beta_fast");
    OASIS_EXPECT_HAS(error_of_scaling({{"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
    OASIS_EXPECT_HAS(error_of_scaling(Json::array()), "not an object");
    OASIS_EXPECT_HAS(error_with({{"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}}}}}}),
                     "sliding_attention");
    OASIS_EXPECT_HAS(error_with({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2}}},
                                 {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}),
                     "\"rope_scaling\" is linear");
    TinyModel tiny;
    tiny.config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
    EXPECT_EQ(load_folder(tiny)->config.rope.theta, 5e5);
}

TEST(LoadCases, DEC_05_RopeScalingOfGgufIsNeverIgnored)
{
    const auto error_with_key = [](const char* key, const Json& value) {
        auto writer = TinyModel().gguf();
        if (value.is_string()) {
            writer.key_string(key, value);
        } else {
            writer.key_f32(key, value);
        }
        return error_of([&] { return load_gguf(writer); });
    };
    OASIS_EXPECT_HAS(error_with_key("llama.rope.scaling.type", "longrope"), "\"longrope\"");
    OASIS_EXPECT_HAS(error_with_key("llama.rope.scaling.type", "dynamic"), "dynamic in a GGUF file");
    OASIS_EXPECT_HAS(error_with_key("llama.rope.scaling.factor", 0.5), "0.5");
    OASIS_EXPECT_HAS(error_with_key("llama.rope.scaling.yarn_log_multiplier", 0.1), "yarn_log_multiplier");
    OASIS_EXPECT_HAS(error_with_key("llama.rope.scaling.attn_factor", 0.5),
                     "llama.rope.scaling.attn_factor is 0.5 with RoPE scaling none");
    EXPECT_EQ(error_with_key("llama.rope.scaling.attn_factor", 1.0), "no error");
    auto factors = TinyModel().gguf();
    factors.add({"rope_freqs.weight", {8}, std::vector<float>(8, 1.0F)});
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(factors); }), "rope_freqs.weight has shape [8], not [16]");
    auto zero = TinyModel().gguf();
    zero.add({"rope_freqs.weight", {16}, std::vector<float>(16, 0.0F)});
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(zero); }), "rope_freqs.weight holds 0");
    auto longrope = TinyModel().gguf();
    longrope.add({"rope_factors_long.weight", {16}, std::vector<float>(16, 1.0F)});
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(longrope); }), "rope_factors_long.weight");
}

TEST(Load, RefusesWhatItDoesNotDo)
{
    OASIS_EXPECT_HAS(error_with({{"architectures", {"MixtralForCausalLM"}}}), "MixtralForCausalLM");
    OASIS_EXPECT_HAS(error_with({{"architectures", nullptr}}), "architecture (none)");
    OASIS_EXPECT_HAS(error_with({{"architectures", nullptr}, {"model_type", "gemma3"}}), "gemma3");
    OASIS_EXPECT_HAS(error_with({{"model_type", "qwen2"}}), "\"model_type\": \"qwen2\"");
    OASIS_EXPECT_HAS(error_with({{"attention_bias", true}}), "q_proj.bias is missing");
    OASIS_EXPECT_HAS(error_with({{"mlp_bias", true}}), "mlp_bias");
    OASIS_EXPECT_HAS(error_with({{"hidden_act", "gelu"}}), "gelu");
    OASIS_EXPECT_HAS(error_with({{"quantization_config", {{"quant_method", "gptq"}}}}), "gptq");
    OASIS_EXPECT_HAS(error_with({{"attn_logit_softcapping", 50}}), "attn_logit_softcapping");
    OASIS_EXPECT_HAS(error_with({{"num_local_experts", 8}}), "num_local_experts");
    OASIS_EXPECT_HAS(error_with({{"sliding_window", 64}}), "sliding_window");
    OASIS_EXPECT_HAS(error_with({{"layer_types", {"full_attention", "chunked_attention"}}}), "chunked_attention");
    OASIS_EXPECT_HAS(error_with({{"layer_types", {"full_attention", "sliding_attention"}}}), "there is no window");
    OASIS_EXPECT_HAS(error_with({{"layer_types", {"full_attention"}}}), "not a list of 2 types");
    OASIS_EXPECT_HAS(error_with({{"hidden_size", "big"}}), "\"big\"");
    OASIS_EXPECT_HAS(error_with({{"hidden_size", -4}}), "-4");
    OASIS_EXPECT_HAS(error_with({{"num_key_value_heads", 3}}), "3 KV heads");
    OASIS_EXPECT_HAS(error_with({{"rms_norm_eps", 0}}), "rms_norm_eps");
    OASIS_EXPECT_HAS(error_with({{"eos_token_id", 259}}), "259");
    OASIS_EXPECT_HAS(error_with({{"vocab_size", 260}}), "model.embed_tokens.weight");
    OASIS_EXPECT_HAS(error_with({{"intermediate_size", 1 << 19}}), "[524288, 64]");
    OASIS_EXPECT_HAS(error_with({{"num_hidden_layers", 3}}), "model.layers.2.");
    OASIS_EXPECT_HAS(error_of([] { return load_model("/nonexistent/model"); }), "/nonexistent/model");
    TinyModel norm;
    norm.tensors.push_back({"model.layers.0.self_attn.q_norm.weight", {32}, std::vector<float>(32)});
    OASIS_EXPECT_HAS(error_of([&] { return load_folder(norm); }), "q_norm.weight is not known of architecture Llama");
    TinyModel bias;
    bias.tensors.push_back({"model.layers.0.self_attn.q_proj.bias", {128}, std::vector<float>(128)});
    OASIS_EXPECT_HAS(error_of([&] { return load_folder(bias); }), "q_proj.bias is not known");
    TinyModel extra;
    extra.tensors.push_back({"model.surprise", {1}, {1.0F}});
    const auto warned = load_folder(extra);
    ASSERT_EQ(warned->warnings.size(), 1U);
    OASIS_EXPECT_HAS(warned->warnings[0], "model.surprise");
}

TEST(Load, RefusesWhatItDoesNotDoInGguf)
{
    auto foreign = TinyModel().gguf();
    foreign.keys.replace(foreign.keys.find("llama"), 5, "gemma");
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(foreign); }), "gemma");
    for (const char* key :
         {"expert_count", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "attention.clamp_kqv"}) {
        auto writer = TinyModel().gguf();
        writer.key_u32(std::string("llama.") + key, 8);
        OASIS_EXPECT_HAS(error_of([&] { return load_gguf(writer); }), std::string(key) + " is 8");
    }
    auto part = TinyModel().gguf();
    part.key_u32("split.count", 3);
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(part); }), "one of 3 parts");
    auto both_ways = TinyModel().gguf();
    both_ways.key_bool("llama.attention.causal", false);
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(both_ways); }), "attention.causal");
    auto bias = TinyModel().gguf();
    bias.add({"blk.1.attn_q.bias", {128}, std::vector<float>(128)});
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(bias); }), "blk.1.attn_q.bias is not known");
}

TEST(Load, EndsOfTextAndOfTurnBothEnd)
{
    auto writer = TinyModel().gguf();
    writer.key_u32("tokenizer.ggml.eot_token_id", 256);
    EXPECT_EQ(load_gguf(writer)->config.eos, (std::vector<TokenId>{258, 256}));
}

// Old converters wrote -1 where a model has no such token.
TEST(Load, MinusOneIsNoToken)
{
    const auto with = [](const std::string& key, std::int32_t id) {
        auto writer = TinyModel().gguf();
        if (const auto at = writer.keys.find(key); at != std::string::npos) {
            writer.keys.replace(at, key.size(), std::string(key.size(), '?'));
        }
        writer.begin_key(key, 5), put(writer.keys, id);
        return writer;
    };
    EXPECT_EQ(load_gguf(with("tokenizer.ggml.eot_token_id", -1))->config.eos, (std::vector<TokenId>{258}));
    EXPECT_TRUE(load_gguf(with("tokenizer.ggml.eos_token_id", -1))->config.eos.empty());
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(with("tokenizer.ggml.eos_token_id", -2)); }),
                     "is -2, not a token");
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(with("tokenizer.ggml.bos_token_id", -1)); }),
                     "add_bos_token is true without tokenizer.ggml.bos_token_id");
    OASIS_EXPECT_HAS(error_of([&] { return load_gguf(with("tokenizer.ggml.bos_token_id", -2)); }),
                     "is -2, not a token");
}

TEST(Load, IdsTellModelsApart)
{
    const auto with_file = [](const char* name, const char* text) {
        TemporaryFolder folder;
        TinyModel().write_folder(folder.path());
        write_file(folder / name, text);
        return load_model(folder.path())->id;
    };
    EXPECT_NE(with_file("chat_template.jinja", "a"), load_folder(TinyModel())->id);
    EXPECT_NE(with_file("chat_template.jinja", "a"), with_file("chat_template.jinja", "b"));
    EXPECT_NE(with_file("tokenizer_config.json", "{}"), load_folder(TinyModel())->id);
    TinyModel changed;
    changed.tensor("model.layers.1.mlp.down_proj.weight").values[3] += 1.0F;
    EXPECT_EQ(load_folder(TinyModel())->id, load_folder(TinyModel())->id);
    EXPECT_NE(load_folder(TinyModel())->id, load_folder(changed)->id);
    EXPECT_NE(load_gguf(TinyModel().gguf())->id, load_gguf(changed.gguf())->id);
}

TEST(Sha256, KnownDigests)
{
    const auto of = [](const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); };
    EXPECT_EQ(of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

} // namespace
} // namespace oasis_decode::test
