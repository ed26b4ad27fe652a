// SPDX-License-Identifier: Apache-2.0
//
// Drafts: what the sources propose, and that no draft ever shows in what is written or in what the cache holds.
#include "app/decoding.hpp"
#include "app/sampler.hpp"
#include "app/tasks.hpp"
#include "decoder/fake_cache.hpp"
#include "decoder/support.hpp"
#include "model/chat.hpp"

#include <memory>

namespace oasis_decode::test {
namespace {

std::vector<TokenId> proposed(Drafter& drafter, TokenId next, std::int32_t most, double floor = 0)
{
    std::vector<TokenId> out;
    for (const Draft& draft : drafter.propose(next, most, floor)) { out.push_back(draft.token); }
    return out;
}

std::vector<TokenId> looked_up(const std::vector<TokenId>& text, TokenId next, std::int32_t most, double floor = 0)
{
    LookupDrafter drafter;
    drafter.observe(text, {});
    return proposed(drafter, next, most, floor);
}

using Ids = std::vector<TokenId>;

TEST(LookupDrafter, CopiesWhatFollowedTheSameTokens)
{
    EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 6, 9, 1, 2}, 3, 3), (Ids{4, 5, 6}));
    EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 6, 9, 1, 2}, 3, 1), (Ids{4}));
    EXPECT_EQ(looked_up({1, 2, 3}, 4, 4), Ids{}) << "nothing occurred before";
    EXPECT_EQ(looked_up({}, 4, 4), Ids{});
    EXPECT_EQ(looked_up({1, 2, 1}, 2, 0), Ids{});
}

TEST(LookupDrafter, TheLongestAgreementWinsThenTheLast)
{
    EXPECT_EQ(looked_up({1, 2, 3, 50, 7, 2, 3, 60, 3, 70, 1, 2}, 3, 1), (Ids{50})) << "three tokens, though older";
    EXPECT_EQ(looked_up({2, 3, 50, 7, 2, 3, 60, 3, 70, 8, 2}, 3, 1), (Ids{60})) << "two tokens, the last time";
    EXPECT_EQ(looked_up({0, 1, 2, 3, 50, 9, 1, 2, 3, 60, 0, 1, 2}, 3, 1), (Ids{60})) << "a fourth token counts nothing";
}

TEST(LookupDrafter, PeriodsGoOn)
{
    EXPECT_EQ(looked_up({5, 6, 5}, 6, 5), (Ids{5, 6, 5, 6, 5}));
    EXPECT_EQ(looked_up({7}, 7, 3), (Ids{7, 7, 7}));
}

TEST(LookupDrafter, TheFloorAsksForLongerAgreement)
{
    const Ids text{1, 2, 30, 9, 2};
    EXPECT_EQ(looked_up(text, 30, 1, 0.5), (Ids{9})) << "two of three tokens agree";
    EXPECT_EQ(looked_up(text, 30, 1, 0.7), Ids{});
}

TEST(LookupDrafter, SeesWhatIsObservedLaterAndForgetsWhatWasOnlyProposedTo)
{
    LookupDrafter drafter;
    drafter.observe(Ids{1, 2, 3}, {});
    EXPECT_EQ(proposed(drafter, 9, 2), Ids{});
    drafter.observe(Ids{8, 4}, {});
    EXPECT_EQ(proposed(drafter, 9, 2), Ids{}) << "9 never stood";
    EXPECT_EQ(proposed(drafter, 8, 2), (Ids{4, 8}));
}

TEST(OracleDrafter, KnowsTheTextAndNoMore)
{
    OracleDrafter drafter({1, 2, 3, 4, 5});
    drafter.observe(Ids{1, 2}, {});
    EXPECT_EQ(proposed(drafter, 3, 7), (Ids{4, 5}));
    EXPECT_THROW(static_cast<void>(proposed(drafter, 4, 7)), oasis::InvalidArgument);
}

TEST(DraftStats, CountsByIndex)
{
    DraftStats a{.verifications = 2, .tokens = 5, .drafted = 4, .judged = {2, 1}, .accepted = {1, 1}};
    a.add({.verifications = 2, .tokens = 3, .drafted = 4, .judged = {2}, .accepted = {2}});
    EXPECT_DOUBLE_EQ(a.tokens_per_verification(), 2.0);
    EXPECT_EQ(a.acceptance(), (std::vector<double>{0.75, 1.0}));
    EXPECT_TRUE(std::isnan(DraftStats{}.tokens_per_verification()));
}

