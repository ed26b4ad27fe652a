// SPDX-License-Identifier: Apache-2.0
//
// Random lists of head-blocks for the attention kernel, and what attention over them is in float64. Whatever no row may read is
// NaN: unused slots, unused places of a block, workspace and output.
#pragma once

#include "oracle/attention.hpp"
#include "support.hpp"

#include <oasis/cuda/attend.hpp>
#include <oasis/pool/head_block.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace oasis::cuda::test {

struct AttendShape {
    DType dtype = DType::kBF16;
    BlockCode code = BlockCode::kNative;
    std::int32_t head_dim = 64;
    std::int32_t group = 4;
    std::int32_t kv_heads = 2;
    std::int32_t block_tokens = 16;
    std::int32_t window = 0;
    std::int32_t recent = 40; ///< blocks that end later than this before a row are native for it
    double amplitude = 1.0;   ///< of V
};

/// A sequence's rows sit at first_position and after; each reads a block with probability `keep`, and its own always.
struct AttendSequence {
    std::int64_t first_position = 0;
    std::int32_t rows = 1;
    double keep = 1.0;
};

struct AttendResult {
    std::vector<float> out{};
    std::vector<float> lse{};
};

class AttendWorld {
public:
    AttendWorld(const AttendShape& shape, std::vector<AttendSequence> sequences, std::uint64_t seed, std::int32_t spare_blocks = 0)
        : shape_(shape),
          sequences_(std::move(sequences)),
          random_(seed),
          layout_{shape.dtype, shape.code, shape.block_tokens, shape.head_dim}
    {
        std::int64_t most = 1;
        row_starts_.push_back(0);
        for (const AttendSequence& s : sequences_) {
            most = std::max(most, s.rows ? 2 * blocks_of(s) : 0);
            row_starts_.push_back(row_starts_.back() + s.rows);
            first_positions_.push_back(s.first_position);
        }
        max_blocks_ = static_cast<std::int32_t>(most) + spare_blocks;
        const std::size_t lists = sequences_.size() * std::size_t(shape_.kv_heads);
        blocks_.resize(lists * std::size_t(max_blocks_));
        counts_.assign(lists, 0);
        reads_.resize(lists);
        for (std::size_t s = 0; s < sequences_.size(); ++s) {
            for (std::int32_t h = 0; h < shape_.kv_heads; ++h) { fill_list(s, h); }
        }
        scatter(slots_, false);
        scatter(native_, true);
        const std::size_t n = std::size_t(rows()) * std::size_t(q_heads()) * std::size_t(shape_.head_dim);
        for (std::size_t i = 0; i < n; ++i) { q_.push_back(rounded(2.0 * uniform())); }
    }

    /// One row of one sequence, as if there were no others.
    AttendWorld only(std::size_t sequence, std::int32_t row) const
    {
        AttendWorld one = *this;
        const bool had_one_row = sequences_[sequence].rows == 1;
        one.sequences_ = {{sequences_[sequence].first_position + row}};
        one.row_starts_ = {0, 1};
        one.first_positions_ = {one.sequences_[0].first_position};
        one.counts_.assign(std::size_t(shape_.kv_heads), 0);
        for (std::int32_t h = 0; h < shape_.kv_heads; ++h) {
            const std::size_t list = list_of(sequence, h);
            for (std::int32_t i = 0; i < counts_[list]; ++i) {
                AttendBlock block = blocks_[list * std::size_t(max_blocks_) + std::size_t(i)];
                if (!had_one_row && !((block.rows >> row) & 1)) { continue; }
                block.rows = 1;
                one.blocks_[std::size_t(h * max_blocks_ + one.counts_[std::size_t(h)]++)] = block;
            }
        }
        const auto n = std::ptrdiff_t(q_heads() * shape_.head_dim);
        one.q_.assign(q_.begin() + n * (row_starts_[sequence] + row), q_.begin() + n * (row_starts_[sequence] + row + 1));
        one.reads_.clear(); // for comparison with this world's own rows, not with the oracle
        return one;
    }

