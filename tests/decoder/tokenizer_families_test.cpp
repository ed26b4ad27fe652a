// SPDX-License-Identifier: Apache-2.0
//
// The tokenizers of the model families against the ids of make_tokenizer_cases.py, from every kind of file.
#include "decoder/tokenizer_cases.hpp"

#include "model/byte_level.hpp"
#include "model/unicode.hpp"

#include <cstdio>
#include <ctime>

namespace oasis_decode::test {
namespace {

const Json& cases() { return tokenizer_cases(); }

Json document(const Json& model, const Json& family, const Json& added)
{
    return {{"model", model},
            {"pre_tokenizer", family["pre_tokenizer"]},
            {"normalizer", family["normalizer"]},
            {"added_tokens", added}};
}

Tokenizer byte_level(const Json& family, bool with_added)
{
    const Json model = {{"type", "BPE"},
                        {"vocab", cases()["vocab"]},
                        {"merges", cases()["merges"]},
                        {"ignore_merges", family["ignore_merges"]}};
    return Tokenizer::from_json(document(model, family, with_added ? cases()["added_tokens"] : Json::array()), "cases");
}

Tokenizer spaces(const Json& family)
{
    Json vocabulary = Json::object();
    for (std::size_t i = 0; i < cases()["pieces"].size(); ++i) {
        vocabulary[cases()["pieces"][i][0].get<std::string>()] = i;
    }
    const Json model = {{"type", "BPE"},         {"vocab", vocabulary},  {"merges", cases()["space_merges"]},
                        {"byte_fallback", true}, {"unk_token", "<unk>"}, {"fuse_unk", true}};
    return Tokenizer::from_json(document(model, family, cases()["space_added_tokens"]), "cases");
}

void expect_ids(const Tokenizer& tokenizer, const Json& texts, const Json& ids, Specials specials)
{
    ASSERT_EQ(texts.size(), ids.size());
    ASSERT_GE(texts.size(), 50U);
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const auto text = texts[i].get<std::string>();
        EXPECT_EQ(tokenizer.encode(text, specials), ids[i].get<Ids>()) << texts[i].dump();
    }
}

// Bytes of all kinds, most of them no UTF-8.
std::string random_bytes(std::mt19937& random)
{
    static const std::vector<std::string> kParts = {"\xE2\x96\x81",
                                                    "\xED\xA0\x80",
                                                    "\xF0\x9F\x98\x80",
                                                    "\xC3",
                                                    "word",
                                                    "\xF4\x90\x80",
                                                    "\xE2\x82",
                                                    "  ",
                                                    " ",
                                                    "\n"};
    std::string out;
    const std::size_t parts = random() % 12;
    for (std::size_t i = 0; i < parts; ++i) {
        out += random() % 2 ? kParts[random() % kParts.size()] : std::string(1, static_cast<char>(random() % 256));
    }
    return out;
}

void expect_lossless(const Tokenizer& tokenizer)
{
    std::mt19937 random(7);
    for (int i = 0; i < 3000; ++i) {
        const std::string text = random_bytes(random);
        ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text)
            << Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
    }
    for (const auto& text : cases()["texts"]) {
        ASSERT_EQ(tokenizer.decode(tokenizer.encode(text.get<std::string>())), text.get<std::string>()) << text.dump();
    }
}

GgufWriter gguf_of_bytes(const std::string& pre)
{
    std::vector<std::string> tokens(cases()["vocab"].size()), merges;
    for (const auto& [text, id] : cases()["vocab"].items()) { tokens.at(id.get<std::size_t>()) = text; }
    for (const auto& pair : cases()["merges"]) {
        merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
    }
    GgufWriter writer;
    writer.key_string("tokenizer.ggml.model", "gpt2");
    writer.key_string("tokenizer.ggml.pre", pre);
    writer.key_strings("tokenizer.ggml.tokens", tokens);
    writer.key_strings("tokenizer.ggml.merges", merges);
    return writer;
}

