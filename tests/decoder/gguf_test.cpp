// SPDX-License-Identifier: Apache-2.0
#include "decoder/memory_watch.hpp"
#include "decoder/tiny_model.hpp"

#include <oasis/core/half.hpp>

namespace oasis_decode::test {
namespace {

/// The error of opening these bytes; fails the test when there is none, or when it was slow or took much memory.
std::string error_of(const std::string& bytes)
{
    TemporaryFolder folder;
    write_file(folder / "model.gguf", bytes);
    const Watch watch;
    std::string text = "no error";
    try {
        const GgufFile file(folder / "model.gguf");
    } catch (const ModelError& error) {
        text = error.what();
    }
    EXPECT_LT(watch.seconds(), 1.0) << text;
    EXPECT_LT(watch.extra_bytes(), std::size_t{64} << 20) << text;
    return text;
}

void expect_error(const std::string& bytes, std::initializer_list<std::string> parts)
{
    const std::string text = error_of(bytes);
    for (const auto& part : parts) {
        EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
    }
}

std::vector<float> values_of(const GgufWriter& writer, const std::string& name)
{
    TemporaryFolder folder;
    write_file(folder / "model.gguf", writer.str());
    const GgufFile file(folder / "model.gguf");
    const TensorView* tensor = file.find(name);
    if (!tensor) { return {}; }
    std::vector<float> out(static_cast<std::size_t>(tensor->elements()));
    dequantise(*tensor, out);
    return out;
}

TEST(Gguf, ReadsKeysAndTensors)
{
    TemporaryFolder folder;
    auto writer = TinyModel().gguf();
    writer.begin_key("u64", 10), put<std::uint64_t>(writer.keys, 1ULL << 63);
    writer.begin_key("i8", 1), put<std::int8_t>(writer.keys, -3);
    writer.begin_key("f64", 12), put(writer.keys, 0.25);
    write_file(folder / "model.gguf", writer.str());
    const GgufFile file(folder / "model.gguf");
    EXPECT_EQ(file.integer("llama.block_count"), 2);
    EXPECT_EQ(file.integer("i8"), -3);
    EXPECT_EQ(file.number("f64"), 0.25);
    EXPECT_EQ(file.number("llama.rope.freq_base"), 10000.0);
    EXPECT_EQ(file.flag("tokenizer.ggml.add_bos_token"), true);
    EXPECT_EQ(file.string("general.architecture"), "llama");
    EXPECT_EQ(file.strings("tokenizer.ggml.merges"), std::vector<std::string>{"a b"});
    EXPECT_EQ(file.integers("tokenizer.ggml.token_type").size(), 259U);
    EXPECT_EQ(file.integer("absent"), std::nullopt);
    EXPECT_THROW((void)file.integer("u64"), ModelError);
    EXPECT_THROW((void)file.integer("general.architecture"), ModelError);
    EXPECT_THROW((void)file.string("llama.block_count"), ModelError);
    EXPECT_THROW((void)file.integers("tokenizer.ggml.tokens"), ModelError);
    EXPECT_EQ(file.find("token_embd.weight")->shape, (std::vector<std::int64_t>{259, 64}));
}

TEST(Gguf, DequantisesEveryType)
{
    const std::vector<float> plain = {1.0F, -2.5F, 0.0F, 65504.0F};
    std::string f16, bf16, q8, q40, q41;
    for (const float x : plain) {
        put(f16, oasis::to_f16(x).bits);
        put(bf16, oasis::to_bf16(x).bits);
    }
    std::vector<float> q8_values, q40_values, q41_values;
    put(q8, oasis::to_f16(0.5F).bits);
    put(q40, oasis::to_f16(0.25F).bits);
    put(q41, oasis::to_f16(0.25F).bits);
    put(q41, oasis::to_f16(-1.0F).bits);
    for (int i = 0; i < 32; ++i) {
        put(q8, static_cast<std::int8_t>(i * 8 - 128));
        q8_values.push_back(static_cast<float>(i * 8 - 128) * 0.5F);
        const int code = (i * 7 + i / 16) % 16;
        q40_values.push_back(static_cast<float>(code - 8) * 0.25F);
        q41_values.push_back(static_cast<float>(code) * 0.25F - 1.0F);
    }
    for (int i = 0; i < 16; ++i) {
        const auto low = static_cast<unsigned>((i * 7) % 16), high = static_cast<unsigned>(((i + 16) * 7 + 1) % 16);
        put(q40, static_cast<std::uint8_t>(low | (high << 4)));
        put(q41, static_cast<std::uint8_t>(low | (high << 4)));
    }
    GgufWriter writer;
    writer.add({"f32", {2, 2}, plain});
    writer.add_raw("f16", {4}, 1, f16);
    writer.add_raw("bf16", {4}, 30, bf16);
    writer.add_raw("q8", {1, 32}, 8, q8);
    writer.add_raw("q40", {32}, 2, q40);
    writer.add_raw("q41", {32}, 3, q41);
    EXPECT_EQ(values_of(writer, "f32"), plain);
    EXPECT_EQ(values_of(writer, "f16"), plain);
    EXPECT_EQ(values_of(writer, "bf16"), (std::vector<float>{1.0F, -2.5F, 0.0F, 65536.0F}));
    EXPECT_EQ(values_of(writer, "q8"), q8_values);
    EXPECT_EQ(values_of(writer, "q40"), q40_values);
    EXPECT_EQ(values_of(writer, "q41"), q41_values);
}

TEST(GgufCases, DEC_01_TruncatedFiles)
{
    const std::string whole = TinyModel().gguf().str();
    EXPECT_EQ(error_of(whole), "no error");
    for (const std::size_t size : {whole.size() / 4, whole.size() * 999 / 1000, whole.size() - 1}) {
        expect_error(whole.substr(0, size), {"past the end of the file", std::to_string(size)});
    }
    for (std::size_t size = 0; size < whole.size(); size += size < 12'000 ? 61 : 4'999) {
        EXPECT_NE(error_of(whole.substr(0, size)), "no error") << size;
    }
}

TEST(GgufCases, DEC_01_OffsetsAndOverlap)
{
    const auto with_offset = [](std::uint64_t offset) {
        auto writer = TinyModel().gguf();
        writer.infos.back().offset = offset;
        return writer.str();
    };
    const std::string name = "blk.1.ffn_down.weight";
    expect_error(with_offset(std::uint64_t{1} << 40), {name, "1099511627776", "24576 bytes"});
    expect_error(with_offset(UINT64_MAX - 15), {name, "18446744073709551600"});
    expect_error(with_offset(UINT64_MAX - 31), {name, "18446744073709551584", "past the end"});
    expect_error(with_offset(0), {"overlaps", name});
    expect_error(with_offset(4), {name, "aligned"});
}

TEST(GgufCases, DEC_03_CountsLengthsAndTypes)
{
    const auto writer = TinyModel().gguf();
    const std::uint64_t huge = std::uint64_t{1} << 60;
    expect_error(writer.head(writer.infos.size(), huge), {"1152921504606846976 metadata keys"});
    expect_error(writer.head(huge, writer.key_count), {"1152921504606846976 tensors"});
    expect_error(writer.head(0, writer.key_count + 40), {"past the end"});

    const auto with = [](const auto& change) {
        GgufWriter bad;
        change(bad);
        return bad.str() + std::string(64, '\0');
    };
    const auto array = [](std::uint32_t element, std::uint64_t count) {
        return [=](GgufWriter& w) {
            w.begin_key("list", 9);
            put(w.keys, element);
            put(w.keys, count);
        };
    };
    expect_error(with(array(8, huge)), {"list", "1152921504606846976 strings"});
    expect_error(with(array(4, huge)), {"list", "1152921504606846976 elements"});
    expect_error(with(array(10, std::uint64_t{1} << 61)), {"list"});
    expect_error(with(array(9, 1)), {"list", "array in an array"});
    expect_error(with(array(77, 1)), {"list", "unknown type 77"});
    expect_error(with([](GgufWriter& w) { w.begin_key("odd", 13); }), {"odd", "unknown type 13"});
    expect_error(with([](GgufWriter& w) { w.begin_key("text", 8), put<std::uint64_t>(w.keys, UINT64_MAX - 7); }),
                 {"text", "18446744073709551608"});
    expect_error(with([](GgufWriter& w) { w.begin_key("text", 8), put<std::uint64_t>(w.keys, 5000); }),
                 {"text", "5000 bytes is past the end"});
    expect_error(with([](GgufWriter& w) { put<std::uint64_t>(w.keys, UINT64_MAX), ++w.key_count; }),
                 {"metadata key 0"});
    for (const std::uint32_t alignment : {0U, 3U, 1U << 30}) {
        expect_error(with([&](GgufWriter& w) { w.key_u32("general.alignment", alignment); }),
                     {"general.alignment", std::to_string(alignment)});
    }
    expect_error(with([](GgufWriter& w) { w.key_bool("twice", true), w.key_bool("twice", true); }),
                 {"duplicate", "twice"});
}

TEST(GgufCases, DEC_03_TensorDescriptions)
{
    const auto with = [](const std::vector<std::int64_t>& shape, std::uint32_t type) {
        GgufWriter writer;
        writer.add_raw("weird", shape, type, std::string(64, '\0'));
        return writer.str();
    };
    expect_error(with({1, 1, 1, 1, 1}, 0), {"weird", "5 dimensions"});
    expect_error(with({std::int64_t{1} << 31, std::int64_t{1} << 31, 8}, 0), {"weird", "cannot have shape"});
    expect_error(with({std::int64_t{1} << 61}, 0), {"weird", "past the end"});
    expect_error(with({-1}, 0), {"weird", "18446744073709551615"});
    expect_error(with({2, 40}, 3), {"weird", "Q4_1", "[2, 40]"});
    expect_error(with({256}, 10), {"weird", "Q2_K", "are read"});
    expect_error(with({2, 128}, 14), {"weird", "Q6_K", "[2, 128]"});
    expect_error(with({256}, 999), {"weird", "999"});
    GgufWriter twice;
    twice.add({"same", {1}, {1.0F}});
    twice.add({"same", {1}, {1.0F}});
    expect_error(twice.str(), {"duplicate tensor same"});
    expect_error("GGUF", {"not a GGUF file"});
    expect_error("", {"not a GGUF file"});
    std::string old = twice.str();
    old[4] = 1;
    expect_error(old, {"version 1"});
}

// Whatever a byte is changed to, the loader answers with a model or an error.
TEST(GgufCases, DEC_03_RandomChanges)
{
    TemporaryFolder folder;
    const std::string whole = TinyModel().gguf().str();
    const std::size_t header = whole.size() - TinyModel().gguf().data.size();
    std::mt19937 random(7);
    int refused = 0;
    for (int round = 0; round < 400; ++round) {
        std::string bytes = whole;
        for (int i = 0; i < 3; ++i) { bytes[random() % header] = static_cast<char>(random()); }
        write_file(folder / "model.gguf", bytes);
        try {
            (void)load_model(folder / "model.gguf");
        } catch (const oasis::Error&) {
            ++refused;
        }
    }
    EXPECT_GT(refused, 100);
}

TEST(GgufCases, DEC_01_TruncatedSmolLM2)
{
    if (smollm2_path().empty()) { GTEST_SKIP() << kNeedsSmolLM2; }
    TemporaryFolder folder;
    const auto copy = folder / "model.gguf";
    std::filesystem::copy_file(smollm2_path(), copy);
    const std::uintmax_t size = std::filesystem::file_size(copy);
    for (const std::uintmax_t kept : {size - 1, size * 999 / 1000, size / 4}) {
        std::filesystem::resize_file(copy, kept);
        const Watch watch;
        try {
            (void)load_model(copy);
            FAIL() << "loaded " << kept << " bytes";
        } catch (const ModelError& error) {
            EXPECT_NE(std::string(error.what()).find(std::to_string(kept)), std::string::npos) << error.what();
        }
        EXPECT_LT(watch.seconds(), 1.0);
        EXPECT_LT(watch.extra_bytes(), std::size_t{64} << 20);
    }
}

} // namespace
} // namespace oasis_decode::test
