// SPDX-License-Identifier: Apache-2.0
//
// The words that generated tasks are made of.
#pragma once

#include "app/random.hpp"

#include <span>
#include <string>

namespace oasis_decode {

std::span<const char* const> adjectives();
std::span<const char* const> attributes();

/// kind 0: "silent harbour"; 1: "4be20c"; 2: "temorak".
std::string make_key(Random& random, int kind);
/// kind 0: "48213"; 1: "9f04e1c7".
std::string make_value(Random& random, int kind);
/// "Clara Binovem".
std::string make_name(Random& random);
/// Two to four sentences of plain prose that hold no record.
std::string paragraph(Random& random);

} // namespace oasis_decode
