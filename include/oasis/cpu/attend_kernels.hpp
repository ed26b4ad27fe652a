// SPDX-License-Identifier: Apache-2.0
//
// The attention kernels of the CPU backend behind one table of functions: SIMD where the library is compiled in,
// scalar in header-only use. All arithmetic is float; a kernel's result depends on its job alone, never on threads or
// neighbours.
#pragma once

#include <oasis/cpu/attend_jobs.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasis::cpu {

struct AttendKernels {
    void (*attend_chunk)(const AttendChunk&);
    void (*prefill)(const PrefillJob&);
    void (*block_mass)(const MassJob&);
    /// native -> int8 head-block, scales and all (the tag is left alone); K and V of `tokens` tokens, the rest coded
    /// as zeros. Scale = amax / 127 rounded up to f16 and at most 65504; codes round to nearest even, what lies
    /// beyond saturates, NaN becomes 0.
    void (*encode_int8)(const BlockFormat&, const std::byte* native, std::int32_t tokens, std::byte* coded);
    /// int8 -> native, all tokens; f16 values that round beyond 65504 saturate there.
    void (*decode_int8)(const BlockFormat&, const std::byte* coded, std::byte* native);
    /// Rows of any element type to float (times `scale`) and back; `n` elements.
    void (*to_float)(DType, const void* from, std::size_t n, float scale, float* to);
    void (*from_float)(DType, const float* from, std::size_t n, void* to);
    const char* name; ///< "scalar", or the instruction set chosen at run time
};

/// What `PrefillJob::scratch` has to hold.
std::size_t prefill_scratch_floats(const BlockFormat&, std::int32_t group);

/// The table in use: the best SIMD of this machine when the library is compiled in, else scalar. OASIS_SIMD=scalar in
/// the environment forces scalar, the name of another table forces that one; a name that this machine does not have
/// is refused.
const AttendKernels& attend_kernels();
/// Every table this machine can run, the scalar one first and the best last.
std::span<const AttendKernels* const> all_attend_kernels();
/// The scalar table, always there: the reference of the tests and all there is in header-only use.
const AttendKernels& scalar_attend_kernels();

/// Merges two partial results over disjoint sets: into (out, lse) of [group, head_dim]. merge(x, empty) == x bit for
/// bit.
void merge_states(std::int32_t group, std::int32_t head_dim, const float* other_out, const float* other_lse, float* out,
                  float* lse);

/// After the last wave: divides by the sums; lse may be null. Rows that saw nothing get zeros and -inf.
void finish_prefill(std::int32_t rows, std::int32_t group, std::int32_t head_dim, const float* max, const float* sum,
                    float* out, float* lse);

} // namespace oasis::cpu

#include <oasis/cpu/scalar_attend.hpp> // the inline definitions