TEST(TokenizerFamilies, DEC_09_ByteLevelFromTokenizerJson)
{
    ASSERT_GE(cases()["families"].size(), 7U);
    for (const auto& family : cases()["families"]) {
        SCOPED_TRACE(family["name"]);
        expect_ids(byte_level(family, false), cases()["texts"], family["ids"], Specials::kRecognised);
        if (!family.contains("marked_ids")) { continue; }
        expect_ids(byte_level(family, true), cases()["marked_texts"], family["marked_ids"], Specials::kRecognised);
        if (family["normalizer"].is_null()) { expect_lossless(byte_level(family, false)); }
    }
}

TEST(TokenizerFamilies, DEC_09_ByteLevelFromGguf)
{
    int seen = 0;
    for (const auto& family : cases()["families"]) {
        if (family["gguf"].is_null()) { continue; }
        SCOPED_TRACE(family["name"]);
        const Tokenizer tokenizer = tokenizer_of(gguf_of_bytes(family["gguf"].get<std::string>()));
        expect_ids(tokenizer, cases()["texts"], family["ids"], Specials::kAsText);
        EXPECT_FALSE(tokenizer.adds_bos());
        ++seen;
    }
    EXPECT_EQ(seen, 5);
    try {
        (void)tokenizer_of(gguf_of_bytes("falcon"));
        FAIL();
    } catch (const ModelError& error) {
        EXPECT_NE(std::string(error.what()).find("\"falcon\" is not supported"), std::string::npos) << error.what();
    }
}

TEST(TokenizerFamilies, DEC_09_BosByFamily)
{
    for (const auto& [pre, expected] :
         {std::pair("llama-bpe", true), std::pair("tekken", true), std::pair("qwen2", false)}) {
        GgufWriter writer = gguf_of_bytes(pre);
        writer.key_u32("tokenizer.ggml.bos_token_id", 300);
        EXPECT_EQ(tokenizer_of(writer).adds_bos(), expected) << pre;
        writer.key_bool("tokenizer.ggml.add_bos_token", !expected);
        EXPECT_EQ(tokenizer_of(writer).adds_bos(), !expected) << pre;
    }
}

TEST(TokenizerFamilies, DEC_09_SpacesInTokensFromTokenizerJson)
{
    ASSERT_EQ(cases()["spaces"].size(), 4U);
    for (const auto& family : cases()["spaces"]) {
        SCOPED_TRACE(family["name"]);
        const Tokenizer tokenizer = spaces(family);
        expect_ids(tokenizer, cases()["texts"], family["ids"], Specials::kRecognised);
        expect_ids(tokenizer, cases()["marked_texts"], family["marked_ids"], Specials::kRecognised);
    }
}

TEST(TokenizerFamilies, AnyBytesComeBackFromByteFallback)
{
    Json plain = {{"pre_tokenizer", nullptr}, {"normalizer", cases()["spaces"][0]["normalizer"]}};
    Json added = cases()["space_added_tokens"];
    for (auto& token : added) { token["lstrip"] = token["rstrip"] = token["normalized"] = false; }
    Json all = document({{"type", "BPE"}, {"byte_fallback", true}}, plain, added);
    for (std::size_t i = 0; i < cases()["pieces"].size(); ++i) {
        all["model"]["vocab"][cases()["pieces"][i][0].get<std::string>()] = i;
    }
    all["model"]["merges"] = cases()["space_merges"];
    expect_lossless(Tokenizer::from_json(all, "cases"));
}

TEST(TokenizerFamilies, ExpressionsThatPcre2ReadsOtherwiseAreRefused)
{
    const auto refuses = [](const std::string& expression, const std::string& part) {
        try {
            Pretokenizer().add_stage(expression);
            ADD_FAILURE() << "accepted " << expression;
        } catch (const ModelError& error) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    };
    refuses(R"(\h+)", R"(\h)");
    refuses(R"([^\S\n])", R"(\S)");
    refuses(R"(\w+)", R"(\w)");
    refuses(R"([a[b]])", "a class in a class");
    refuses(R"([a-z&&[^b]])", "&&");
    refuses(R"((?m).)", "flag");
    refuses(R"((*ACCEPT)a)", "verb");
    refuses(R"((?i-m:.))", "flag");
    refuses(R"((?sx)a b)", "flag");
    refuses(R"(\p{N}{1,3}+)", "the quantifier {1,3}+");
    refuses(R"(\x{41}{2}?)", "the quantifier {2}?");
    refuses(R"(a{,3})", "the quantifier {,3}");
    refuses("a\\", "a backslash");
    refuses("(", "not valid");
    Pretokenizer().add_stage(literal_expression("a.b\\E[*\xE2\x96\x81"));
}

