// SPDX-License-Identifier: Apache-2.0
//
// Log masses of blocks against the float64 oracle, over shapes, codes and positions.
#include "unit/score_fixture.hpp"

namespace oasis::tests {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Compares all rows of a sequence with the oracle.
void expect_oracle(Sequence<>& sequence, const std::vector<float>& q, std::int32_t group,
                   const std::vector<TokenIndex>& positions, float scale)
{
    const auto got = sequence.score(q, group, positions, scale);
    const auto keys = sequence.exact_keys();
    const std::size_t d = std::size_t(sequence.layout().head_dim);
    const std::size_t blocks = got.size() / (positions.size() * std::size_t(group));
    std::vector<oracle::SubBlock> summaries;
    for (std::size_t pair = 0; pair < positions.size() * std::size_t(group); ++pair) {
        const TokenIndex position = positions[pair / std::size_t(group)];
        if (pair % std::size_t(group) == 0) { summaries = oracle::summaries(sequence.shape(), keys, position); }
        const oracle::Row query(q.data() + pair * d, q.data() + (pair + 1) * d);
        const auto expected = oracle::log_masses(sequence.shape(), summaries, query, scale);
        for (std::size_t b = 0; b < blocks; ++b) {
            const float value = got[pair * blocks + b];
            if (b >= expected.size()) {
                ASSERT_EQ(value, -kInf) << "block " << b << " lies beyond position " << position;
            } else if (std::isnan(expected[b])) {
                ASSERT_TRUE(std::isnan(value)) << "block " << b;
            } else if (std::isinf(expected[b])) {
                ASSERT_EQ(value, float(expected[b])) << "block " << b;
            } else {
                ASSERT_NEAR(value, expected[b], 2e-3 + 2e-4 * std::abs(expected[b]))
                    << "block " << b << " position " << position << " pair " << pair;
            }
        }
    }
}

struct ScoreOracle : EveryTable {};

TEST_P(ScoreOracle, EveryKindCodeAndSubBlock)
{
    std::mt19937 random(1);
    for (const SummaryKind kind : kKinds) {
        for (const SummaryCode code : kCodes) {
            for (const std::int32_t block : {16, 32, 64}) {
                for (const std::int32_t tokens : {1, 2, 4, 8, 16, block}) {
                    const SummaryOptions options{kind, tokens, code};
                    SCOPED_TRACE(describe(options) + " block " + std::to_string(block));
                    auto sequence = stock_sequence(options, 32, block, block, *GetParam());
                    const std::int64_t n = 64 * tokens + 2 * block + std::int64_t(random() % 40);
                    sequence.set_keys(grid_values(std::size_t(n) * 32, random));
                    const auto q = grid_values(2 * 2 * 32, random);
                    expect_oracle(sequence, q, 2, {n - 1, TokenIndex(random() % std::uint64_t(n))}, 0.176F);
                    if (HasFatalFailure()) { return; }
                }
            }
        }
    }
}

TEST_P(ScoreOracle, EveryHeadDimAndGroup)
{
    std::mt19937 random(2);
    int turn = 0;
    for (int head_dim = 32; head_dim <= 256; head_dim += 16) {
        const std::int32_t group = 1 + turn % 16;
        const SummaryOptions options{kKinds[turn % 4], 2, kCodes[(turn / 4 + 2) % 4]};
        SCOPED_TRACE(describe(options) + " head_dim " + std::to_string(head_dim) + " group " + std::to_string(group));
        auto sequence = stock_sequence(options, head_dim, 16, 32, *GetParam());
        const std::int64_t n = 128 + 64 + 7;
        sequence.set_keys(grid_values(std::size_t(n * head_dim), random));
        const auto q = grid_values(3 * std::size_t(group * head_dim), random);
        expect_oracle(sequence, q, group, {n - 1, 129, 17}, 1.0F / std::sqrt(float(head_dim)));
        if (HasFatalFailure()) { return; }
        ++turn;
    }
}

TEST_P(ScoreOracle, EveryPositionOfASequence)
{
    std::mt19937 random(3);
    auto sequence = stock_sequence({SummaryKind::kSpread, 4, SummaryCode::kInt4}, 32, 16, 20, *GetParam());
    sequence.set_keys(grid_values(300 * 32, random));
    const auto q = grid_values(32, random);
    for (TokenIndex p = 0; p < 300; ++p) {
        expect_oracle(sequence, q, 1, {p}, 0.2F);
        if (HasFatalFailure()) { return; }
    }
}

TEST_P(ScoreOracle, SCORE_02_UnusedSlotsHoldGarbage)
{
    for (const std::int32_t tokens : {2, 8, 16}) {
        for (const std::int64_t length : {1, 5}) {
            auto sequence = stock_sequence({SummaryKind::kMinMax, tokens, SummaryCode::kF16}, 32, 16, 16, *GetParam());
            std::mt19937 random(4);
            sequence.set_keys(grid_values(std::size_t(length) * 32, random)); // the storage beyond is NaN
            expect_oracle(sequence, grid_values(32, random), 1, {length - 1}, 0.2F);
        }
    }
}

TEST_P(ScoreOracle, SCORE_12_PaddingRows)
{
    std::mt19937 random(5);
    auto sequence = stock_sequence({}, 32, 16, 32, *GetParam());
    sequence.set_keys(grid_values(200 * 32, random));
    const auto q = grid_values(8 * 32, random);
    const auto got = sequence.score(q, 1, {199, -1, 150, -1, 40, -2, 199, 3}, 0.2F);
    const auto real = sequence.score({q.begin() + 2 * 32, q.begin() + 3 * 32}, 1, {150}, 0.2F);
    const std::size_t blocks = got.size() / 8;
    for (const std::size_t row : {1U, 3U, 5U}) {
        for (std::size_t b = 0; b < blocks; ++b) { EXPECT_EQ(got[row * blocks + b], -kInf); }
    }
    EXPECT_EQ(0, std::memcmp(real.data(), got.data() + 2 * blocks, blocks * sizeof(float)));
}

/// A log mass is the same bits whatever rows, heads and groups share the job.
TEST_P(ScoreOracle, RowsDoNotDependOnTheJob)
{
    std::mt19937 random(6);
    for (const SummaryOptions options : {SummaryOptions{}, SummaryOptions{SummaryKind::kCuboid, 8, SummaryCode::kInt8},
                                         SummaryOptions{SummaryKind::kMinMax, 16, SummaryCode::kF16},
                                         SummaryOptions{SummaryKind::kMean, 1, SummaryCode::kF32}}) {
        SCOPED_TRACE(describe(options));
        constexpr std::int32_t kGroup = 5;
        auto sequence = stock_sequence(options, 48, 16, 64, *GetParam());
        const std::int64_t n = 3 * 64 * options.tokens + 13;
        sequence.set_keys(grid_values(std::size_t(n) * 48, random));
        std::vector<TokenIndex> positions;
        for (int i = 0; i < 11; ++i) { positions.push_back(n - 1 - i * 9 % (n / 2)); }
        const auto q = grid_values(positions.size() * kGroup * 48, random, 3.0F);
        const auto all = sequence.score(q, kGroup, positions, 0.3F);
        const std::size_t blocks = all.size() / (positions.size() * kGroup);
        const std::size_t per_group = std::size_t(sequence.layout().blocks_per_group());
        for (std::size_t pair = 0; pair < positions.size() * kGroup; pair += 3) {
            const std::vector<float> one(q.begin() + std::ptrdiff_t(pair * 48),
                                         q.begin() + std::ptrdiff_t((pair + 1) * 48));
            const TokenIndex position = positions[pair / kGroup];
            const auto alone = sequence.score(one, 1, {position}, 0.3F);
            ASSERT_EQ(0, std::memcmp(alone.data(), all.data() + pair * blocks, blocks * sizeof(float)))
                << "pair " << pair;
            const auto middle = sequence.score(one, 1, {position}, 0.3F, 1, 3);
            ASSERT_EQ(0,
                      std::memcmp(middle.data(), all.data() + pair * blocks + per_group, 2 * per_group * sizeof(float)))
                << "pair " << pair;
        }
    }
}

/// Later draft rows of the step never change what an earlier row reads.
TEST_P(ScoreOracle, LaterTokensDoNotChangeEarlierRows)
{
    std::mt19937 random(7);
    for (const std::int32_t tokens : {1, 2, 4, 16}) {
        auto sequence = stock_sequence({SummaryKind::kSpread, tokens, SummaryCode::kInt4}, 32, 16, 48, *GetParam());
        auto keys = grid_values(150 * 32, random);
        sequence.set_keys(keys);
        const auto q = grid_values(32, random);
        const auto before = sequence.score(q, 1, {140}, 0.2F);
        for (std::size_t i = 141 * 32; i < keys.size(); ++i) { keys[i] = 1e4F; }
        sequence.set_keys(keys);
        const auto after = sequence.score(q, 1, {140}, 0.2F);
        EXPECT_EQ(0, std::memcmp(before.data(), after.data(), before.size() * sizeof(float))) << tokens;
    }
}

TEST_P(ScoreOracle, RefusesAMissingForm)
{
    auto sequence = stock_sequence({}, 32, 16, 32, *GetParam());
    std::mt19937 random(8);
    sequence.set_keys(grid_values(300 * 32, random));
    const SummaryGroupRef refs[] = {{sequence.native(0), nullptr}};
    const std::vector<float> q(32);
    const TokenIndex position = 299;
    std::vector<float> out(8);
    ScoreJob job{.q = q.data(),
                 .rows = 1,
                 .group = 1,
                 .scale = 1.0F,
                 .position = &position,
                 .groups = refs,
                 .recent = 32,
                 .log_mass = out.data(),
                 .stride = 8};
    EXPECT_THROW(sequence.scorer().score(job), InvalidArgument);
    job.stride = 7;
    EXPECT_THROW(sequence.scorer().score(job), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Tables, ScoreOracle, every_table(), table_name);

} // namespace
} // namespace oasis::tests
