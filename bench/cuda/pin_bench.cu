// SPDX-License-Identifier: Apache-2.0
//
// How long a pinned host tier takes to set up, by page size, chunk and threads; cudaHostAlloc for comparison.
#include "cuda/harness.hpp"

#include <oasis/cuda/host_tier.hpp>

#include <chrono>

namespace oasis::cuda::bench {
namespace {

void run(const Options& options)
{
    Report report(options);
    const auto measure = [&](const std::string& name, const HostTierOptions& tier_options) {
        if (!options.runs(name)) { return; }
        std::vector<double> seconds;
        const int repetitions = std::min(3, options.repetitions);
        for (int i = 0; i < repetitions; ++i) {
            PinFailure failure;
            const auto tier = HostTier::try_create(tier_options, failure);
            if (!tier) {
                std::printf("%s: %s\n", name.c_str(), failure.reason.c_str());
                return;
            }
            seconds.push_back(tier->setup_seconds());
        }
        report.add(name, {{"gib", double(tier_options.bytes >> 30)},
                          {"seconds", median(seconds)},
                          {"gbps", 1e-9 * double(tier_options.bytes) / median(seconds)},
                          {"repetitions", repetitions}});
    };
    constexpr std::size_t kGiB = std::size_t{1} << 30;
    static_cast<void>(::cudaFree(nullptr));
    measure("pin/16GiB/huge/1GiB/8", {.bytes = 16 * kGiB, .threads = 8, .check_available = false});
    measure("pin/16GiB/huge/1GiB/4", {.bytes = 16 * kGiB, .threads = 4, .check_available = false});
    measure("pin/16GiB/huge/1GiB/16", {.bytes = 16 * kGiB, .threads = 16, .check_available = false});
    measure("pin/16GiB/huge/256MiB/8", {.bytes = 16 * kGiB, .chunk_bytes = kGiB / 4, .threads = 8, .check_available = false});
    measure("pin/16GiB/huge/4GiB/8", {.bytes = 16 * kGiB, .chunk_bytes = 4 * kGiB, .threads = 8, .check_available = false});
    measure("pin/16GiB/small/1GiB/8", {.bytes = 16 * kGiB, .threads = 8, .huge_pages = false, .check_available = false});
    if (options.runs("cudaHostAlloc/4GiB")) {
        const auto begin = std::chrono::steady_clock::now();
        const PinnedBuffer<> buffer(4 * kGiB);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        report.add(
            "cudaHostAlloc/4GiB",
            {{"gib", 4}, {"seconds", seconds}, {"gbps", 1e-9 * double(buffer.size()) / seconds}, {"repetitions", 1}});
    }
}

} // namespace
} // namespace oasis::cuda::bench

int main(int argc, char** argv) { return oasis::cuda::bench::run_bench(argc, argv, oasis::cuda::bench::run); }
