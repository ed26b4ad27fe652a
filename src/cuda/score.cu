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
    void (*launch)(Queue, const detail::ScoreArgs&, std::int32_t);
};

constexpr Entry kKernels[] = {
    {64, SummaryCode::kInt4, true, detail::launch_score<64, SummaryCode::kInt4, true>},
    {128, SummaryCode::kInt4, true, detail::launch_score<128, SummaryCode::kInt4, true>},
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

std::string describe(std::int32_t channels, SummaryCode code, bool spread)
{
    return detail::text(channels, " channels in ", name(code), spread ? " with spread" : " without spread");
}

const Entry& find(const SummaryLayout& layout)
{
    const std::int32_t blocks = layout.blocks_per_group();
    std::string supported;
    for (const Entry& entry : kKernels) {
        if (entry.channels == layout.channels() && entry.code == layout.options.code && entry.spread == layout.spread && (blocks == 4 || blocks == 8 || blocks == 16)) {
            return entry;
        }
        supported += (supported.empty() ? "" : "; ") + describe(entry.channels, entry.code, entry.spread);
    }
    throw Unsupported(detail::text("enqueue_score: no kernel for ", describe(layout.channels(), layout.options.code, layout.spread), ", sub-blocks of ",
                                   layout.options.tokens, " tokens in blocks of ", layout.block_tokens, " (channels: planes * head_dim). There are kernels for ", supported,
                                   "; each with 4, 8 or 16 sub-blocks' worth of blocks in a group, that is block / sub-block of 16, 8 or 4."));
}

void validate(const SummaryLayout& layout, const ScoreParams& p)
{
    using detail::expects;
    expects(p.sequences >= 0 && p.sequences <= kMaxScoreSequences, "enqueue_score: ", p.sequences, " sequences, expected up to ", kMaxScoreSequences);
    expects(p.rows >= 1 && p.group >= 1 && p.kv_heads >= 1, "enqueue_score: ", p.rows, " rows, ", p.kv_heads, " KV heads, group ", p.group);
    expects(std::int64_t(p.rows) * p.group <= kMaxScoreColumns, "enqueue_score: ", p.rows, " rows of ", p.group, " query heads, expected up to ", kMaxScoreColumns, " together");
    expects(p.q_row_stride % 2 == 0 && p.q_row_stride >= std::int64_t(p.kv_heads) * p.group * layout.head_dim, "enqueue_score: q_row_stride is ", p.q_row_stride);
    expects(p.mass_stride > 0, "enqueue_score: mass_stride is ", p.mass_stride);
    expects(p.recent >= 0 && p.window >= 0, "enqueue_score: recent is ", p.recent, ", window ", p.window);
    for (const SummaryTable* table : {&p.coded, &p.native}) {
        expects(table->group_bytes % 128 == 0 && table->head_bytes % 128 == 0 && reinterpret_cast<std::uintptr_t>(table->base) % 128 == 0,
                "enqueue_score: groups at ", static_cast<const void*>(table->base), " with strides ", table->group_bytes, " and ", table->head_bytes,
                " are not aligned to 128 bytes");
    }
}

} // namespace

void enqueue_score(Queue queue, const SummaryLayout& layout, const ScoreParams& params)
{
    const Entry& entry = find(layout);
    validate(layout, params);
    if (params.sequences == 0) { return; }
    entry.launch(queue,
                 {.params = params,
                  .planes = layout.planes,
                  .tokens = layout.options.tokens,
                  .log2_tokens = std::log2(static_cast<float>(layout.options.tokens)),
                  .tail_bytes = static_cast<std::int64_t>(layout.tail_bytes())},
                 layout.blocks_per_group());
}

} // namespace oasis::cuda
