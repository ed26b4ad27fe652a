// SPDX-License-Identifier: Apache-2.0
#include "model/llama.hpp"
#include "read_tensors.hpp"

using namespace oasis_decode;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    const fuzz::InputFile input(data, size);
    fuzz::attempt([&] {
        const GgufFile file(input.path());
        fuzz::read_tensors(file);
        fuzz::attempt([&] { static_cast<void>(config_from_gguf(file)); });
        fuzz::attempt([&] { fuzz::exercise(Tokenizer::from_gguf(file), fuzz::text_of(data, size)); });
    });
    fuzz::attempt([&] { static_cast<void>(load_model(input.path())); });
    return 0;
}
