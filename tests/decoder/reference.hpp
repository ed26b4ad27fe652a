// SPDX-License-Identifier: Apache-2.0
//
// Stored float32 references: logits at positions of a text, and greedy ids.
#pragma once

#include "decoder/support.hpp"

#include <span>

namespace oasis_decode::test {

inline constexpr float kLogitTolerance = 5e-3F;

/// The likeliest tokens of one position with their logits; `logsumexp` is over the whole vocabulary.
struct Expected {
    std::int64_t position;
    std::vector<TokenId> ids;
    std::vector<float> logits;
    double logsumexp = NAN;
};

inline TokenId likeliest(std::span<const float> logits)
{
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline void expect_logits(const Expected& expected, std::span<const float> logits, float tolerance = kLogitTolerance)
{
    for (std::size_t i = 0; i < expected.ids.size(); ++i) {
        EXPECT_NEAR(logits[static_cast<std::size_t>(expected.ids[i])], expected.logits[i], tolerance)
            << "position " << expected.position << ", token " << expected.ids[i];
    }
    if (std::isnan(expected.logsumexp)) { return; }
    const double highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) { sum += std::exp(static_cast<double>(x) - highest); }
    EXPECT_NEAR(highest + std::log(sum), expected.logsumexp, tolerance) << "position " << expected.position;
}

inline std::vector<Expected> expectations(const Json& list, const char* ids, const char* logits)
{
    std::vector<Expected> out;
    for (const auto& entry : list) {
        out.push_back({entry["position"], entry[ids].get<std::vector<TokenId>>(),
                       entry[logits].get<std::vector<float>>(), entry.value("logsumexp", NAN)});
    }
    return out;
}

/// A text to follow: what is given, what greedy decoding adds, and what the logits are on the way.
struct ReferenceText {
    std::vector<TokenId> ids;
    std::vector<TokenId> greedy;
    std::vector<Expected> expected;
};

inline const Json& reference_item(const Json& reference, const char* key, const std::string& name)
{
    for (const auto& item : reference["items"]) {
        if (item[key] == name) { return item; }
    }
    throw std::runtime_error("no reference item " + name);
}

/// Of retrieval-14m: "kv_dense" (6,740 tokens) or "json" (11,296).
inline ReferenceText retrieval_text(const Json& reference, const std::string& task)
{
    const Json& item = reference_item(reference, "task", task);
    return {item["prompt_ids"].get<std::vector<TokenId>>(), item["greedy_ids"].get<std::vector<TokenId>>(),
            expectations(item["top20"], "ids", "logits")};
}

/// Of SmolLM2: "short", "chat", "mixed", "long-2048" or "long-7168".
inline ReferenceText smollm2_text(const Json& reference, const std::string& name)
{
    const Json& item = reference_item(reference, "name", name);
    return {item["ids"].get<std::vector<TokenId>>(), item.value("greedy_ids", std::vector<TokenId>()),
            expectations(item["logits"], "top_ids", "top_logits")};
}

} // namespace oasis_decode::test
