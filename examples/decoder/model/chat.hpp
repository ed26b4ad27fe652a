// SPDX-License-Identifier: Apache-2.0
//
// The ChatML form of a conversation, as SmolLM2 was trained on it.
#pragma once

#include "model/tokenizer.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

struct ChatMessage {
    std::string role; ///< "system", "user" or "assistant"
    std::string content;
};

/// Goes before a conversation that has no system message.
inline constexpr std::string_view kDefaultSystem =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

/// Whether the vocabulary has the marks of ChatML.
bool has_chatml(const Tokenizer& tokenizer);

/// The ids of the conversation and of the opened answer: `<|im_start|>role\ncontent<|im_end|>\n` for each message,
/// then `<|im_start|>assistant\n`. Marks typed inside a message are text. Throws `Unsupported` without ChatML marks.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                 bool open_answer = true);

} // namespace oasis_decode
