// SPDX-License-Identifier: Apache-2.0
//
// What every CUDA benchmark shares: options, medians of graph replays, the HBM read rate of the same run, results as JSON.
//   cuda_<name>_bench [--json FILE] [--commit HASH] [--filter TEXT] [--repetitions N]
// For nvcc alone.
#pragma once

#include "cuda/graph.hpp" // of the tests

#include <oasis/cuda/device.hpp>
#include <oasis/cuda/memory.hpp>
#include <oasis/cuda/queue.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace oasis::cuda::bench {

struct Options {
    std::string command{};
    std::string json{};
    std::string commit = "unknown";
    std::string filter{};
    int repetitions = 30;

    Options(int argc, char** argv)
    {
        command = base_name(argv[0]);
        for (int i = 1; i < argc; ++i) {
            const std::string option = argv[i];
            if (i + 1 == argc) { refuse(option); }
            const std::string value = argv[++i];
            if (option != "--json" && option != "--commit") { command += " " + option + " " + value; } // what the numbers depend on
            if (option == "--json") {
                json = value;
            } else if (option == "--commit") {
                commit = value;
            } else if (option == "--filter") {
                filter = value;
            } else if (option == "--repetitions") {
                repetitions = std::max(1, std::atoi(value.c_str()));
            } else {
                refuse(option);
            }
        }
    }
    bool runs(const std::string& name) const { return name.find(filter) != std::string::npos; }

private:
    static std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }
    [[noreturn]] static void refuse(const std::string& option)
    {
        std::fprintf(stderr, "unknown option or missing value: %s\nusage: [--json FILE] [--commit HASH] [--filter TEXT] [--repetitions N]\n", option.c_str());
        std::exit(2);
    }
};

inline double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values.empty() ? 0.0 : 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

/// Rows of numbers by name, printed as they come and written as JSON at the end.
class Report {
public:
    explicit Report(Options options) : options_(std::move(options)), device_(supported_device()) {}

    void add(const std::string& name, std::initializer_list<std::pair<const char*, double>> numbers)
    {
        std::string row = "{\"name\": \"" + name + "\"";
        std::printf("%-48s", name.c_str());
        for (const auto& [key, value] : numbers) {
            char text[64];
            std::snprintf(text, sizeof(text), "%.6g", value);
            row += std::string(", \"") + key + "\": " + text;
            std::printf("  %s %s", key, text);
        }
        std::printf("\n");
        std::fflush(stdout);
        rows_.push_back(row + "}");
    }
    ~Report()
    {
        if (options_.json.empty()) { return; }
        std::ofstream out(options_.json);
        out << "{\"commit\": \"" << options_.commit << "\",\n \"command\": \"" << options_.command << "\",\n \"machine\": {\"gpu\": \"" << device_.name
            << "\", \"sm_count\": " << device_.sm_count << ", \"l2_bytes\": " << device_.l2_bytes << ", \"cuda\": " << CUDART_VERSION << ", \"cpu\": \"" << cpu_name() << "\", \"processors\": " << std::thread::hardware_concurrency() << "},\n \"repetitions\": "
            << options_.repetitions << ",\n \"results\": [\n";
        for (std::size_t i = 0; i < rows_.size(); ++i) { out << "  " << rows_[i] << (i + 1 < rows_.size() ? ",\n" : "\n"); }
        out << " ]}\n";
    }
    Report(const Report&) = delete;
    Report& operator=(const Report&) = delete;

private:
    static std::string cpu_name()
    {
        std::ifstream file("/proc/cpuinfo");
        for (std::string line; std::getline(file, line);) {
            if (line.starts_with("model name")) { return line.substr(line.find(':') + 2); }
        }
        return "unknown";
    }

    Options options_;
    DeviceInfo device_;
    std::vector<std::string> rows_;
};

/// A device copy of `values`, there when the call returns.
template <class T> DeviceBuffer<T> upload(Queue queue, const std::vector<T>& values)
{
    DeviceBuffer<T> buffer(values.size());
    enqueue_copy(queue, buffer.data(), std::span<const T>(values));
    queue.synchronize();
    return buffer;
}

using test::Graph;

/// Median microseconds of `run()`, which enqueues on `queue`, over `repetitions` after two to warm up; `before(i)` is enqueued
/// ahead of each one and not timed (flush the L2, rotate inputs).
template <class Run, class Before>
double median_us(Queue queue, int repetitions, Run&& run, Before&& before)
{
    Event begin(Event::Kind::kTimed);
    Event end(Event::Kind::kTimed);
    std::vector<double> times;
    for (int i = -2; i < repetitions; ++i) {
        before(i + 2);
        begin.record(queue);
        run();
        end.record(queue);
        end.synchronize();
        if (i >= 0) { times.push_back(1e3 * Event::milliseconds(begin, end)); }
    }
    return median(std::move(times));
}

