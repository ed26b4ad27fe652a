// SPDX-License-Identifier: Apache-2.0
//
// What a piece costs in each slow tier: copies in RAM, pieces over a throttled link, pieces of a file.

#include <oasis/tier/any_store.hpp>
#include <oasis/tier/file_store.hpp>
#include <oasis/tier/throttled_store.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace oasis;

constexpr std::int32_t kLayers = 8;

/// A store that is full and was written.
template <class Store>
std::unique_ptr<Store> filled(std::unique_ptr<Store> store, std::size_t unit, std::int32_t blocks)
{
    std::vector<std::byte> bytes(unit, std::byte{1});
    for (std::int32_t b = 0; b < blocks; ++b) {
        bool done = store->reserve(BlockId{b});
        for (LayerId l = 0; l < kLayers && done; ++l) { done = store->write({BlockId{b}, l, 0, bytes.data()}); }
        if (!done) { std::abort(); }
    }
    return store;
}

StoreOptions shape(std::size_t unit, std::int32_t blocks)
{
    return {.unit_bytes = unit, .layers = kLayers, .sets = 1, .capacity_bytes = unit * kLayers * std::size_t(blocks)};
}

/// Pieces of random blocks, by all threads of the benchmark. The first has made the store when the loop begins.
template <class Store>
void pieces(benchmark::State& state, const std::unique_ptr<Store>& store, std::size_t unit, std::int32_t blocks,
            bool write)
{
    std::vector<std::byte> bytes(unit, std::byte{2});
    std::mt19937 random(static_cast<unsigned>(state.thread_index()));
    // Threads keep to their own layers: no unit is written by two.
    const LayerId mine = state.thread_index() % kLayers;
    for (auto _ : state) {
        const StorePiece piece{BlockId{static_cast<std::int32_t>(random() % std::uint32_t(blocks))}, mine, 0,
                               bytes.data()};
        const bool done = write ? store->write(piece) : store->read(piece);
        if (!done) { state.SkipWithError("the store failed"); }
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(unit));
}

/// args: MiB in all
void BM_Ram(benchmark::State& state, bool write)
{
    constexpr std::size_t kUnit = 4096;
    static std::unique_ptr<RamStore> store;
    const auto blocks = static_cast<std::int32_t>((std::size_t(state.range(0)) << 20) / kUnit / kLayers);
    if (state.thread_index() == 0) { store = filled(std::make_unique<RamStore>(shape(kUnit, blocks)), kUnit, blocks); }
    pieces(state, store, kUnit, blocks, write);
}
BENCHMARK_CAPTURE(BM_Ram, read, false)->Arg(1)->Arg(256)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK_CAPTURE(BM_Ram, write, true)->Arg(1)->Arg(256)->Threads(1)->Threads(2)->UseRealTime();

/// args: rate in MB/s, latency in us, bytes of a piece. Four threads share the link; the time is that of all of them,
/// so that the bytes per second are what crossed it.
void BM_Throttled(benchmark::State& state)
{
    const auto unit = static_cast<std::size_t>(state.range(2));
    const ThrottleOptions link{.bytes_per_second = static_cast<double>(state.range(0)) * 1e6,
                               .latency = std::chrono::microseconds(state.range(1))};
    const auto store = filled(std::make_unique<ThrottledStore<>>(shape(unit, 16), link), unit, 16);
    const auto each = static_cast<int>(link.bytes_per_second * 0.4 / 4 / static_cast<double>(unit)); // 0.4 s
    for (auto _ : state) {
        std::vector<std::jthread> threads;
        for (LayerId t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                std::vector<std::byte> bytes(unit);
                for (int i = 0; i < each; ++i) { store->read({BlockId{i % 16}, t, 0, bytes.data()}); }
            });
        }
    }
    const double bytes = static_cast<double>(store->bytes_read());
    state.counters["of_the_rate"] = benchmark::Counter(bytes / link.bytes_per_second, benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Throttled)->ArgsProduct({{100, 1000, 2000}, {0, 20}, {4096, 65536}})->UseRealTime()->Iterations(1);

/// args: bytes of a piece. In the folder OASIS_BENCH_DIR, else in the temporary one.
void BM_File(benchmark::State& state, DirectIo direct_io)
{
    static std::unique_ptr<FileStore> store;
    const auto unit = static_cast<std::size_t>(state.range(0));
    const auto blocks = static_cast<std::int32_t>((std::size_t{16} << 20) / unit / kLayers);
    if (state.thread_index() == 0) {
        const char* folder = std::getenv("OASIS_BENCH_DIR");
        store =
            filled(std::make_unique<FileStore>(
                       shape(unit, blocks), FileStoreOptions{.path = folder ? folder : "/tmp", .direct_io = direct_io}),
                   unit, blocks);
        state.SetLabel(store->direct() ? "direct" : store->note());
    }
    pieces(state, store, unit, blocks, false);
}
BENCHMARK_CAPTURE(BM_File, direct, DirectIo::kAuto)->Arg(4096)->Arg(32768)->Threads(1)->Threads(4)->UseRealTime();
BENCHMARK_CAPTURE(BM_File, buffered, DirectIo::kOff)->Arg(4096)->Arg(32768)->Threads(1)->Threads(4)->UseRealTime();

} // namespace