/// Proposes tokens that differ from those of a text: every draft is rejected.
class WrongDrafter final : public Drafter {
public:
    WrongDrafter(Ids text, std::size_t vocabulary) : oracle_(std::move(text)), vocabulary_(vocabulary) {}
    void observe(std::span<const TokenId> tokens, std::span<const float> residuals) override
    {
        oracle_.observe(tokens, residuals);
    }
    std::span<const Draft> propose(TokenId next, std::int32_t most, double floor) override
    {
        drafts_.clear();
        for (Draft draft : oracle_.propose(next, most, floor)) {
            draft.token = static_cast<TokenId>((static_cast<std::size_t>(draft.token) + 1) % vocabulary_);
            drafts_.push_back(draft);
        }
        return drafts_;
    }

private:
    OracleDrafter oracle_;
    std::size_t vocabulary_;
    std::vector<Draft> drafts_;
};

std::unique_ptr<Engine> open(const std::filesystem::path& path)
{
    return std::make_unique<Engine>(load_model(path), std::size_t{2}, real_maker());
}

/// A prompt and what all ways of going on from it share.
struct Start {
    Ids ids;
    KvStore store;
    std::vector<float> logits;

    Start(Engine& engine, Ids prompt)
        : ids(std::move(prompt)),
          store(engine.config().shape(), static_cast<std::int64_t>(ids.size()), engine.config().hidden)
    {
        Session session(engine,
                        dense_config({}, engine.config().shape(), static_cast<std::int64_t>(ids.size()), kChunkRows));
        session.prefill(ids, &store);
        const std::span<const float> last = session.last_logits();
        logits.assign(last.begin(), last.end());
    }
};

/// What is left when a text was written: it, and what the cache answers afterwards.
struct Outcome {
    Ids text;
    std::vector<float> probes; ///< logits of a few fixed tokens, decoded after it
    std::uint64_t sealed = 0;
    std::int64_t blocks = 0;
    std::size_t native_bytes = 0;
    Usage usage;
};

struct Way {
    Settings settings;
    std::int64_t tokens = 24;
    double temperature = 0;
    std::uint64_t seed = 0;
};

Outcome write(Engine& engine, const Start& start, const Way& way, Drafting drafting)
{
    constexpr std::int64_t kProbes = 3;
    const auto prompt = static_cast<std::int64_t>(start.ids.size());
    Session session(engine,
                    {to_config(way.settings, engine.config().shape(), prompt + way.tokens + kProbes, kChunkRows)},
                    std::move(drafting));
    session.ingest(start.store);
    Sampler sampler(way.temperature, 1.0, way.seed);
    Outcome out;
    const auto choose = [&](std::span<const float> logits) -> Decoding::Choice {
        out.text.push_back(sampler.pick(logits, prompt + static_cast<std::int64_t>(out.text.size())));
        return {out.text.back(), false};
    };
    static_cast<void>(choose(start.logits));
    Decoding decoding(session);
    while (static_cast<std::int64_t>(out.text.size()) < way.tokens) {
        decoding.step(out.text.back(), way.tokens - static_cast<std::int64_t>(out.text.size()), choose);
    }
    out.usage = decoding.usage();
    EXPECT_EQ(session.length(), prompt + way.tokens - 1);
    for (std::int64_t i = 0; i < kProbes; ++i) {
        const auto token = static_cast<TokenId>(100 + i);
        const std::span<const float> logits = session.decode(std::span(&token, 1));
        out.probes.insert(out.probes.end(), logits.begin(), logits.end());
    }
    const oasis::Stats stats = session.stats();
    out.sealed = stats.counters.sealed_blocks;
    out.blocks = stats.blocks;
    out.native_bytes = stats.native_bytes;
    return out;
}

void expect_same(const Outcome& plain, const Outcome& drafted)
{
    EXPECT_EQ(plain.text, drafted.text);
    EXPECT_EQ(plain.probes, drafted.probes) << "the cache answers otherwise after the text";
    EXPECT_EQ(plain.sealed, drafted.sealed);
    EXPECT_EQ(plain.blocks, drafted.blocks);
    EXPECT_EQ(plain.native_bytes, drafted.native_bytes);
    EXPECT_EQ(plain.usage.rows, drafted.usage.rows);
}

/// Selection from the first token on, within a fraction of a short text.
Settings narrow()
{
    Settings s;
    s.attend_budget = 128;
    s.fetch_budget = 64;
    s.sink = 16;
    s.recent = 16;
    s.dense_below = 0;
    return s;
}

