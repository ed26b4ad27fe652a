// SPDX-License-Identifier: Apache-2.0
#include "app/words.hpp"

#include <fmt/format.h>

namespace oasis_decode {
namespace {

constexpr const char* adjective_words[] = {
    "silent", "amber",   "bright", "gentle", "hollow", "northern", "rapid",  "quiet",  "velvet", "copper",
    "frozen", "golden",  "humble", "ivory",  "lonely", "marble",   "narrow", "orange", "plain",  "proud",
    "rusty",  "scarlet", "silver", "simple", "sleepy", "smooth",   "solar",  "stormy", "sunny",  "tender",
    "violet", "wild",    "windy",  "wooden", "yellow", "distant",  "early",  "faded",  "grand",  "honest",
};
constexpr const char* noun_words[] = {
    "harbor", "lantern", "meadow",  "anchor", "bridge", "candle", "castle", "cedar",   "chapel", "cliff",
    "cloud",  "compass", "dolphin", "eagle",  "falcon", "ferry",  "forest", "garden",  "hammer", "island",
    "kettle", "ladder",  "maple",   "market", "mirror", "museum", "ocean",  "orchard", "otter",  "palace",
    "pepper", "piano",   "prairie", "rabbit", "river",  "saddle", "spider", "station", "summit", "tunnel",
    "turtle", "village", "violin",  "walnut", "whale",  "window", "winter", "wolf",
};
constexpr const char* attribute_words[] = {"locker number", "batch id", "serial number", "ticket number",
                                           "secret key",    "pin",      "token",         "password"};
constexpr const char* first_names[] = {"Clara", "Boris", "Nadia", "Omar",  "Zoe",  "Milan",
                                       "Sofia", "Jonas", "Vera",  "Diego", "Emma", "Ivan"};
constexpr const char* onsets[] = {"b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"};
constexpr const char* vowels[] = {"a", "e", "i", "o", "u"};
constexpr const char* endings[] = {"k", "l", "m", "n", "r", "s", "t", "x"};

constexpr const char* subjects[] = {
    "The function",      "The caller",  "A client",     "The parser", "The server",          "This option",
    "The default value", "Each module", "The compiler", "A buffer",   "The second argument", "The returned object"};
constexpr const char* verbs[] = {"reads",     "returns", "copies",  "checks", "replaces",
                                 "describes", "ignores", "accepts", "writes", "keeps"};
constexpr const char* objects[] = {"the list of names",       "the whole file",        "its own state",
                                   "every line of the input", "the current directory", "a copy of the table",
                                   "the type of the result",  "all pending requests",  "the configuration file",
                                   "an empty string"};
constexpr const char* tails[] = {"before it starts.",
                                 "when the option is set.",
                                 "unless an error occurs.",
                                 "in the order in which they were added.",
                                 "after the first call.",
                                 "if the file exists.",
                                 "and then waits for the next one.",
                                 "so that it can be used again.",
                                 "without any further checks.",
                                 "as described in the section above."};

std::string invented(Random& random, int syllables)
{
    std::string out;
    for (int i = 0; i < syllables; ++i) {
        out += random.pick(onsets);
        out += random.pick(vowels);
    }
    return out + random.pick(endings);
}

std::string hexadecimal(Random& random, std::size_t digits)
{
    return fmt::format("{:016x}", random.next()).substr(0, digits);
}

} // namespace

std::span<const char* const> adjectives() { return adjective_words; }

std::span<const char* const> attributes() { return attribute_words; }

std::string make_key(Random& random, int kind)
{
    if (kind == 0) {
        const char* adjective = random.pick(adjective_words);
        return fmt::format("{} {}", adjective, random.pick(noun_words));
    }
    return kind == 1 ? hexadecimal(random, 6) : invented(random, 3);
}

std::string make_value(Random& random, int kind)
{
    return kind == 0 ? std::to_string(10000 + random.below(90000)) : hexadecimal(random, 8);
}

std::string make_name(Random& random)
{
    const char* first = random.pick(first_names);
    std::string last = invented(random, 2 + static_cast<int>(random.below(2)));
    last.front() = static_cast<char>(last.front() - 'a' + 'A');
    return fmt::format("{} {}", first, last);
}

std::string paragraph(Random& random)
{
    std::string out;
    const std::size_t sentences = 2 + random.below(3);
    for (std::size_t i = 0; i < sentences; ++i) {
        const char* subject = random.pick(subjects);
        const char* verb = random.pick(verbs);
        const char* object = random.pick(objects);
        out += fmt::format("{}{} {} {} {}", i ? " " : "", subject, verb, object, random.pick(tails));
    }
    return out;
}

} // namespace oasis_decode
