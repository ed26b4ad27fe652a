// SPDX-License-Identifier: Apache-2.0
#include "fuzz_input.hpp"
#include "model/sentencepiece.hpp"

using namespace oasis_decode;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    const std::string_view text = fuzz::text_of(data, size);
    fuzz::attempt([&] {
        const Tokenizer tokenizer = Tokenizer::from_sentencepiece(parse_sentencepiece(text, "input"), "input");
        fuzz::exercise(tokenizer, text);
        fuzz::exercise(tokenizer, fuzz::kText);
    });
    return 0;
}
