// SPDX-License-Identifier: Apache-2.0
#include "model/tensor.hpp"

#include "model/mapped_file.hpp"

#include <oasis/core/half.hpp>

#include <algorithm>
#include <array>
#include <cstring>

namespace oasis_decode {
namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 62;
constexpr std::size_t kQuantBlock = 32;
constexpr std::size_t kSuperBlock = 256;

float load_f16(const std::byte* p) noexcept { return oasis::to_float(oasis::f16{load_u16(p)}); }

unsigned at(const std::byte* bytes, std::size_t i) noexcept { return std::to_integer<unsigned>(bytes[i]); }

using Runs = QuantisedRun*;

void unpack_q8_0(const std::byte* block, Runs out) noexcept
{
    for (std::size_t i = 0; i < kQuantBlock; ++i) {
        out[i / 16].codes[i % 16] = static_cast<std::int8_t>(at(block, 2 + i));
    }
    out[0].scale = out[1].scale = load_f16(block);
    out[0].offset = out[1].offset = 0;
}

// Blocks of 32 with codes of 4 bits, or 5 when `high` has a word of fifth bits: the low nibbles of 16 bytes are
// elements 0 to 15, the high ones 16 to 31. `zero` is taken off the codes.
void unpack_nibbles(const std::byte* nibbles, const std::byte* high, int zero, float scale, float offset,
                    Runs out) noexcept
{
    std::uint32_t fifth = 0;
    if (high) { std::memcpy(&fifth, high, sizeof fifth); }
    for (std::size_t i = 0; i < kQuantBlock; ++i) {
        const unsigned low = at(nibbles, i % 16) >> (i / 16 * 4) & 0xFU;
        out[i / 16].codes[i % 16] = static_cast<std::int8_t>(static_cast<int>(low | (fifth >> i & 1U) << 4) - zero);
    }
    out[0].scale = out[1].scale = scale;
    out[0].offset = out[1].offset = offset;
}

// Blocks of 256 in eight parts of 32: the scale and the minimum of a part are 6-bit multiples of the block's. `high`,
// when there, has bit `part` of byte i for the fifth bit of element i of a part.
void unpack_k(const std::byte* block, const std::byte* nibbles, const std::byte* high, Runs out) noexcept
{
    const float scale = load_f16(block);
    const float minimum = load_f16(block + 2);
    const std::byte* packed = block + 4;
    for (std::size_t part = 0; part < 8; ++part) {
        // Parts 4 to 7 have their low four bits in the last four bytes, their high two above those of parts 0 to 3.
        const unsigned multiple =
            part < 4 ? at(packed, part) & 63U : (at(packed, part + 4) & 0xFU) | at(packed, part - 4) >> 6 << 4;
        const unsigned least =
            part < 4 ? at(packed, part + 4) & 63U : at(packed, part + 4) >> 4 | at(packed, part) >> 6 << 4;
        for (std::size_t i = 0; i < kQuantBlock; ++i) {
            const unsigned low = at(nibbles, part / 2 * 32 + i) >> (part % 2 * 4) & 0xFU;
            const unsigned fifth = high ? at(high, i) >> part & 1U : 0U;
            out[2 * part + i / 16].codes[i % 16] = static_cast<std::int8_t>(low | fifth << 4);
        }
        for (std::size_t run = 2 * part; run < 2 * part + 2; ++run) {
            out[run].scale = scale * static_cast<float>(multiple);
            out[run].offset = -minimum * static_cast<float>(least);
        }
    }
}

// Blocks of 256: low nibbles (128 bytes), two high bits (64), sixteen scales, the block's scale. Each half of the block
// has four parts of 32; two parts share their bytes of nibbles, four their bytes of high bits.
void unpack_q6_k(const std::byte* block, Runs out) noexcept
{
    const std::byte* high = block + 128;
    const std::byte* scales = high + 64;
    const float scale = load_f16(scales + 16);
    for (std::size_t run = 0; run < 16; ++run) {
        const std::size_t half = run / 8;
        const std::size_t part = run % 8 / 2;
        for (std::size_t i = 0; i < 16; ++i) {
            const std::size_t place = run % 2 * 16 + i;
            const unsigned low = at(block, half * 64 + part % 2 * 32 + place) >> (part / 2 * 4) & 0xFU;
            const unsigned two = at(high, half * 32 + place) >> (2 * part) & 3U;
            out[run].codes[i] = static_cast<std::int8_t>(static_cast<int>(low | two << 4) - 32);
        }
        out[run].scale = scale * static_cast<float>(static_cast<std::int8_t>(at(scales, run)));
        out[run].offset = 0;
    }
}

/// A float is NaN or infinite when all bits of its exponent are set. Whole chunks are looked at, so that it vectorises.
template <class Word> std::optional<std::uint64_t> first_with_exponent(std::span<const std::byte> bytes, Word exponent)
{
    constexpr std::size_t kChunk = 4096;
    const std::size_t count = bytes.size() / sizeof(Word);
    const auto holds = [&](std::size_t i) {
        Word word = 0;
        std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
        return (word & exponent) == exponent;
    };
    for (std::size_t begin = 0; begin < count; begin += kChunk) {
        const std::size_t end = std::min(count, begin + kChunk);
        Word any = 0;
        for (std::size_t i = begin; i < end; ++i) { any |= static_cast<Word>(holds(i)); }
        if (any == 0) { continue; }
        for (std::size_t i = begin;; ++i) {
            if (holds(i)) { return i; }
        }
    }
    return std::nullopt;
}

/// Where the f16 scales of a coded block lie.
std::span<const std::uint8_t> scale_offsets(StorageType type) noexcept
{
    static constexpr std::uint8_t kFirst[] = {0, 2};
    static constexpr std::uint8_t kLast[] = {208};
    switch (type) {
    case StorageType::kQ8_0:
    case StorageType::kQ4_0:
    case StorageType::kQ5_0: return std::span(kFirst).first(1);
    case StorageType::kQ4_1:
    case StorageType::kQ5_1:
    case StorageType::kQ4_K:
    case StorageType::kQ5_K: return kFirst;
    case StorageType::kQ6_K: return kLast;
    case StorageType::kF32:
    case StorageType::kF16:
    case StorageType::kBF16: break;
    }
    return {};
}

} // namespace

