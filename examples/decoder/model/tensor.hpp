// SPDX-License-Identifier: Apache-2.0
//
// A tensor as it lies in a file, and its conversion to float.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

enum class StorageType : std::uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

std::string_view name(StorageType type) noexcept;

/// Sixteen bits of a file, wherever they lie.
inline std::uint16_t load_u16(const std::byte* from) noexcept
{
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
}

/// How many elements one coded block holds, and its bytes. Plain types have blocks of one element.
struct BlockLayout {
    std::uint32_t elements = 1;
    std::uint32_t bytes = 4;
};
BlockLayout layout_of(StorageType type) noexcept;
constexpr bool is_quantised(StorageType type) noexcept { return type >= StorageType::kQ8_0; }

/// Sixteen elements of a quantised block, the most that all types give one scale: element i is codes[i] * scale + offset,
/// where the product is exact in float.
struct QuantisedRun {
    static constexpr std::size_t kElements = 16;
    static constexpr std::size_t kMostRuns = 16; ///< of a block

    std::array<std::int8_t, kElements> codes;
    float scale = 0;
    float offset = 0;
};

/// Takes a block of a quantised type apart, into layout_of(type).elements / 16 runs.
void unpack(StorageType type, const std::byte* block, QuantisedRun* out) noexcept;

/// The product of the dimensions, or nothing when it exceeds 2^62 or a dimension is negative.
std::optional<std::uint64_t> element_count(std::span<const std::int64_t> shape) noexcept;

/// A window into a mapped file that outlives it. `shape` is row major, the outermost dimension first.
struct TensorView {
    std::string name;
    StorageType type = StorageType::kF32;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;

    std::int64_t elements() const noexcept;
    std::string shape_text() const;
};

/// Writes the elements of `tensor` as float to out, which has room for all of them.
void dequantise(const TensorView& tensor, std::span<float> out);

/// The same for `out.size()` elements of a type, a whole number of blocks.
void dequantise(StorageType type, std::span<const std::byte> bytes, std::span<float> out);

/// The index of the first element that is NaN or infinite (of coded blocks: the first of a block whose scale is), if any.
/// Reads every byte of plain types and only the scales of coded ones.
std::optional<std::uint64_t> first_not_finite(const TensorView& tensor);

/// Where a model's tensors come from: one file or a set of shards.
class TensorSource {
public:
    virtual ~TensorSource() = default;
    /// The tensor, or null when the model has none of that name.
    virtual const TensorView* find(std::string_view name) const = 0;
    virtual std::vector<std::string> names() const = 0;
    /// What to call the source in an error.
    virtual std::string label() const = 0;
};

} // namespace oasis_decode
