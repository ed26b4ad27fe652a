// SPDX-License-Identifier: Apache-2.0
//
// Append, seal and close against the CPU backend: every byte must be the same.
#include "support.hpp"

#include <oasis/cpu/attend_kernels.hpp>
#include <oasis/cuda/append.hpp>
#include <oasis/score/block_scorer.hpp>

#include <cmath>
#include <tuple>

namespace oasis::cuda::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

struct Shape {
    DType dtype;
    std::int32_t head_dim;
    std::int32_t block_tokens;
    SummaryKind kind;
    std::int32_t tokens;
    SummaryCode code;
};

std::ostream& operator<<(std::ostream& out, const Shape& s)
{
    return out << name(s.dtype) << " d" << s.head_dim << " b" << s.block_tokens << " kind" << int(s.kind) << " t" << s.tokens << " code" << int(s.code);
}

const Shape kShapes[] = {
    {DType::kF16, 128, 16, SummaryKind::kSpread, 2, SummaryCode::kInt4},  {DType::kBF16, 128, 16, SummaryKind::kSpread, 4, SummaryCode::kInt4},
    {DType::kBF16, 80, 32, SummaryKind::kSpread, 2, SummaryCode::kInt8},  {DType::kF32, 64, 16, SummaryKind::kMinMax, 16, SummaryCode::kInt4},
    {DType::kF16, 256, 64, SummaryKind::kMinMax, 8, SummaryCode::kInt8},  {DType::kBF16, 96, 16, SummaryKind::kCuboid, 4, SummaryCode::kInt4},
    {DType::kF16, 64, 64, SummaryKind::kMean, 64, SummaryCode::kInt8},    {DType::kF32, 32, 16, SummaryKind::kSpread, 1, SummaryCode::kF16},
    {DType::kF32, 128, 32, SummaryKind::kMinMax, 4, SummaryCode::kF32},   {DType::kBF16, 256, 16, SummaryKind::kSpread, 2, SummaryCode::kF32},
};

class Append : public CudaTestWithParam<Shape> {
protected:
    Append()
        : head_block{GetParam().dtype, BlockCode::kInt8, GetParam().block_tokens, GetParam().head_dim},
          scorer(StockSummary(GetParam().kind), {.kind = GetParam().kind, .tokens = GetParam().tokens, .code = GetParam().code}, GetParam().head_dim, GetParam().block_tokens)
    {
    }

    /// Elements of the dtype; one in 500 is a value that breaks things.
    Bytes random_elements(std::size_t count, std::uint64_t seed) const
    {
        static const float kOdd[] = {NAN, INFINITY, -INFINITY, 0.0F, -0.0F, 65504.0F, -65519.0F, 3e38F, 1e-7F, -6e-8F, 1e-40F};
        std::mt19937_64 random(seed);
        std::normal_distribution<float> normal;
        Bytes bytes(count * size_of(head_block.dtype));
        for (std::size_t i = 0; i < count; ++i) {
            const float x = random() % 500 == 0 ? kOdd[random() % std::size(kOdd)] : normal(random) * std::exp2(float(random() % 12) - 6.0F);
            kernels().from_float(head_block.dtype, &x, 1, bytes.data() + i * size_of(head_block.dtype));
        }
        return bytes;
    }
    static const cpu::AttendKernels& kernels() { return cpu::scalar_attend_kernels(); }
    cpu::BlockFormat format() const { return {.dtype = head_block.dtype, .block_tokens = head_block.block_tokens, .head_dim = head_block.head_dim}; }

    /// `count` tokens of a head-block from `first` on, as floats.
    KeyRows keys(const std::uint8_t* native, std::int32_t first, std::int32_t count)
    {
        const auto d = std::size_t(head_block.head_dim);
        keys_.resize(std::size_t(count) * d);
        kernels().to_float(head_block.dtype, native + std::size_t(first) * d * size_of(head_block.dtype), keys_.size(), 1.0F, keys_.data());
        return {keys_.data(), count, head_block.head_dim, head_block.head_dim};
    }
    static std::byte* bytes(Bytes& data, std::size_t at) { return reinterpret_cast<std::byte*>(data.data()) + at; }
    static std::byte* bytes(const DeviceBuffer<std::uint8_t>& data) { return reinterpret_cast<std::byte*>(data.data()); }

    static void expect_same(const Bytes& mine, const Bytes& cpu, std::size_t record, const char* what)
    {
        ASSERT_EQ(mine.size(), cpu.size());
        std::size_t different = 0;
        for (std::size_t i = 0; i < cpu.size(); ++i) {
            if (mine[i] == cpu[i]) { continue; }
            if (++different <= 3) { ADD_FAILURE() << what << ": record " << i / record << " byte " << i % record << " is " << int(mine[i]) << ", on the CPU " << int(cpu[i]); }
        }
        EXPECT_EQ(different, 0U) << what << " of " << cpu.size();
    }

