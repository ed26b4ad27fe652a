// SPDX-License-Identifier: Apache-2.0
//
// TransferQueue: threads that carry out copies from the slow tier. It knows order and threads, nothing of slots: who plans a transfer owns
// its target until the transfer is taken back as done, or cancelled before it began.
#pragma once

#include <oasis/core/error.hpp>
#include <oasis/core/types.hpp>
#include <oasis/core/views.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

namespace oasis {

/// Why a unit is copied.
enum class TransferKind : std::uint8_t {
    kDemand,   ///< a row of this step waits for it
    kFill,     ///< of a sequence's first logical set; nobody waits
    kPrefetch, ///< a guess of the next step
};

/// One copy, and what became of it.
struct Transfer {
    using Clock = std::chrono::steady_clock;

    CopyPiece piece{};
    std::byte* target = nullptr;
    TransferKind kind = TransferKind::kDemand;
    bool wanted = false;                   ///< a row waits for it, whatever it was planned for
    SequenceId sequence = SequenceId::kNone;
    std::uint64_t serial = 0;              ///< of the step that planned it
    bool delivered = false;
    std::int32_t worker = 0;
    Clock::time_point begin{};
    Clock::time_point end{};
};

/// Wanted transfers go first, others in the order they were pushed; with two threads or more one takes wanted ones alone, so that demand never
/// waits for a thread that is busy with a guess. One thread pushes, cancels and takes; a slot has one transfer at a time. Nothing is allocated
/// but by `resize`. Threads do not survive a `fork` of the process: in the child calls throw `Error`, and the destructor leaves them alone.
class TransferQueue {
public:
    /// `read(transfer)` copies and says whether the store delivered; called from several threads.
    TransferQueue(std::int32_t threads, std::function<bool(const Transfer&)> read) : owner_(::getpid()), state_(std::make_unique<State>())
    {
        state_->read = std::move(read);
        try {
            for (std::int32_t i = 0; i < threads; ++i) {
                state_->workers.emplace_back([state = state_.get(), i, demand_only = i == 0 && threads > 1] { state->work(i, demand_only); });
            }
        } catch (const std::system_error& error) { // a limit of threads or of memory
            const std::size_t started = state_->workers.size();
            stop();
            throw Error(detail::text("TransferQueue: thread ", started + 1, " of ", threads, " cannot be started: ", error.code().message()));
        } catch (...) {
            stop();
            throw;
        }
    }
    TransferQueue(const TransferQueue&) = delete;
    TransferQueue& operator=(const TransferQueue&) = delete;
    /// Waits for the transfers that have begun.
    ~TransferQueue()
    {
        if (::getpid() != owner_) {
            static_cast<void>(state_.release()); // nobody can be joined
            return;
        }
        stop();
    }

    std::int32_t threads() const noexcept { return static_cast<std::int32_t>(state_->workers.size()); }

    /// Room for transfers into slots below `slots`.
    void resize(std::size_t slots)
    {
        const std::scoped_lock lock(state_->mutex);
        if (slots > state_->nodes.size()) { state_->nodes.resize(slots); }
    }

    void push(std::span<const Transfer> transfers)
    {
        if (transfers.empty()) { return; }
        State& state = here("push");
        {
            const std::scoped_lock lock(state.mutex);
            for (const Transfer& t : transfers) {
                Node& node = state.nodes[index(t.piece.slot)];
                detail::expects(node.list == kNone, "TransferQueue::push: slot ", raw(t.piece.slot), " has a transfer already");
                node.transfer = t;
                node.transfer.wanted = t.wanted || t.kind == TransferKind::kDemand;
                state.append(node.transfer.wanted ? kWanted : kGuess, index(t.piece.slot));
                ++state.outstanding;
            }
        }
        state.wake.notify_all();
        state.wake_demand.notify_all();
    }

    /// A row waits for the slot's transfer now, even if it is done and was not taken yet. False when there is none.
    bool promote(SlotId slot)
    {
        State& state = *state_;
        {
            const std::scoped_lock lock(state.mutex);
            if (index(slot) >= state.nodes.size()) { return false; }
            Node& node = state.nodes[index(slot)];
            if (node.list == kNone) { return false; }
            node.transfer.wanted = true;
            if (node.list != kGuess) { return true; }
            state.remove(index(slot));
            state.append(kWanted, index(slot));
        }
        state.wake.notify_all();
        state.wake_demand.notify_all();
        return true;
    }
    /// Nobody waits any more, but the unit is still of use.
    void demote(SlotId slot)
    {
        State& state = *state_;
        const std::scoped_lock lock(state.mutex);
        Node& node = state.nodes[index(slot)];
        if (node.list == kNone || node.list == kDone) { return; }
        node.transfer.wanted = false;
        if (node.list != kWanted) { return; }
        state.remove(index(slot));
        state.append(kGuess, index(slot));
    }

