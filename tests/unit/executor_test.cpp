// SPDX-License-Identifier: Apache-2.0
#include <oasis/cpu/executor.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace oasis {
namespace {

static_assert(!std::is_constructible_v<Queue, std::nullptr_t>, "there is no default queue");

/// 0: inline; else a pool of that many threads.
class ExecutorLaws : public testing::TestWithParam<std::size_t> {
protected:
    static std::unique_ptr<Executor> make()
    {
        if (GetParam() == 0) { return std::make_unique<InlineExecutor>(); }
        return std::make_unique<ThreadPool>(GetParam());
    }
    std::unique_ptr<Executor> executor = make();
};

TEST_P(ExecutorLaws, RunsEveryTaskOnceAndIsDoneWhenItReturns)
{
    EXPECT_EQ(executor->concurrency(), std::max<std::size_t>(1, GetParam()));
    for (const std::size_t tasks : {0U, 1U, 2U, 3U, 7U, 100U, 5000U}) {
        std::vector<int> ran(tasks, 0); // plain ints: a task that runs twice, or late, is also a race
        executor->parallel_for(tasks, [&](std::size_t i) { ++ran[i]; });
        EXPECT_EQ(ran, std::vector<int>(tasks, 1));
    }
}

TEST_P(ExecutorLaws, PassesOneExceptionOnAndWorksAfterwards)
{
    for (int round = 0; round < 50; ++round) {
        const auto fail = [](std::size_t i) {
            if (i % 3 == 1) { throw std::runtime_error("task " + std::to_string(i)); }
        };
        try {
            executor->parallel_for(20, fail);
            FAIL() << "the exception was lost";
        } catch (const std::runtime_error& error) {
            const std::string text = error.what();
            EXPECT_EQ(text.rfind("task ", 0), 0U);
            EXPECT_EQ(std::atoi(text.c_str() + 5) % 3, 1) << text;
        }
        std::atomic<int> ran = 0;
        executor->parallel_for(64, [&](std::size_t) { ran.fetch_add(1, std::memory_order_relaxed); });
        ASSERT_EQ(ran.load(), 64);
    }
}

TEST_P(ExecutorLaws, ManyShortRoundsInARow)
{
    std::uint64_t sum = 0;
    std::vector<std::uint64_t> part(4);
    for (std::uint64_t round = 0; round < 2000; ++round) {
        executor->parallel_for(part.size(), [&](std::size_t i) { part[i] = round * i; });
        for (const std::uint64_t p : part) { sum += p; }
    }
    EXPECT_EQ(sum, std::uint64_t{1999} * 2000 / 2 * 6);
}

INSTANTIATE_TEST_SUITE_P(All, ExecutorLaws, testing::Values(0, 1, 2, 3, 8));

TEST(ThreadPool, OtherTasksStillRunWhenOneThrows)
{
    ThreadPool pool(3);
    std::atomic<int> ran = 0;
    EXPECT_THROW(pool.parallel_for(100,
                                   [&](std::size_t i) {
                                       ran.fetch_add(1, std::memory_order_relaxed);
                                       if (i == 0) { throw std::runtime_error("first"); }
                                   }),
                 std::runtime_error);
    EXPECT_EQ(ran.load(), 100);
}

TEST(ThreadPool, TasksReallyRunSideBySide)
{
    ThreadPool pool(2);
    std::atomic<int> here = 0;
    std::mutex mutex;
    std::set<std::thread::id> threads;
    pool.parallel_for(2, [&](std::size_t) {
        here.fetch_add(1);
        // Each task waits for the other one; one thread alone would run into the deadline.
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (here.load() < 2 && std::chrono::steady_clock::now() < deadline) { std::this_thread::yield(); }
        const std::scoped_lock lock(mutex);
        threads.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(threads.size(), 2U);
}

TEST(ThreadPool, ThreadsThatShareItTakeTurns)
{
    ThreadPool pool(3);
    std::atomic<std::int64_t> ran = 0;
    {
        std::vector<std::jthread> drivers;
        for (const std::size_t tasks : {7U, 5U, 64U}) {
            drivers.emplace_back([&pool, &ran, tasks] {
                for (int round = 0; round < 500; ++round) {
                    std::vector<char> done(tasks); // one that is missed, or run twice, shows
                    pool.parallel_for(tasks, [&](std::size_t i) { done[i] = static_cast<char>(done[i] + 1); });
                    ran += std::count(done.begin(), done.end(), 1);
                }
            });
        }
    }
    EXPECT_EQ(ran.load(), 500 * (7 + 5 + 64));
}

TEST(ThreadPool, ComesAndGoesWithoutWork)
{
    for (int i = 0; i < 50; ++i) { const ThreadPool pool(4); }
    EXPECT_GE(ThreadPool().concurrency(), 1U);
}

TEST(Queue, NamesItsExecutor)
{
    InlineExecutor executor;
    const Queue queue(executor);
    const Queue copy = queue; // NOLINT: the copy is the test
    EXPECT_EQ(&copy.executor(), &executor);
}

} // namespace
} // namespace oasis
