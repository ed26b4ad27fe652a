// SPDX-License-Identifier: Apache-2.0
#include "append_fixture.hpp"

namespace oasis::cuda::test {
namespace {

class Seal : public CpuBytes {
protected:
    /// Of a group with all sub-blocks: what the code says is not inside what it was made from.
    void expect_bounds(const std::uint8_t* native, const std::uint8_t* coded) const
    {
        const auto& summary = scorer.layout();
        const auto half = [](const std::uint8_t* from) {
            f16 x;
            std::memcpy(&x, from, 2);
            return double(to_float(x));
        };
        SummaryHeader header;
        std::memcpy(&header, coded, sizeof(header));
        for (std::int32_t c = 0; c < summary.channels(); ++c) {
            const double scale = half(coded + summary.scales_offset() + 2 * std::size_t(c));
            const double zero = half(coded + summary.zeros_offset() + 2 * std::size_t(c));
            for (std::int32_t s = 0; s < 64; ++s) {
                if ((header.poisoned >> s) & 1U) { continue; }
                const auto slot = std::size_t(summary.slot(s));
                const std::uint8_t* codes = coded + summary.codes_offset() + std::size_t(c) * summary.channel_bytes();
                const int code = GetParam().code == SummaryCode::kInt8 ? codes[slot] : slot < 32 ? codes[slot] & 15 : codes[slot - 32] >> 4;
                const double value = half(native + sizeof(SummaryHeader) + std::size_t(c) * summary.native_channel_bytes() + 2 * slot);
                if (c < summary.head_dim) {
                    ASSERT_GE(zero + scale * code, value) << "channel " << c << " sub-block " << s;
                } else {
                    ASSERT_LE(zero + scale * code, value) << "channel " << c << " sub-block " << s;
                }
            }
        }
    }
};

TEST_P(Seal, BlocksAndTheirSummariesAreTheCpusBytes)
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
        jobs.push_back({.native = std::int64_t(i * head_block.native_bytes()),
                        .coded = std::int64_t((kBlocks - 1 - i) * head_block.int8_bytes()),
                        .group = i == 9 ? -1 : std::int64_t(i / std::size_t(summary.blocks_per_group()) * summary.native_bytes()),
                        .first_sub_block = std::int32_t(i % std::size_t(summary.blocks_per_group())) * per_block});
    }
    const auto d_native = upload(queue(), native);
    const auto d_groups = upload(queue(), groups);
    const auto d_coded = upload(queue(), coded);
    const auto d_jobs = upload(queue(), jobs);
    const auto d_count = upload(queue(), std::vector<std::int32_t>{std::int32_t(jobs.size()) - 1});
    enqueue_seal(queue(), {.head_block = head_block,
                           .summary = summary,
                           .jobs = d_jobs.data(),
                           .job_count = d_count.data(),
                           .max_jobs = std::int32_t(jobs.size()),
                           .native = bytes(d_native),
                           .coded = bytes(d_coded),
                           .groups = bytes(d_groups)});
    jobs.pop_back(); // beyond the count
    Bytes back(head_block.native_bytes());
    for (const SealJob& job : jobs) {
        std::byte* to = bytes(coded, std::size_t(job.coded));
        kernels().encode_int8(format(), bytes(native, std::size_t(job.native)), head_block.block_tokens, to);
        std::memset(to + head_block.int8_tag_offset(), 0, head_block.int8_bytes() - head_block.int8_tag_offset());
        if (job.group < 0) { continue; }
        kernels().decode_int8(format(), to, bytes(back, 0));
        for (std::int32_t s = 0; s < per_block; ++s) {
            scorer.write_sub_block(bytes(groups, std::size_t(job.group)), job.first_sub_block + s,
                                   keys(back.data(), s * summary.options.tokens, summary.options.tokens));
        }
    }
    expect_same(download(queue(), d_coded), coded, head_block.int8_bytes(), "coded blocks");
    expect_same(download(queue(), d_groups), groups, summary.native_bytes(), "groups");
}

TEST_P(Seal, NativeBlocksAreCopied)
{
    constexpr std::size_t kBlocks = 21;
    auto plain = head_block;
    plain.code = BlockCode::kNative;
    const Bytes native = random_bytes(kBlocks * plain.native_bytes(), 8);
    const auto d_native = upload(queue(), native);
    const auto d_copy = poisoned<std::uint8_t>(queue(), native.size());
    std::vector<SealJob> copies;
    for (std::size_t i = 0; i < kBlocks; ++i) {
        copies.push_back({.native = std::int64_t(i * plain.native_bytes()), .coded = std::int64_t(i * plain.native_bytes())});
    }
    const auto d_copies = upload(queue(), copies);
    const auto d_all = upload(queue(), std::vector<std::int32_t>{std::int32_t(kBlocks)});
    enqueue_seal(queue(), {.head_block = plain,
                           .jobs = d_copies.data(),
                           .job_count = d_all.data(),
                           .max_jobs = std::int32_t(kBlocks),
                           .native = bytes(d_native),
                           .coded = bytes(d_copy)});
    EXPECT_TRUE(download(queue(), d_copy) == native);
}

TEST_P(Seal, ClosedGroupsAreTheCpusBytesAndBoundsStayBounds)
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
                for (std::size_t i = 0; i < block.size(); i += size_of(head_block.dtype)) {
                    block[i + size_of(head_block.dtype) - 1] = (i + std::size_t(s)) % 3 ? 0x80 : 0;
                }
            }
            scorer.write_sub_block(bytes(native, g * summary.native_bytes()), s,
                                   keys(g == 1 || g == 2 ? block.data() : elements.data(), 0, summary.options.tokens));
        }
        jobs.push_back({.native = std::int64_t(g * summary.native_bytes()),
                        .coded = std::int64_t(g * summary.coded_bytes()),
                        .sub_blocks = written[g]});
    }
    Bytes coded(kGroups * summary.coded_bytes(), 0xFF);
    const auto d_native = upload(queue(), native);
    const auto d_coded = upload(queue(), coded);
    const auto d_jobs = upload(queue(), jobs);
    const auto d_count = upload(queue(), std::vector<std::int32_t>{std::int32_t(kGroups)});
    enqueue_close_groups(queue(), {.summary = summary,
                                   .jobs = d_jobs.data(),
                                   .job_count = d_count.data(),
                                   .max_jobs = std::int32_t(kGroups) + 7,
                                   .native = bytes(d_native),
                                   .coded = bytes(d_coded)});
    for (std::size_t g = 0; g < kGroups; ++g) {
        scorer.close_group(bytes(native, g * summary.native_bytes()), written[g], bytes(coded, g * summary.coded_bytes()));
    }
    const Bytes mine = download(queue(), d_coded);
    expect_same(mine, coded, summary.coded_bytes(), "coded groups");
    if (summary.upper_bound && !summary.plain()) { expect_bounds(native.data(), mine.data()); }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Seal, ::testing::ValuesIn(kShapes));

} // namespace
} // namespace oasis::cuda::test
