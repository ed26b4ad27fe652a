// SPDX-License-Identifier: Apache-2.0
//
// For the decoder's tests: temporary folders, writers of small model files, dense attention.
#pragma once

#include "model/llama.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace oasis_decode::test {

inline std::filesystem::path data_dir() { return OASIS_TEST_DATA_DIR; }

inline bool long_tests()
{
    const char* value = std::getenv("OASIS_LONG_TESTS");
    return value && std::string(value) == "1";
}

/// The GGUF of SmolLM2 in $OASIS_TEST_MODEL_DIR; empty when absent.
inline std::filesystem::path smollm2_path()
{
    const char* folder = std::getenv("OASIS_TEST_MODEL_DIR");
    if (!folder) { return {}; }
    const auto path = std::filesystem::path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf";
    return std::filesystem::exists(path) ? path : std::filesystem::path();
}

/// Why tests of SmolLM2 skip.
inline constexpr const char* kNeedsSmolLM2 =
    "needs SmolLM2-135M-Instruct.Q4_1.gguf in $OASIS_TEST_MODEL_DIR (scripts/run_tests.sh fetches it)";

/// A folder that goes away with its test.
class TemporaryFolder {
public:
    TemporaryFolder()
    {
        std::string pattern = (std::filesystem::temp_directory_path() / "oasis-decode-XXXXXX").string();
        if (!::mkdtemp(pattern.data())) { throw std::runtime_error("mkdtemp failed"); }
        path_ = pattern;
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes)
{
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_file(const std::filesystem::path& path)
{
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

template <class T> void put(std::string& out, T value)
{
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof value);
}

struct Float32Tensor {
    std::string name;
    std::vector<std::int64_t> shape; // outermost first
    std::vector<float> values;
};

inline std::string raw_bytes(const std::vector<float>& values)
{
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// Writes safetensors files; `header` may be changed before `str`.
struct SafetensorsWriter {
    Json header = Json::object();
    std::string data;

    void add(const Float32Tensor& tensor) { add_raw(tensor.name, tensor.shape, "F32", raw_bytes(tensor.values)); }
    void add_raw(const std::string& name, const std::vector<std::int64_t>& shape, const std::string& dtype,
                 const std::string& bytes)
    {
        header[name] = {
            {"dtype", dtype}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
        data += bytes;
    }
    std::string str() const { return with_header(header.dump()); }
    std::string with_header(const std::string& text) const
    {
        std::string out;
        put<std::uint64_t>(out, text.size());
        return out + text + data;
    }
};

/// Writes GGUF 3 files piece by piece; every field can be made wrong.
struct GgufWriter {
    struct Info {
        std::string name;
        std::vector<std::int64_t> shape;
        std::uint32_t type = 0;
        std::uint64_t offset = 0;
    };
    std::string keys;
    std::uint64_t key_count = 0;
    std::vector<Info> infos;
    std::string data;
    std::uint64_t alignment = 32;

    static void put_string(std::string& out, const std::string& text)
    {
        put<std::uint64_t>(out, text.size());
        out += text;
    }
    void begin_key(const std::string& name, std::uint32_t type)
    {
        put_string(keys, name);
        put<std::uint32_t>(keys, type);
        ++key_count;
    }
    void key_u32(const std::string& name, std::uint32_t value) { begin_key(name, 4), put(keys, value); }
    void key_f32(const std::string& name, float value) { begin_key(name, 6), put(keys, value); }
    void key_bool(const std::string& name, bool value) { begin_key(name, 7), put<std::uint8_t>(keys, value); }
    void key_string(const std::string& name, const std::string& value) { begin_key(name, 8), put_string(keys, value); }
    void key_strings(const std::string& name, const std::vector<std::string>& values)
    {
        begin_key(name, 9);
        put<std::uint32_t>(keys, 8);
        put<std::uint64_t>(keys, values.size());
        for (const auto& value : values) { put_string(keys, value); }
    }
    void add(const Float32Tensor& tensor) { add_raw(tensor.name, tensor.shape, 0, raw_bytes(tensor.values)); }
    void add_raw(const std::string& name, const std::vector<std::int64_t>& shape, std::uint32_t type,
                 const std::string& bytes)
    {
        data.resize((data.size() + 31) / 32 * 32);
        infos.push_back({name, shape, type, data.size()});
        data += bytes;
    }
    std::string head(std::uint64_t tensor_count, std::uint64_t keys_claimed) const
    {
        std::string out = "GGUF";
        put<std::uint32_t>(out, 3);
        put<std::uint64_t>(out, tensor_count);
        put<std::uint64_t>(out, keys_claimed);
        return out + keys;
    }
    std::string str() const
    {
        std::string out = head(infos.size(), key_count);
        for (const auto& info : infos) {
            put_string(out, info.name);
            put<std::uint32_t>(out, static_cast<std::uint32_t>(info.shape.size()));
            for (auto it = info.shape.rbegin(); it != info.shape.rend(); ++it) {
                put<std::uint64_t>(out, static_cast<std::uint64_t>(*it));
            }
            put<std::uint32_t>(out, info.type);
            put<std::uint64_t>(out, info.offset);
        }
        if (alignment) { out.resize((out.size() + alignment - 1) / alignment * alignment); }
        return out + data;
    }
};

/// Causal attention over everything before a row, for one sequence. K is kept transposed so that plain loops are quick.
class DenseAttention {
public:
    DenseAttention(const ModelConfig& config, oasis::Executor& executor, std::int64_t capacity)
        : config_(config), executor_(&executor), capacity_(capacity)
    {
        const auto cells =
            static_cast<std::size_t>(std::int64_t{config.layers} * config.kv_heads * config.head_dim * capacity);
        keys_.resize(cells);
        values_.resize(cells);
    }

    /// The rows of the next forward are at positions first, first + 1, ...
    Attention rows(std::int64_t first, std::int64_t count)
    {
        return [this, first, count](int layer, const float* q, const float* k, const float* v, float* out) {
            attend(layer, first, count, q, k, v, out);
        };
    }

    /// K of a position, [head_dim].
    std::vector<float> key(int layer, int head, std::int64_t position) const
    {
        std::vector<float> out;
        for (std::int64_t c = 0; c < config_.head_dim; ++c) {
            out.push_back(keys_[plane(layer, head) + static_cast<std::size_t>(c * capacity_ + position)]);
        }
        return out;
    }

private:
    std::size_t plane(int layer, std::int64_t head) const
    {
        return static_cast<std::size_t>((layer * std::int64_t{config_.kv_heads} + head) * config_.head_dim * capacity_);
    }

    void attend(int layer, std::int64_t first, std::int64_t count, const float* q, const float* k, const float* v,
                float* out)
    {
        const std::int64_t d = config_.head_dim;
        for (std::int64_t r = 0; r < count; ++r) {
            for (std::int64_t h = 0; h < config_.kv_heads; ++h) {
                for (std::int64_t c = 0; c < d; ++c) {
                    keys_[plane(layer, h) + static_cast<std::size_t>(c * capacity_ + first + r)] =
                        k[(r * config_.kv_heads + h) * d + c];
                    values_[plane(layer, h) + static_cast<std::size_t>((first + r) * d + c)] =
                        v[(r * config_.kv_heads + h) * d + c];
                }
            }
        }
        executor_->parallel_for(static_cast<std::size_t>(count * config_.q_heads), [&](std::size_t task) {
            const auto row = static_cast<std::int64_t>(task) / config_.q_heads;
            const auto head = static_cast<std::int64_t>(task) % config_.q_heads;
            const std::size_t at = task * static_cast<std::size_t>(d);
            one_row(plane(layer, head / (config_.q_heads / config_.kv_heads)), first + row + 1, q + at, out + at);
        });
    }

    void one_row(std::size_t base, std::int64_t tokens, const float* q, float* out) const
    {
        const std::int64_t d = config_.head_dim;
        thread_local std::vector<float> scores;
        scores.assign(static_cast<std::size_t>(tokens), 0.0F);
        float* const s = scores.data();
        constexpr std::int64_t kChunk = 512;
        for (std::int64_t begin = 0; begin < tokens; begin += kChunk) {
            const std::int64_t end = std::min(tokens, begin + kChunk);
            for (std::int64_t c = 0; c < d; ++c) {
                const float* const key = keys_.data() + base + static_cast<std::size_t>(c * capacity_);
                for (std::int64_t j = begin; j < end; ++j) { s[j] += q[c] * key[j]; }
            }
        }
        const float highest = *std::max_element(scores.begin(), scores.end());
        const float scale = 1.0F / std::sqrt(static_cast<float>(d));
        double total = 0;
        std::vector<float> sum(static_cast<std::size_t>(d), 0.0F);
        for (std::int64_t j = 0; j < tokens; ++j) {
            const float p = std::exp((s[j] - highest) * scale);
            total += static_cast<double>(p);
            const float* const value = values_.data() + base + static_cast<std::size_t>(j * d);
            for (std::int64_t c = 0; c < d; ++c) { sum[static_cast<std::size_t>(c)] += p * value[c]; }
        }
        for (std::int64_t c = 0; c < d; ++c) {
            out[c] = static_cast<float>(static_cast<double>(sum[static_cast<std::size_t>(c)]) / total);
        }
    }

    ModelConfig config_;
    oasis::Executor* executor_;
    std::int64_t capacity_;
    std::vector<float> keys_;   // [layer, kv head, d, capacity]
    std::vector<float> values_; // [layer, kv head, capacity, d]
};

/// One sequence through a model, dense.
class DenseRun {
public:
    DenseRun(std::shared_ptr<const LoadedModel> model, oasis::Executor& executor, int max_rows, std::int64_t capacity)
        : attention_(model->config, executor, capacity), llama_(model, executor, max_rows)
    {
    }

    void forward(std::span<const TokenId> tokens)
    {
        std::vector<std::int64_t> positions(tokens.size());
        std::iota(positions.begin(), positions.end(), next_);
        llama_.forward(tokens, positions, attention_.rows(next_, static_cast<std::int64_t>(tokens.size())));
        next_ += static_cast<std::int64_t>(tokens.size());
    }

    std::vector<float> logits(int row)
    {
        std::vector<float> out(static_cast<std::size_t>(llama_.model().config.vocab));
        llama_.logits(std::span(&row, 1), out);
        return out;
    }

    Llama& llama() { return llama_; }
    const DenseAttention& attention() const { return attention_; }
    std::int64_t next() const { return next_; }

private:
    DenseAttention attention_;
    Llama llama_;
    std::int64_t next_ = 0;
};

} // namespace oasis_decode::test