    HeadBlockLayout head_block;
    BlockScorer<> scorer;

private:
    std::vector<float> keys_;
};

TEST_P(Append, RowsSummariesAndTailsAreTheCpusBytes)
{
    constexpr std::int32_t kHeads = 3;
    constexpr std::int32_t kLayers = 2;
    constexpr LayerId kLayer = 1;
    const auto& summary = scorer.layout();
    const std::size_t row_bytes = std::size_t(head_block.head_dim) * size_of(head_block.dtype);
    const std::size_t cell = head_block.native_bytes() * kHeads * kLayers;
    const std::size_t group_cell = summary.native_bytes() * kHeads * kLayers;
    std::mt19937_64 random(GetParam().tokens * 1000 + head_block.head_dim);

    // Sequences of 1 to 40 rows that begin anywhere; two blocks hold what came before.
    std::vector<AppendRow> rows;
    struct Extent { TokenIndex begin; std::int32_t count; std::size_t blocks, first_block, groups, first_group; };
    std::vector<Extent> extents;
    std::size_t blocks = 0;
    std::size_t groups = 0;
    std::int32_t tails = 0;
    for (int s = 0; s < 9; ++s) {
        Extent e{};
        e.begin = TokenIndex(random() % 1000) + (s == 0 ? TokenIndex{1} << 33 : 0);
        e.count = s < 6 ? 1 + std::int32_t(random() % 8) : 40;
        const TokenIndex first = e.begin / head_block.block_tokens;
        e.blocks = std::size_t((e.begin + e.count - 1) / head_block.block_tokens - first + 1);
        e.first_block = blocks;
        const TokenIndex group = e.begin / summary.group_tokens();
        e.groups = std::size_t((e.begin + e.count - 1) / summary.group_tokens() - group + 1);
        e.first_group = groups;
        for (std::int32_t i = 0; i < e.count; ++i) {
            const TokenIndex p = e.begin + i;
            rows.push_back({.block = std::int64_t((e.first_block + std::size_t(p / head_block.block_tokens - first)) * cell),
                            .group = std::int64_t((e.first_group + std::size_t(p / summary.group_tokens() - group)) * group_cell),
                            .position = p, .rows_before = i, .tail = s < 6 ? tails++ : -1});
        }
        blocks += e.blocks;
        groups += e.groups;
        extents.push_back(e);
    }
    const std::size_t elements = rows.size() * kHeads * std::size_t(head_block.head_dim);
    const Bytes k = random_elements(elements, 1);
    const Bytes v = random_elements(elements, 2);
    Bytes native = random_elements(blocks * cell / size_of(head_block.dtype), 3);
    Bytes group_bytes = random_bytes(groups * group_cell, 4);
    Bytes tail_bytes(std::size_t(tails) * kHeads * summary.tail_bytes(), 0xFF);

    const auto d_k = upload(queue(), k);
    const auto d_v = upload(queue(), v);
    const auto d_native = upload(queue(), native);
    const auto d_groups = upload(queue(), group_bytes);
    const auto d_tails = upload(queue(), tail_bytes);
    const auto d_count = upload(queue(), std::vector<std::int32_t>{std::int32_t(rows.size())});
    auto padded = rows;
    padded.resize(rows.size() + 5, AppendRow{.block = INT64_MAX / 2}); // beyond the count: must not be looked at
    const auto d_rows = upload(queue(), padded);
    enqueue_append(queue(), {.k = d_k.data(), .v = d_v.data(), .head_block = head_block, .kv_heads = kHeads, .layer = kLayer, .rows = d_rows.data(),
                             .row_count = d_count.data(), .max_rows = std::int32_t(padded.size()), .native = bytes(d_native), .summary = summary,
                             .groups = bytes(d_groups), .tails = bytes(d_tails)});

    const auto at = [&](std::int64_t offset, std::int32_t head, std::size_t size) { return std::size_t(offset) + (std::size_t(kLayer) * kHeads + std::size_t(head)) * size; };
    for (std::int32_t head = 0; head < kHeads; ++head) {
        for (std::size_t r = 0; r < rows.size(); ++r) {
            const std::size_t to = at(rows[r].block, head, head_block.native_bytes()) + std::size_t(rows[r].position % head_block.block_tokens) * row_bytes;
            const std::size_t from = (r * kHeads + std::size_t(head)) * row_bytes;
            std::memcpy(native.data() + to, k.data() + from, row_bytes);
            std::memcpy(native.data() + head_block.native_v_offset() + to, v.data() + from, row_bytes);
        }
        for (const AppendRow& row : rows) {
            const auto in_sub_block = std::int32_t(row.position % summary.options.tokens) + 1;
            const auto token = std::int32_t(row.position % head_block.block_tokens);
            const std::uint8_t* block = native.data() + at(row.block, head, head_block.native_bytes());
            const KeyRows rows_of_it = keys(block, token - in_sub_block + 1, in_sub_block);
            if (in_sub_block == summary.options.tokens) {
                scorer.write_sub_block(bytes(group_bytes, at(row.group, head, summary.native_bytes())), std::int32_t(row.position / summary.options.tokens % 64), rows_of_it);
            } else if (row.tail >= 0) {
                scorer.write_tail(bytes(tail_bytes, (std::size_t(row.tail) * kHeads + std::size_t(head)) * summary.tail_bytes()), rows_of_it);
            }
        }
    }
    expect_same(download(queue(), d_native), native, head_block.native_bytes(), "native blocks");
    expect_same(download(queue(), d_groups), group_bytes, summary.native_bytes(), "groups");
    const Bytes mine = download(queue(), d_tails);
    // The padding of a tail is nobody's.
    const std::size_t used = sizeof(SummaryTail) + std::size_t(summary.channels()) * sizeof(float);
    Bytes cut_mine;
    Bytes cut_cpu;
    for (std::size_t t = 0; t * summary.tail_bytes() < mine.size(); ++t) {
        const auto begin = std::ptrdiff_t(t * summary.tail_bytes());
        cut_mine.insert(cut_mine.end(), mine.begin() + begin, mine.begin() + begin + std::ptrdiff_t(used));
        cut_cpu.insert(cut_cpu.end(), tail_bytes.begin() + begin, tail_bytes.begin() + begin + std::ptrdiff_t(used));
    }
    expect_same(cut_mine, cut_cpu, used, "tails");
}

