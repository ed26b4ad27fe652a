// SPDX-License-Identifier: Apache-2.0
//
// A slow tier with its type erased: what `make_cache` takes. See any_store.hpp for how a store becomes one.
#pragma once

#include <oasis/core/types.hpp>
#include <oasis/core/views.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace oasis {

/// What a cache asks of its slow tier.
struct StoreOptions {
    std::size_t unit_bytes = 0;     ///< one coded head-block (all heads of a block in layer scope)
    std::int32_t layers = 0;        ///< of the model
    std::int32_t sets = 0;          ///< selection sets of a layer
    std::size_t capacity_bytes = 0; ///< never exceeded; a block takes unit_bytes * layers * sets
};

/// The calls of `SlowStore` (concepts.hpp) as virtual functions, with its rules on threads: `read` runs on several
/// transfer threads beside `reserve`, `release` and `write`.
class SlowTier {
public:
    virtual ~SlowTier() = default;

    /// See the concept `SlowStore`.
    ///@{
    virtual bool reserve(BlockId block) = 0;
    virtual void release(BlockId block) = 0;
    virtual bool write(const StorePiece& piece) = 0;
    virtual bool read(const StorePiece& piece) = 0;
    virtual std::size_t bytes_used() const = 0;
    virtual std::size_t capacity_bytes() const = 0;
    ///@}
    /// Bytes of all pieces that were delivered and stored; 0 where the store does not count them.
    ///@{
    virtual std::uint64_t bytes_read() const = 0;
    virtual std::uint64_t bytes_written() const = 0;
    ///@}
    /// Why the last call that failed did; empty where the store keeps no reasons.
    virtual std::string last_error() const = 0;

protected:
    SlowTier() = default;
    SlowTier(const SlowTier&) = delete;
    SlowTier& operator=(const SlowTier&) = delete;
};

/// Makes the slow tier of a cache once the cache knows its sizes.
using StoreFactory = std::function<std::unique_ptr<SlowTier>(const StoreOptions&)>;

} // namespace oasis
