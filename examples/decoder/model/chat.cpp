// SPDX-License-Identifier: Apache-2.0
#include "model/chat.hpp"

#include "model/unicode.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace oasis_decode {
namespace {

constexpr std::array<std::pair<std::string_view, ChatTemplate>, 6> kNames = {{{"chatml", ChatTemplate::kChatml},
                                                                              {"llama2", ChatTemplate::kLlama2},
                                                                              {"llama3", ChatTemplate::kLlama3},
                                                                              {"llama3.1", ChatTemplate::kLlama31},
                                                                              {"mistral", ChatTemplate::kMistral},
                                                                              {"qwen3", ChatTemplate::kQwen3}}};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool has_special(const Tokenizer& tokenizer, std::string_view text)
{
    const auto id = tokenizer.token_id(text);
    return id && tokenizer.is_special(*id);
}

std::optional<ChatTemplate> recognise_text(std::string_view jinja)
{
    // Phi-4 and SmolVLM share a mark with ChatML, but not the form.
    if (has(jinja, "<|im_start|>") && !has(jinja, "<|im_sep|>") && !has(jinja, "<end_of_utterance>")) {
        return has(jinja, "</think>") ? ChatTemplate::kQwen3 : ChatTemplate::kChatml;
    }
    if (has(jinja, "<|start_header_id|>")) {
        return has(jinja, "Cutting Knowledge Date: ") ? ChatTemplate::kLlama31 : ChatTemplate::kLlama3;
    }
    if (has(jinja, "[INST]")) { return has(jinja, "<<SYS>>") ? ChatTemplate::kLlama2 : ChatTemplate::kMistral; }
    return std::nullopt;
}

std::optional<ChatTemplate> recognise_tokens(const Tokenizer& tokenizer, std::string_view architecture)
{
    if (has_special(tokenizer, "<|im_start|>") && has_special(tokenizer, "<|im_end|>")) {
        return architecture.starts_with("qwen3") || architecture.starts_with("Qwen3") ? ChatTemplate::kQwen3
                                                                                      : ChatTemplate::kChatml;
    }
    if (has_special(tokenizer, "<|start_header_id|>")) { return ChatTemplate::kLlama3; }
    if (has_special(tokenizer, "[INST]") || architecture.starts_with("Mistral")) { return ChatTemplate::kMistral; }
    return std::nullopt;
}

ChatTemplate choose(const Tokenizer& tokenizer, std::string_view name, std::string_view architecture)
{
    if (!name.empty()) {
        if (const auto named = chat_template_named(name)) { return *named; }
        throw oasis::Unsupported(
            oasis::detail::text("the chat template \"", name, "\" is not known; these are: ", chat_template_names()));
    }
    const std::string& jinja = tokenizer.chat_template();
    const auto found = jinja.empty() ? recognise_tokens(tokenizer, architecture) : recognise_text(jinja);
    if (found) { return *found; }
    throw oasis::Unsupported(
        oasis::detail::text(jinja.empty() ? "the model has no chat template, and its tokens are of none that is known"
                                          : "the model's chat template is not one that is known",
                            "; name one: ", chat_template_names()));
}

// The system message that a ChatML template writes by itself: literal text between its marks.
std::string literal_system(std::string_view jinja)
{
    for (const std::string_view begin : {"<|im_start|>system\\n", "<|im_start|>system\n"}) {
        for (std::size_t at = jinja.find(begin); at != std::string_view::npos; at = jinja.find(begin, at + 1)) {
            const std::string_view rest = jinja.substr(at + begin.size());
            const std::string_view literal = rest.substr(0, std::min(rest.find("<|im_end|>"), rest.size()));
            if (literal.size() < rest.size() && !literal.empty() &&
                literal.find_first_of("'\"{}\\") == std::string_view::npos) {
                return std::string(literal);
            }
        }
    }
    return "";
}

// What stays of an earlier answer: nothing of its reasoning.
std::string_view after_reasoning(std::string_view answer)
{
    constexpr std::string_view mark = "</think>";
    const std::size_t at = answer.rfind(mark);
    if (at == std::string_view::npos) { return answer; }
    answer.remove_prefix(at + mark.size());
    return answer.substr(std::min(answer.find_first_not_of('\n'), answer.size()));
}

// Splits a leading system message off and checks that user and assistant alternate.
std::string_view take_system(std::span<const ChatMessage>& messages, std::string_view name)
{
    std::string_view system;
    if (!messages.empty() && messages.front().role == "system") {
        system = messages.front().content;
        messages = messages.subspan(1);
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::string_view expected = i % 2 == 0 ? "user" : "assistant";
        if (messages[i].role != expected) {
            throw oasis::InvalidArgument(oasis::detail::text("chat template ", name, ": message ", i, " is of \"",
                                                             messages[i].role, "\", not of \"", expected, "\""));
        }
    }
    return system;
}

} // namespace

