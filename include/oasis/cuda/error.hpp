// SPDX-License-Identifier: Apache-2.0
//
// Failures of CUDA calls: an exception whose text holds the call, CUDA's name for the failure and the offending values.
#pragma once

#include <oasis/core/error.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace oasis::cuda {
namespace detail {

using oasis::detail::expects;
using oasis::detail::text;

} // namespace detail

/// A CUDA call that failed. After an asynchronous failure (an illegal address in a kernel) every later call of the
/// process fails the same way.
class CudaError : public Error {
public:
    /// `text` has the call and the words for `code`.
    CudaError(cudaError_t code, const std::string& text) : Error(text), code_(code) {}
    /// What the call returned.
    cudaError_t code() const noexcept { return code_; }

private:
    cudaError_t code_;
};

/// Throws `CudaError` unless `code` is cudaSuccess: "cudaMalloc of 64 bytes: cudaErrorMemoryAllocation (out of memory)".
/// @param call the CUDA call, followed by what its failure depends on.
template <class... Parts> void check(cudaError_t code, const char* call, const Parts&... parts)
{
    if (code == cudaSuccess) { return; }
    static_cast<void>(::cudaGetLastError()); // or the next launch would be blamed
    throw CudaError(code, detail::text(call, parts..., ": ", ::cudaGetErrorName(code), " (", ::cudaGetErrorString(code), ")"));
}

/// After a kernel launch: throws `CudaError` if the launch was refused. Failures while the kernel runs surface at a later call.
template <class... Parts> void check_launch(const char* kernel, const Parts&... parts) { check(::cudaGetLastError(), kernel, parts...); }

} // namespace oasis::cuda
