// SPDX-License-Identifier: Apache-2.0
#include "decoder/bad_inputs.hpp"

namespace oasis_decode::test {
namespace {

using Arguments = std::vector<std::string>;

/// `inspect` and `run` both load the whole file; `inspect` needs no text.
Arguments inspect_bytes(Scene& scene, const std::string& bytes) { return {"inspect", scene.file("model.gguf", bytes)}; }
Arguments run_gguf(Scene& scene) { return {"run", scene.gguf_file(), "--prompt", "ab"}; }

constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

std::string patched(std::string bytes, const std::string& from, const std::string& to)
{
    return bytes.replace(bytes.find(from), from.size(), to);
}

/// The header of a file whose only key is `write`'s.
std::string one_key(const std::function<void(GgufWriter&)>& write)
{
    GgufWriter writer;
    write(writer);
    return writer.str() + std::string(64, '\0');
}

std::string one_tensor(const std::vector<std::int64_t>& shape, std::uint32_t type)
{
    GgufWriter writer;
    writer.add_raw("odd", shape, type, std::string(64, '\0'));
    return writer.str();
}

Arguments without_key(Scene& scene, const std::string& key)
{
    scene.gguf.keys = patched(scene.gguf.keys, key, std::string(key.size(), '?'));
    return run_gguf(scene);
}

Arguments with_u32(Scene& scene, const std::string& key, std::uint32_t value)
{
    without_key(scene, key);
    scene.gguf.key_u32(key, value);
    return run_gguf(scene);
}

/// The value of the tensor's element 70 becomes `value`.
Arguments with_element(Scene& scene, const std::string& tensor, float value)
{
    scene.tiny.tensor(tensor).values[70] = value;
    scene.gguf = scene.tiny.gguf();
    return run_gguf(scene);
}

const std::vector<BadInput> kContainer = {
    {"Empty", "not a GGUF file (0 bytes)", [](Scene& s) { return inspect_bytes(s, ""); }},
    {"OnlyTheMagic", "not a GGUF file (4 bytes)", [](Scene& s) { return inspect_bytes(s, "GGUF"); }},
    {"ForeignMagic", "not a GGUF file", [](Scene& s) { return inspect_bytes(s, "GGML" + std::string(60, '\1')); }},
    {"BigEndian", "GGUF version 50331648",
     [](Scene& s) {
         return inspect_bytes(s, patched(s.gguf.str(), {"\3\0\0\0", 4}, {"\0\0\0\3", 4}));
     }},
    {"CutInTheData", "past the end of the file",
     [](Scene& s) { return inspect_bytes(s, s.gguf.str().substr(0, s.gguf.str().size() - 1)); }},
    {"CutInTheKeys", "strings in 290 bytes left of the file",
     [](Scene& s) { return inspect_bytes(s, s.gguf.str().substr(0, 900)); }},
    {"CutInTheTensorList", "past the end of the file",
     [](Scene& s) { return inspect_bytes(s, s.gguf.str().substr(0, 24 + s.gguf.keys.size() + 100)); }},
    {"MoreKeysThanBytes", "1152921504606846976 metadata keys",
     [](Scene& s) { return inspect_bytes(s, s.gguf.head(1, kHuge)); }},
    {"MoreTensorsThanBytes", "1152921504606846976 tensors",
     [](Scene& s) { return inspect_bytes(s, s.gguf.head(kHuge, 1)); }},
    {"StringLongerThanTheFile", "key text at offset",
     [](Scene& s) {
         return inspect_bytes(s, one_key([](GgufWriter& w) { w.begin_key("text", 8), put(w.keys, UINT64_MAX - 7); }));
     }},
    {"ArrayLongerThanTheFile", "key list claims 1152921504606846976 elements of 4 bytes",
     [](Scene& s) {
         return inspect_bytes(s, one_key([](GgufWriter& w) {
                                  w.begin_key("list", 9), put<std::uint32_t>(w.keys, 4), put(w.keys, kHuge);
                              }));
     }},
    {"ArrayOfArrays", "an array in an array",
     [](Scene& s) {
         return inspect_bytes(s, one_key([](GgufWriter& w) {
                                  w.begin_key("list", 9), put<std::uint32_t>(w.keys, 9), put<std::uint64_t>(w.keys, 1);
                              }));
     }},
    {"UnknownValueType", "key odd has a value of unknown type 13",
     [](Scene& s) { return inspect_bytes(s, one_key([](GgufWriter& w) { w.begin_key("odd", 13); })); }},
    {"KeyTwice", "duplicate metadata key twice",
     [](Scene& s) {
         return inspect_bytes(s, one_key([](GgufWriter& w) { w.key_bool("twice", true), w.key_bool("twice", true); }));
     }},
    {"NameWithControlBytes", "duplicate metadata key ?[31m",
     [](Scene& s) {
         return inspect_bytes(
             s, one_key([](GgufWriter& w) { w.key_bool("\x1b[31m", true), w.key_bool("\x1b[31m", true); }));
     }},
    {"AlignmentOfThree", "general.alignment is 3",
     [](Scene& s) { return inspect_bytes(s, one_key([](GgufWriter& w) { w.key_u32("general.alignment", 3); })); }},
    {"OffsetThatWraps", "tensor blk.1.ffn_down.weight at offset 18446744073709551584",
     [](Scene& s) { return s.gguf.infos.back().offset = UINT64_MAX - 31, run_gguf(s); }},
    {"TensorsOverlap", "overlaps tensor", [](Scene& s) { return s.gguf.infos.back().offset = 0, run_gguf(s); }},
    {"OffsetNotAligned", "at offset 4 is not aligned to 32 bytes",
     [](Scene& s) { return s.gguf.infos.back().offset = 4, run_gguf(s); }},
    {"UnknownTensorType", "tensor odd is of type number 999",
     [](Scene& s) { return inspect_bytes(s, one_tensor({1}, 999)); }},
    {"FiveDimensions", "tensor odd has 5 dimensions",
     [](Scene& s) {
         return inspect_bytes(s, one_tensor({1, 1, 1, 1, 1}, 0));
     }},
    {"ProductOfExtentsOverflows", "cannot have shape [4294967296, 4294967296]",
     [](Scene& s) {
         return inspect_bytes(s, one_tensor({kHuge >> 28, kHuge >> 28}, 0));
     }},
    {"NegativeExtent", "extent of 18446744073709551615",
     [](Scene& s) { return inspect_bytes(s, one_tensor({-1}, 0)); }},
    {"HalfABlock", "cannot have shape [2, 40]",
     [](Scene& s) {
         return inspect_bytes(s, one_tensor({2, 40}, 2));
     }},
};

const std::vector<BadInput> kModel = {
    {"TensorMissing", "tensor blk.1.ffn_down.weight is missing",
     [](Scene& s) { return s.gguf.infos.pop_back(), run_gguf(s); }},
    {"WidthDiffers", "tensor token_embd.weight has shape [259, 64], not [259, 66]",
     [](Scene& s) { return with_u32(s, "llama.embedding_length", 66); }},
    {"EmptyEmbedding", "tensor token_embd.weight has shape [0, 64], not a row for each token",
     [](Scene& s) { return s.gguf.infos.front().shape[0] = 0, run_gguf(s); }},
    {"LongNameOfATensor", "is not known of architecture llama",
     [](Scene& s) {
         s.gguf.add({std::string(4000, '\x07') + ".bias", {1}, {1.0F}});
         return run_gguf(s);
     }},
    {"NoHeads", "llama.attention.head_count is 0",
     [](Scene& s) { return with_u32(s, "llama.attention.head_count", 0); }},
    {"HeadsDoNotDivide", "4 query heads are not a multiple of 3",
     [](Scene& s) { return with_u32(s, "llama.attention.head_count_kv", 3); }},
    {"NoContext", "llama.context_length is 0", [](Scene& s) { return with_u32(s, "llama.context_length", 0); }},
    {"NoLayerCount", "llama.block_count is missing", [](Scene& s) { return without_key(s, "llama.block_count"); }},
    {"NoTokens", "tokenizer.ggml.tokens", [](Scene& s) { return without_key(s, "tokenizer.ggml.tokens"); }},
    {"EndMarkOutsideTheVocabulary", "eos token 259 is outside the vocabulary",
     [](Scene& s) {
         s.gguf.key_u32("llama.vocab_size", 259);
         return with_u32(s, "tokenizer.ggml.eos_token_id", 259);
     }},
    {"UnknownArchitecture", "\"nosuch\" is not supported",
     [](Scene& s) {
         without_key(s, "general.architecture");
         s.gguf.key_string("general.architecture", "nosuch");
         return run_gguf(s);
     }},
    {"UnknownTokenizer", "\"nosuch\" is not supported",
     [](Scene& s) {
         without_key(s, "tokenizer.ggml.model");
         s.gguf.key_string("tokenizer.ggml.model", "nosuch");
         return run_gguf(s);
     }},
    {"MergeOfUnknownTokens", "merge 0 uses a token that the vocabulary lacks: \"xyz\"",
     [](Scene& s) {
         without_key(s, "tokenizer.ggml.merges");
         s.gguf.key_strings("tokenizer.ggml.merges", {"xyz b"});
         return run_gguf(s);
     }},
    {"NanInAWeight", "tensor token_embd.weight of shape [259, 64]: element 70 is NaN or infinite",
     [](Scene& s) { return with_element(s, "model.embed_tokens.weight", NAN); }},
    {"InfinityInANorm", "tensor output_norm.weight of shape [64]: element 5 is NaN or infinite",
     [](Scene& s) {
         s.tiny.tensor("model.norm.weight").values[5] = -INFINITY;
         return s.gguf = s.tiny.gguf(), run_gguf(s);
     }},
    {"InfiniteScaleOfACodedBlock", "tensor blk.1.ffn_down.weight of shape [64, 96]: element 32 is NaN or infinite",
     [](Scene& s) {
         std::string blocks(64 * 3 * 34, '\0');
         blocks[34 + 1] = 0x7C; // the second block's scale, f16, little endian
         s.gguf.data.resize(s.gguf.infos.back().offset);
         s.gguf.infos.pop_back();
         s.gguf.add_raw("blk.1.ffn_down.weight", {64, 96}, 8, blocks);
         return run_gguf(s);
     }},
    {"WeightsBeyondTheRangeOfFloat", "logits at token 1 are not finite",
     [](Scene& s) {
         for (float& x : s.tiny.tensor("model.layers.1.mlp.down_proj.weight").values) { x = 3e38F; }
         return s.gguf = s.tiny.gguf(), run_gguf(s);
     }},
};

TEST_P(BadInputs, AreOneSentenceAndAnExitCode) { expect_one_sentence(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Gguf, BadInputs, testing::ValuesIn(kContainer), name_of);
INSTANTIATE_TEST_SUITE_P(GgufModel, BadInputs, testing::ValuesIn(kModel), name_of);

} // namespace
} // namespace oasis_decode::test