std::string_view name(StorageType type) noexcept
{
    switch (type) {
    case StorageType::kF32: return "F32";
    case StorageType::kF16: return "F16";
    case StorageType::kBF16: return "BF16";
    case StorageType::kQ8_0: return "Q8_0";
    case StorageType::kQ4_0: return "Q4_0";
    case StorageType::kQ4_1: return "Q4_1";
    case StorageType::kQ5_0: return "Q5_0";
    case StorageType::kQ5_1: return "Q5_1";
    case StorageType::kQ4_K: return "Q4_K";
    case StorageType::kQ5_K: return "Q5_K";
    case StorageType::kQ6_K: return "Q6_K";
    }
    return "?";
}

BlockLayout layout_of(StorageType type) noexcept
{
    switch (type) {
    case StorageType::kF32: return {1, 4};
    case StorageType::kF16:
    case StorageType::kBF16: return {1, 2};
    case StorageType::kQ8_0: return {kQuantBlock, 2 + 32};
    case StorageType::kQ4_0: return {kQuantBlock, 2 + 16};
    case StorageType::kQ4_1: return {kQuantBlock, 4 + 16};
    case StorageType::kQ5_0: return {kQuantBlock, 2 + 4 + 16};
    case StorageType::kQ5_1: return {kQuantBlock, 4 + 4 + 16};
    case StorageType::kQ4_K: return {kSuperBlock, 4 + 12 + 128};
    case StorageType::kQ5_K: return {kSuperBlock, 4 + 12 + 32 + 128};
    case StorageType::kQ6_K: return {kSuperBlock, 128 + 64 + 16 + 2};
    }
    return {};
}

