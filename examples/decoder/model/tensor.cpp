// SPDX-License-Identifier: Apache-2.0
#include "model/tensor.hpp"

#include "model/mapped_file.hpp"

#include <oasis/core/half.hpp>

#include <cstring>

namespace oasis_decode {
namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 62;
constexpr std::size_t kQuantBlock = 32;

std::uint16_t load_u16(const std::byte* p) noexcept
{
    std::uint16_t bits = 0;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
}

float load_f16(const std::byte* p) noexcept { return oasis::to_float(oasis::f16{load_u16(p)}); }

// The low nibbles of a block's 16 bytes are elements 0 to 15, the high ones 16 to 31.
void unpack_nibbles(const std::byte* codes, float scale, float offset, float* out) noexcept
{
    for (std::size_t i = 0; i < kQuantBlock / 2; ++i) {
        const auto pair = std::to_integer<unsigned>(codes[i]);
        out[i] = static_cast<float>(pair & 0xFU) * scale + offset;
        out[i + kQuantBlock / 2] = static_cast<float>(pair >> 4) * scale + offset;
    }
}

void unpack_block(StorageType type, const std::byte* block, float* out) noexcept
{
    const float scale = load_f16(block);
    if (type == StorageType::kQ8_0) {
        for (std::size_t i = 0; i < kQuantBlock; ++i) {
            out[i] = static_cast<float>(static_cast<std::int8_t>(std::to_integer<std::uint8_t>(block[2 + i]))) * scale;
        }
    } else if (type == StorageType::kQ4_0) {
        unpack_nibbles(block + 2, scale, -8.0F * scale, out);
    } else {
        unpack_nibbles(block + 4, scale, load_f16(block + 2), out);
    }
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
    }
    return {};
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
    default:
        for (std::size_t block = 0; block < count / kQuantBlock; ++block) {
            unpack_block(type, data + block * layout_of(type).bytes, out.data() + block * kQuantBlock);
        }
    }
}

} // namespace oasis_decode