    std::int32_t rows() const { return row_starts_.back(); }
    std::int32_t kv_heads() const { return shape_.kv_heads; }
    std::int32_t q_heads() const { return shape_.group * shape_.kv_heads; }
    const std::vector<AttendSequence>& sequences() const { return sequences_; }
    std::vector<AttendBlock>& blocks() { return blocks_; }
    std::vector<std::int32_t>& counts() { return counts_; }
    const std::vector<std::int32_t>& counts() const { return counts_; }
    std::vector<float>& q() { return q_; }
    std::int32_t max_blocks() const { return max_blocks_; }
    std::size_t list_of(std::size_t sequence, std::int32_t head) const
    {
        return sequence * std::size_t(shape_.kv_heads) + std::size_t(head);
    }

    AttendConfig config() const
    {
        std::int32_t most_rows = 1;
        for (const AttendSequence& s : sequences_) { most_rows = std::max(most_rows, s.rows); }
        return {.dtype = shape_.dtype,
                .code = shape_.code,
                .head_dim = shape_.head_dim,
                .q_heads = q_heads(),
                .kv_heads = shape_.kv_heads,
                .block_tokens = shape_.block_tokens,
                .max_sequences = static_cast<std::int32_t>(sequences_.size()),
                .max_rows = most_rows,
                .max_blocks = max_blocks_};
    }

    /// The bytes of the head-block of an entry, to spoil them.
    std::byte* bytes_of(const AttendBlock& block)
    {
        return ((block.flags & AttendBlock::kNativeForm) ? native_ : slots_).data() + block.offset;
    }
    std::size_t bytes_of_form(const AttendBlock& block) const { return is_native(block) ? layout_.native_bytes() : layout_.int8_bytes(); }

    /// Of each query head of a KV head.
    std::vector<oracle::Attention> expected(std::size_t sequence, std::int32_t row, std::int32_t kv_head) const
    {
        std::vector<oracle::Row> keys;
        std::vector<oracle::Row> values;
        const std::int64_t position = sequences_[sequence].first_position + row;
        const std::size_t list = list_of(sequence, kv_head);
        for (std::int32_t i = 0; i < counts_[list]; ++i) {
            const AttendBlock& block = blocks_[list * std::size_t(max_blocks_) + std::size_t(i)];
            if (sequences_[sequence].rows > 1 && !((block.rows >> row) & 1)) { continue; }
            const Content& content = reads_[list][std::size_t(i)];
            for (std::int32_t t = 0; t < shape_.block_tokens; ++t) {
                const std::int64_t token = std::int64_t{block.block} * shape_.block_tokens + t;
                if (token > position || (shape_.window > 0 && token <= position - shape_.window)) { continue; }
                keys.push_back(content.keys[std::size_t(t)]);
                values.push_back(content.values[std::size_t(t)]);
            }
        }
        std::vector<oracle::Attention> heads;
        for (std::int32_t h = kv_head * shape_.group; h < (kv_head + 1) * shape_.group; ++h) {
            oracle::Row query;
            const std::size_t at =
                (std::size_t(row_starts_[sequence] + row) * std::size_t(q_heads()) + std::size_t(h)) * std::size_t(shape_.head_dim);
            for (std::int32_t c = 0; c < shape_.head_dim; ++c) {
                query.push_back(double(q_[at + std::size_t(c)]) / std::sqrt(double(shape_.head_dim)));
            }
            heads.push_back(oracle::attend(query, keys, values));
        }
        return heads;
    }

    /// Runs on fresh copies; `phases` in order on one workspace. Output poisoned before.
    AttendResult run(Queue queue, const AttendConfig& config, const std::vector<AttendPhase>& phases = {AttendPhase::kAll}) const
    {
        const AttendPlan plan(config);
        OnDevice on(queue, *this, plan);
        for (const AttendPhase phase : phases) {
            on.params.phase = phase;
            plan.enqueue(queue, on.params);
        }
        return on.result(queue);
    }
    AttendResult run(Queue queue) const { return run(queue, config()); }

