// SPDX-License-Identifier: Apache-2.0
//
// The draft heads of two models against stored float32 references, and bad files.
#include "app/decoding.hpp"
#include "decoder/fake_cache.hpp"
#include "decoder/reference.hpp"
#include "decoder/tiny_model.hpp"

#include <gmock/gmock.h>

namespace oasis_decode::test {
namespace {

std::unique_ptr<Engine> open(const std::filesystem::path& path)
{
    return std::make_unique<Engine>(load_model(path), std::size_t{0}, real_maker());
}

/// The residuals of a text, [tokens, hidden].
std::vector<float> residuals_of(Engine& engine, std::span<const TokenId> ids)
{
    const auto context = static_cast<std::int64_t>(ids.size());
    Session session(engine, dense_config({}, engine.config().shape(), context, kChunkRows));
    KvStore store(engine.config().shape(), context, engine.config().hidden);
    session.prefill(ids, &store);
    return {store.residuals().begin(), store.residuals().end()};
}

/// Logits of the head along a text, row by row: rows t with the token at t + 1 for all but the last token.
void expect_head_logits(Engine& engine, const std::shared_ptr<const MtpWeights>& weights, std::span<const TokenId> ids,
                        std::span<const float> residuals, std::span<const Expected> expected)
{
    constexpr std::size_t kRows = 256;
    const auto width = static_cast<std::size_t>(engine.config().hidden);
    MtpHead head(engine.model, weights, engine.threads, kRows);
    DenseAttention attention(engine.config(), engine.threads, static_cast<std::int64_t>(ids.size()));
    std::vector<float> logits(engine.vocabulary());
    std::size_t checked = 0;
    for (std::size_t done = 0; done + 1 < ids.size();) {
        const std::size_t rows = std::min(kRows, ids.size() - 1 - done);
        std::vector<std::int64_t> positions(rows);
        std::iota(positions.begin(), positions.end(), done);
        head.forward({residuals.subspan(done * width, rows * width), ids.subspan(done + 1, rows), positions},
                     attention.rows(static_cast<std::int64_t>(done), static_cast<std::int64_t>(rows)));
        for (const Expected& e : expected) {
            const auto at = static_cast<std::size_t>(e.position);
            if (at < done || at >= done + rows) { continue; }
            head.logits(static_cast<int>(at - done), logits);
            expect_logits(e, logits);
            ++checked;
        }
        done += rows;
    }
    EXPECT_EQ(checked, expected.size());
}

std::vector<TokenId> ids_of(std::span<const Draft> drafts)
{
    std::vector<TokenId> out;
    for (const Draft& draft : drafts) { out.push_back(draft.token); }
    return out;
}

TEST(MtpReference, RetrievalLogitsAndChain)
{
    const auto folder = data_dir() / "retrieval-14m";
    const std::unique_ptr<Engine> engine = open(folder);
    const auto weights = engine->head(mtp_beside(folder));
    const Json reference = read_json(folder / "reference.json", 100'000'000);
    const Json heads = read_json(folder / "mtp_reference.json", 100'000'000);
    const Json item = reference_item(heads, "task", "kv_dense");
    std::vector<TokenId> ids = reference_item(reference, "task", "kv_dense")["prompt_ids"];
    const std::vector<float> residuals = residuals_of(*engine, ids);
    const TokenId next = item["next_id"];

    MtpDrafter drafter(*engine, weights, static_cast<std::int64_t>(ids.size()));
    drafter.observe(ids, residuals);
    EXPECT_EQ(ids_of(drafter.propose(next, 4, 0)), item["draft_ids"].get<std::vector<TokenId>>());
    EXPECT_EQ(drafter.length(), static_cast<std::int64_t>(ids.size())) << "the chain's rows are to go";

    ids.push_back(next);
    expect_head_logits(*engine, weights, ids, residuals, expectations(item["top20"], "ids", "logits"));
}

/// A chain from every row: rows before it are taken in one by one, as decoding does.
void follow_chains(Engine& engine, const std::shared_ptr<const MtpWeights>& weights, const Json& item,
                   std::span<const TokenId> ids, std::span<const float> residuals)
{
    const auto width = static_cast<std::size_t>(engine.config().hidden);
    MtpDrafter drafter(engine, weights, static_cast<std::int64_t>(ids.size()), 0, engine.vocabulary());
    std::size_t observed = 0;
    for (const Json& chain : item["chains"]) {
        const auto rows = chain["row"].get<std::size_t>() + 1;
        drafter.observe(ids.subspan(observed, rows - observed),
                        residuals.subspan(observed * width, (rows - observed) * width));
        observed = rows;
        ASSERT_EQ(ids_of(drafter.propose(ids[rows], 4, 0)), chain["draft_ids"].get<std::vector<TokenId>>())
            << "chain at row " << rows - 1;
    }
}

TEST(MtpReference, SmolLM2LogitsAndChains)
{
    if (smollm2_path().empty()) { GTEST_SKIP() << kNeedsSmolLM2; }
    const auto folder = data_dir() / "smollm2-135m";
    const std::unique_ptr<Engine> engine = open(smollm2_path());
    const auto weights = engine->head(folder / "mtp.safetensors");
    const Json reference = read_json(folder / "reference.json", 100'000'000);
    const Json heads = read_json(folder / "mtp_reference.json", 100'000'000);
    for (const char* name : {"short", "chat"}) {
        SCOPED_TRACE(name);
        ReferenceText text = smollm2_text(reference, name);
        text.ids.insert(text.ids.end(), text.greedy.begin(), text.greedy.end());
        const std::vector<float> residuals = residuals_of(*engine, text.ids);
        Json item = reference_item(heads, "name", name);
        for (Json& entry : item["top20"]) { entry["position"] = entry["row"]; }
        expect_head_logits(*engine, weights, text.ids, residuals, expectations(item["top20"], "ids", "logits"));
        follow_chains(*engine, weights, item, text.ids, residuals);
    }
}

/// A head for `TinyModel`.
std::vector<Float32Tensor> tiny_head()
{
    TinyModel tiny(7);
    std::vector<Float32Tensor> out;
    for (Float32Tensor tensor : tiny.tensors) {
        if (tensor.name.starts_with("model.layers.0.")) {
            tensor.name.replace(0, 6, "mtp.");
            out.push_back(tensor);
        }
    }
    const std::vector<float> ones(static_cast<std::size_t>(TinyModel::kHidden), 1.0F);
    for (const char* name : {"mtp.hnorm.weight", "mtp.enorm.weight", "mtp.norm.weight"}) {
        out.push_back({name, {TinyModel::kHidden}, ones});
    }
    out.push_back({"mtp.proj.weight",
                   {TinyModel::kHidden, 2 * TinyModel::kHidden},
                   std::vector<float>(static_cast<std::size_t>(2 * TinyModel::kHidden * TinyModel::kHidden), 0.1F)});
    return out;
}

std::string failure(const std::filesystem::path& path, const ModelConfig& config)
{
    try {
        static_cast<void>(load_mtp(path, config));
    } catch (const ModelError& e) {
        return e.what();
    }
    return "";
}

TEST(MtpFile, BadFilesAreNamedWithTheirTensor)
{
    using testing::AllOf;
    using testing::HasSubstr;
    const TemporaryFolder folder;
    const ModelConfig config = config_from_json(TinyModel().config, "config");
    const auto write = [&](const char* name, const std::vector<Float32Tensor>& tensors) {
        SafetensorsWriter writer;
        for (const auto& tensor : tensors) { writer.add(tensor); }
        write_file(folder / name, writer.str());
        return folder / name;
    };
    const std::vector<Float32Tensor> good = tiny_head();
    EXPECT_EQ(failure(write("good.safetensors", good), config), "");
    EXPECT_THAT(failure(folder / "absent.safetensors", config), HasSubstr("absent.safetensors"));
    for (std::size_t i = 0; i < good.size(); ++i) {
        std::vector<Float32Tensor> less = good;
        less.erase(less.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_THAT(failure(write("less.safetensors", less), config),
                    AllOf(HasSubstr("less.safetensors"), HasSubstr(good[i].name), HasSubstr("missing")));
    }
    std::vector<Float32Tensor> wide = good;
    wide.back().shape = {2 * TinyModel::kHidden, TinyModel::kHidden};
    EXPECT_THAT(failure(write("wide.safetensors", wide), config),
                AllOf(HasSubstr("mtp.proj.weight"), HasSubstr("[128, 64]"), HasSubstr("[64, 128]")));
    std::vector<Float32Tensor> more = good;
    more.push_back({"mtp.layers.1.input_layernorm.weight", {1}, {1.0F}});
    EXPECT_THAT(failure(write("more.safetensors", more), config), HasSubstr("mtp.layers.1.input_layernorm.weight"));
    write_file(folder / "text.safetensors", "not a tensor file");
    EXPECT_THAT(failure(folder / "text.safetensors", config), HasSubstr("text.safetensors"));
    // Another model's head.
    const ModelConfig other =
        config_from_json(read_json(data_dir() / "retrieval-14m" / "config.json", 1'000'000), "config");
    EXPECT_THAT(failure(data_dir() / "smollm2-135m" / "mtp.safetensors", other),
                AllOf(HasSubstr("mtp.hnorm.weight"), HasSubstr("576"), HasSubstr("384")));
}

} // namespace
} // namespace oasis_decode::test
