// SPDX-License-Identifier: Apache-2.0
//
// Definitions behind make_cache.hpp: one instantiation of KVCache per element type.
#pragma once

#include <oasis/cache.hpp>

#ifdef OASIS_COMPILED
#define OASIS_INLINE
#else
#define OASIS_INLINE inline
#endif

namespace oasis {

namespace detail {

template <KVElement Element>
std::unique_ptr<AnyKVCache> make_cache_of(const CacheConfig& config, Callbacks callbacks, const StoreFactory& make_store)
{
    PolicySet<DefaultPolicies<cpu::Backend, Element>> policies;
    policies.store_factory = make_store;
    return std::make_unique<KVCache<cpu::Backend, Element>>(config, std::move(callbacks), std::move(policies));
}

} // namespace detail

OASIS_INLINE std::unique_ptr<AnyKVCache> make_cache(const CacheConfig& config, Callbacks callbacks, const StoreFactory& make_store)
{
    switch (config.dtype) {
    case DType::kF32: return detail::make_cache_of<float>(config, std::move(callbacks), make_store);
    case DType::kF16: return detail::make_cache_of<f16>(config, std::move(callbacks), make_store);
    case DType::kBF16: return detail::make_cache_of<bf16>(config, std::move(callbacks), make_store);
    }
    throw InvalidArgument(detail::text("make_cache: config.dtype ", int(config.dtype), " is not an element type"));
}

OASIS_INLINE Footprint footprint(const CacheConfig& config)
{
    validate(config);
    const StockSummary policy(config.summary.kind);
    const BlockScorer<StockSummary> scorer(policy, config.summary, config.shape.head_dim, config.block_tokens);
    const PoolShape shape(config, scorer.layout());
    const std::size_t heads = std::size_t(config.shape.layers) * std::size_t(config.shape.kv_heads);
    const std::size_t native_group = scorer.layout().native_bytes() * heads * (config.block_code == BlockCode::kNative ? 1 : 2);
    const std::int64_t slots = shape.reserved_slots(shape.most_blocks(config.budgets.logical_resident), shape.dense_below(-1));
    Footprint f;
    f.kv_bytes_per_token = 2 * heads * std::size_t(config.shape.head_dim) * size_of(config.dtype);
    f.slow_bytes_per_token = shape.slow_block_bytes() / std::size_t(config.block_tokens);
    f.summary_bytes_per_token = scorer.layout().coded_bytes() * heads / std::size_t(shape.group_tokens());
    f.fast_bytes_per_sequence = std::size_t(slots) * shape.unit_bytes + shape.window_bytes(native_group);
    f.landing_bytes = std::size_t(shape.landing_slots) * shape.unit_bytes;
    f.scratch_bytes = cpu::Pipeline<DefaultPolicies<cpu::Backend, float>>::scratch_bytes(shape);
    return f;
}

} // namespace oasis

#undef OASIS_INLINE