void unpack(StorageType type, const std::byte* block, QuantisedRun* out) noexcept
{
    const float scale = load_f16(block); // of all but Q6_K
    switch (type) {
    case StorageType::kQ8_0: unpack_q8_0(block, out); break;
    case StorageType::kQ4_0: unpack_nibbles(block + 2, nullptr, 0, scale, -8.0F * scale, out); break;
    case StorageType::kQ4_1: unpack_nibbles(block + 4, nullptr, 0, scale, load_f16(block + 2), out); break;
    case StorageType::kQ5_0: unpack_nibbles(block + 6, block + 2, 16, scale, 0, out); break;
    case StorageType::kQ5_1: unpack_nibbles(block + 8, block + 4, 0, scale, load_f16(block + 2), out); break;
    case StorageType::kQ4_K: unpack_k(block, block + 16, nullptr, out); break;
    case StorageType::kQ5_K: unpack_k(block, block + 48, block + 16, out); break;
    case StorageType::kQ6_K: unpack_q6_k(block, out); break;
    default: break; // not quantised
    }
}

std::optional<std::uint64_t> first_not_finite(const TensorView& tensor)
{
    constexpr std::uint16_t kHalfExponent = 0x7C00;
    switch (tensor.type) {
    case StorageType::kF32: return first_with_exponent<std::uint32_t>(tensor.bytes, 0x7F800000);
    case StorageType::kF16: return first_with_exponent<std::uint16_t>(tensor.bytes, kHalfExponent);
    case StorageType::kBF16: return first_with_exponent<std::uint16_t>(tensor.bytes, 0x7F80);
    default: break;
    }
    const BlockLayout layout = layout_of(tensor.type);
    const auto scales = scale_offsets(tensor.type);
    for (std::size_t block = 0; block < tensor.bytes.size() / layout.bytes; ++block) {
        for (const std::uint8_t offset : scales) {
            if ((load_u16(tensor.bytes.data() + block * layout.bytes + offset) & kHalfExponent) == kHalfExponent) {
                return block * layout.elements;
            }
        }
    }
    return std::nullopt;
}

std::optional<std::uint64_t> element_count(std::span<const std::int64_t> shape) noexcept
{
    std::uint64_t count = 1;
    bool empty = false;
    for (const std::int64_t extent : shape) {
        if (extent < 0) { return std::nullopt; }
        if (extent == 0) {
            empty = true;
            continue;
        }
        if (count > kMostElements / static_cast<std::uint64_t>(extent)) { return std::nullopt; }
        count *= static_cast<std::uint64_t>(extent);
    }
    return empty ? 0 : count;
}

std::int64_t TensorView::elements() const noexcept
{
    return static_cast<std::int64_t>(element_count(shape).value_or(0));
}

std::string TensorView::shape_text() const
{
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) { text += (i ? ", " : "") + std::to_string(shape[i]); }
    return text + "]";
}

void dequantise(const TensorView& tensor, std::span<float> out)
{
    const auto count = static_cast<std::size_t>(tensor.elements());
    const BlockLayout layout = layout_of(tensor.type);
    if (out.size() != count || count % layout.elements != 0 ||
        tensor.bytes.size() != count / layout.elements * layout.bytes) {
        fail("tensor ", tensor.name, ": ", tensor.bytes.size(), " bytes of ", name(tensor.type), " do not hold ", count,
             " elements for an output of ", out.size());
    }
    dequantise(tensor.type, tensor.bytes, out);
}

void dequantise(StorageType type, std::span<const std::byte> bytes, std::span<float> out)
{
    const std::byte* data = bytes.data();
    const std::size_t count = out.size();
    switch (type) {
    case StorageType::kF32:
        if (count) { std::memcpy(out.data(), data, count * sizeof(float)); }
        return;
    case StorageType::kF16:
        for (std::size_t i = 0; i < count; ++i) { out[i] = load_f16(data + 2 * i); }
        return;
    case StorageType::kBF16:
        for (std::size_t i = 0; i < count; ++i) { out[i] = oasis::to_float(oasis::bf16{load_u16(data + 2 * i)}); }
        return;
    default: break;
    }
    const BlockLayout layout = layout_of(type);
    std::array<QuantisedRun, QuantisedRun::kMostRuns> runs;
    for (std::size_t done = 0; done < count; done += layout.elements, data += layout.bytes) {
        unpack(type, data, runs.data());
        for (std::size_t i = 0; i < layout.elements; ++i) {
            const QuantisedRun& run = runs[i / QuantisedRun::kElements];
            out[done + i] = static_cast<float>(run.codes[i % QuantisedRun::kElements]) * run.scale + run.offset;
        }
    }
}

} // namespace oasis_decode
