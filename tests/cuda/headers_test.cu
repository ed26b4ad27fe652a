// SPDX-License-Identifier: Apache-2.0
//
// All kernels in one source, beside the library's sources that include them as well.
#include "support.hpp"

#include <oasis/cuda/append.cuh>
#include <oasis/cuda/attend.cuh>
#include <oasis/cuda/attend_loader.cuh>
#include <oasis/cuda/attend_reducer.cuh>
#include <oasis/cuda/attend_tile.cuh>
#include <oasis/cuda/attend_work.cuh>
#include <oasis/cuda/fetch.cuh>
#include <oasis/cuda/launch.cuh>
#include <oasis/cuda/ptx.cuh>
#include <oasis/cuda/resolve.cuh>
#include <oasis/cuda/resolve_bits.cuh>
#include <oasis/cuda/resolve_rows.cuh>
#include <oasis/cuda/score.cuh>
#include <oasis/cuda/score_coded.cuh>
#include <oasis/cuda/score_columns.cuh>
#include <oasis/cuda/score_config.cuh>
#include <oasis/cuda/score_native.cuh>
#include <oasis/cuda/score_reduce.cuh>
#include <oasis/cuda/score_tiles.cuh>
#include <oasis/cuda/seal.cuh>
#include <oasis/cuda/select.cuh>
#include <oasis/cuda/select_scores.cuh>
#include <oasis/cuda/summarise.cuh>
#include <oasis/cuda/warp.cuh>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace oasis::cuda::test {
namespace {

TEST(CudaHeaders, AllKernelsAreIncludedHere)
{
    std::ostringstream text;
    text << std::ifstream(OASIS_SOURCE_DIR "/tests/cuda/headers_test.cu").rdbuf();
    for (const auto& file : std::filesystem::directory_iterator(OASIS_SOURCE_DIR "/include/oasis/cuda")) {
        const std::string name = file.path().filename().string();
        if (file.path().extension() != ".cuh") { continue; }
        EXPECT_NE(text.str().find("#include <oasis/cuda/" + name + ">"), std::string::npos) << name;
    }
}

/// What a header defines beside templates is defined in every source that includes it: this one links with the library's.
TEST(CudaHeaders, LinkWithTheLibrarysSources)
{
    const Queue queue(reinterpret_cast<cudaStream_t>(0x1000)); // never reached
    EXPECT_THROW(enqueue_append(queue, {}), InvalidArgument);
    EXPECT_THROW(enqueue_close_groups(queue, {}), InvalidArgument);
    EXPECT_THROW(enqueue_fetch(queue, {}), InvalidArgument);
    EXPECT_THROW(enqueue_resolve(queue, {}), InvalidArgument);
    EXPECT_THROW(enqueue_select(queue, {}), InvalidArgument);
    const SummaryLayout other{
        .options = {SummaryKind::kSpread, 2, SummaryCode::kF32}, .planes = 1, .head_dim = 128, .block_tokens = 16};
    EXPECT_THROW(enqueue_score(queue, other, {}), Unsupported);
    EXPECT_THROW(AttendPlan({}), Unsupported);
}

} // namespace
} // namespace oasis::cuda::test
