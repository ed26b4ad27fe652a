// SPDX-License-Identifier: Apache-2.0
//
// What summaries hold, how they are rounded and coded, and what happens to keys that are not numbers.
#include "unit/score_fixture.hpp"

namespace oasis::tests {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct SummaryCases : EveryTable {};

/// Keys of 3 channels padded with zeros to 32, two tokens a sub-block, 16 a block: blocks of equal pairs.
std::vector<float> golden_keys()
{
    const float pairs[3][2][3] = {{{1, 0, 2}, {2, 1, -1}}, {{-1, -3, 0}, {0, -1, 4}}, {{3, 2, 0}, {1, 4, -2}}};
    std::vector<float> keys(48 * 32, 0.0F);
    for (std::size_t t = 0; t < 48; ++t) { std::copy_n(pairs[t / 16][t % 2], 3, keys.data() + t * 32); }
    return keys;
}

TEST_P(SummaryCases, Golden1_BoundsAndMeans)
{
    std::vector<float> q(32, 0.0F);
    q[0] = 1.0F;
    q[1] = -2.0F;
    q[2] = 0.5F;
    const float bounds[] = {3.0F, 8.0F, -1.0F};
    const float means[] = {0.75F, 4.5F, -4.5F};
    for (const SummaryCode code : kCodes) {
        for (const auto& [kind, expected] :
             {std::pair{SummaryKind::kMinMax, bounds}, std::pair{SummaryKind::kMean, means}}) {
            auto sequence = stock_sequence({kind, 16, code}, 32, 16, 0, *GetParam());
            sequence.set_keys(golden_keys());
            const auto got = sequence.score(q, 1, {47}, 1.0F);
            for (std::size_t b = 0; b < 3; ++b) {
                EXPECT_NEAR(got[b] - std::log(16.0F), expected[b], 1e-5F) << int(code) << " block " << b;
            }
            EXPECT_GT(got[1], got[0]);
            EXPECT_GT(got[0], got[2]);
        }
    }
}

TEST_P(SummaryCases, SpreadIsTheFormulaOfTheDesignPage)
{
    // s q . mu + log n + 0.6 s^2 |q|^2 sigma2 / d with s = 1/8, two keys per sub-block and 0.5 in one channel.
    std::vector<float> keys(16 * 64, 0.0F);
    for (std::size_t t = 0; t < 16; ++t) {
        keys[t * 64] = t % 2 ? 3.0F : 1.0F;      // mean 2, variance 1
        keys[t * 64 + 5] = t % 2 ? -2.0F : 2.0F; // mean 0, variance 4
    }
    std::vector<float> q(64, 0.5F);
    auto sequence = stock_sequence({SummaryKind::kSpread, 2, SummaryCode::kF32}, 64, 16, 0, *GetParam());
    sequence.set_keys(keys);
    const float sub = 0.5F * 2.0F / 8.0F + std::log(2.0F) + 0.6F * (64 * 0.25F / 64.0F) * 5.0F / 64.0F;
    EXPECT_NEAR(sequence.score(q, 1, {15}, 0.125F)[0], sub + std::log(8.0F), 1e-5F);
}

TEST_P(SummaryCases, SCORE_04_RewrittenAfterRollback)
{
    std::mt19937 random(1);
    for (const SummaryKind kind : kKinds) {
        auto keys = grid_values(60 * 32, random);
        auto clean = stock_sequence({kind, 16, SummaryCode::kF16}, 32, 16, 32, *GetParam());
        clean.set_keys(keys);
        auto rolled = stock_sequence({kind, 16, SummaryCode::kF16}, 32, 16, 32, *GetParam());
        auto drafted = keys;
        for (std::size_t i = 52 * 32; i < 56 * 32; ++i) { drafted[i] = i % 2 ? 6e4F : kNaN; }
        rolled.set_keys(drafted);
        std::copy(keys.begin(), keys.end(), rolled.key(0));
        rolled.write(3);
        const auto q = grid_values(32, random);
        const auto expected = clean.score(q, 1, {59}, 0.2F);
        const auto got = rolled.score(q, 1, {59}, 0.2F);
        EXPECT_EQ(0, std::memcmp(expected.data(), got.data(), got.size() * sizeof(float))) << int(kind);
        EXPECT_EQ(0, std::memcmp(clean.native(0), rolled.native(0), sizeof(SummaryHeader)));
    }
}

TEST_P(SummaryCases, SCORE_07_KeysThatAreNotNumbers)
{
    std::mt19937 random(2);
    for (const SummaryKind kind : kKinds) {
        for (const SummaryCode code : kCodes) {
            SCOPED_TRACE(describe({kind, 2, code}));
            const auto keys = grid_values(280 * 32, random);
            auto clean = stock_sequence({kind, 2, code}, 32, 16, 32, *GetParam());
            clean.set_keys(keys);
            auto sequence = stock_sequence({kind, 2, code}, 32, 16, 32, *GetParam());
            sequence.set_keys(keys);
            sequence.key(7 * 16 + 3)[5] = kNaN;
            sequence.key(9 * 16)[0] = kInf;
            sequence.key(11 * 16 + 15)[31] = -kInf;
            sequence.key(279)[1] = kNaN; // in the tail of a row at 278 it is not, at 279 it is
            const std::vector<float> poisoned(sequence.key(0), sequence.key(0) + 280 * 32);
            sequence.set_keys(poisoned);
            const auto q = grid_values(2 * 32, random);
            const auto got = sequence.score(q, 1, {278, 279}, 0.2F);
            const auto expected = clean.score(q, 1, {278, 279}, 0.2F);
            const std::size_t blocks = got.size() / 2;
            for (std::size_t i = 0; i < got.size(); ++i) {
                const std::size_t b = i % blocks;
                const bool bad = b == 7 || b == 9 || b == 11 || (b == 17 && i >= blocks);
                if (bad) {
                    EXPECT_TRUE(std::isnan(got[i])) << "block " << b;
                } else if (b >= 8 || code == SummaryCode::kF32 || code == SummaryCode::kF16) {
                    EXPECT_EQ(got[i], expected[i]) << "block " << b; // another group, or no group code
                } else {
                    EXPECT_NEAR(got[i], expected[i], 0.5F) << "block " << b;
                }
            }
        }
    }
}

TEST_P(SummaryCases, SCORE_09_ScoresBeyondHalfPrecision)
{
    // head_dim 256, |q| = |k| = 60: 921,600, exact in float; block 1 is 1 % lower, block 2 the negative.
    for (const SummaryCode code : kCodes) {
        std::vector<float> keys(48 * 256, 60.0F);
        for (std::size_t i = 16 * 256; i < 32 * 256; ++i) { keys[i] = 59.5F; }
        for (std::size_t i = 32 * 256; i < 48 * 256; ++i) { keys[i] = -60.0F; }
        auto sequence = stock_sequence({SummaryKind::kMinMax, 16, code}, 256, 16, 0, *GetParam());
        sequence.set_keys(keys);
        const std::vector<float> q(256, 60.0F);
        const auto got = sequence.score(q, 1, {47}, 1.0F);
        EXPECT_NEAR(got[0], 921600.0F, 3.0F);
        EXPECT_NEAR(got[1], 913920.0F, 3.0F);
        EXPECT_NEAR(got[2], -921600.0F, 4.0F);
    }
}

TEST_P(SummaryCases, Golden6_ScoreRange)
{
    std::vector<float> keys(16 * 256, -60.0F);
    auto sequence = stock_sequence({SummaryKind::kMinMax, 1, SummaryCode::kF32}, 256, 16, 0, *GetParam());
    sequence.set_keys(keys);
    const auto got = sequence.score(std::vector<float>(256, -60.0F), 1, {0}, 1.0F);
    EXPECT_EQ(got[0], 921600.0F);
}

TEST_P(SummaryCases, FiniteKeysBeyondHalfPrecision)
{
    for (const SummaryKind kind : kKinds) {
        for (const SummaryCode code : kCodes) {
            auto sequence = stock_sequence({kind, 2, code}, 32, 16, 0, *GetParam());
            std::vector<float> keys(128 * 32, 0.5F);
            keys[20 * 32 + 3] = 1e6F;
            sequence.set_keys(keys);
            const auto got = sequence.score(std::vector<float>(32, 0.01F), 1, {127}, 1.0F);
            SCOPED_TRACE(describe({kind, 2, code}));
            if (kind == SummaryKind::kMinMax && code != SummaryCode::kF32) {
                EXPECT_EQ(got[1], kInf);
            } else {
                EXPECT_TRUE(std::isfinite(got[1]));
                EXPECT_GT(got[1], 100.0F);
            }
            for (const std::size_t b : {0U, 2U, 7U}) { EXPECT_TRUE(std::isfinite(got[b])); }
        }
    }
}

/// Garbage beyond the written sub-blocks reaches no byte of the coded form.
TEST(SummaryCode, ClosesAPartOfAGroup)
{
    for (const SummaryCode code : {SummaryCode::kInt8, SummaryCode::kInt4}) {
        const BlockScorer<> scorer(StockSummary(), {.tokens = 2, .code = code}, 32, 16);
        std::mt19937 random(4);
        const auto keys = grid_values(2 * 32, random);
        auto garbage = lines(scorer.layout().native_bytes());
        auto zeros = lines(scorer.layout().native_bytes(), std::byte{0});
        auto from_garbage = lines(scorer.layout().coded_bytes());
        auto from_zeros = lines(scorer.layout().coded_bytes(), std::byte{7});
        for (std::int32_t s = 0; s < 40; ++s) {
            scorer.write_sub_block(at(garbage), s, {keys.data(), 1 + s % 2, 32, 32});
            scorer.write_sub_block(at(zeros), s, {keys.data(), 1 + s % 2, 32, 32});
        }
        scorer.close_group(at(garbage), 40, at(from_garbage));
        scorer.close_group(at(zeros), 40, at(from_zeros));
        EXPECT_EQ(0, std::memcmp(at(from_garbage), at(from_zeros), scorer.layout().coded_bytes()));
    }
}

/// The stored value is the nearest f16, or the next one outwards.
TEST(SummaryRounding, NativeForm)
{
    using detail::Rounding;
    for (const float x : {1.0F / 3.0F, -1.0F / 3.0F, 1e-9F, -1e-9F, 65503.0F, 7e4F, -7e4F, 0.0F}) {
        EXPECT_GE(detail::round_native(x, Rounding::kUp, false), std::min(x, kMaxF16));
        EXPECT_LE(detail::round_native(x, Rounding::kDown, false), std::max(x, -kMaxF16));
        EXPECT_NEAR(detail::round_native(x, Rounding::kNearest, false), std::clamp(x, -kMaxF16, kMaxF16),
                    std::abs(x) / 2048 + 1e-7F);
        EXPECT_EQ(detail::round_native(x, Rounding::kUp, true), x);
    }
}

TEST(SummaryCode, AffineRoundsAsAsked)
{
    std::mt19937 random(3);
    for (const float scale : {1e-6F, 1.0F, 1e4F}) {
        for (const int levels : {15, 255}) {
            float values[64];
            for (float& x : values) { x = to_float(to_f16(scale * float(int(random() % 2001) - 1000) / 500.0F)); }
            for (const auto rounding : {detail::Rounding::kNearest, detail::Rounding::kUp, detail::Rounding::kDown}) {
                const auto code = detail::code_affine(values, ~std::uint64_t{0}, levels, rounding);
                const double step = to_float(code.scale);
                for (int i = 0; i < 64; ++i) {
                    const double kept = to_float(code.zero) + step * code.codes[i];
                    ASSERT_LE(int(code.codes[i]), levels);
                    const double error = kept - values[i];
                    if (rounding == detail::Rounding::kUp) { ASSERT_GE(error, 0.0); }
                    if (rounding == detail::Rounding::kDown) { ASSERT_LE(error, 0.0); }
                    // Rounded down, the scale misses the range by up to a unit of f16 per level.
                    const double slack = rounding == detail::Rounding::kDown ? levels * std::max(0x1p-24, step * 0x1p-10) : 0.0;
                    ASSERT_LE(std::abs(error), rounding == detail::Rounding::kNearest ? step * 0.5001 : step + slack);
                    const bool extreme = values[i] == *std::max_element(values, values + 64);
                    if (extreme) { ASSERT_LE(std::abs(error), slack + step * 0.51); }
                }
            }
        }
    }
}

TEST(SummaryLayoutTest, SizesOfTheDefault)
{
    const BlockScorer<> scorer(StockSummary(), {}, 64, 16);
    const SummaryLayout& layout = scorer.layout();
    EXPECT_EQ(layout.group_tokens(), 128);
    EXPECT_EQ(layout.coded_bytes(), 2432U); // 19 bytes a token: bf16 K and V take 256
    EXPECT_EQ(layout.native_bytes(), 8448U);
    EXPECT_EQ(layout.native_bytes() % 128 + layout.coded_bytes() % 128 + layout.tail_bytes() % 128, 0U);
    std::vector<int> seen(64);
    for (std::int32_t s = 0; s < 64; ++s) { ++seen[std::size_t(layout.slot(s))]; }
    EXPECT_EQ(seen, std::vector<int>(64, 1));
    EXPECT_EQ(BlockScorer<>(StockSummary(SummaryKind::kOracle), {.kind = SummaryKind::kOracle}, 64, 16)
                  .layout()
                  .native_bytes(),
              0U);
}

TEST(SummaryErrors, NameTheValue)
{
    const auto message = [](auto&& call) -> std::string {
        try {
            call();
        } catch (const InvalidArgument& error) {
            return error.what();
        }
        return "nothing thrown";
    };
    const SummaryOptions three{.tokens = 3};
    EXPECT_NE(message([&] { BlockScorer<>(StockSummary(), three, 64, 16); }).find("3"), std::string::npos);
    EXPECT_NE(message([&] { BlockScorer<>(StockSummary(), {}, 100, 16); }).find("100"), std::string::npos);
    EXPECT_NE(message([&] { BlockScorer<>(StockSummary(), {}, 64, 24); }).find("24"), std::string::npos);
    EXPECT_NE(message([&] { BlockScorer<>(StockSummary(SummaryKind::kMean), {}, 64, 16); }).find("kind"),
              std::string::npos);
    const BlockScorer<> scorer(StockSummary(), {}, 64, 16);
    auto group = lines(scorer.layout().native_bytes());
    const std::vector<float> keys(3 * 64);
    EXPECT_NE(message([&] {
                  scorer.write_sub_block(at(group), 0, {keys.data(), 3, 64, 64});
              }).find("3"),
              std::string::npos);
    EXPECT_NE(message([&] {
                  scorer.write_sub_block(at(group), 64, {keys.data(), 2, 64, 64});
              }).find("64"),
              std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Tables, SummaryCases, every_table(), table_name);

} // namespace
} // namespace oasis::tests
