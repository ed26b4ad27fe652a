// SPDX-License-Identifier: Apache-2.0
//
// One error policy. Broken preconditions throw `Error` or a class derived from it, with the operation and the
// offending values in the text. Expected outcomes (a full tier, a miss) are values and never throw.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace oasis {

/// Base of everything the library throws on purpose.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// An argument, option or call order that can never work.
class InvalidArgument : public Error {
public:
    using Error::Error;
};

/// A combination that this build or backend does not support; the text lists what it does.
class Unsupported : public Error {
public:
    using Error::Error;
};

/// A store or file that failed: the text holds the operation, the tier, the block and the system's reason.
class StoreError : public Error {
public:
    using Error::Error;
};

namespace detail {

/// Joins its arguments into one text; keeps third-party formatting out of the headers.
template <class... Parts>
std::string text(const Parts&... parts)
{
    std::ostringstream stream;
    (stream << ... << parts);
    return std::move(stream).str();
}

/// Throws `InvalidArgument` with the joined text unless `condition` holds.
template <class... Parts>
void expects(bool condition, const Parts&... parts)
{
    if (!condition) { throw InvalidArgument(text(parts...)); }
}

} // namespace detail
} // namespace oasis
