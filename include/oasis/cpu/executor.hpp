// SPDX-License-Identifier: Apache-2.0
//
// Where the CPU backend's work runs. An engine that has its own threads derives from `Executor`.
#pragma once

#include <oasis/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

namespace oasis {

/// A non-owning reference to a callable `void(std::size_t)`; lives no longer than the call that takes it.
class TaskRef {
public:
    /// Of anything that can be called with an index.
    template <class F>
        requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>)
    TaskRef(F&& f) noexcept // NOLINT: implicit on purpose, as std::function_ref
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
          call_([](void* object, std::size_t i) { (*static_cast<std::remove_reference_t<F>*>(object))(i); })
    {
    }
    /// Task i.
    void operator()(std::size_t i) const { call_(object_, i); }

private:
    void* object_;
    void (*call_)(void*, std::size_t);
};

/// Runs independent tasks. `parallel_for` returns when all have run; the first exception of a task is
/// rethrown, and tasks that had not started by then may be left out.
/// Which thread runs which task is unspecified, and no result of the library depends on it.
class Executor {
public:
    virtual ~Executor() = default;
    /// How many tasks run at once, at least 1.
    virtual std::size_t concurrency() const noexcept = 0;
    /// Calls `task(i)` for every i in [0, tasks). Not reentrant: a task never calls it. Threads that share an executor may.
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

/// A fixed set of threads; the caller works too. Tasks are taken one by one from an atomic counter. A layer is many short
/// rounds, and waking a thread takes longer than most of them: threads look out for the next round for 50 us before they
/// sleep, unless there are more of them than processors. Threads do not survive a `fork` of the process: in the child
/// `parallel_for` throws `Error`, and the destructor leaves the threads' state alone.
class ThreadPool final : public Executor {
public:
    /// `threads` counts the caller; 0 means one per processor.
    explicit ThreadPool(std::size_t threads = 0) : owner_(::getpid()), state_(std::make_unique<State>())
    {
        if (threads == 0) { threads = std::max<std::size_t>(1, std::thread::hardware_concurrency()); }
        state_->spins = threads <= std::thread::hardware_concurrency();
        try {
            for (std::size_t i = 1; i < threads; ++i) {
                state_->workers.emplace_back([state = state_.get()] { state->work(); });
            }
        } catch (const std::system_error& error) { // a limit of threads or of memory
            const std::size_t started = state_->workers.size();
            stop();
            throw Error(detail::text("ThreadPool: thread ", started + 2, " of ", threads, " cannot be started: ", error.code().message()));
        } catch (...) {
            stop();
            throw;
        }
    }
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    ~ThreadPool() override
    {
        if (forked()) {
            // Nobody can be joined, and nobody will leave the waits.
            static_cast<void>(state_.release());
            return;
        }
        stop();
    }

    std::size_t concurrency() const noexcept override { return state_->workers.size() + 1; }

    void parallel_for(std::size_t tasks, TaskRef task) override
    {
        State& state = *state_;
        if (state.workers.empty()) {
            for (std::size_t i = 0; i < tasks; ++i) { task(i); }
            return;
        }
        if (forked()) {
            throw Error(detail::text("ThreadPool::parallel_for: the pool was made in process ", owner_, ", its threads do not exist in the forked process ",
                                     ::getpid(), "; make a pool of its own there"));
        }
        if (tasks <= 1) {
            for (std::size_t i = 0; i < tasks; ++i) { task(i); }
            return;
        }
        const std::scoped_lock one_at_a_time(state.rounds);
        state.task = &task;
        state.tasks = tasks;
        state.next.store(0, std::memory_order_relaxed);
        state.busy.store(static_cast<std::uint32_t>(state.workers.size()), std::memory_order_relaxed);
        state.begin_round();
        state.drain(task, tasks);
        for (std::uint32_t busy = 0; (busy = state.busy.load(std::memory_order_acquire)) != 0;) { state.await_change(state.busy, busy); }
        state.task = nullptr;
        if (state.error) { std::rethrow_exception(std::exchange(state.error, nullptr)); }
    }

private:
    struct State {
        std::vector<std::thread> workers;
        bool spins = false;
        const TaskRef* task = nullptr;
        std::size_t tasks = 0;
        bool stopping = false;
        std::atomic<std::size_t> next{0};
        std::atomic<std::uint32_t> busy{0};  ///< workers that have not finished the round
        std::atomic<std::uint32_t> round{0}; ///< publishes what is above
        std::mutex rounds; ///< held by the thread whose round it is
        std::mutex mutex;
        std::exception_ptr error;

        void begin_round()
        {
            round.fetch_add(1, std::memory_order_release);
            round.notify_all();
        }

        /// Returns when the value is not `old` any more: looks first, then sleeps.
        void await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) const
        {
            if (spins) {
                const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
                do {
                    for (int i = 0; i < 64; ++i) {
                        if (value.load(std::memory_order_acquire) != old) { return; }
                        relax();
                    }
                } while (std::chrono::steady_clock::now() < end);
            }
            value.wait(old, std::memory_order_acquire);
        }

        static void relax() noexcept
        {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }

        void drain(const TaskRef& run, std::size_t count)
        {
            for (;;) {
                const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
                if (i >= count) { return; }
                try {
                    run(i);
                } catch (...) {
                    const std::scoped_lock lock(mutex);
                    if (!error) { error = std::current_exception(); }
                }
            }
        }

        void work()
        {
            for (std::uint32_t seen = 0;; ++seen) {
                await_change(round, seen);
                if (stopping) { return; }
                drain(*task, tasks);
                if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) { busy.notify_one(); }
            }
        }
    };

    bool forked() const noexcept { return ::getpid() != owner_; }

    void stop()
    {
        state_->stopping = true;
        state_->begin_round();
        for (auto& worker : state_->workers) { worker.join(); }
    }

    ::pid_t owner_;
    std::unique_ptr<State> state_;
};

/// Where work is put: a non-owning handle of an executor (CPU). Copies are cheap; there is no default queue.
class Queue {
public:
    /// The executor must outlive the queue.
    explicit Queue(Executor& executor) noexcept : executor_(&executor) {}
    Queue(std::nullptr_t) = delete;
    /// Where the work runs.
    Executor& executor() const noexcept { return *executor_; }

private:
    Executor* executor_;
};

} // namespace oasis