/// As above for a graph of `enqueue()`.
template <class Enqueue, class Before>
double median_graph_us(Queue queue, int repetitions, Enqueue&& enqueue, Before&& before)
{
    Graph graph(queue, enqueue);
    return median_us(queue, repetitions, [&] { graph.enqueue(queue); }, before);
}

/// Writes a buffer of four times the L2, so that nothing of the inputs is left in it.
class L2Flush {
public:
    L2Flush() : buffer_(4 * device_info(current_device()).l2_bytes) {}
    void enqueue(Queue queue) { enqueue_fill(queue, buffer_.data(), buffer_.size(), 1); }

private:
    DeviceBuffer<> buffer_;
};

namespace detail {

/// Sums `count` uint4. Warps take tiles of `batches` x 4 KiB from an atomic counter, the next one while the loads are under way.
static __global__ void __launch_bounds__(512) stream_read(const uint4* data, std::size_t count, int batches, unsigned long long* tile, std::uint32_t* sink)
{
    const std::size_t tile_size = std::size_t(batches) * 256;
    const std::size_t lane = threadIdx.x % 32;
    const auto take = [&] { return lane == 0 ? atomicAdd(tile, 1ULL) : 0ULL; };
    std::uint32_t sum = 0;
    for (unsigned long long mine = take();;) {
        const std::size_t begin = __shfl_sync(0xFFFFFFFFU, mine, 0) * tile_size;
        if (begin + tile_size > count) { break; }
        mine = take();
        const uint4* from = data + begin + lane;
        for (int batch = 0; batch < batches; ++batch, from += 8 * 32) {
            uint4 x[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) { x[i] = from[i * 32]; }
#pragma unroll
            for (int i = 0; i < 8; ++i) { sum += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w; }
        }
    }
    if (sum == 0xFFFFFFFFU) { *sink = sum; }
}

/// The same without a counter: a CTA reads 64 KiB and is gone.
static __global__ void __launch_bounds__(512) read_once(const uint4* data, std::uint32_t* sink)
{
    const uint4* from = data + std::size_t(blockIdx.x) * 4096 + threadIdx.x;
    uint4 x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) { x[i] = from[i * 512]; }
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) { sum += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w; }
    if (sum == 0xFFFFFFFFU) { *sink = sum; }
}

} // namespace detail

/// A kernel that reads `bytes` of HBM and does nothing else: the ceiling of the run, and the neighbour of transfers.
class StreamRead {
public:
    explicit StreamRead(std::size_t bytes, int batches = 4, int ctas_per_sm = 2)
        : data_(bytes / 65536 * 4096), tile_(1), sink_(1), batches_(batches), ctas_(ctas_per_sm * device_info(current_device()).sm_count)
    {
    }
    std::size_t bytes() const { return data_.bytes(); }
    void enqueue(Queue queue)
    {
        enqueue_fill(queue, tile_.data(), 1, 0);
        detail::stream_read<<<ctas_, 512, 0, queue.stream()>>>(data_.data(), data_.size(), batches_, tile_.data(), sink_.data());
        check_launch("stream_read");
    }

private:
    DeviceBuffer<uint4> data_;
    DeviceBuffer<unsigned long long> tile_;
    DeviceBuffer<std::uint32_t> sink_;
    int batches_;
    int ctas_;
};

/// Batches of a tile and CTAs per SM that were found to read fast.
inline constexpr std::pair<int, int> kStreamShapes[] = {{4, 1}, {4, 2}, {16, 1}, {16, 2}, {64, 1}};

/// The most bytes per second that any of these kernels reads from HBM in this run, in GB/s.
inline double hbm_read_gbps(Queue queue, int repetitions, std::size_t bytes = std::size_t{4} << 30)
{
    double best = 0;
    const auto take = [&](double read, auto&& enqueue) { best = std::max(best, read / 1e3 / median_us(queue, repetitions, enqueue, [](int) {})); };
    for (const auto& [batches, per_sm] : kStreamShapes) {
        StreamRead read(bytes, batches, per_sm);
        take(double(read.bytes()), [&] { read.enqueue(queue); });
    }
    const DeviceBuffer<uint4> data(bytes / 65536 * 4096);
    const DeviceBuffer<std::uint32_t> sink(1);
    take(double(data.bytes()), [&] {
        detail::read_once<<<unsigned(data.size() / 4096), 512, 0, queue.stream()>>>(data.data(), sink.data());
        check_launch("read_once");
    });
    return best;
}

/// A benchmark's `main`: what fails is said, and the exit status is 1.
inline int run_bench(int argc, char** argv, void (*run)(const Options&))
{
    try {
        run(Options(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}

} // namespace oasis::cuda::bench
