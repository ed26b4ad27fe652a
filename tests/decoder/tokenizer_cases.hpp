// SPDX-License-Identifier: Apache-2.0
//
// What make_tokenizer_cases.py made: vocabularies, texts and the ids that they should give.
#pragma once

#include "decoder/support.hpp"

namespace oasis_decode::test {

using Ids = std::vector<TokenId>;

/// `OASIS_TOKENIZER_CASES` names a file with more texts.
inline const Json& tokenizer_cases()
{
    static const Json json = [] {
        const char* other = std::getenv("OASIS_TOKENIZER_CASES");
        return read_json(other ? std::filesystem::path(other) : data_dir() / "tokenizers" / "cases.json", 100'000'000);
    }();
    return json;
}

inline Tokenizer tokenizer_of(const GgufWriter& writer)
{
    TemporaryFolder folder;
    write_file(folder / "t.gguf", writer.str());
    return Tokenizer::from_gguf(GgufFile(folder / "t.gguf"));
}

} // namespace oasis_decode::test