TEST_P(Append, SealedBlocksAndTheirSummariesAreTheCpusBytes)
{
    const auto& summary = scorer.layout();
    constexpr std::size_t kBlocks = 37;
    Bytes native = random_elements(kBlocks * head_block.native_bytes() / size_of(head_block.dtype), 5);
    Bytes groups = random_bytes(kBlocks * summary.native_bytes(), 6);
    Bytes coded(kBlocks * head_block.int8_bytes(), 0xFF);
    std::vector<SealJob> jobs;
    const std::int32_t per_block = summary.sub_blocks_per_block();
    for (std::size_t i = 0; i < kBlocks; ++i) {
        // Blocks share groups, and one has none.
        jobs.push_back({.native = std::int64_t(i * head_block.native_bytes()), .coded = std::int64_t((kBlocks - 1 - i) * head_block.int8_bytes()),
                        .group = i == 9 ? -1 : std::int64_t(i / std::size_t(summary.blocks_per_group()) * summary.native_bytes()),
                        .first_sub_block = std::int32_t(i % std::size_t(summary.blocks_per_group())) * per_block});
    }
    const auto d_native = upload(queue(), native);
    const auto d_groups = upload(queue(), groups);
    const auto d_coded = upload(queue(), coded);
    const auto d_jobs = upload(queue(), jobs);
    const auto d_count = upload(queue(), std::vector<std::int32_t>{std::int32_t(jobs.size()) - 1});
    enqueue_seal(queue(), {.head_block = head_block, .summary = summary, .jobs = d_jobs.data(), .job_count = d_count.data(), .max_jobs = std::int32_t(jobs.size()),
                           .native = bytes(d_native), .coded = bytes(d_coded), .groups = bytes(d_groups)});
    jobs.pop_back(); // beyond the count
    Bytes back(head_block.native_bytes());
    for (const SealJob& job : jobs) {
        std::byte* to = bytes(coded, std::size_t(job.coded));
        kernels().encode_int8(format(), bytes(native, std::size_t(job.native)), head_block.block_tokens, to);
        std::memset(to + head_block.int8_tag_offset(), 0, head_block.int8_bytes() - head_block.int8_tag_offset());
        if (job.group < 0) { continue; }
        kernels().decode_int8(format(), to, bytes(back, 0));
        for (std::int32_t s = 0; s < per_block; ++s) {
            scorer.write_sub_block(bytes(groups, std::size_t(job.group)), job.first_sub_block + s, keys(back.data(), s * summary.options.tokens, summary.options.tokens));
        }
    }
    expect_same(download(queue(), d_coded), coded, head_block.int8_bytes(), "coded blocks");
    expect_same(download(queue(), d_groups), groups, summary.native_bytes(), "groups");

    auto plain = head_block;
    plain.code = BlockCode::kNative;
    const auto d_copy = poisoned<std::uint8_t>(queue(), native.size() + head_block.int8_bytes() * kBlocks);
    std::vector<SealJob> copies;
    for (std::size_t i = 0; i < kBlocks; ++i) { copies.push_back({.native = std::int64_t(i * plain.native_bytes()), .coded = std::int64_t(i * plain.native_bytes())}); }
    const auto d_copies = upload(queue(), copies);
    const auto d_all = upload(queue(), std::vector<std::int32_t>{std::int32_t(kBlocks)});
    enqueue_seal(queue(), {.head_block = plain, .jobs = d_copies.data(), .job_count = d_all.data(), .max_jobs = std::int32_t(kBlocks), .native = bytes(d_native), .coded = bytes(d_copy)});
    EXPECT_TRUE(download(queue(), static_cast<const std::uint8_t*>(d_copy.data()), native.size()) == native);
}