// Collects text, which is encoded in one run from mark to mark, and marks.
class Chat::Writer {
public:
    explicit Writer(const Chat& chat) : chat_(chat) {}

    void text(std::string_view text) { run_ += text; }
    void mark(std::string_view text) { id(chat_.mark(text)); }
    void id(TokenId id)
    {
        flush();
        ids_.push_back(id);
    }
    /// BOS, or `text` where the model names none.
    void bos(std::string_view text) { id(chat_.tokenizer_->bos() ? *chat_.tokenizer_->bos() : chat_.mark(text)); }
    std::vector<TokenId> ids() &&
    {
        flush();
        return std::move(ids_);
    }

private:
    void flush()
    {
        const auto ids = chat_.tokenizer_->encode(run_, Specials::kAsText, Tokenizer::Place::kContinues);
        ids_.insert(ids_.end(), ids.begin(), ids.end());
        run_.clear();
    }

    const Chat& chat_;
    std::string run_;
    std::vector<TokenId> ids_;
};

std::string chat_template_names()
{
    std::string names;
    for (const auto& [name, value] : kNames) { names.append(names.empty() ? "" : ", ").append(name); }
    return names;
}

std::optional<ChatTemplate> chat_template_named(std::string_view name)
{
    for (const auto& [known, value] : kNames) {
        if (known == name) { return value; }
    }
    return std::nullopt;
}

std::string_view name_of(ChatTemplate chat_template)
{
    return std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.second == chat_template; })
        ->first;
}

Chat::Chat(const Tokenizer& tokenizer, std::string_view name, std::string_view architecture)
    : tokenizer_(&tokenizer), template_(choose(tokenizer, name, architecture))
{
    const std::string& jinja = tokenizer.chat_template();
    switch (template_) {
    case ChatTemplate::kChatml: default_system_ = literal_system(jinja); [[fallthrough]];
    case ChatTemplate::kQwen3:
        opens_thinking_ = has(jinja, "<|im_start|>assistant\\n<think>\\n") && !has(jinja, "enable_thinking");
        mark("<|im_start|>");
        end_ = mark("<|im_end|>");
        break;
    case ChatTemplate::kLlama3:
    case ChatTemplate::kLlama31:
        mark("<|start_header_id|>");
        mark("<|end_header_id|>");
        end_ = mark("<|eot_id|>");
        break;
    case ChatTemplate::kLlama2:
    case ChatTemplate::kMistral: end_ = mark("</s>"); break;
    }
}

TokenId Chat::mark(std::string_view text) const
{
    if (!has_special(*tokenizer_, text)) {
        throw oasis::Unsupported(oasis::detail::text("the chat template ", name_of(template_),
                                                     " needs the special token ", text,
                                                     ", which the vocabulary lacks"));
    }
    return *tokenizer_->token_id(text);
}

std::vector<TokenId> Chat::encode(std::span<const ChatMessage> messages, bool open_answer) const
{
    Writer out(*this);
    switch (template_) {
    case ChatTemplate::kChatml:
    case ChatTemplate::kQwen3: write_chatml(out, messages, open_answer); break;
    case ChatTemplate::kLlama3:
    case ChatTemplate::kLlama31: write_headers(out, messages, open_answer); break;
    case ChatTemplate::kLlama2: write_llama2(out, messages); break;
    case ChatTemplate::kMistral: write_mistral(out, messages); break;
    }
    return std::move(out).ids();
}

