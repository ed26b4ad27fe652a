// SPDX-License-Identifier: Apache-2.0
//
// What the pool knows of one sequence.
#pragma once

#include <oasis/core/types.hpp>
#include <oasis/pool/logical_set.hpp>
#include <oasis/pool/prefix_index.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace oasis {

/// Names one summary group (64 sub-blocks) of a pool.
enum class GroupId : std::int32_t { kNone = -1 };

/// Where a preempted sequence's fast memory went.
struct Preempted {
    struct Group {
        bool freed = false;                 ///< nobody else held it
        bool closed = false;
        BlockId last_block = BlockId::kNone;
    };
    std::vector<BlockId> blocks;            ///< places in the slow tier
    std::vector<Group> groups;              ///< by position
    std::size_t bytes = 0;
    std::size_t logical_words = 0;          ///< of the bytes, at their begin: the logical sets
    std::int32_t native_begin = 0;
    std::int32_t native_group_begin = 0;
};

struct Sequence {
    SequenceId id = SequenceId::kNone;
    TokenIndex length = 0;                  ///< committed tokens
    std::vector<BlockId> blocks;            ///< by position
    std::vector<GroupId> groups;            ///< by position
    std::int32_t native_begin = 0;          ///< blocks from here on are held in native form too
    std::int32_t native_group_begin = 0;    ///< groups from here on are held in native form too
    LogicalSets logical;
    std::int32_t logical_blocks = 0;        ///< capacity of a logical set once sparse rows run
    std::int64_t dense_below = 0;
    std::int64_t reserved_slots = 0;        ///< counted against the fast tier from creation to removal
    std::uint64_t salt = 0;
    std::vector<TokenId> tokens;            ///< ids of the committed tokens, as far as the engine gave them without a gap
    std::vector<Hash128> keys;              ///< chained hash of each whole block of `tokens`
    std::optional<Preempted> preempted;     ///< out of fast memory: it can be resumed or removed
    std::optional<TokenIndex> first_lost;   ///< lowest position whose K,V no tier holds any more
};

} // namespace oasis