    /// Takes out transfers that have not begun and for which `unwanted(transfer)` holds, the last first, up to `most`; `cancelled(transfer)`
    /// hears of each. Returns their number.
    template <class Unwanted, class Cancelled>
    std::int64_t cancel(Unwanted&& unwanted, Cancelled&& cancelled, std::int64_t most = INT64_MAX)
    {
        State& state = here("cancel");
        const std::scoped_lock lock(state.mutex);
        std::int64_t count = 0;
        for (const List list : {kGuess, kWanted}) {
            for (std::int32_t i = state.tail[list]; i >= 0 && count < most;) {
                Node& node = state.nodes[std::size_t(i)];
                const std::int32_t before = node.previous;
                if (unwanted(std::as_const(node.transfer))) {
                    state.remove(std::size_t(i));
                    --state.outstanding;
                    cancelled(std::as_const(node.transfer));
                    ++count;
                }
                i = before;
            }
        }
        return count;
    }

    /// Appends what is done since the last call.
    void take(std::vector<Transfer>& out)
    {
        State& state = here("take");
        const std::scoped_lock lock(state.mutex);
        while (state.head[kDone] >= 0) {
            const auto i = std::size_t(state.head[kDone]);
            state.remove(i);
            out.push_back(state.nodes[i].transfer);
        }
    }

    /// Blocks until something is done that was not taken, or `until`. False at once when nothing is outstanding, and when the time is over.
    bool wait(std::optional<Transfer::Clock::time_point> until = std::nullopt)
    {
        State& state = here("wait");
        std::unique_lock lock(state.mutex);
        const auto ready = [&] { return state.head[kDone] >= 0 || state.outstanding == 0; };
        if (!until) {
            state.done.wait(lock, ready);
        } else if (!state.done.wait_until(lock, *until, ready)) {
            return false;
        }
        return state.head[kDone] >= 0;
    }

    /// Transfers that are queued or running.
    std::int64_t outstanding() const
    {
        const std::scoped_lock lock(state_->mutex);
        return state_->outstanding;
    }

private:
    enum List : std::uint8_t { kWanted, kGuess, kRunning, kDone, kLists, kNone = kLists };
    struct Node {
        Transfer transfer{};
        std::int32_t previous = -1;
        std::int32_t next = -1;
        List list = kNone;
    };
    static std::size_t index(SlotId slot) noexcept { return static_cast<std::size_t>(raw(slot)); }

    struct State {
        mutable std::mutex mutex;
        std::condition_variable wake;        ///< there is a transfer for any thread
        std::condition_variable wake_demand; ///< there is a wanted one
        std::condition_variable done;
        std::function<bool(const Transfer&)> read;
        std::vector<std::thread> workers;
        std::vector<Node> nodes; ///< by slot; all that follows is guarded by the mutex
        std::int32_t head[kLists] = {-1, -1, -1, -1};
        std::int32_t tail[kLists] = {-1, -1, -1, -1};
        std::int64_t outstanding = 0;
        bool stopping = false;

        void append(List list, std::size_t i)
        {
            Node& node = nodes[i];
            node.list = list;
            node.previous = tail[list];
            node.next = -1;
            const auto at = static_cast<std::int32_t>(i);
            (tail[list] >= 0 ? nodes[std::size_t(tail[list])].next : head[list]) = at;
            tail[list] = at;
        }
        void remove(std::size_t i)
        {
            Node& node = nodes[i];
            const List list = std::exchange(node.list, kNone);
            (node.previous >= 0 ? nodes[std::size_t(node.previous)].next : head[list]) = node.next;
            (node.next >= 0 ? nodes[std::size_t(node.next)].previous : tail[list]) = node.previous;
        }

        void work(std::int32_t worker, bool demand_only)
        {
            std::unique_lock lock(mutex);
            const auto available = [&] { return head[kWanted] >= 0 || (!demand_only && head[kGuess] >= 0); };
            for (;;) {
                (demand_only ? wake_demand : wake).wait(lock, [&] { return stopping || available(); });
                if (stopping) { return; }
                const auto i = std::size_t(head[kWanted] >= 0 ? head[kWanted] : head[kGuess]);
                remove(i);
                append(kRunning, i);
                const Transfer mine = nodes[i].transfer;
                lock.unlock();
                const auto begin = Transfer::Clock::now();
                const bool delivered = carry_out(mine);
                const auto end = Transfer::Clock::now();
                lock.lock();
                Transfer& t = nodes[i].transfer;
                t.delivered = delivered;
                t.worker = worker;
                t.begin = begin;
                t.end = end;
                remove(i);
                append(kDone, i);
                --outstanding;
                done.notify_one();
            }
        }
        /// What a store throws is a failed transfer.
        bool carry_out(const Transfer& transfer) noexcept
        {
            try {
                return read(transfer);
            } catch (...) {
                return false;
            }
        }
    };

    void stop()
    {
        {
            const std::scoped_lock lock(state_->mutex);
            state_->stopping = true;
        }
        state_->wake.notify_all();
        state_->wake_demand.notify_all();
        for (auto& worker : state_->workers) { worker.join(); }
    }

    /// A forked process has neither the threads nor, perhaps, a mutex that anybody will unlock.
    State& here(const char* call)
    {
        if (::getpid() != owner_) {
            throw Error(detail::text("TransferQueue::", call, ": the threads were made in process ", owner_, " and do not exist in the forked process ", ::getpid()));
        }
        return *state_;
    }

    ::pid_t owner_;
    std::unique_ptr<State> state_;
};

} // namespace oasis