class Lossless : public testing::Test {
protected:
    static void SetUpTestSuite()
    {
        engine_ = open(folder());
        const Tokenizer& tokenizer = engine_->model->tokenizer;
        const TokenCount count = [&](std::string_view text) { return tokenizer.encode(text).size(); };
        Ids prompt = tokenizer.encode_prompt(generate_task("kv_dense", 1024, 1, 0, count).prompt);
        prompt.erase(prompt.begin(), prompt.end() - 400); // its end will do
        start_ = std::make_unique<Start>(*engine_, std::move(prompt));
    }
    static void TearDownTestSuite()
    {
        start_.reset();
        engine_.reset();
    }
    static std::filesystem::path folder() { return data_dir() / "retrieval-14m"; }

    Outcome with(const Way& way, DraftSource source, std::int32_t tokens = 4)
    {
        Settings s = way.settings;
        s.draft = source;
        s.draft_tokens = tokens;
        Way drafted = way;
        drafted.settings = s;
        return write(*engine_, *start_, drafted,
                     make_drafting(*engine_, s, folder(), static_cast<std::int64_t>(start_->ids.size()) + way.tokens));
    }

    static inline std::unique_ptr<Engine> engine_;
    static inline std::unique_ptr<Start> start_;
};

TEST_F(Lossless, GreedyTextIsTheSameWhateverIsDrafted)
{
    const Way way{.settings = narrow(), .tokens = 60};
    const Outcome plain = with(way, DraftSource::kNone);
    EXPECT_TRUE(std::isnan(plain.usage.drafts.tokens_per_verification()));
    EXPECT_GT(plain.usage.attended_tokens, 0) << "the text is to be decoded sparsely";
    for (const DraftSource source : {DraftSource::kLookup, DraftSource::kMtp}) {
        for (const std::int32_t tokens : {0, 1, 4, 7}) {
            SCOPED_TRACE(word(source) + " " + std::to_string(tokens));
            const Outcome drafted = with(way, source, tokens);
            expect_same(plain, drafted);
            if (tokens == 0) { EXPECT_EQ(drafted.usage.drafts.drafted, 0); }
            if (tokens == 4 && source == DraftSource::kMtp) {
                EXPECT_GT(drafted.usage.drafts.tokens_per_verification(), 2.0);
            }
        }
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 4; // what sanitizers look for does not depend on the seed
#else
constexpr std::uint64_t kSeeds = 100;
#endif

TEST_F(Lossless, SampledTextIsTheSameForAHundredSeeds)
{
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        SCOPED_TRACE(seed);
        Way way{.settings = narrow(), .tokens = 16, .temperature = seed % 2 ? 0.6 : 1.0, .seed = seed};
        way.settings.lookahead = seed % 3 ? oasis::LookaheadSource::kRows : oasis::LookaheadSource::kSame;
        const Outcome plain = with(way, DraftSource::kNone);
        expect_same(plain, with(way, DraftSource::kMtp));
        expect_same(plain, with(way, DraftSource::kLookup));
        if (HasFailure()) { return; }
    }
}

TEST_F(Lossless, DraftsThatAreAlwaysWrongAndAlwaysRightLeaveTheSameState)
{
    const auto vocabulary = engine_->vocabulary();
    for (const std::int32_t recent : {16, 64}) {
        Way way{.settings = narrow(), .tokens = 50};
        way.settings.recent = recent;
        way.settings.fetch_budget = 128;
        const Outcome plain = with(way, DraftSource::kNone);
        Ids text = start_->ids;
        text.insert(text.end(), plain.text.begin(), plain.text.end());
        for (const bool ahead : {false, true}) {
            SCOPED_TRACE(std::to_string(recent) + (ahead ? " with a row ahead" : ""));
            way.settings.draft = DraftSource::kOracle; // the cap follows it
            const Outcome right =
                write(*engine_, *start_, way,
                      {.drafter = std::make_unique<OracleDrafter>(text), .tokens = 7, .lookahead_rows = ahead});
            expect_same(plain, right);
            EXPECT_EQ(right.usage.drafts.verifications, 6);
            EXPECT_EQ(right.usage.drafts.tokens, 48);
            const Outcome wrong = write(
                *engine_, *start_, way,
                {.drafter = std::make_unique<WrongDrafter>(text, vocabulary), .tokens = 7, .lookahead_rows = ahead});
            expect_same(plain, wrong);
            EXPECT_DOUBLE_EQ(wrong.usage.drafts.tokens_per_verification(), 1.0);
            EXPECT_EQ(wrong.usage.drafts.acceptance(), std::vector<double>{0.0});
        }
    }
}

TEST_F(Lossless, ForcedRowsHaveTheSameLogitsWhateverIsDrafted)
{
    const Settings base = narrow();
    const Outcome plain = with({.settings = base, .tokens = 40}, DraftSource::kNone);
    Ids text = start_->ids;
    Ids rows(plain.text);
    rows[10] = 7; // the true text need not be what the model chooses
    text.insert(text.end(), rows.begin(), rows.end());
    const auto context = static_cast<std::int64_t>(text.size());
    std::vector<std::vector<float>> expected;
    for (const DraftSource source :
         {DraftSource::kNone, DraftSource::kLookup, DraftSource::kMtp, DraftSource::kOracle}) {
        SCOPED_TRACE(word(source));
        Settings s = base;
        s.draft = source;
        Session session(*engine_, {to_config(s, engine_->config().shape(), context, kChunkRows)},
                        make_drafting(*engine_, s, folder(), context, text));
        session.ingest(start_->store);
        std::vector<std::vector<float>> seen;
        const Usage usage = decode_forced(session, rows, 1, [&](std::size_t row, std::span<const float> logits) {
            ASSERT_EQ(row, seen.size());
            seen.emplace_back(logits.begin(), logits.end());
        });
        EXPECT_EQ(usage.rows, 40);
        if (source == DraftSource::kNone) {
            expected = seen;
        } else {
            EXPECT_EQ(seen, expected);
            EXPECT_GT(usage.drafts.verifications, 0);
        }
        if (source == DraftSource::kOracle) { EXPECT_EQ(usage.drafts.verifications, 8); } // 39 rows, 5 a step
    }
}

TEST_F(Lossless, DraftsThatHardlyStandArePaused)
{
    Way way{.settings = narrow(), .tokens = 80};
    const Outcome plain = with(way, DraftSource::kNone);
    Ids text = start_->ids;
    text.insert(text.end(), plain.text.begin(), plain.text.end());
    for (const bool right : {false, true}) {
        Drafting drafting{.drafter = nullptr, .tokens = 1, .gated = true};
        if (right) {
            drafting.drafter = std::make_unique<OracleDrafter>(text);
        } else {
            drafting.drafter = std::make_unique<WrongDrafter>(text, engine_->vocabulary());
        }
        const Outcome drafted = write(*engine_, *start_, way, std::move(drafting));
        expect_same(plain, drafted);
        const DraftStats& drafts = drafted.usage.drafts;
        if (right) {
            EXPECT_EQ(drafts.drafted, drafts.verifications);
        } else {
            EXPECT_GT(drafts.drafted, 12) << "some are tried, then one now and then";
            EXPECT_LT(drafts.drafted, 20);
            EXPECT_EQ(drafts.verifications, drafts.drafted);
            EXPECT_EQ(drafted.usage.steps, 79);
        }
    }
}

TEST_F(Lossless, AFloorThatNoDraftReachesDraftsNothing)
{
    const Way way{.settings = narrow(), .tokens = 20};
    const Outcome plain = with(way, DraftSource::kNone);
    const auto context = static_cast<std::int64_t>(start_->ids.size()) + way.tokens;
    Drafting drafting{.drafter = std::make_unique<MtpDrafter>(*engine_, engine_->head(mtp_beside(folder())), context),
                      .tokens = 4,
                      .floor = 1.1,
                      .lookahead_rows = 1};
    const Outcome drafted = write(*engine_, *start_, way, std::move(drafting));
    expect_same(plain, drafted);
    EXPECT_EQ(drafted.usage.drafts.drafted, 0);
    EXPECT_DOUBLE_EQ(drafted.usage.drafts.tokens_per_verification(), 1.0);
}

TEST(LosslessLong, ChatAnswersAreTheSameWhateverIsDrafted)
{
    if (!long_tests()) { GTEST_SKIP() << "takes long: set OASIS_LONG_TESTS=1 for answers of SmolLM2"; }
    if (smollm2_path().empty()) { GTEST_SKIP() << kNeedsSmolLM2; }
    const std::unique_ptr<Engine> engine = open(smollm2_path());
    const std::vector<ChatMessage> question{{"user", "Give me a recipe for a simple vegetable soup."}};
    const Start start(*engine, Chat(engine->model->tokenizer).encode(question));
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(seed);
        Way way{.settings = narrow(), .tokens = 64, .temperature = seed ? 0.8 : 0.0, .seed = seed};
        const Outcome plain = write(*engine, start, way, {});
        for (const char* source : {"mtp", "lookup"}) {
            set(way.settings, "draft",
                std::string(source) +
                    (source == std::string("mtp") ? ":" + (data_dir() / "smollm2-135m/mtp.safetensors").string() : ""));
            expect_same(plain, write(*engine, start, way, make_drafting(*engine, way.settings, smollm2_path(), 256)));
        }
    }
}

} // namespace
} // namespace oasis_decode::test
