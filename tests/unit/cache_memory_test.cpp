// SPDX-License-Identifier: Apache-2.0
//
// A decode step allocates nothing once its vectors have their size. What may grow with a sequence: the cell of a block or of a summary group,
// and the tables that name it, in the step that begins it.

#include "cache_fixture.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> allocations{0};

void* try_counted(std::size_t bytes, std::size_t align) noexcept
{
    allocations.fetch_add(1, std::memory_order_relaxed);
    return align <= alignof(std::max_align_t) ? std::malloc(bytes ? bytes : 1) : std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

void* counted(std::size_t bytes, std::size_t align)
{
    void* p = try_counted(bytes, align);
    if (!p) { throw std::bad_alloc(); }
    return p;
}

} // namespace

[[gnu::noinline]] void* operator new(std::size_t n) { return counted(n, 1); }
[[gnu::noinline]] void* operator new[](std::size_t n) { return counted(n, 1); }
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a) { return counted(n, std::size_t(a)); }
[[gnu::noinline]] void* operator new[](std::size_t n, std::align_val_t a) { return counted(n, std::size_t(a)); }
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return try_counted(n, 1); }
[[gnu::noinline]] void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return try_counted(n, 1); }
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return try_counted(n, std::size_t(a)); }
[[gnu::noinline]] void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return try_counted(n, std::size_t(a)); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }

namespace oasis::test {
namespace {

struct MemoryCase {
    const char* name;
    BlockCode code;
    SelectionScope scope;
    std::int32_t prefetch;
    std::int32_t drafts;
};

class CacheMemory : public testing::TestWithParam<MemoryCase> {};

/// Two sequences; rows and results in arrays made beforehand.
struct Driver {
    AnyKVCache& cache;
    std::vector<RowGroup> groups;
    std::vector<Accepted> accepted;
    std::vector<std::vector<float>> q, k, v; ///< [variants]
    std::vector<float> out;
    InlineExecutor executor{};
    int steps = 0;
    Stats opened{}; ///< when the rows of the last step, drafts included, had their blocks

    Driver(AnyKVCache& c, std::vector<RowGroup> g) : cache(c), groups(std::move(g))
    {
        const ModelShape& s = cache.config().shape;
        std::size_t rows = 0;
        for (const RowGroup& group : groups) {
            rows += std::size_t(group.rows());
            accepted.push_back({1, {}});
        }
        for (std::uint64_t variant = 0; variant < 16; ++variant) {
            for (auto [to, kind, heads] : {std::tuple{&q, Kind::kQ, s.q_heads}, {&k, Kind::kK, s.kv_heads}, {&v, Kind::kV, s.kv_heads}}) {
                to->emplace_back(rows * std::size_t(heads * s.head_dim));
                fill_vector(variant, kind, 0, 0, 0, to->back());
            }
        }
        out.resize(q[0].size());
    }
    void step()
    {
        const auto variant = std::size_t(steps++ % 16);
        const Queue queue(executor);
        Step step = cache.begin_step(queue, groups);
        opened = cache.stats();
        for (LayerId layer = 0; layer < cache.config().shape.layers; ++layer) {
            cache.enqueue_attend(queue, step, layer, {.q = q[variant].data(), .k = k[variant].data(), .v = v[variant].data(), .out = out.data()});
        }
        cache.commit(queue, std::move(step), accepted);
    }
};

TEST_P(CacheMemory, ADecodeStepAllocatesNothing)
{
    CacheConfig c = small_config();
    c.block_code = GetParam().code;
    c.scope = GetParam().scope;
    c.prefetch_cap = GetParam().prefetch;
    const auto cache = make_cache(c);
    Engine engine(*cache);
    std::vector<RowGroup> groups;
    for (std::uint64_t stream = 1; stream <= 2; ++stream) {
        const SequenceId id = cache->create({}).id;
        engine.prefill(id, stream, 700 + TokenIndex(stream) * 3);
        groups.push_back({.sequence = id, .verify_rows = 1 + GetParam().drafts, .lookahead_rows = GetParam().prefetch > 0 ? 1 : 0});
    }
    Driver driver(*cache, groups);
    for (int i = 0; i < 150; ++i) { driver.step(); }
    int grown = 0;
    std::int64_t total = 0;
    for (int i = 0; i < 200; ++i) {
        const Stats before = cache->stats();
        const std::int64_t allocated = allocations.load();
        driver.step();
        const std::int64_t made = allocations.load() - allocated;
        total += made;
        const bool grows = driver.opened.blocks > before.blocks || driver.opened.summary_bytes > before.summary_bytes;
        grown += grows;
        EXPECT_LE(made, grows ? 8 : 0) << "step " << i;
    }
    EXPECT_LT(grown, 160); // drafts begin a block again and again
    EXPECT_LT(total, 60);
}
INSTANTIATE_TEST_SUITE_P(Modes, CacheMemory,
                         testing::Values(MemoryCase{"native", BlockCode::kNative, SelectionScope::kKvHead, 0, 0},
                                         MemoryCase{"int8", BlockCode::kInt8, SelectionScope::kKvHead, 0, 0},
                                         MemoryCase{"layer", BlockCode::kNative, SelectionScope::kLayer, 0, 3},
                                         MemoryCase{"prefetch", BlockCode::kNative, SelectionScope::kKvHead, 64, 2}),
                         [](const auto& each) { return each.param.name; });

} // namespace
} // namespace oasis::test
