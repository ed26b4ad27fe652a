// SPDX-License-Identifier: Apache-2.0
#include "model/llama.hpp"
#include "model/safetensors.hpp"
#include "model/sha256.hpp"

#include <algorithm>

namespace oasis_decode {
namespace {

constexpr std::uint64_t kMostConfigBytes = 16'000'000;

struct GlobalNames {
    const char* embedding;
    const char* final_norm;
    const char* head;
};
constexpr GlobalNames kHfNames = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
constexpr GlobalNames kGgufNames = {"token_embd.weight", "output_norm.weight", "output.weight"};

void read_head(LoadedModel& model, WeightReader& reader, const TensorSource& source, const char* name)
{
    ModelConfig& config = model.config;
    const bool present = source.find(name) != nullptr;
    if (!present) {
        if (config.tied_flag == false) {
            fail(source.label(), ": tensor ", name, " is missing, and \"tie_word_embeddings\" is false");
        }
        config.tied = true;
        return;
    }
    model.head = reader.matrix({{name, config.vocab, 0}}, config.hidden);
    const bool equal = equal_values(model.head, model.embedding);
    if (equal) {
        model.head = Matrix();
    } else if (config.tied_flag == true) {
        model.warnings.push_back(source.label() + ": \"tie_word_embeddings\" is true, but tensor " + name +
                                 " differs from the embedding; the head of the file is used");
    }
    config.tied = equal;
}

// A tensor that nobody asked for could change the results: biases and norms are refused, others are reported.
void check_unused(LoadedModel& model, const WeightReader& reader, const TensorSource& source)
{
    for (const auto& name : source.names()) {
        if (reader.used().contains(name) || name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight") {
            continue; // the RoPE tables are the configuration's
        }
        if (name.ends_with(".bias") || name.ends_with("norm.weight")) {
            fail(source.label(), ": tensor ", legible(name), " is not known of architecture ",
                 model.config.architecture);
        }
        model.warnings.push_back(source.label() + ": tensor " + legible(name) + " is not used");
    }
}

// Weights in 8 bits or less keep their values; what was finer does not.
void warn_of_rounding(LoadedModel& model, const WeightReader& reader, const TensorSource& source)
{
    std::string types;
    for (const StorageType type : reader.rounded()) { types += (types.empty() ? "" : ", ") + std::string(name(type)); }
    if (!types.empty()) {
        model.warnings.push_back(source.label() + ": weights of type " + types +
                                 " are rounded to Q8_0 (--compute q8)");
    }
}

void read_weights(LoadedModel& model, const TensorSource& source, const GlobalNames& names, bool gguf)
{
    ModelConfig& config = model.config;
    WeightReader reader(source, model.compute);
    const TensorView* const embedding = source.find(names.embedding);
    if (config.vocab == 0 && embedding) {
        if (embedding->shape.size() != 2 || embedding->shape[0] < 1 || embedding->shape[0] > INT32_MAX) {
            fail(source.label(), ": tensor ", names.embedding, " has shape ", embedding->shape_text(),
                 ", not a row for each token");
        }
        config.vocab = static_cast<std::int32_t>(embedding->shape[0]);
    }
    model.embedding = reader.matrix({{names.embedding, config.vocab, 0}}, config.hidden);
    model.final_norm = reader.read(names.final_norm, {config.hidden});
    read_head(model, reader, source, names.head);
    for (int layer = 0; layer < config.layers; ++layer) {
        const auto block = gguf ? gguf_block_names(layer, config.architecture == "llama")
                                : hf_block_names("model.layers." + std::to_string(layer) + ".");
        model.blocks.push_back(read_block(reader, config, block));
    }
    check_unused(model, reader, source);
    warn_of_rounding(model, reader, source);
    if (model.tokenizer.vocabulary() > static_cast<std::size_t>(config.vocab)) {
        fail(source.label(), ": the tokenizer has ", model.tokenizer.vocabulary(), " tokens, the embedding ",
             config.vocab);
    }
}

std::shared_ptr<const LoadedModel> load_gguf(const std::filesystem::path& path, Compute compute)
{
    const GgufFile file(path);
    auto model = std::make_shared<LoadedModel>();
    model->compute = compute;
    model->config = config_from_gguf(file);
    model->tokenizer = Tokenizer::from_gguf(file);
    read_weights(*model, file, kGgufNames, true);
    model->id = sha256_hex(file.bytes());
    return model;
}

std::shared_ptr<const LoadedModel> load_folder(const std::filesystem::path& folder, Compute compute)
{
    auto model = std::make_shared<LoadedModel>();
    model->compute = compute;
    const auto config_path = folder / "config.json";
    const Json config = read_json(config_path, kMostConfigBytes);
    model->config = config_from_json(config, config_path.string());
    model->tokenizer = Tokenizer::from_folder(folder);
    const SafetensorsFolder source(folder);
    read_weights(*model, source, kHfNames, false);
    Sha256 hash;
    hash.update(MappedFile(config_path).bytes());
    hash.update(MappedFile(tokenizer_path(folder)).bytes());
    for (const char* name : {"tokenizer_config.json", "chat_template.jinja"}) {
        if (std::filesystem::exists(folder / name)) { hash.update(MappedFile(folder / name).bytes()); }
    }
    for (const auto& file : source.files()) { hash.update(file->bytes()); }
    model->id = hash.hex();
    return model;
}

} // namespace

std::shared_ptr<const LoadedModel> load_model(const std::filesystem::path& path, Compute compute)
{
    return is_folder(path) ? load_folder(path, compute) : load_gguf(path, compute);
}

} // namespace oasis_decode
