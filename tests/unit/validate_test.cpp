// SPDX-License-Identifier: Apache-2.0
#include <oasis/core/validate.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace oasis {
namespace {

CacheConfig good()
{
    CacheConfig config;
    config.shape = {.layers = 4, .q_heads = 8, .kv_heads = 2, .head_dim = 64};
    return config;
}

std::string refusal(const CacheConfig& config)
{
    try {
        validate(config);
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "";
}

struct Bad {
    const char* name;
    std::function<void(CacheConfig&)> change;
    std::vector<std::string> says; ///< the field, its value, what is allowed
};

class ValidateRefuses : public testing::TestWithParam<Bad> {};

TEST_P(ValidateRefuses, WithFieldValueAndWhatIsAllowed)
{
    CacheConfig config = good();
    GetParam().change(config);
    const std::string text = refusal(config);
    for (const std::string& part : GetParam().says) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
}

const Bad kBad[] = {
    {"NoLayers", [](CacheConfig& c) { c.shape.layers = 0; }, {"shape.layers is 0", "1 to 4096"}},
    {"NoHeads", [](CacheConfig& c) { c.shape.kv_heads = 0; }, {"shape.kv_heads is 0"}},
    {"OddGroup", [](CacheConfig& c) { c.shape.q_heads = 7; }, {"shape.q_heads is 7", "multiple of shape.kv_heads (2)"}},
    {"LargeGroup", [](CacheConfig& c) { c.shape.q_heads = 514; }, {"shape.q_heads is 514", "shape.kv_heads 2", "at most 256"}},
    {"FewQueryHeads", [](CacheConfig& c) { c.shape.q_heads = 0; }, {"shape.q_heads is 0"}},
    {"HeadDim100", [](CacheConfig& c) { c.shape.head_dim = 100; }, {"shape.head_dim is 100", "multiple of 16"}},
    {"HeadDim16", [](CacheConfig& c) { c.shape.head_dim = 16; }, {"shape.head_dim is 16", "32 to 256"}},
    {"HeadDim272", [](CacheConfig& c) { c.shape.head_dim = 272; }, {"shape.head_dim is 272"}},
    {"Block24", [](CacheConfig& c) { c.block_tokens = 24; }, {"block_tokens is 24", "16, 32 or 64"}},
    {"Block0", [](CacheConfig& c) { c.block_tokens = 0; }, {"block_tokens is 0"}},
    {"SubBlock3", [](CacheConfig& c) { c.summary.tokens = 3; }, {"summary.tokens is 3", "block_tokens (16)"}},
    {"SubBlockBeyond", [](CacheConfig& c) { c.summary.tokens = 32; }, {"summary.tokens is 32"}},
    {"DType", [](CacheConfig& c) { c.dtype = DType{9}; }, {"dtype is 9", "last one is 2"}},
    {"SummaryKind", [](CacheConfig& c) { c.summary.kind = SummaryKind{17}; }, {"summary.kind is 17"}},
    {"Scope", [](CacheConfig& c) { c.scope = SelectionScope{2}; }, {"scope is 2", "last one is 1"}},
    {"FetchAboveAttend",
     [](CacheConfig& c) { c.budgets.fetch = 4096; },
     {"budgets.fetch is 4096", "at most budgets.attend (2048)"}},
    {"AttendAboveResident",
     [](CacheConfig& c) { c.budgets.logical_resident = 1024; },
     {"budgets.attend is 2048", "at most budgets.logical_resident (1024)"}},
    {"FetchNotWholeBlocks",
     [](CacheConfig& c) { c.budgets.fetch = 1000; },
     {"budgets.fetch is 1000", "multiple of block_tokens (16)"}},
    {"AttendNegative", [](CacheConfig& c) { c.budgets.attend = -16; }, {"budgets.attend is -16", "positive"}},
    {"SinkNegative", [](CacheConfig& c) { c.budgets.sink = -1; }, {"budgets.sink is -1"}},
    {"RecentSmall", [](CacheConfig& c) { c.budgets.recent = 8; }, {"budgets.recent is 8", "at least 16"}},
    {"TopPZero", [](CacheConfig& c) { c.budgets.top_p = 0; }, {"budgets.top_p is 0"}},
    {"TopPNan",
     [](CacheConfig& c) { c.budgets.top_p = std::numeric_limits<float>::quiet_NaN(); },
     {"budgets.top_p is"}},
    {"ManySequences", [](CacheConfig& c) { c.limits.max_sequences = 65536; }, {"limits.max_sequences is 65536", "from 1 to 65535"}},
    {"LongContext", [](CacheConfig& c) { c.limits.max_context = 2147483647; }, {"limits.max_context is 2147483647", "from 1 to 2147483646"}},
    {"NoSequences", [](CacheConfig& c) { c.limits.max_sequences = 0; }, {"limits.max_sequences is 0"}},
    {"NoRows", [](CacheConfig& c) { c.limits.max_rows = 0; }, {"limits.max_rows is 0"}},
    {"NoContext", [](CacheConfig& c) { c.limits.max_context = 0; }, {"limits.max_context is 0"}},
    {"TooManyBlocks",
     [](CacheConfig& c) { c.limits.max_context = 2147483646; },
     {"limits.max_context (2147483646", "2^31 - 1 blocks"}},
    {"HugeContext",
     [](CacheConfig& c) { c.limits.max_context = std::numeric_limits<std::int64_t>::max(); },
     {"limits.max_context is 9223372036854775807"}},
    {"TooManySequences",
     [](CacheConfig& c) { c.limits = {.max_sequences = 65535, .max_rows = 1, .max_context = 1 << 20}; },
     {"limits.max_sequences (65535)", "2^31 - 1 blocks"}},
    {"TooManySlots",
     [](CacheConfig& c) { c.limits.max_context = std::int64_t{1} << 30; },
     {"fast_bytes is 0", "set fast_bytes"}},
    {"DenseBelow", [](CacheConfig& c) { c.dense_below = -2; }, {"dense_below is -2"}},
    {"PrefetchCap", [](CacheConfig& c) { c.prefetch_cap = 10; }, {"prefetch_cap is 10", "block_tokens (16)"}},
    {"PrefetchNegative", [](CacheConfig& c) { c.prefetch_cap = -16; }, {"prefetch_cap is -16"}},
    {"DenseLayer",
     [](CacheConfig& c) {
         c.dense_layers = {0, 4};
     },
     {"dense_layers holds 4", "0 to 3"}},
};
INSTANTIATE_TEST_SUITE_P(All, ValidateRefuses, testing::ValuesIn(kBad),
                         [](const auto& test) { return test.param.name; });

TEST(Validate, TakesWhatWorks)
{
    EXPECT_EQ(refusal(good()), "");
    for (const std::int32_t block : {16, 32, 64}) {
        for (const std::int32_t sub : {1, 2, 4, 8, 16, block}) {
            CacheConfig config = good();
            config.block_tokens = block;
            config.summary.tokens = sub;
            EXPECT_EQ(refusal(config), "") << block << ' ' << sub;
        }
    }
    CacheConfig config = good();
    config.miss = MissPolicy::kResidentOnly;
    config.budgets = {.attend = 512, .fetch = 512, .logical_resident = 512, .sink = 0, .recent = 16, .top_p = 0.5F};
    config.dense_layers = {0, 3};
    config.dense_below = 0;
    config.limits = {.max_sequences = 1, .max_rows = 1, .max_context = 1};
    EXPECT_EQ(refusal(config), "");
}

TEST(ValidateCases, SCORE_18_BudgetBelowTheForcedBlocksIsRefused)
{
    CacheConfig config = good();
    config.budgets = {
        .attend = 2048, .fetch = 13 * 16, .logical_resident = 2048, .sink = 64, .recent = 128, .top_p = 1};
    EXPECT_EQ(refusal(config), "") << "4 sink blocks and 9 that the recent window can touch";
    config.budgets.fetch = 12 * 16;
    EXPECT_NE(refusal(config).find("budgets.fetch is 192"), std::string::npos);
    EXPECT_NE(refusal(config).find("can take 13 blocks (208 tokens)"), std::string::npos) << refusal(config);
}

TEST(ValidateCases, PREF_16_ForcedBlocksCountInEveryBudget)
{
    CacheConfig config = good();
    config.budgets = {.attend = 128, .fetch = 128, .logical_resident = 128, .sink = 16, .recent = 128, .top_p = 1};
    EXPECT_NE(refusal(config).find("must hold the forced blocks"), std::string::npos) << refusal(config);
}

TEST(ValidateCases, POOL_07_FillOfTheLastBlock)
{
    for (const std::int32_t b : {16, 32, 64}) {
        const std::int64_t lengths[] = {0, 1, b - 1, b, b + 1, 2 * b, 2 * b + 1};
        const std::int32_t fills[] = {0, 1, b - 1, b, 1, b, 1};
        const std::int64_t blocks[] = {0, 1, 1, 1, 2, 2, 3};
        for (int i = 0; i < 7; ++i) {
            EXPECT_EQ(last_block_fill(lengths[i], b), fills[i]) << lengths[i];
            EXPECT_EQ(blocks_for(lengths[i], b), blocks[i]) << lengths[i];
        }
    }
}

TEST(Validate, BlocksTouchedIsTheWorstPlace)
{
    for (const std::int32_t b : {16, 32}) {
        for (std::int64_t tokens = 0; tokens < 200; ++tokens) {
            std::int64_t most = 0;
            for (std::int64_t begin = 0; begin < b && tokens > 0; ++begin) {
                most = std::max(most, (begin + tokens - 1) / b - begin / b + 1);
            }
            EXPECT_EQ(blocks_touched(tokens, b), most) << tokens;
        }
    }
}

TEST(Validate, SequencesOfAConfig)
{
    const CacheConfig config = good();
    EXPECT_NO_THROW(validate(config, SequenceOptions{}));
    EXPECT_NO_THROW(validate(config, SequenceOptions{.logical_resident = 4096, .dense_below = 0}));
    EXPECT_THROW(validate(config, SequenceOptions{.logical_resident = 1024}), InvalidArgument);
    EXPECT_THROW(validate(config, SequenceOptions{.logical_resident = 2050}), InvalidArgument);
    EXPECT_THROW(validate(config, SequenceOptions{.dense_below = -2}), InvalidArgument);
    const std::vector<TokenId> prompt(32769, 1);
    EXPECT_THROW(validate(config, SequenceOptions{.prompt = prompt}), InvalidArgument);
}

} // namespace
} // namespace oasis
