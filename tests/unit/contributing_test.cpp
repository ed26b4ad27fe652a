// SPDX-License-Identifier: Apache-2.0
//
// The scorer of CONTRIBUTING.md: compiled here, and the text there must be the same.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <sstream>
#include <string>

// [snippet begins]
#include <oasis/concepts.hpp>

/// Summarises a sub-block by its mean key: log mass ~ scale * q . mean + log n.
struct MeanKey {
    std::int32_t planes() const { return 1; }
    bool has_spread() const { return false; }
    bool is_upper_bound() const { return false; }

    void summarise(oasis::KeyRows keys, oasis::SummaryRow row) const
    {
        for (std::int32_t i = 0; i < keys.head_dim; ++i) {
            float sum = 0;
            for (std::int32_t t = 0; t < keys.tokens; ++t) { sum += keys[t][i]; }
            row.plane[0][i] = sum / static_cast<float>(keys.tokens);
        }
    }

    void weigh(const float* q, std::int32_t head_dim, float scale, oasis::QueryWeights weights) const
    {
        for (std::int32_t i = 0; i < head_dim; ++i) { weights.plane[0][i] = scale * q[i]; }
    }
};
static_assert(oasis::SummaryPolicy<MeanKey>);
// [snippet ends]

namespace {

std::string read(const std::string& path)
{
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

TEST(Contributing, ScorerOfTheGuideIsTheOneCompiledHere)
{
    const std::string source = read(OASIS_SOURCE_DIR "/tests/unit/contributing_test.cpp");
    const std::string begin = "// [snippet begins]\n";
    const std::size_t first = source.find(begin) + begin.size();
    const std::string snippet = source.substr(first, source.find("// [snippet ends]\n") - first);
    ASSERT_GT(snippet.size(), 200U);
    const std::string guide = read(OASIS_SOURCE_DIR "/CONTRIBUTING.md");
    EXPECT_NE(guide.find("```cpp\n" + snippet + "```\n"), std::string::npos) << "CONTRIBUTING.md differs from:\n" << snippet;
}

TEST(Contributing, ScorerOfTheGuideEstimatesTheMeanKeysLogit)
{
    const std::array<float, 4> keys{1, 2, 3, 6};
    std::array<float, 2> mean{};
    std::array<float, 2> weight{};
    const std::array<float, 2> q{10, 1};
    MeanKey{}.summarise({.data = keys.data(), .tokens = 2, .head_dim = 2, .stride = 2}, {.plane = {mean.data(), nullptr}});
    MeanKey{}.weigh(q.data(), 2, 0.5F, {.plane = {weight.data(), nullptr}});
    EXPECT_FLOAT_EQ(weight[0] * mean[0] + weight[1] * mean[1], 0.5F * (10 * 2 + 1 * 4));
}

} // namespace
