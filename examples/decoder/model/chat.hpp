// SPDX-License-Identifier: Apache-2.0
//
// Conversations as the model families were trained on them. A model's own template is Jinja, which is not run: it
// is recognised, and written out here.
#pragma once

#include "model/tokenizer.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

struct ChatMessage {
    std::string role; ///< "system", "user" or "assistant"
    std::string content;
};

enum class ChatTemplate : std::uint8_t {
    kChatml,  ///< SmolLM2, Qwen 2 and 2.5
    kQwen3,   ///< ChatML; earlier answers lose their reasoning
    kLlama2,  ///< [INST] <<SYS>>
    kLlama3,  ///< headers
    kLlama31, ///< headers; the system message begins with two dates
    kMistral  ///< [INST] as text (7B v0.1), with control tokens (v0.3), with Tekken; [SYSTEM_PROMPT] where it exists
};

/// "chatml, llama2, ...": for error texts and help.
std::string chat_template_names();
std::optional<ChatTemplate> chat_template_named(std::string_view name);
std::string_view name_of(ChatTemplate chat_template);

/// A model's chat form.
class Chat {
public:
    /// The template `name`, or by default that of the model: recognised in the text of its template; without one, by
    /// the architecture (as GGUF and config.json call it) and the special tokens that the vocabulary has. Throws
    /// `Unsupported` with the names when nothing is recognised, or when the vocabulary lacks the marks.
    explicit Chat(const Tokenizer& tokenizer, std::string_view name = {}, std::string_view architecture = {});

    ChatTemplate chat_template() const noexcept { return template_; }

    /// The ids of the conversation, BOS included, and of the opened answer. Marks typed inside a message are text.
    /// A conversation without a system message gets the one that the model's template has by default, if any.
    /// Throws `InvalidArgument` on roles in an order that the template does not have.
    std::vector<TokenId> encode(std::span<const ChatMessage> messages, bool open_answer = true) const;

    /// The token that ends an answer.
    TokenId end() const noexcept { return end_; }

private:
    class Writer;
    void write_chatml(Writer& out, std::span<const ChatMessage> messages, bool open_answer) const;
    void write_headers(Writer& out, std::span<const ChatMessage> messages, bool open_answer) const;
    void write_llama2(Writer& out, std::span<const ChatMessage> messages) const;
    void write_mistral(Writer& out, std::span<const ChatMessage> messages) const;
    TokenId mark(std::string_view text) const;

    const Tokenizer* tokenizer_;
    ChatTemplate template_;
    std::string default_system_;  ///< of ChatML
    bool opens_thinking_ = false; ///< the opened answer begins with <think>
    TokenId end_ = -1;
};

} // namespace oasis_decode
