// SPDX-License-Identifier: Apache-2.0
//
// SentencePiece models from tokenizer.model and from GGUF, against the ids of make_tokenizer_cases.py; damaged files.
#include "decoder/tokenizer_cases.hpp"

namespace oasis_decode::test {
namespace {

using Type = SentencePieceModel::Type;

const Json& cases() { return tokenizer_cases(); }

std::string model_bytes() { return read_file(data_dir() / "tokenizers" / "pieces.model"); }

// A ModelProto of these pieces; `trainer` and `normalizer` are fields as they stand in the file.
std::string proto(const std::vector<std::string>& pieces, const std::string& trainer = "\x18\x02",
                  const std::string& normalizer = std::string("\x20\0", 2))
{
    const auto message = [](char tag, const std::string& bytes) {
        return std::string{tag, static_cast<char>(bytes.size())} + bytes;
    };
    std::string out;
    for (const auto& piece : pieces) { out += message('\x0A', message('\x0A', piece)); }
    return out + message('\x12', trainer) + message('\x1A', normalizer);
}

Tokenizer load(const std::string& bytes) { return Tokenizer::from_sentencepiece(parse_sentencepiece(bytes, "m"), "m"); }

std::string error_of(const std::string& bytes)
{
    try {
        SentencePieceModel model = parse_sentencepiece(bytes, "m");
        model.bos = -1;
        (void)Tokenizer::from_sentencepiece(model, "m");
    } catch (const ModelError& error) {
        return error.what();
    }
    return "no error";
}

GgufWriter gguf_of_pieces(bool with_prefix = true)
{
    std::vector<std::string> tokens;
    for (const auto& piece : cases()["pieces"]) { tokens.push_back(piece[0]); }
    GgufWriter writer;
    writer.key_string("tokenizer.ggml.model", "llama");
    writer.key_strings("tokenizer.ggml.tokens", tokens);
    writer.begin_key("tokenizer.ggml.scores", 9);
    put<std::uint32_t>(writer.keys, 6);
    put<std::uint64_t>(writer.keys, tokens.size());
    for (const auto& piece : cases()["pieces"]) { put<float>(writer.keys, piece[1].get<float>()); }
    writer.begin_key("tokenizer.ggml.token_type", 9);
    put<std::uint32_t>(writer.keys, 5);
    put<std::uint64_t>(writer.keys, tokens.size());
    for (const auto& piece : cases()["pieces"]) { put<std::int32_t>(writer.keys, piece[2].get<std::int32_t>()); }
    if (!with_prefix) { writer.key_bool("tokenizer.ggml.add_space_prefix", false); }
    writer.key_u32("tokenizer.ggml.bos_token_id", 1);
    return writer;
}

TEST(SentencePiece, DEC_09_IdsFromModelAndGguf)
{
    const Tokenizer model = load(model_bytes());
    const Tokenizer gguf = tokenizer_of(gguf_of_pieces());
    ASSERT_GE(cases()["texts"].size(), 100U);
    for (std::size_t i = 0; i < cases()["texts"].size(); ++i) {
        const auto text = cases()["texts"][i].get<std::string>();
        const auto ids = cases()["piece_ids"][i].get<Ids>();
        if (text.find('\0') == std::string::npos) { EXPECT_EQ(model.encode(text), ids) << cases()["texts"][i].dump(); }
        EXPECT_EQ(gguf.encode(text), model.encode(text));
        EXPECT_EQ(model.decode(model.encode(text)), text);
    }
}

TEST(SentencePiece, DEC_09_SpecialsAndThePrefix)
{
    const Tokenizer tokenizer = load(model_bytes());
    EXPECT_TRUE(tokenizer.adds_bos());
    EXPECT_EQ(tokenizer.encode_prompt("the").front(), 1);
    // The prefix goes before a text and after each special token, and nowhere else.
    const Ids the = tokenizer.encode("the");
    Ids expected = the;
    expected.push_back(3);
    expected.insert(expected.end(), the.begin(), the.end());
    EXPECT_EQ(tokenizer.encode("the[INST]the", Specials::kRecognised), expected);
    EXPECT_EQ(tokenizer.decode(expected), "the[INST]the");
    EXPECT_EQ(tokenizer.encode(" the", Specials::kAsText, Tokenizer::Place::kContinues), the);
    const Ids typed = tokenizer.encode("the[INST]the");
    EXPECT_EQ(std::count(typed.begin(), typed.end(), 3), 0);
    EXPECT_EQ(tokenizer.decode(typed), "the[INST]the");
    EXPECT_EQ(tokenizer_of(gguf_of_pieces(false)).encode(" the"), the);
    // U+2581 in a text is not a space.
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xE2\x96\x81 b")), "a\xE2\x96\x81 b");
}

TEST(SentencePiece, AnyBytesComeBack)
{
    const Tokenizer tokenizer = load(model_bytes());
    std::mt19937 random(3);
    for (int i = 0; i < 3000; ++i) {
        std::string text;
        while (random() % 8) { text += static_cast<char>(random() % 3 ? random() % 256 : 0xE2); }
        ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
        ASSERT_EQ(tokenizer.unencodable(text), 0U);
    }
}

TEST(SentencePiece, WithoutByteTokensTheUnknownTokenStandsForARun)
{
    SentencePieceModel model;
    model.pieces = {{"<unk>", 0, Type::kUnknown}, {"\xE2\x96\x81", -1}, {"a", -2}};
    model.bos = -1;
    const Tokenizer tokenizer = Tokenizer::from_sentencepiece(model, "m");
    EXPECT_EQ(tokenizer.encode("axyza"), (Ids{1, 2, 0, 2}));
    EXPECT_EQ(tokenizer.unencodable("axyza"), 3U);
    EXPECT_FALSE(tokenizer.adds_bos());
}

TEST(SentencePiece, OfEqualScoresTheLeftmostPairGoesFirst)
{
    SentencePieceModel model;
    model.pieces = {{"a", -9}, {"b", -9}, {"c", -9}, {"bc", -1}, {"ab", -1}};
    model.add_dummy_prefix = false;
    model.bos = -1;
    EXPECT_EQ(Tokenizer::from_sentencepiece(model, "m").encode("abc"), (Ids{4, 2}));
    model.pieces[3].score = -0.5F;
    EXPECT_EQ(Tokenizer::from_sentencepiece(model, "m").encode("abc"), (Ids{0, 3}));
}

TEST(SentencePiece, WhatItDoesNotDoIsRefusedByName)
{
    EXPECT_EQ(error_of(proto({"a", "b"})), "no error");
    const auto names = [](const std::string& bytes, const std::string& part) {
        const std::string error = error_of(bytes);
        EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    names(proto({"a"}, "\x18\x01"), "\"unigram\" is not supported");
    names(proto({"a"}, ""), "\"unigram\" is not supported");
    names(proto({"a"}, "\x18\x03"), "\"word\"");
    names(proto({"a"}, "\x18\x09"), "unknown model type 9");
    names(proto({"a"}, "\x18\x02\xC0\x01\x01"), "treat_whitespace_as_suffix");
    names(proto({"a"}, "\x18\x02", ""), "remove_extra_whitespaces");
    names(proto({"a"}, "\x18\x02", std::string("\x20\0\x28\0", 4)), "escape_whitespaces");
    names(proto({"a"}, "\x18\x02", std::string("\x0A\x08nmt_nfkc\x12\x01x\x20\0", 15)), "\"nmt_nfkc\"");
    names(proto({}), "without pieces");
    names(proto({"a", "a"}), "piece 1 is \"a\", as piece 0");
    names(proto({""}), "piece 0 has 0 bytes");
    GgufWriter suffix = gguf_of_pieces();
    suffix.key_bool("tokenizer.ggml.remove_extra_whitespaces", true);
    EXPECT_THROW((void)tokenizer_of(suffix), ModelError);
}

TEST(SentencePiece, PiecesThatMakeNoSense)
{
    const auto error = [](std::vector<SentencePieceModel::Piece> pieces, std::int64_t bos = -1) -> std::string {
        SentencePieceModel model;
        model.pieces = std::move(pieces);
        model.bos = bos;
        try {
            (void)Tokenizer::from_sentencepiece(model, "m");
        } catch (const ModelError& e) {
            return e.what();
        }
        return "no error";
    };
    EXPECT_NE(error({{"a"}}, 1).find("bos token 1"), std::string::npos);
    EXPECT_NE(error({{"<0x4>", 0, Type::kByte}}).find("\"<0x4>\", not a byte"), std::string::npos);
    EXPECT_NE(error({{"a", NAN}}).find("score"), std::string::npos);
    EXPECT_NE(error({{std::string(600, 'a')}}).find("600 bytes"), std::string::npos);
    EXPECT_NE(error({{"a"}, {"b"}, {"ab", 0, Type::kUnused}}).find("unused"), std::string::npos);
    EXPECT_EQ(error({{"a"}, {"b"}, {"[PAD]", 0, Type::kUnused}}), "no error");
    EXPECT_EQ(error({{"a"}, {"b"}, {"", 0, Type::kUnused}}), "no error");
}

TEST(SentencePiece, DamagedFilesAreErrorsNotCrashes)
{
    const std::string whole = model_bytes();
    std::mt19937 random(11);
    for (std::size_t length = 0; length < whole.size(); length += 1 + random() % 97) {
        EXPECT_NE(error_of(whole.substr(0, length)), "no error") << length;
    }
    for (int i = 0; i < 300; ++i) {
        std::string damaged = whole;
        for (int n = 0; n < 4; ++n) { damaged[random() % damaged.size()] = static_cast<char>(random()); }
        (void)error_of(damaged);
    }
    EXPECT_NE(error_of("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01").find("bytes claimed"), std::string::npos);
    EXPECT_NE(error_of(std::string(11, '\xFF')).find("more than 64 bits"), std::string::npos);
    EXPECT_NE(error_of("\x0B").find("wire type 3"), std::string::npos);
}

TEST(SentencePiece, FoldersWithAModelAlone)
{
    TemporaryFolder folder;
    write_file(folder / "tokenizer.model", model_bytes());
    EXPECT_TRUE(Tokenizer::from_folder(folder.path()).adds_bos());
    const auto pieces = cases()["pieces"].size();
    const Json added = {{std::to_string(pieces), {{"content", "<|end|>"}, {"special", true}}},
                        {"1", {{"content", "<s>"}, {"special", true}}}};
    const Json config = {{"add_bos_token", false}, {"added_tokens_decoder", added}, {"chat_template", "jinja"}};
    write_file(folder / "tokenizer_config.json", config.dump());
    const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
    EXPECT_FALSE(tokenizer.adds_bos());
    EXPECT_EQ(tokenizer.encode("<|end|>", Specials::kRecognised), (Ids{static_cast<TokenId>(pieces)}));
    EXPECT_EQ(tokenizer.chat_template(), "jinja");
    write_file(folder / "chat_template.jinja", "beside");
    EXPECT_EQ(Tokenizer::from_folder(folder.path()).chat_template(), "beside");
    const Json beyond = {{"added_tokens_decoder", {{"999999", {{"content", "x"}}}}}};
    write_file(folder / "tokenizer_config.json", beyond.dump());
    EXPECT_THROW((void)Tokenizer::from_folder(folder.path()), ModelError);
}

} // namespace
} // namespace oasis_decode::test
