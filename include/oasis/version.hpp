// SPDX-License-Identifier: Apache-2.0
//
// The version of the headers, and with the compiled library the version that was linked. The build system reads
// the three numbers from this file.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "OasisKV needs C++20: compile with -std=c++20 or newer, or link the target OasisKV::headers or OasisKV::oasis."
#endif

#include <string_view>

#define OASIS_VERSION_MAJOR 0
#define OASIS_VERSION_MINOR 1
#define OASIS_VERSION_PATCH 0

/// 10,000 x major + 100 x minor + patch, for `#if`.
#define OASIS_VERSION (OASIS_VERSION_MAJOR * 10000 + OASIS_VERSION_MINOR * 100 + OASIS_VERSION_PATCH)

namespace oasis {

/// The version of the headers that this translation unit saw.
inline constexpr std::string_view kVersion = "0.1.0";

#if defined(OASIS_COMPILED)
/// The version of the library that was linked: differs from `kVersion` when headers and library are of two installs.
std::string_view linked_version() noexcept;
#endif

} // namespace oasis
