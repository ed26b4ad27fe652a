// SPDX-License-Identifier: Apache-2.0
#include "decoder/memory_watch.hpp"
#include "decoder/tiny_model.hpp"

#include "model/safetensors.hpp"

namespace oasis_decode::test {
namespace {

std::string error_of(const std::string& bytes)
{
    TemporaryFolder folder;
    write_file(folder / "model.safetensors", bytes);
    const Watch watch;
    std::string text = "no error";
    try {
        const SafetensorsFolder file(folder.path());
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

std::string with_header(const std::string& header, std::size_t data = 64)
{
    SafetensorsWriter writer;
    writer.data.assign(data, '\0');
    return writer.with_header(header);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets)
{
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsEveryType)
{
    TemporaryFolder folder;
    SafetensorsWriter writer;
    writer.add({"f32", {2}, {1.5F, -2.0F}});
    writer.header["f16"] = {{"dtype", "F16"}, {"shape", {1, 1}}, {"data_offsets", {8, 10}}};
    writer.header["bf16"] = {{"dtype", "BF16"}, {"shape", Json::array()}, {"data_offsets", {10, 12}}};
    writer.header["none"] = {{"dtype", "F32"}, {"shape", {0, 5}}, {"data_offsets", {12, 12}}};
    writer.header["__metadata__"] = {{"format", "pt"}};
    put<std::uint16_t>(writer.data, 0x3C00);
    put<std::uint16_t>(writer.data, 0x4040);
    write_file(folder / "model.safetensors", writer.str());
    const SafetensorsFile file(folder / "model.safetensors");
    EXPECT_EQ(file.names().size(), 4U);
    std::vector<float> two(2), one(1);
    dequantise(*file.find("f32"), two);
    EXPECT_EQ(two, (std::vector<float>{1.5F, -2.0F}));
    dequantise(*file.find("f16"), one);
    EXPECT_EQ(one[0], 1.0F);
    dequantise(*file.find("bf16"), one);
    EXPECT_EQ(one[0], 3.0F);
    EXPECT_EQ(file.find("none")->elements(), 0);
    EXPECT_EQ(file.find("__metadata__"), nullptr);
    EXPECT_THROW(dequantise(*file.find("f32"), one), ModelError);
}

TEST(SafetensorsCases, DEC_01_TruncatedFiles)
{
    const std::string whole = TinyModel().safetensors().str();
    EXPECT_EQ(error_of(whole), "no error");
    for (const std::size_t size : {whole.size() / 4, whole.size() * 999 / 1000, whole.size() - 1}) {
        expect_error(whole.substr(0, size), {"past the end of the file", std::to_string(size)});
    }
    for (std::size_t size = 0; size < whole.size(); size += size < 3'000 ? 37 : 4'999) {
        EXPECT_NE(error_of(whole.substr(0, size)), "no error") << size;
    }
    const std::string shard = read_file(data_dir() / "retrieval-14m" / "model-00001-of-00002.safetensors");
    ASSERT_EQ(error_of(shard), "no error");
    for (const std::size_t size : {shard.size() / 4, shard.size() * 999 / 1000, shard.size() - 1}) {
        expect_error(shard.substr(0, size), {"past the end", "tensor"});
    }
}

TEST(SafetensorsCases, DEC_01_OffsetsAndOverlap)
{
    const auto one = [](const std::string& offsets, const std::string& shape = "[4]") {
        return with_header(R"({"bad":)" + entry("F32", shape, offsets) + "}");
    };
    EXPECT_EQ(error_of(one("[0,16]")), "no error");
    expect_error(one("[16,0]"), {"bad", "begins at offset 16 after its end 0"});
    expect_error(one("[1099511627776,1099511627792]"), {"bad", "1099511627776", "past the end"});
    expect_error(one("[18446744073709551600,18446744073709551615]"), {"bad", "18446744073709551600", "past the end"});
    expect_error(one("[56,72]"), {"bad", "past the end"});
    expect_error(one("[0,12]"), {"bad", "does not fill"});
    expect_error(one("[0,16]", "[4611686018427387904,4]"), {"bad", "does not fill"});
    expect_error(one("[0,0]", "[4294967296,4294967296]"), {"bad", "does not fill"});
    expect_error(one("[0]"), {"bad", "holds 1 numbers"});
    expect_error(one("[-1,15]"), {"bad", "-1"});
    expect_error(one("[0,16.5]"), {"bad", "16.5"});
    expect_error(
        with_header(R"({"a":)" + entry("F32", "[4]", "[0,16]") + R"(,"b":)" + entry("F32", "[4]", "[12,28]") + "}"),
        {"b", "overlaps", "a"});
}

TEST(SafetensorsCases, DEC_03_Headers)
{
    expect_error(with_header(""), {"header of 0 bytes"});
    std::string long_header;
    put<std::uint64_t>(long_header, 200'000'000);
    expect_error(long_header + "{}", {"header of 200000000 bytes"});
    std::string longer_header;
    put<std::uint64_t>(longer_header, UINT64_MAX - 3);
    expect_error(longer_header + "{}", {"18446744073709551612"});
    expect_error(with_header("[1,2]"), {"not an object"});
    expect_error(with_header("7"), {"not an object"});
    expect_error(with_header("\"x\""), {"not an object"});
    expect_error(with_header("{\"a\":"), {"not valid JSON"});
    expect_error(with_header(std::string(1'000'000, '[')), {"not an object"});
    const std::string good = entry("F32", "[4]", "[0,16]");
    expect_error(with_header("{\"a\":" + good + ",\"a\":" + good + "}"), {"duplicate key", "a"});
    expect_error(with_header(R"({"a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}})"),
                 {"duplicate key dtype"});
    expect_error(with_header(R"({"a":{"dtype":"F32","shape":[4]}})"), {"a", "needs dtype, shape and data_offsets"});
    expect_error(with_header(R"({"a":{"dtype":"F32","shape":{},"data_offsets":[0,16]}})"), {"unexpected an object"});
    expect_error(with_header(R"({"a":{"dtype":"F32","shape":[[4]],"data_offsets":[0,16]}})"), {"unexpected an array"});
    expect_error(with_header(R"({"a":{"dtype":5,"shape":[4],"data_offsets":[0,16]}})"), {"unexpected 5"});
    expect_error(with_header(R"({"a":)" + entry("F8_E4M3", "[4]", "[0,4]") + "}"), {"a", "F8_E4M3"});
    expect_error(with_header(R"({"a":3})"), {"a", "unexpected 3"});
}

TEST(SafetensorsCases, DEC_03_Index)
{
    const TinyModel tiny;
    const auto error_with = [&](const std::string& index) -> std::string {
        TemporaryFolder folder;
        tiny.write_folder(folder.path());
        write_file(folder / "model.safetensors.index.json", index);
        try {
            const SafetensorsFolder file(folder.path());
        } catch (const ModelError& error) {
            return error.what();
        }
        return "no error";
    };
    EXPECT_EQ(error_with(R"({"weight_map":{"model.norm.weight":"model.safetensors"}})"), "no error");
    EXPECT_NE(error_with(R"({"weight_map":{"lost":"model.safetensors"}})").find("lost is not in model.safetensors"),
              std::string::npos);
    EXPECT_NE(error_with(R"({"weight_map":{"x":"../model.safetensors"}})").find("not a file of this folder"),
              std::string::npos);
    EXPECT_NE(error_with(R"({"weight_map":{"x":".."}})").find("not a file of this folder"), std::string::npos);
    EXPECT_NE(error_with(R"({"weight_map":{"x":7}})").find("7"), std::string::npos);
    EXPECT_NE(error_with(R"({"weight_map":{"x":"a","x":"a"}})").find("duplicate key"), std::string::npos);
    EXPECT_NE(error_with("[]").find("not an object"), std::string::npos);
    EXPECT_NE(error_with("{}").find("weight_map"), std::string::npos);
}

} // namespace
} // namespace oasis_decode::test