    /// The output in the type of q, without log-sum-exp.
    std::vector<std::uint16_t> run_narrow(Queue queue) const
    {
        const AttendPlan plan(config());
        OnDevice on(queue, *this, plan);
        const auto out = poisoned<std::uint16_t>(queue, q_.size());
        on.params.out = out.data();
        on.params.out_dtype = shape_.dtype;
        on.params.lse = nullptr;
        plan.enqueue(queue, on.params);
        return download(queue, out);
    }

    /// Copies on the device with poisoned output and a workspace of a plan, ready to be enqueued.
    struct OnDevice {
        OnDevice(Queue queue, const AttendWorld& world, const AttendPlan& plan)
            : q(upload(queue, encode(world.shape_.dtype, world.q_))),
              blocks(upload(queue, world.blocks_)),
              counts(upload(queue, world.counts_)),
              starts(upload(queue, world.row_starts_)),
              positions(upload(queue, world.first_positions_)),
              slots(upload(queue, world.slots_)),
              native(upload(queue, world.native_)),
              workspace(poisoned<std::byte>(queue, plan.workspace_bytes())),
              out(poisoned<float>(queue, world.q_.size())),
              lse(poisoned<float>(queue, std::size_t(world.rows() * world.q_heads()))),
              params{.q = q.data(),
                     .blocks = blocks.data(),
                     .block_counts = counts.data(),
                     .row_starts = starts.data(),
                     .first_positions = positions.data(),
                     .slots = slots.data(),
                     .native = native.data(),
                     .out = out.data(),
                     .lse = lse.data(),
                     .workspace = workspace.data(),
                     .sequences = static_cast<std::int32_t>(world.sequences_.size()),
                     .window = world.shape_.window}
        {
            plan.enqueue_prepare(queue, workspace.data());
            queue.synchronize();
        }
        AttendResult result(Queue queue) const { return {download(queue, out), download(queue, lse)}; }

        DeviceBuffer<std::byte> q;
        DeviceBuffer<AttendBlock> blocks;
        DeviceBuffer<std::int32_t> counts;
        DeviceBuffer<std::int32_t> starts;
        DeviceBuffer<std::int64_t> positions;
        DeviceBuffer<std::byte> slots;
        DeviceBuffer<std::byte> native;
        DeviceBuffer<std::byte> workspace;
        DeviceBuffer<float> out;
        DeviceBuffer<float> lse;
        AttendParams params;
    };

private:
    struct Content {
        std::vector<oracle::Row> keys; ///< as a reader sees them
        std::vector<oracle::Row> values;
        std::vector<std::byte> bytes;
    };

    double uniform() { return std::uniform_real_distribution<double>(-1.0, 1.0)(random_); }
    float rounded(double x) const { return shape_.dtype == DType::kF16 ? to_float(to_f16(float(x))) : to_float(to_bf16(float(x))); }
    std::int64_t blocks_of(const AttendSequence& s) const
    {
        return (s.first_position + s.rows + shape_.block_tokens - 1) / shape_.block_tokens;
    }
    bool is_native(const AttendBlock& block) const { return shape_.code == BlockCode::kNative || (block.flags & AttendBlock::kNativeForm); }

    void fill_list(std::size_t s, std::int32_t h)
    {
        const AttendSequence& sequence = sequences_[s];
        const std::size_t list = list_of(s, h);
        if (sequence.rows == 0) { return; }
        for (std::int64_t j = 0; j < blocks_of(sequence); ++j) {
            std::uint8_t coded_rows = 0;
            std::uint8_t native_rows = 0;
            for (std::int32_t r = 0; r < sequence.rows; ++r) {
                const std::int64_t position = sequence.first_position + r;
                const bool own = position / shape_.block_tokens == j;
                if (j * shape_.block_tokens > position || (!own && 0.5 * (uniform() + 1.0) >= sequence.keep)) { continue; }
                const bool old = (j + 1) * shape_.block_tokens - 1 <= position - shape_.recent;
                (old ? coded_rows : native_rows) |= static_cast<std::uint8_t>(1 << r);
            }
            Content native =
                content(std::min<std::int64_t>(shape_.block_tokens, sequence.first_position + sequence.rows - j * shape_.block_tokens));
            if (coded_rows) { push(list, j, coded_rows, 0, shape_.code == BlockCode::kInt8 ? coded(native) : native); }
            if (native_rows) { push(list, j, native_rows, AttendBlock::kNativeForm, native); }
        }
    }

