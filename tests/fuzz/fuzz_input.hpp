// SPDX-License-Identifier: Apache-2.0
//
// What the fuzz targets share. A target calls what the decoder calls on a file of a stranger; the only exceptions that
// may come out are the project's own.
#pragma once

#include "model/tokenizer.hpp"

#include <oasis/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace oasis_decode::fuzz {

/// The input as a file in memory, for functions that open a path.
class InputFile {
public:
    InputFile(const std::uint8_t* data, std::size_t size) : file_(::memfd_create("input", MFD_CLOEXEC))
    {
        if (file_ < 0 || ::write(file_, data, size) != static_cast<ssize_t>(size)) { std::abort(); }
    }
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    ~InputFile() { ::close(file_); }

    std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(file_); }

private:
    int file_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size)
{
    return {reinterpret_cast<const char*>(data), size};
}

/// Errors of the project are what bad input deserves; everything else is a find.
template <class Call> void attempt(const Call& call)
{
    try {
        call();
    } catch (const oasis::Error&) {
    }
}

inline void expect(bool holds)
{
    if (!holds) { std::abort(); }
}

/// Spaces, digits, letters of two and three bytes, bytes that are no text.
inline constexpr std::string_view kText = "aab <s> caf\xC3\xA9 12 \xE2\x96\x81\xF0\x9F\x98\x80\xFF\x80  b\n\n";

/// Encodes and decodes `text` with a tokenizer that was accepted.
inline void exercise(const Tokenizer& tokenizer, std::string_view text)
{
    text = text.substr(0, 4096);
    for (const Specials specials : {Specials::kAsText, Specials::kRecognised}) {
        const std::vector<TokenId> ids = tokenizer.encode_prompt(text, specials);
        StreamDecoder stream(tokenizer);
        std::string streamed;
        for (const TokenId id : ids) {
            expect(id >= 0 && static_cast<std::size_t>(id) < tokenizer.vocabulary());
            streamed += stream.push(id);
        }
        streamed += stream.finish();
        static_cast<void>(tokenizer.decode(ids));
    }
    static_cast<void>(tokenizer.unencodable(text));
}

/// Makes a tokenizer of the input with `make(text)`; one that is accepted has to encode and decode.
template <class Make> int try_tokenizer(const std::uint8_t* data, std::size_t size, const Make& make)
{
    const std::string_view text = text_of(data, size);
    attempt([&] {
        const Tokenizer tokenizer = make(text);
        exercise(tokenizer, text);
        exercise(tokenizer, kText);
    });
    return 0;
}

} // namespace oasis_decode::fuzz
