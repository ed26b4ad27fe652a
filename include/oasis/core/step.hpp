// SPDX-License-Identifier: Apache-2.0
//
// The values an engine passes and gets: rows of a step, attention arguments, results.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace oasis {

/// A tier that could not take what was asked for. Nothing was changed.
struct Full {
    Tier tier = Tier::kFast;         ///< the one that was in the way
    std::size_t needed_bytes = 0;    ///< what the call would have taken
    std::size_t available_bytes = 0; ///< what is left
};

/// A read-only matrix of rows with its element type.
struct ConstRows {
    const void* data = nullptr; ///< row-major, without gaps
    DType dtype = DType::kF32;  ///< of an element
    ConstRows() = default;
    /// From a pointer, which says the type.
    ///@{
    ConstRows(const float* p) noexcept : data(p), dtype(DType::kF32) {}
    ConstRows(const f16* p) noexcept : data(p), dtype(DType::kF16) {}
    ConstRows(const bf16* p) noexcept : data(p), dtype(DType::kBF16) {}
    ///@}
};

/// A writable matrix of rows with its element type.
struct Rows {
    void* data = nullptr;      ///< row-major, without gaps
    DType dtype = DType::kF32; ///< of an element
    Rows() = default;
    /// From a pointer, which says the type.
    ///@{
    Rows(float* p) noexcept : data(p), dtype(DType::kF32) {}
    Rows(f16* p) noexcept : data(p), dtype(DType::kF16) {}
    Rows(bf16* p) noexcept : data(p), dtype(DType::kBF16) {}
    ///@}
};

/// What `AnyKVCache::create` is told of a sequence.
struct SequenceOptions {
    std::span<const TokenId> prompt{}; ///< used to find a shared prefix; may be empty
    std::uint64_t salt = 0;            ///< sequences with different salts never share blocks
    std::int32_t logical_resident = 0; ///< tokens; 0: the cache's
    std::int64_t dense_below = -1;     ///< -1: the cache's
};

/// A new sequence, or the tier that has no room for it.
struct CreateResult {
    SequenceId id = SequenceId::kNone;                        ///< the new sequence
    TokenIndex cached_tokens = 0;                             ///< tokens of the prompt that are already there: start prefilling after them
    std::optional<Full> full{};                               ///< why not
    explicit operator bool() const noexcept { return !full; } ///< whether it was done
};

/// The child, or the tier that has no room for it.
struct ForkResult {
    SequenceId id = SequenceId::kNone;                        ///< the new sequence
    std::optional<Full> full{};                               ///< why not
    explicit operator bool() const noexcept { return !full; } ///< whether it was done
};

/// Health of a sequence.
struct SequenceState {
    bool preempted = false;                 ///< out of fast memory
    std::optional<TokenIndex> first_lost{}; ///< lowest position whose K,V no tier holds any more
    /// Whether tokens must be computed again.
    bool lost() const noexcept { return first_lost.has_value(); }
};

/// Whether the sequence left fast memory, or the tier that was in the way: the slow one for `preempt`, the fast one for `resume`.
struct PreemptResult {
    std::optional<Full> full{};                               ///< why not
    explicit operator bool() const noexcept { return !full; } ///< whether it was done
};

/// Whether there was such a sequence.
enum class RemoveResult : std::uint8_t { kRemoved, kNotFound };

/// The rows of one sequence in a step: either `prefill_tokens`, or 1..8 verify rows and 0..2 lookahead rows after them.
struct RowGroup {
    SequenceId sequence = SequenceId::kNone; ///< whose rows they are
    std::int32_t verify_rows = 0;            ///< the last token, then drafts to verify
    std::int32_t lookahead_rows = 0;         ///< they never stand
    std::int32_t prefill_tokens = 0;         ///< a chunk of a prompt

    /// All of them.
    constexpr std::int32_t rows() const noexcept { return prefill_tokens + verify_rows + lookahead_rows; }
};

