// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers of model folders.
#include "model/tokenizer.hpp"

namespace oasis_decode {
namespace {

constexpr std::uint64_t kMostBytes = 100'000'000;

std::string read_text(const std::filesystem::path& path)
{
    const MappedFile file(path);
    if (file.size() > kMostBytes) { fail(path.string(), ": ", file.size(), " bytes, more than ", kMostBytes); }
    const auto bytes = file.bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A text, or a list of named ones, of which "default" is meant.
std::string template_of(const Json& config, const std::string& what)
{
    const Json* chat = member(config, "chat_template");
    if (!chat) { return ""; }
    if (!chat->is_array()) { return string_member(config, "chat_template", "", what); }
    for (const Json& entry : *chat) {
        if (string_member(entry, "name", "", what) == "default") { return string_member(entry, "template", "", what); }
    }
    return "";
}

} // namespace

std::filesystem::path tokenizer_path(const std::filesystem::path& folder)
{
    const auto json = folder / "tokenizer.json";
    const auto pieces = folder / "tokenizer.model";
    return !std::filesystem::exists(json) && std::filesystem::exists(pieces) ? pieces : json;
}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder)
{
    const auto config_path = folder / "tokenizer_config.json";
    const std::string config_name = config_path.string();
    const Json config = std::filesystem::exists(config_path) ? read_json(config_path, kMostBytes) : Json::object();
    const auto path = tokenizer_path(folder);
    Tokenizer tokenizer;
    if (path.filename() == "tokenizer.json") {
        tokenizer = from_json(read_json(path, kMostBytes), path.string());
    } else {
        SentencePieceModel model = parse_sentencepiece(read_text(path), path.string());
        model.add_bos = flag_member(config, "add_bos_token", true, config_name);
        tokenizer = from_sentencepiece(model, path.string());
        if (const Json* added = member(config, "added_tokens_decoder")) {
            tokenizer.add_tokens_beyond(*added, config_name);
        }
    }
    if (flag_member(config, "add_eos_token", false, config_name)) {
        fail(config_name, ": \"add_eos_token\": true is not supported");
    }
    const auto jinja = folder / "chat_template.jinja";
    tokenizer.chat_template_ = std::filesystem::exists(jinja) ? read_text(jinja) : template_of(config, config_name);
    return tokenizer;
}

// Tokens that were added after the SentencePiece model was made.
void Tokenizer::add_tokens_beyond(const Json& decoder, const std::string& what)
{
    const std::size_t pieces = vocabulary();
    if (!decoder.is_object()) { fail(what, ": \"added_tokens_decoder\" is not an object"); }
    for (const auto& [key, token] : decoder.items()) {
        const auto id = Json::parse(key, nullptr, false);
        const auto most = static_cast<std::int64_t>(pieces + decoder.size());
        const auto number = integer_member(Json{{"id", id}}, "id", 0, most, what + ": added_tokens_decoder");
        if (static_cast<std::size_t>(number) < pieces) { continue; }
        const AddedToken added = read_added_token(static_cast<TokenId>(number), token, what);
        const std::string content = string_member(token, "content", "", what);
        add_added_token(content, content, added, false, what);
    }
}

} // namespace oasis_decode
