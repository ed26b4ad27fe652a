// SPDX-License-Identifier: Apache-2.0
#include "model/mtp.hpp"
#include "model/safetensors.hpp"
#include "read_tensors.hpp"

using namespace oasis_decode;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    const fuzz::InputFile input(data, size);
    fuzz::attempt([&] { fuzz::read_tensors(SafetensorsFile(input.path())); });
    // The draft head of a model of one head of two channels: a whole set of named tensors in a few bytes.
    ModelConfig config;
    config.layers = config.q_heads = config.kv_heads = 1;
    config.hidden = config.head_dim = config.intermediate = 2;
    config.vocab = 4;
    fuzz::attempt([&] { static_cast<void>(load_mtp(input.path(), config)); });
    return 0;
}
