// SPDX-License-Identifier: Apache-2.0
//
// Which kernel scores which layout of summaries.
#include "cuda/score_launch.hpp"

#include <oasis/cuda/score_config.cuh>

#include <cmath>
#include <string>

namespace oasis::cuda {
namespace {

struct Entry {
    std::int32_t channels; ///< planes * head_dim
    SummaryCode code;
    bool spread;
    std::int32_t blocks; ///< of a group
    void (*launch)(Queue, const detail::ScoreArgs&);
};

template <int kChannels, SummaryCode kCode, bool kSpread, int kBlocks>
constexpr Entry entry{kChannels, kCode, kSpread, kBlocks, detail::launch_score<kChannels, kCode, kSpread, kBlocks>};

constexpr Entry kKernels[] = {
    entry<64, SummaryCode::kInt4, true, 4>,    entry<64, SummaryCode::kInt4, true, 8>,   entry<64, SummaryCode::kInt4, true, 16>,
    entry<128, SummaryCode::kInt4, true, 4>,   entry<128, SummaryCode::kInt4, true, 8>,  entry<128, SummaryCode::kInt4, true, 16>,
    entry<64, SummaryCode::kInt8, true, 8>,    entry<64, SummaryCode::kInt8, true, 16>,  entry<128, SummaryCode::kInt8, true, 8>,
    entry<128, SummaryCode::kInt8, true, 16>,  entry<64, SummaryCode::kF16, true, 8>,    entry<64, SummaryCode::kF16, true, 16>,
    entry<128, SummaryCode::kF16, true, 8>,    entry<128, SummaryCode::kF16, true, 16>,  entry<128, SummaryCode::kInt4, false, 8>,
    entry<128, SummaryCode::kInt4, false, 16>, entry<256, SummaryCode::kInt4, false, 8>, entry<256, SummaryCode::kInt4, false, 16>,
};

constexpr const char* name(SummaryCode code)
{
    switch (code) {
    case SummaryCode::kF32: return "f32";
    case SummaryCode::kF16: return "f16";
    case SummaryCode::kInt8: return "int8";
    case SummaryCode::kInt4: return "int4";
    }
    return "?";
}

std::string describe(std::int32_t channels, SummaryCode code, bool spread, std::int32_t blocks)
{
    return detail::text(channels, " channels in ", name(code), spread ? " with spread" : " without spread", ", ", blocks, " blocks");
}

const Entry& find(const SummaryLayout& layout)
{
    std::string supported;
    for (const Entry& kernel : kKernels) {
        if (kernel.channels == layout.channels() && kernel.code == layout.options.code && kernel.spread == layout.spread &&
            kernel.blocks == layout.blocks_per_group()) {
            return kernel;
        }
        supported += (supported.empty() ? "" : "; ") + describe(kernel.channels, kernel.code, kernel.spread, kernel.blocks);
    }
    throw Unsupported(detail::text("enqueue_score: no kernel for groups of ",
                                   describe(layout.channels(), layout.options.code, layout.spread, layout.blocks_per_group()),
                                   " (channels are planes * head_dim, here ", layout.planes, " * ", layout.head_dim,
                                   "; blocks 64 * sub-block / block, here 64 * ", layout.options.tokens, " / ", layout.block_tokens,
                                   "). There are kernels for ", supported, "."));
}

void validate(const SummaryLayout& layout, const ScoreParams& p)
{
    using detail::expects;
    expects(p.sequences >= 0 && p.sequences <= kMaxScoreSequences, "enqueue_score: ", p.sequences, " sequences, expected up to ",
            kMaxScoreSequences);
    expects(p.rows >= 1 && p.group >= 1 && p.kv_heads >= 1, "enqueue_score: ", p.rows, " rows, ", p.kv_heads, " KV heads, group ", p.group);
    expects(std::int64_t(p.rows) * p.group <= kMaxScoreColumns, "enqueue_score: ", p.rows, " rows of ", p.group,
            " query heads, expected up to ", kMaxScoreColumns, " together");
    expects(p.q_row_stride % 2 == 0 && p.q_row_stride >= std::int64_t(p.kv_heads) * p.group * layout.head_dim,
            "enqueue_score: q_row_stride is ", p.q_row_stride);
    expects(p.mass_stride > 0, "enqueue_score: mass_stride is ", p.mass_stride);
    expects(p.recent >= 0 && p.window >= 0, "enqueue_score: recent is ", p.recent, ", window ", p.window);
    for (const SummaryTable* table : {&p.coded, &p.native}) {
        expects(table->group_bytes % 128 == 0 && table->head_bytes % 128 == 0 && reinterpret_cast<std::uintptr_t>(table->base) % 128 == 0,
                "enqueue_score: groups at ", static_cast<const void*>(table->base), " with strides ", table->group_bytes, " and ",
                table->head_bytes, " are not aligned to 128 bytes");
    }
}

} // namespace

void enqueue_score(Queue queue, const SummaryLayout& layout, const ScoreParams& params)
{
    const Entry& kernel = find(layout);
    validate(layout, params);
    if (params.sequences == 0) { return; }
    kernel.launch(queue, {.params = params,
                          .planes = layout.planes,
                          .tokens = layout.options.tokens,
                          .log2_tokens = std::log2(static_cast<float>(layout.options.tokens)),
                          .tail_bytes = static_cast<std::int64_t>(layout.tail_bytes())});
}

} // namespace oasis::cuda
