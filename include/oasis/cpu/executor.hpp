// SPDX-License-Identifier: Apache-2.0
//
// Where the CPU backend's work runs. An engine that has its own threads derives from `Executor`.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace oasis {

/// A non-owning reference to a callable `void(std::size_t)`; lives no longer than the call that takes it.
class TaskRef {
public:
    template <class F>
        requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>)
    TaskRef(F&& f) noexcept // NOLINT: implicit on purpose, as std::function_ref
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
          call_([](void* object, std::size_t i) { (*static_cast<std::remove_reference_t<F>*>(object))(i); })
    {
    }
    void operator()(std::size_t i) const { call_(object_, i); }

private:
    void* object_;
    void (*call_)(void*, std::size_t);
};

/// Runs independent tasks. `parallel_for` returns when all have run; the first exception of a task is rethrown.
/// Which thread runs which task is unspecified, and no result of the library depends on it.
class Executor {
public:
    virtual ~Executor() = default;
    /// How many tasks run at once, at least 1.
    virtual std::size_t concurrency() const noexcept = 0;
    /// Calls `task(i)` for every i in [0, tasks). Not reentrant: a task never calls it.
    virtual void parallel_for(std::size_t tasks, TaskRef task) = 0;
};

/// Runs everything on the calling thread.
class InlineExecutor final : public Executor {
public:
    std::size_t concurrency() const noexcept override { return 1; }
    void parallel_for(std::size_t tasks, TaskRef task) override
    {
        for (std::size_t i = 0; i < tasks; ++i) { task(i); }
    }
};

/// A fixed set of threads; the caller works too. Tasks are taken one by one from an atomic counter.
class ThreadPool final : public Executor {
public:
    /// `threads` counts the caller; 0 means one per processor.
    explicit ThreadPool(std::size_t threads = 0)
    {
        if (threads == 0) { threads = std::max<std::size_t>(1, std::thread::hardware_concurrency()); }
        for (std::size_t i = 1; i < threads; ++i) {
            workers_.emplace_back([this] { work(); });
        }
    }
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    ~ThreadPool() override
    {
        {
            const std::scoped_lock lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (auto& worker : workers_) { worker.join(); }
    }

    std::size_t concurrency() const noexcept override { return workers_.size() + 1; }

    void parallel_for(std::size_t tasks, TaskRef task) override
    {
        if (tasks <= 1 || workers_.empty()) {
            for (std::size_t i = 0; i < tasks; ++i) { task(i); }
            return;
        }
        {
            const std::scoped_lock lock(mutex_);
            task_ = &task;
            tasks_ = tasks;
            next_.store(0, std::memory_order_relaxed);
            busy_ = workers_.size();
            ++round_;
        }
        wake_.notify_all();
        drain(task, tasks);
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
        task_ = nullptr;
        if (error_) { std::rethrow_exception(std::exchange(error_, nullptr)); }
    }

private:
    void drain(const TaskRef& task, std::size_t tasks)
    {
        for (;;) {
            const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
            if (i >= tasks) { return; }
            try {
                task(i);
            } catch (...) {
                const std::scoped_lock lock(mutex_);
                if (!error_) { error_ = std::current_exception(); }
            }
        }
    }

    void work()
    {
        std::uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
            if (stopping_) { return; }
            seen = round_;
            const TaskRef* task = task_;
            const std::size_t tasks = tasks_;
            lock.unlock();
            drain(*task, tasks);
            lock.lock();
            if (--busy_ == 0) { done_.notify_one(); }
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::vector<std::thread> workers_;
    const TaskRef* task_ = nullptr;
    std::size_t tasks_ = 0;
    std::atomic<std::size_t> next_{0};
    std::size_t busy_ = 0;
    std::uint64_t round_ = 0;
    std::exception_ptr error_;
    bool stopping_ = false;
};

/// Where work is put: a non-owning handle of an executor (CPU). Copies are cheap; there is no default queue.
class Queue {
public:
    explicit Queue(Executor& executor) noexcept : executor_(&executor) {}
    Queue(std::nullptr_t) = delete;
    Executor& executor() const noexcept { return *executor_; }

private:
    Executor* executor_;
};

} // namespace oasis
