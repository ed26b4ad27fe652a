// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary of the library: identifiers, element types, tiers, shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace oasis {

/// A token of the model's vocabulary.
using TokenId = std::int32_t;

/// A position of a sequence, counted in tokens from 0.
using TokenIndex = std::int64_t;

/// A layer of the model, counted from 0.
using LayerId = std::int32_t;

/// Names one sequence of a cache. Ids are never reused within a cache.
enum class SequenceId : std::int64_t { kNone = -1 };

/// Names one block of `block_tokens` tokens of a cache, shared by every sequence that has the same prefix.
enum class BlockId : std::int32_t { kNone = -1 };

/// Names one place of fast memory that holds one coded head-block (or, in layer scope, all heads of a block).
enum class SlotId : std::int32_t { kNone = -1 };

/// An id as the number it is.
template <class Id>
    requires std::is_enum_v<Id>
constexpr auto raw(Id id) noexcept
{
    return static_cast<std::underlying_type_t<Id>>(id);
}

/// IEEE binary16, storage only: the arithmetic of the library is float.
struct f16 {
    std::uint16_t bits = 0; ///< sign, 5 of exponent, 10 of mantissa
    /// The same bits.
    friend constexpr bool operator==(f16, f16) = default;
};

/// bfloat16, storage only.
struct bf16 {
    std::uint16_t bits = 0; ///< the upper half of a float
    /// The same bits.
    friend constexpr bool operator==(bf16, bf16) = default;
};

/// Element type of q, k, v, out and of native blocks.
enum class DType : std::uint8_t { kF32, kF16, kBF16 };

/// Where a block can be.
enum class Tier : std::uint8_t { kFast, kSlow };

/// The word for it in messages.
constexpr std::string_view name(Tier tier) noexcept { return tier == Tier::kFast ? "fast" : "slow"; }

/// The word for it in messages.
constexpr std::string_view name(DType type) noexcept
{
    switch (type) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    }
    return "?";
}

/// Bytes of an element.
constexpr std::size_t size_of(DType type) noexcept { return type == DType::kF32 ? 4 : 2; }

/// The `DType` of a C++ type, as `value`.
template <class Element> struct dtype_of;
/// @cond
template <> struct dtype_of<float> { static constexpr DType value = DType::kF32; };
template <> struct dtype_of<f16> { static constexpr DType value = DType::kF16; };
template <> struct dtype_of<bf16> { static constexpr DType value = DType::kBF16; };
/// @endcond

/// Query heads of a KV head, at most.
inline constexpr int kMaxGroup = 256;

/// What the cache has to know of a model.
struct ModelShape {
    std::int32_t layers = 0;   ///< each has K and V of its own
    std::int32_t q_heads = 0;  ///< query heads; a multiple of kv_heads
    std::int32_t kv_heads = 0; ///< heads of K and V
    std::int32_t head_dim = 0; ///< 32 to 256, a multiple of 16

    /// Query heads of a KV head.
    constexpr std::int32_t group() const noexcept { return kv_heads ? q_heads / kv_heads : 0; }
    /// Field by field.
    friend constexpr bool operator==(const ModelShape&, const ModelShape&) = default;
};

} // namespace oasis
