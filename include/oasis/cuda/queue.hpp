// SPDX-License-Identifier: Apache-2.0
//
// Where the CUDA backend's work is put. `Queue` is a handle that every `enqueue_*` takes first; `Stream` and `Event`
// own what CUDA calls by these names.
#pragma once

#include <oasis/cuda/error.hpp>

#include <cstddef>
#include <utility>

namespace oasis::cuda {

/// A non-owning handle of a CUDA stream, usually the engine's own. Copies are cheap; there is no default queue, and the
/// legacy default stream (null) is refused: it would serialise everything else.
class Queue {
public:
    /// Throws `InvalidArgument` for the null stream. The stream must outlive the queue.
    explicit Queue(cudaStream_t stream) : stream_(stream)
    {
        detail::expects(stream != nullptr, "cuda::Queue: the stream is null (the legacy default stream); pass a stream of your own.");
    }
    Queue(std::nullptr_t) = delete;

    /// The stream itself.
    cudaStream_t stream() const noexcept { return stream_; }
    /// Blocks until everything put here has run; throws what failed.
    void synchronize() const { check(::cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

private:
    cudaStream_t stream_;
};

/// Owns a non-blocking stream of the current device.
class Stream {
public:
    /// Whose work goes first on a busy device.
    enum class Priority { kLow, kHigh };

    /// Throws `CudaError` when the driver refuses.
    explicit Stream(Priority priority = Priority::kHigh)
    {
        int least = 0;
        int greatest = 0;
        check(::cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
        const int value = priority == Priority::kLow ? least : greatest;
        check(::cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, value), "cudaStreamCreateWithPriority of priority ", value);
    }
    /// It moves; what it is moved from is empty.
    ///@{
    Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Stream& operator=(Stream&& other) noexcept
    {
        std::swap(stream_, other.stream_);
        return *this;
    }
    ///@}
    ~Stream()
    {
        if (stream_) { static_cast<void>(::cudaStreamDestroy(stream_)); }
    }

    /// A handle of it.
    Queue queue() const { return Queue(stream_); }

private:
    cudaStream_t stream_ = nullptr;
};

/// Owns an event. Without `kTimed` it only orders work, which is cheaper.
class Event {
public:
    /// Whether `milliseconds` can be asked.
    enum class Kind { kOrder, kTimed };

    /// Throws `CudaError` when the driver refuses.
    explicit Event(Kind kind = Kind::kOrder)
    {
        check(::cudaEventCreateWithFlags(&event_, kind == Kind::kTimed ? cudaEventDefault : cudaEventDisableTiming),
              "cudaEventCreateWithFlags");
    }
    /// It moves; what it is moved from is empty.
    ///@{
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event& operator=(Event&& other) noexcept
    {
        std::swap(event_, other.event_);
        return *this;
    }
    ///@}
    ~Event()
    {
        if (event_) { static_cast<void>(::cudaEventDestroy(event_)); }
    }

    /// The event itself.
    cudaEvent_t get() const noexcept { return event_; }
    /// Marks the point that `queue` has reached.
    void record(Queue queue) { check(::cudaEventRecord(event_, queue.stream()), "cudaEventRecord"); }
    /// What is put on `queue` after this call runs after the recorded point. Puts no wait on the host.
    void enqueue_wait(Queue queue) const { check(::cudaStreamWaitEvent(queue.stream(), event_, 0), "cudaStreamWaitEvent"); }
    /// Whether the recorded point has been reached.
    bool ready() const
    {
        const cudaError_t code = ::cudaEventQuery(event_);
        if (code == cudaErrorNotReady) {
            static_cast<void>(::cudaGetLastError());
            return false;
        }
        check(code, "cudaEventQuery");
        return true;
    }
    /// Blocks until the recorded point has been reached.
    void synchronize() const { check(::cudaEventSynchronize(event_), "cudaEventSynchronize"); }
    /// Milliseconds from `begin` to `end`; both were made with `kTimed` and have been reached.
    static float milliseconds(const Event& begin, const Event& end)
    {
        float ms = 0.0F;
        check(::cudaEventElapsedTime(&ms, begin.event_, end.event_), "cudaEventElapsedTime");
        return ms;
    }

private:
    cudaEvent_t event_ = nullptr;
};

} // namespace oasis::cuda
