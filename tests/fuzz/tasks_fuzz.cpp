// SPDX-License-Identifier: Apache-2.0
#include "app/tasks.hpp"
#include "fuzz_input.hpp"

using namespace oasis_decode;

/// The first byte says what the rest is: t, tasks; x, packed tasks; i, a list of items; g, what to generate.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    if (size == 0) { return 0; }
    const std::string_view text = fuzz::text_of(data, size).substr(1);
    fuzz::attempt([&] {
        switch (data[0]) {
        case 't': static_cast<void>(parse_tasks(text, "input")); break;
        case 'x': static_cast<void>(parse_tasks(unpack_xz(text, "input", std::size_t{1} << 24), "input")); break;
        case 'i': static_cast<void>(parse_items(text, "/nonexistent/items.json")); break;
        case 'g': static_cast<void>(parse_generate(text)); break;
        default: break;
        }
    });
    return 0;
}