std::string pieces(std::string_view expression, std::string_view text)
{
    Pretokenizer pretokenizer;
    pretokenizer.add_stage(expression);
    std::string out;
    pretokenizer.split(text, [&](std::string_view piece) { out += std::string(piece) + "|"; });
    return out;
}

TEST(TokenizerFamilies, LiteralsMatchThemselvesAlone)
{
    EXPECT_EQ(pieces(literal_expression("\\E.*"), "a\\E.*b\\Exx"), "a|\\E.*|b\\Exx|");
}

TEST(TokenizerFamilies, WhatBothDialectsReadAlikeIsTaken)
{
    EXPECT_EQ(pieces(R"((?i:B)|\p{N}{1,2}|\x{63}+|d{2,}?|[{,}]+|(?<max>e))", "ab123ccddd{,}e"),
              "a|b|12|3|cc|dd|d|{,}|e|");
}

TEST(TokenizerFamilies, WhiteSpaceIsUnicodes)
{
    // U+180E is no white space, as it is to PCRE2; U+0085 is.
    for (const auto expression :
         {expressions::kGpt2, expressions::kLlama3, expressions::kQwen2, expressions::kTekken}) {
        EXPECT_EQ(pieces(expression, "!\xE1\xA0\x8E!"), "!\xE1\xA0\x8E!|");
        EXPECT_EQ(pieces(expression, "!\xC2\x85!"), "!|\xC2\x85|!|");
    }
    EXPECT_EQ(pieces(R"(\s+|\S+)", "a\xE1\xA0\x8E b"), "a\xE1\xA0\x8E| |b|");
}

TEST(TokenizerFamilies, RunsOfOneCharacterAreNotQuadratic)
{
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& family : cases()["families"]) {
        const Tokenizer tokenizer = byte_level(family, false);
        for (const char* unit : {"a", "A", " ", "\n", "7", "!", "\xE4\xB8\xAD", " \n", "'"}) {
            std::string run;
            while (run.size() < 100'000) { run += unit; }
            EXPECT_EQ(tokenizer.decode(tokenizer.encode(run)),
                      family["name"] == "prefix" && *unit != ' ' ? " " + run : run);
        }
    }
    const Tokenizer pieces = spaces(cases()["spaces"][0]);
    EXPECT_EQ(pieces.decode(pieces.encode(std::string(200'000, ' '))), std::string(200'000, ' '));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(TokenizerFamilies, AMegabyteTakesAboutASecond)
{
    std::string text;
    for (std::size_t i = 0; text.size() < 1'000'000; ++i) {
        text += cases()["texts"][i * 7 % cases()["texts"].size()].get<std::string>() + " the quick brown fox, ";
    }
    for (const Tokenizer& tokenizer : {byte_level(cases()["families"][2], false), spaces(cases()["spaces"][0])}) {
        const std::clock_t begin = std::clock();
        EXPECT_GT(tokenizer.encode(text).size(), 100'000U);
        const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
        EXPECT_LT(seconds, 10.0); // sanitizers are slow
        std::printf("%.1f MB in %.2f s of CPU time\n", static_cast<double>(text.size()) / 1e6, seconds);
    }
}

TEST(Unicode, SpacesAndWords)
{
    EXPECT_EQ(trimmed(" \n\xE3\x80\x80 a b\t\xC2\xA0"), "a b");
    EXPECT_EQ(trimmed(" \n"), "");
    EXPECT_EQ(last_character("a\xE3\x80\x80"), 0x3000U);
    EXPECT_EQ(last_character("a\x80"), 0U);
    EXPECT_FALSE(is_white_space(0x180E));
    EXPECT_TRUE(is_word_character('_'));
    EXPECT_FALSE(is_word_character('-'));
    EXPECT_EQ(to_nfc("e\xCC\x81\xFF"), "\xC3\xA9\xFF");
}

} // namespace
} // namespace oasis_decode::test