void Chat::write_chatml(Writer& out, std::span<const ChatMessage> messages, bool open_answer) const
{
    const TokenId start = mark("<|im_start|>");
    const auto say = [&](std::string_view role, std::string_view content) {
        out.id(start);
        out.text(role);
        out.text("\n");
        out.text(content);
        out.id(end_);
        out.text("\n");
    };
    const auto bos = tokenizer_->bos();
    if (tokenizer_->adds_bos() && bos && *bos != start) { out.id(*bos); }
    const bool has_system = !messages.empty() && messages.front().role == "system";
    if (!messages.empty() && !has_system && !default_system_.empty()) { say("system", default_system_); }
    for (const auto& message : messages) {
        const bool trims = template_ == ChatTemplate::kQwen3 && message.role == "assistant";
        say(message.role, trims ? after_reasoning(message.content) : std::string_view(message.content));
    }
    if (!open_answer) { return; }
    out.id(start);
    out.text(opens_thinking_ ? "assistant\n<think>\n" : "assistant\n");
}

void Chat::write_headers(Writer& out, std::span<const ChatMessage> messages, bool open_answer) const
{
    const auto head = [&](std::string_view role) {
        out.mark("<|start_header_id|>");
        out.text(role);
        out.mark("<|end_header_id|>");
        out.text("\n\n");
    };
    out.bos("<|begin_of_text|>");
    if (template_ == ChatTemplate::kLlama31) {
        // The date that the template of Llama 3.1 has where it is given none, so that a prompt is always the same.
        head("system");
        out.text("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
        if (!messages.empty() && messages.front().role == "system") {
            out.text(trimmed(messages.front().content));
            messages = messages.subspan(1);
        }
        out.id(end_);
    }
    for (const auto& message : messages) {
        head(message.role);
        out.text(trimmed(message.content));
        out.id(end_);
    }
    if (open_answer) { head("assistant"); }
}

void Chat::write_llama2(Writer& out, std::span<const ChatMessage> messages) const
{
    const std::string_view system = take_system(messages, "llama2");
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const bool user = i % 2 == 0;
        // The space before is SentencePiece's, which comes before every text.
        if (user) { out.bos("<s>"); }
        out.text(user ? " [INST] " : " ");
        std::string content;
        if (i == 0 && !system.empty()) { content.append("<<SYS>>\n").append(system).append("\n<</SYS>>\n\n"); }
        content += messages[i].content;
        out.text(trimmed(content));
        out.text(user ? " [/INST]" : " ");
        if (!user) { out.id(end_); }
    }
}

void Chat::write_mistral(Writer& out, std::span<const ChatMessage> messages) const
{
    std::string_view system = take_system(messages, "mistral");
    const bool marks = has_special(*tokenizer_, "[INST]"); // else they are text, as the first models had it
    const std::string_view space = tokenizer_->is_sentencepiece() ? " " : "";
    const auto write = [&](std::string_view text, std::string_view before) {
        if (marks) {
            out.mark(text);
        } else {
            out.text(before);
            out.text(text);
        }
    };
    out.bos("<s>");
    if (!system.empty() && has_special(*tokenizer_, "[SYSTEM_PROMPT]")) {
        out.mark("[SYSTEM_PROMPT]");
        out.text(space);
        out.text(system);
        out.mark("[/SYSTEM_PROMPT]");
        system = {};
    }
    // The system message goes to the last user's message, or, before there were marks, to the first one's.
    const std::size_t with_system = marks ? (messages.size() - 1) / 2 * 2 : 0;
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const bool user = i % 2 == 0;
        if (user) { write("[INST]", " "); }
        out.text(user && !marks ? " " : space);
        if (i == with_system && !system.empty()) {
            out.text(system);
            out.text("\n\n");
        }
        out.text(messages[i].content);
        if (user) {
            write("[/INST]", " ");
        } else {
            out.id(end_);
        }
    }
}

} // namespace oasis_decode