/// Verify rows of a sequence in a step, at most.
inline constexpr std::int32_t kMaxVerifyRows = 8;
/// Lookahead rows of a sequence in a step, at most.
inline constexpr std::int32_t kMaxLookaheadRows = 2;

/// One layer's attention. Rows come in the order of the step's groups. K after RoPE.
struct AttendArgs {
    ConstRows q{};           ///< [rows, q_heads, head_dim]
    ConstRows k{};           ///< [rows, kv_heads, head_dim]
    ConstRows v{};           ///< [rows, kv_heads, head_dim]
    Rows out{};              ///< [rows, q_heads, head_dim]; null: the K,V are taken in and nothing is attended (prefill groups only)
    float* lse = nullptr;    ///< [rows, q_heads] natural-log sum of exponentials of the scaled logits, or null
    float scale = 0.0F;      ///< 0: 1 / sqrt(head_dim)
    std::int32_t window = 0; ///< tokens of a sliding-window layer; 0: none
};

/// How many rows of a group stand, and their token ids.
struct Accepted {
    std::int32_t rows = 0;             ///< prefill: prefill_tokens or fewer; else 0..verify_rows
    std::span<const TokenId> tokens{}; ///< ids of the accepted rows; empty: this sequence is not found by prefix from here on
};

/// What a commit did, over all groups.
struct CommitResult {
    std::int64_t committed_rows = 0; ///< rows that stand
    std::int64_t sealed_blocks = 0;  ///< blocks that left the recent window and were coded
};

class Step;

namespace detail {
/// The side of a cache that a `Step` needs.
class StepOwner {
public:
    virtual void roll_back(std::uint64_t serial) noexcept = 0;

protected:
    ~StepOwner() = default;
};
} // namespace detail

/// An open step. Move-only; destroyed without a commit it rolls back and the cache is as it was before `begin_step`.
class [[nodiscard]] Step {
public:
    /// The step moves; what it is moved from is over.
    ///@{
    Step(Step&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), serial_(other.serial_), rows_(other.rows_), full_(other.full_)
    {
    }
    Step& operator=(Step&& other) noexcept
    {
        if (this != &other) {
            reset();
            owner_ = std::exchange(other.owner_, nullptr);
            serial_ = other.serial_;
            rows_ = other.rows_;
            full_ = other.full_;
        }
        return *this;
    }
    ///@}
    ~Step() { reset(); }

    /// True when the step is open; false when a tier was full (`full()` says which) or the step is over.
    explicit operator bool() const noexcept { return owner_ != nullptr; }
    /// The tier that refused the step, if one did.
    const std::optional<Full>& full() const noexcept { return full_; }
    /// Rows of the step over all groups.
    std::int32_t rows() const noexcept { return rows_; }
    /// Numbers the steps of a cache.
    std::uint64_t serial() const noexcept { return serial_; }

    /// For caches: an open step, or one that a full tier refused.
    ///@{
    static Step open(detail::StepOwner& owner, std::uint64_t serial, std::int32_t rows) noexcept { return {&owner, serial, rows, {}}; }
    static Step refused(Full full) noexcept { return {nullptr, 0, 0, full}; }
    ///@}
    /// For caches: the step is over; its destructor does nothing any more.
    void release() noexcept { owner_ = nullptr; }

private:
    Step(detail::StepOwner* owner, std::uint64_t serial, std::int32_t rows, std::optional<Full> full) noexcept
        : owner_(owner), serial_(serial), rows_(rows), full_(full)
    {
    }
    void reset() noexcept
    {
        if (owner_) { std::exchange(owner_, nullptr)->roll_back(serial_); }
    }

    detail::StepOwner* owner_ = nullptr;
    std::uint64_t serial_ = 0;
    std::int32_t rows_ = 0;
    std::optional<Full> full_{};
};

} // namespace oasis
