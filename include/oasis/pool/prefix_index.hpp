// SPDX-License-Identifier: Apache-2.0
//
// Finds the sealed block that holds given tokens after given other ones, so that equal prompts share blocks.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/core/types.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace oasis {

struct Hash128 {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend constexpr bool operator==(const Hash128&, const Hash128&) = default;
};

/// Hash of a block's tokens and of everything before it: `parent` is the hash of the block before, `Hash128{}` for the
/// first. A salt gives sequences a name space of their own. The compiled library uses XXH3; its values and the
/// header's differ.
#ifdef OASIS_COMPILED
Hash128 chain_hash(Hash128 parent, std::span<const TokenId> tokens, std::uint64_t salt) noexcept;
#else
inline Hash128 chain_hash(Hash128 parent, std::span<const TokenId> tokens, std::uint64_t salt) noexcept
{
    // Two lanes, each a multiply and an xor-shift per token; they cross so that no lane is a function of the other.
    constexpr auto stir = [](std::uint64_t x) {
        x ^= x >> 31;
        x *= 0xD6E8FEB86659FD93ULL;
        return x ^ (x >> 29);
    };
    std::uint64_t a = stir(parent.low ^ salt ^ 0x9E3779B97F4A7C15ULL);
    std::uint64_t b = stir(parent.high + std::rotl(salt, 32) + tokens.size());
    for (const TokenId token : tokens) {
        const std::uint64_t word = static_cast<std::uint32_t>(token);
        a = stir(a + word) ^ std::rotl(b, 17);
        b = stir((b ^ word) + 0xA0761D6478BD642FULL) + a;
    }
    return {stir(stir(a) + b), stir(stir(b) ^ std::rotl(a, 23))};
}
#endif

struct ChainHasher {
    Hash128 operator()(Hash128 parent, std::span<const TokenId> tokens, std::uint64_t salt) const noexcept
    {
        return chain_hash(parent, tokens, salt);
    }
};

/// The hash only finds candidates. A hit has equal tokens, the same salt and the same block before it, so colliding
/// hashes are misses. A block whose predecessor left the index is unreachable, even if the predecessor's id is used
/// again. Two blocks of equal content may exist (two prompts computed side by side): the first is the one found, and
/// successors of either are successors of both. Not thread-safe.
template <class Hasher = ChainHasher> class PrefixIndex {
public:
    explicit PrefixIndex(Hasher hasher = {}) : hasher_(std::move(hasher)) {}

    Hash128 key(Hash128 parent, std::span<const TokenId> tokens, std::uint64_t salt) const
    {
        return hasher_(parent, tokens, salt);
    }

    /// `parent`: the block before, `BlockId::kNone` for a sequence's first.
    std::optional<BlockId> find(Hash128 key, BlockId parent, std::span<const TokenId> tokens,
                                std::uint64_t salt = 0) const
    {
        const auto before = content_of(parent);
        if (!before) { return std::nullopt; }
        const auto [first, last] = entries_.equal_range(key);
        const auto hit =
            std::find_if(first, last, [&](const auto& entry) { return matches(entry.second, *before, tokens, salt); });
        return hit == last ? std::nullopt : std::optional(hit->second.block);
    }

    /// Returns true when `block` is now the one found by this content; false when an equal one was there before it, or
    /// when `parent` is not in the index, so that nothing could ever find the block.
    bool insert(Hash128 key, BlockId parent, std::span<const TokenId> tokens, BlockId block, std::uint64_t salt = 0)
    {
        detail::expects(raw(block) >= 0, "PrefixIndex::insert: block id ", raw(block), " is negative.");
        if (const auto known = blocks_.find(raw(block)); known != blocks_.end()) {
            detail::expects(known->second.key == key, "PrefixIndex::insert: block ", raw(block),
                            " is in the index with other tokens; erase it first.");
            return false;
        }
        const auto before = content_of(parent);
        if (!before) { return false; }
        const auto [first, last] = entries_.equal_range(key);
        const auto equal =
            std::find_if(first, last, [&](const auto& entry) { return matches(entry.second, *before, tokens, salt); });
        if (equal != last) {
            blocks_.emplace(raw(block), Block{equal->second.content, key});
            return false;
        }
        const std::uint64_t content = ++contents_;
        entries_.emplace(key, Entry{*before, content, salt, block, {tokens.begin(), tokens.end()}});
        blocks_.emplace(raw(block), Block{content, key});
        return true;
    }

    /// Forgets a block; one that is not there is left alone.
    void erase(BlockId block)
    {
        const auto found = blocks_.find(raw(block));
        if (found == blocks_.end()) { return; }
        const auto [first, last] = entries_.equal_range(found->second.key);
        const auto entry = std::find_if(first, last, [&](const auto& e) { return e.second.block == block; });
        if (entry != last) { entries_.erase(entry); }
        blocks_.erase(found);
    }

    /// Whether `find` can return this block.
    bool contains(BlockId block) const
    {
        const auto found = blocks_.find(raw(block));
        if (found == blocks_.end()) { return false; }
        const auto [first, last] = entries_.equal_range(found->second.key);
        return std::any_of(first, last, [&](const auto& e) { return e.second.block == block; });
    }

    /// Blocks that can be found.
    std::size_t size() const noexcept { return entries_.size(); }

private:
    struct Entry {
        std::uint64_t parent_content;
        std::uint64_t content; ///< number of this content, never used again
        std::uint64_t salt;
        BlockId block;
        std::vector<TokenId> tokens;
    };
    struct Block {
        std::uint64_t content;
        Hash128 key;
    };
    struct Fold {
        std::size_t operator()(const Hash128& h) const noexcept
        {
            return static_cast<std::size_t>(h.low ^ std::rotl(h.high, 1));
        }
    };

    std::optional<std::uint64_t> content_of(BlockId block) const
    {
        if (block == BlockId::kNone) { return 0; }
        const auto found = blocks_.find(raw(block));
        return found == blocks_.end() ? std::nullopt : std::optional(found->second.content);
    }
    static bool matches(const Entry& entry, std::uint64_t parent, std::span<const TokenId> tokens, std::uint64_t salt)
    {
        return entry.parent_content == parent && entry.salt == salt &&
               std::equal(entry.tokens.begin(), entry.tokens.end(), tokens.begin(), tokens.end());
    }

    Hasher hasher_;
    std::unordered_multimap<Hash128, Entry, Fold> entries_;
    std::unordered_map<std::int32_t, Block> blocks_;
    std::uint64_t contents_ = 0;
};

} // namespace oasis
