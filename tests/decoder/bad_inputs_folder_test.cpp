// SPDX-License-Identifier: Apache-2.0
//
// Bad model folders: config.json, tokenizer.json, safetensors, draft heads.
#include "decoder/bad_inputs.hpp"

namespace oasis_decode::test {
namespace {

using Arguments = std::vector<std::string>;

Arguments run_folder(Scene& scene) { return {"run", scene.model_folder(), "--prompt", "ab"}; }

/// A folder whose file `name` holds `bytes`.
Arguments with_file(Scene& scene, const std::string& name, const std::string& bytes)
{
    Arguments arguments = run_folder(scene);
    write_file(scene.folder / "model" / name, bytes);
    return arguments;
}

Arguments with_config(Scene& scene, const Json& patch)
{
    scene.tiny.config.merge_patch(patch);
    return run_folder(scene);
}

Arguments with_token(Scene& scene, const Json& id)
{
    scene.tiny.tokenizer["model"]["vocab"]["ab"] = id;
    return run_folder(scene);
}

/// A safetensors file whose header is `header`.
Arguments with_header(Scene& scene, const std::string& header)
{
    return with_file(scene, "model.safetensors", scene.tiny.safetensors().with_header(header));
}

/// The entry of the tensor model.norm.weight, the second of the file, with `patch` merged in.
Arguments with_entry(Scene& scene, const Json& patch)
{
    SafetensorsWriter writer = scene.tiny.safetensors();
    writer.header["model.norm.weight"].merge_patch(patch);
    return with_file(scene, "model.safetensors", writer.str());
}

Arguments with_shard(Scene& scene, const std::string& shard)
{
    return with_file(scene, "model.safetensors.index.json",
                     Json({{"weight_map", {{"model.norm.weight", shard}}}}).dump());
}

/// A draft head of `width` channels whose values are `value`.
Arguments with_head(Scene& scene, std::int64_t width, float value)
{
    SafetensorsWriter writer;
    for (const char* name : {"mtp.hnorm.weight", "mtp.enorm.weight", "mtp.norm.weight"}) {
        writer.add({name, {width}, std::vector<float>(static_cast<std::size_t>(width), value)});
    }
    Arguments arguments = with_file(scene, "mtp.safetensors", writer.str());
    arguments.insert(arguments.end(), {"--draft", "mtp"});
    return arguments;
}

const std::vector<BadInput> kFolders = {
    {"NoConfig", "config.json: No such file",
     [](Scene& s) {
         std::filesystem::create_directory(s.folder / "empty");
         return Arguments{"inspect", s.path("empty")};
     }},
    {"CutConfig", "config.json: not valid JSON",
     [](Scene& s) { return with_file(s, "config.json", s.tiny.config.dump().substr(0, 100)); }},
    {"EmptyConfig", "config.json: not valid JSON", [](Scene& s) { return with_file(s, "config.json", ""); }},
    {"ConfigIsAList", "config.json: the JSON is not an object but of type array",
     [](Scene& s) { return with_file(s, "config.json", "[1]"); }},
    {"ConfigIsNoText", "config.json: not valid JSON",
     [](Scene& s) { return with_file(s, "config.json", "{\"\xFF\xFE\":1}"); }},
    {"ConfigNestedDeeply", "config.json: JSON nested deeper than 100 levels",
     [](Scene& s) { return with_file(s, "config.json", "{\"rope_scaling\":" + std::string(1'000'000, '[')); }},
    {"KeyTwice", "config.json: duplicate key \"a\"",
     [](Scene& s) { return with_file(s, "config.json", R"({"a":1,"a":2})"); }},
    {"WidthIsText", "\"hidden_size\" is \"64\", not an integer",
     [](Scene& s) {
         return with_config(s, {{"hidden_size", "64"}});
     }},
    {"WidthBeyondIntegers", "\"hidden_size\" is 18446744073709551615",
     [](Scene& s) {
         return with_config(s, {{"hidden_size", UINT64_MAX}});
     }},
    {"WidthIsAFraction", "\"hidden_size\" is 64.5",
     [](Scene& s) {
         return with_config(s, {{"hidden_size", 64.5}});
     }},
    {"EpsilonIsZero", "\"rms_norm_eps\" is 0",
     [](Scene& s) {
         return with_config(s, {{"rms_norm_eps", 0}});
     }},
    {"OddHeadSize", "head size 31 is odd",
     [](Scene& s) {
         return with_config(s, {{"head_dim", 31}});
     }},
    {"EmbeddingOfAnotherVocabulary", "tensor model.embed_tokens.weight has shape [259, 64], not [300, 64]",
     [](Scene& s) {
         return with_config(s, {{"vocab_size", 300}});
     }},
    {"LayerMissing", "tensor model.layers.2.input_layernorm.weight is missing",
     [](Scene& s) {
         return with_config(s, {{"num_hidden_layers", 3}});
     }},
    {"NoTokenizer", "tokenizer.json: No such file",
     [](Scene& s) {
         Arguments arguments = run_folder(s);
         std::filesystem::remove(s.folder / "model" / "tokenizer.json");
         return arguments;
     }},
    {"NegativeTokenId", "\"ab\" has the id -1, not an integer from 0", [](Scene& s) { return with_token(s, -1); }},
    {"HugeTokenId", "has the id 1099511627776, not an integer",
     [](Scene& s) { return with_token(s, std::int64_t{1} << 40); }},
    {"MoreTokensThanRows", "the tokenizer has 301 tokens, the embedding 259",
     [](Scene& s) { return with_token(s, 300); }},
    {"MergesAreNoList", "\"merges\" is not a list",
     [](Scene& s) { return s.tiny.tokenizer["model"]["merges"] = 7, run_folder(s); }},
    {"UnknownPretokenizer", "\"Nosuch\" is not supported",
     [](Scene& s) { return s.tiny.tokenizer["pre_tokenizer"]["type"] = "Nosuch", run_folder(s); }},
    {"BrokenExpression", "is not valid",
     [](Scene& s) {
         s.tiny.tokenizer["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
         return run_folder(s);
     }},
    {"ExpressionThatSplitsCharacters", "is not valid",
     [](Scene& s) {
         s.tiny.tokenizer["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"Regex", "\\C"}}}, {"behavior", "Isolated"}};
         return run_folder(s);
     }},
    {"HeaderLongerThanTheFile", "header of 9223372036854775808 bytes",
     [](Scene& s) {
         std::string bytes;
         put(bytes, std::uint64_t{1} << 63);
         return with_file(s, "model.safetensors", bytes + "{}");
     }},
    {"SevenBytesOfWeights", "header length at offset 0 of 8 bytes is past the end",
     [](Scene& s) { return with_file(s, "model.safetensors", "seven77"); }},
    {"HeaderIsNoJson", "header is not valid JSON", [](Scene& s) { return with_header(s, "{\"a\":"); }},
    {"EndBeforeBegin", "tensor model.norm.weight begins at offset 300 after its end 44",
     [](Scene& s) {
         return with_entry(s, {{"data_offsets", {300, 44}}});
     }},
    {"RangeBeyondTheFile", "is past the end of the file",
     [](Scene& s) {
         return with_entry(s, {{"data_offsets", {std::uint64_t{1} << 40, (std::uint64_t{1} << 40) + 256}}});
     }},
    {"ShapeDoesNotFillItsRange", "of shape [65] and type F32 does not fill its 256 bytes",
     [](Scene& s) {
         return with_entry(s, {{"shape", {65}}});
     }},
    {"UnknownDtype", "tensor model.norm.weight is of type I8",
     [](Scene& s) {
         return with_entry(s, {{"dtype", "I8"}});
     }},
    {"ShardOutsideTheFolder", "not a file of this folder",
     [](Scene& s) { return with_shard(s, "../secret.safetensors"); }},
    {"ShardMissing", "absent.safetensors: No such file", [](Scene& s) { return with_shard(s, "absent.safetensors"); }},
    {"NanInHalfPrecision", "tensor model.norm.weight of shape [128]: element 127 is NaN or infinite",
     [](Scene& s) {
         // The norm's 256 bytes as 128 bf16 numbers, whose last one is the NaN's upper half.
         Float32Tensor& norm = s.tiny.tensor("model.norm.weight");
         norm.values.back() = NAN;
         s.tiny.config["hidden_size"] = 128;
         s.tiny.tensor("model.embed_tokens.weight") = {
             "model.embed_tokens.weight", {259, 128}, std::vector<float>(259 * 128, 0.5F)};
         return with_entry(s, {{"dtype", "BF16"}, {"shape", {128}}});
     }},
    {"HeadOfAnotherModel", "tensor mtp.hnorm.weight has shape [32], not [64]",
     [](Scene& s) { return with_head(s, 32, 1); }},
    {"NanInADraftHead", "tensor mtp.hnorm.weight of shape [64]: element 0 is NaN or infinite",
     [](Scene& s) { return with_head(s, 64, NAN); }},
    {"NoDraftHead", "mtp.safetensors: No such file",
     [](Scene& s) {
         Arguments arguments = run_folder(s);
         arguments.insert(arguments.end(), {"--draft", "mtp"});
         return arguments;
     }},
};

TEST_P(BadInputs, AreOneSentenceAndAnExitCode) { expect_one_sentence(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Folder, BadInputs, testing::ValuesIn(kFolders), name_of);

} // namespace
} // namespace oasis_decode::test
