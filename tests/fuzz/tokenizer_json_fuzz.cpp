// SPDX-License-Identifier: Apache-2.0
#include "fuzz_input.hpp"

using namespace oasis_decode;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    return fuzz::try_tokenizer(
        data, size, [](std::string_view text) { return Tokenizer::from_json(parse_json(text, "input"), "input"); });
}
