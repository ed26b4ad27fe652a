// SPDX-License-Identifier: Apache-2.0
//
// What every command does first: load the model, or say what it would take.
#pragma once

#include "app/command.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace oasis_decode {

/// Configuration and tokenizer without the weights.
struct ModelHead {
    ModelConfig config;
    Tokenizer tokenizer;
    std::size_t weight_bytes =
        0; ///< about what the weights take once loaded: matrices are fused, and then share a code
    std::string weight_types{};   ///< "210 Q4_1, 61 F32, 1 Q8_0"
};
ModelHead read_head(const std::filesystem::path& path, Compute compute = Compute::kF32);
/// The same of a model that was loaded from there.
ModelHead head_of(const LoadedModel& model, const std::filesystem::path& path);

/// Architecture, sizes, RoPE scaling, window and types of weights, a line each.
std::string model_text(const ModelHead& head);

/// Loads the model and tells its warnings on standard error.
std::unique_ptr<Engine> open_engine(const Command& command, const CacheMaker& maker);

/// The sparse cache of the settings, mass measured when the command asks for it.
SparseCache sparse_cache(const Command& command, const Settings& settings, const CacheMaker& maker,
                         const oasis::ModelShape& shape, std::int64_t context);

/// Prints what memory the command takes at this context and whether it fits. `dense`: a dense cache lives beside it.
void print_memory_plan(const Command& command, const CacheMaker& maker, const ModelHead& head, std::int64_t context,
                       bool dense);

} // namespace oasis_decode
