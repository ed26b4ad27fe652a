// SPDX-License-Identifier: Apache-2.0
#include "model/chat.hpp"

namespace oasis_decode {
namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";

} // namespace

bool has_chatml(const Tokenizer& tokenizer)
{
    return tokenizer.token_id(kStart).has_value() && tokenizer.token_id(kEnd).has_value();
}

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, bool open_answer)
{
    if (!has_chatml(tokenizer)) {
        throw oasis::Unsupported("the model has no chat form: its vocabulary lacks <|im_start|> or <|im_end|>");
    }
    const TokenId start = *tokenizer.token_id(kStart);
    const TokenId end = *tokenizer.token_id(kEnd);
    std::vector<TokenId> ids;
    const auto append = [&](std::string_view text) {
        const auto part = tokenizer.encode(text, Specials::kAsText);
        ids.insert(ids.end(), part.begin(), part.end());
    };
    const auto say = [&](std::string_view role, std::string_view content) {
        ids.push_back(start);
        append(std::string(role) + "\n" + std::string(content));
        ids.push_back(end);
        append("\n");
    };
    if (tokenizer.adds_bos() && tokenizer.bos() && *tokenizer.bos() != start) { ids.push_back(*tokenizer.bos()); }
    if (!messages.empty() && messages.front().role != "system") { say("system", kDefaultSystem); }
    for (const auto& message : messages) { say(message.role, message.content); }
    if (open_answer) {
        ids.push_back(start);
        append("assistant\n");
    }
    return ids;
}

} // namespace oasis_decode
