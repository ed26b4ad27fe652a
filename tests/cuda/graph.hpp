// SPDX-License-Identifier: Apache-2.0
//
// Captured work, for tests and benchmarks.
#pragma once

#include <oasis/cuda/error.hpp>
#include <oasis/cuda/queue.hpp>

namespace oasis::cuda::test {

/// Owns an instantiated graph of what `enqueue` puts on a queue.
class Graph {
public:
    template <class Enqueue> Graph(Queue queue, Enqueue&& enqueue)
    {
        cudaGraph_t graph = nullptr;
        check(::cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        enqueue();
        check(::cudaStreamEndCapture(queue.stream(), &graph), "cudaStreamEndCapture");
        const cudaError_t code = ::cudaGraphInstantiate(&graph_, graph, 0);
        static_cast<void>(::cudaGraphDestroy(graph));
        check(code, "cudaGraphInstantiate");
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    ~Graph() { static_cast<void>(::cudaGraphExecDestroy(graph_)); }
    void enqueue(Queue queue) const { check(::cudaGraphLaunch(graph_, queue.stream()), "cudaGraphLaunch"); }

private:
    cudaGraphExec_t graph_ = nullptr;
};

} // namespace oasis::cuda::test
