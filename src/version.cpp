// SPDX-License-Identifier: Apache-2.0
#include <oasis/version.hpp>

namespace oasis {

std::string_view linked_version() noexcept { return kVersion; }

} // namespace oasis