    void push(std::size_t list, std::int64_t j, std::uint8_t rows, std::uint8_t flags, const Content& content)
    {
        blocks_[list * std::size_t(max_blocks_) + std::size_t(counts_[list]++)] = {0, static_cast<std::int32_t>(j), rows, flags, 0};
        reads_[list].push_back(content);
    }

    Content content(std::int64_t tokens)
    {
        Content result;
        result.bytes.assign(layout_.native_bytes(), std::byte{0xFF});
        for (int side = 0; side < 2; ++side) {
            auto& target = side ? result.values : result.keys;
            for (std::int64_t t = 0; t < shape_.block_tokens; ++t) {
                oracle::Row row(std::size_t(shape_.head_dim), std::nan(""));
                for (std::size_t c = 0; t < tokens && c < row.size(); ++c) {
                    const float x = rounded(side ? shape_.amplitude * uniform() : 2.0 * uniform());
                    row[c] = x;
                    cpu::scalar_attend_kernels().from_float(shape_.dtype, &x, 1,
                                                            result.bytes.data() +
                                                                std::size_t(side) * layout_.native_v_offset() +
                                                                2 * (std::size_t(t) * row.size() + c));
                }
                target.push_back(std::move(row));
            }
        }
        return result;
    }

    Content coded(const Content& native) const
    {
        Content result;
        result.bytes.assign(layout_.int8_bytes(), std::byte{0xFF});
        for (int side = 0; side < 2; ++side) {
            const auto& source = side ? native.values : native.keys;
            for (std::size_t t = 0; t < source.size(); ++t) {
                const oracle::Int8Row row = oracle::quantise(source[t]);
                (side ? result.values : result.keys).push_back(row.decoded);
                for (std::size_t c = 0; c < row.codes.size(); ++c) {
                    result.bytes[std::size_t(side) * layout_.elements() + t * row.codes.size() + c] = static_cast<std::byte>(row.codes[c]);
                }
                const std::uint16_t bits = to_f16(static_cast<float>(row.scale)).bits;
                std::memcpy(result.bytes.data() + layout_.int8_scales_offset() + 2 * (std::size_t(side) * source.size() + t), &bits, 2);
            }
        }
        return result;
    }

    /// Places the contents of one form in random slots of a pool that is NaN elsewhere.
    void scatter(std::vector<std::byte>& pool, bool native)
    {
        const auto takes = [&](const AttendBlock& block) { return bool(block.flags & AttendBlock::kNativeForm) == native; };
        const std::size_t stride = native ? layout_.native_bytes() : layout_.coded_bytes();
        std::vector<std::size_t> places(2 * blocks_.size() + 1);
        for (std::size_t i = 0; i < places.size(); ++i) { places[i] = i; }
        std::shuffle(places.begin(), places.end(), random_);
        pool.assign(places.size() * stride, std::byte{0xFF});
        std::size_t next = 0;
        for (std::size_t list = 0; list < counts_.size(); ++list) {
            for (std::int32_t i = 0; i < counts_[list]; ++i) {
                AttendBlock& block = blocks_[list * std::size_t(max_blocks_) + std::size_t(i)];
                if (!takes(block)) { continue; }
                block.offset = static_cast<std::int64_t>(places[next++] * stride);
                const auto& bytes = reads_[list][std::size_t(i)].bytes;
                std::copy(bytes.begin(), bytes.end(), pool.begin() + block.offset);
            }
        }
    }

    AttendShape shape_;
    std::vector<AttendSequence> sequences_;
    std::mt19937_64 random_;
    HeadBlockLayout layout_;
    std::int32_t max_blocks_ = 0;
    std::vector<AttendBlock> blocks_{};
    std::vector<std::int32_t> counts_{};
    std::vector<std::vector<Content>> reads_{};
    std::vector<std::int32_t> row_starts_{};
    std::vector<std::int64_t> first_positions_{};
    std::vector<std::byte> slots_{};
    std::vector<std::byte> native_{};
    std::vector<float> q_{};
};

} // namespace oasis::cuda::test
