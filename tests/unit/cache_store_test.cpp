// SPDX-License-Identifier: Apache-2.0
//
// A cache over slow tiers of its user's choice.
#include "cache_fixture.hpp"

#include <oasis/tier/any_store.hpp>
#include <oasis/tier/file_store.hpp>
#include <oasis/tier/throttled_store.hpp>

#include <filesystem>
#include <memory>

namespace oasis::test {
namespace {

using Outputs = std::vector<std::vector<float>>;

struct Erased : DefaultPolicies<cpu::Backend, float> {
    using Store = AnyStore;
};

Outputs run(AnyKVCache& cache)
{
    Engine engine(cache);
    const SequenceId id = cache.create({}).id;
    engine.prefill(id, 1, 900);
    return engine.decode(id, 1, 40);
}

std::unique_ptr<SlowTier> throttled(const StoreOptions& options)
{
    return erase_store(std::make_unique<ThrottledStore<>>(
        options, ThrottleOptions{.bytes_per_second = 1e9, .latency = std::chrono::microseconds(20)}));
}

std::unique_ptr<SlowTier> in_a_file(const StoreOptions& options)
{
    return erase_store(std::make_unique<FileStore>(
        options, FileStoreOptions{.path = std::filesystem::temp_directory_path().string()}));
}

TEST(CacheStore, TheSlowTierChangesNoBit)
{
    const Outputs expected = run(*make_cache(small_config()));
    for (const StoreFactory& factory : {StoreFactory(throttled), StoreFactory(in_a_file)}) {
        const CacheConfig c = small_config();
        StoreOptions asked;
        const auto cache = make_cache(c, {}, [&](const StoreOptions& options) {
            asked = options;
            return factory(options);
        });
        EXPECT_EQ(run(*cache), expected);
        EXPECT_EQ(asked.layers, 2);
        EXPECT_EQ(asked.sets, 2);
        EXPECT_EQ(asked.unit_bytes * 4, footprint(c).slow_bytes_per_token * std::size_t(c.block_tokens));
        EXPECT_GE(asked.capacity_bytes, footprint(c).slow_bytes_per_token * std::size_t(c.limits.max_context));
        EXPECT_EQ(cache->stats().slow_capacity, asked.capacity_bytes / (asked.unit_bytes * 4) * (asked.unit_bytes * 4));
    }
}

TEST(CacheStore, TheConfiguredCapacityReachesTheFactory)
{
    CacheConfig c = small_config();
    c.slow_bytes = 64 * footprint(c).slow_bytes_per_token * std::size_t(c.block_tokens);
    std::size_t capacity = 0;
    make_cache(c, {}, [&](const StoreOptions& options) {
        capacity = options.capacity_bytes;
        return erase_store(std::make_unique<RamStore>(options));
    });
    EXPECT_EQ(capacity, c.slow_bytes);
    EXPECT_THROW(make_cache(c, {}, [](const StoreOptions&) { return std::unique_ptr<SlowTier>(); }), InvalidArgument);
    c.shape.layers = 0;
    EXPECT_THROW(make_cache(c, {}, throttled), InvalidArgument)
        << "a bad configuration is refused before the factory is asked";
}

TEST(CacheStore, PolicySetTakesAnErasedStore)
{
    const Outputs expected = run(*make_cache(small_config()));
    const CacheConfig c = small_config();
    const StoreOptions options{.unit_bytes = footprint(c).slow_bytes_per_token * std::size_t(c.block_tokens) / 4,
                               .layers = 2,
                               .sets = 2,
                               .capacity_bytes = std::size_t{1} << 30};
    PolicySet<Erased> policies;
    policies.store = std::make_unique<AnyStore>(throttled(options));
    KVCache<cpu::Backend, float, Erased> cache(c, {}, std::move(policies));
    EXPECT_EQ(run(cache), expected);
    cache.pool().check();
    EXPECT_GT(cache.pool().blocks().store().bytes_written(), 0U);
}

} // namespace
} // namespace oasis::test