TEST_P(Append, ClosedGroupsAreTheCpusBytesAndBoundsStayBounds)
{
    const auto& summary = scorer.layout();
    const std::int32_t written[] = {64, 64, 64, 64, 63, 33, 32, 5, 1, 0};
    constexpr std::size_t kGroups = std::size(written);
    Bytes native = random_bytes(kGroups * summary.native_bytes(), 7); // what is not written is garbage
    std::vector<CloseJob> jobs;
    for (std::size_t g = 0; g < kGroups; ++g) {
        for (std::int32_t s = 0; s < written[g]; ++s) {
            const Bytes elements = random_elements(std::size_t(summary.options.tokens * summary.head_dim), g * 64 + std::size_t(s) + 100);
            // The second group is of one value, the third near zero with both signs of it.
            Bytes block(elements.size(), 0);
            if (g == 2) {
                for (std::size_t i = 0; i < block.size(); i += size_of(head_block.dtype)) { block[i + size_of(head_block.dtype) - 1] = (i + std::size_t(s)) % 3 ? 0x80 : 0; }
            }
            scorer.write_sub_block(bytes(native, g * summary.native_bytes()), s, keys(g == 1 || g == 2 ? block.data() : elements.data(), 0, summary.options.tokens));
        }
        jobs.push_back({.native = std::int64_t(g * summary.native_bytes()), .coded = std::int64_t(g * summary.coded_bytes()), .sub_blocks = written[g]});
    }
    Bytes coded(kGroups * summary.coded_bytes(), 0xFF);
    const auto d_native = upload(queue(), native);
    const auto d_coded = upload(queue(), coded);
    const auto d_jobs = upload(queue(), jobs);
    const auto d_count = upload(queue(), std::vector<std::int32_t>{std::int32_t(kGroups)});
    enqueue_close_groups(queue(), {.summary = summary, .jobs = d_jobs.data(), .job_count = d_count.data(), .max_jobs = std::int32_t(kGroups) + 7,
                                   .native = bytes(d_native), .coded = bytes(d_coded)});
    for (std::size_t g = 0; g < kGroups; ++g) { scorer.close_group(bytes(native, g * summary.native_bytes()), written[g], bytes(coded, g * summary.coded_bytes())); }
    const Bytes mine = download(queue(), d_coded);
    expect_same(mine, coded, summary.coded_bytes(), "coded groups");
    if (!summary.upper_bound || summary.plain()) { return; }
    const auto half = [](const std::uint8_t* from) {
        f16 x;
        std::memcpy(&x, from, 2);
        return double(to_float(x));
    };
    const std::uint8_t* first = mine.data(); // group 0, all written
    SummaryHeader header;
    std::memcpy(&header, first, sizeof(header));
    for (std::int32_t c = 0; c < summary.channels(); ++c) {
        const double scale = half(first + summary.scales_offset() + 2 * std::size_t(c));
        const double zero = half(first + summary.zeros_offset() + 2 * std::size_t(c));
        for (std::int32_t s = 0; s < 64; ++s) {
            if ((header.poisoned >> s) & 1U) { continue; }
            const auto slot = std::size_t(summary.slot(s));
            const std::uint8_t* codes = first + summary.codes_offset() + std::size_t(c) * summary.channel_bytes();
            const int code = GetParam().code == SummaryCode::kInt8 ? codes[slot] : slot < 32 ? codes[slot] & 15 : codes[slot - 32] >> 4;
            const double value = half(native.data() + sizeof(SummaryHeader) + std::size_t(c) * summary.native_channel_bytes() + 2 * slot);
            if (c < summary.head_dim) {
                ASSERT_GE(zero + scale * code, value) << "channel " << c << " sub-block " << s;
            } else {
                ASSERT_LE(zero + scale * code, value) << "channel " << c << " sub-block " << s;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Append, ::testing::ValuesIn(kShapes));

} // namespace
} // namespace oasis::cuda::test
