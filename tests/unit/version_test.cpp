// SPDX-License-Identifier: Apache-2.0
#include <oasis/version.hpp>

#include <gtest/gtest.h>

#include <string>

TEST(Version, TextNumbersAndLibraryAgree)
{
    const std::string numbers = std::to_string(OASIS_VERSION_MAJOR) + "." + std::to_string(OASIS_VERSION_MINOR) + "." +
                                std::to_string(OASIS_VERSION_PATCH);
    EXPECT_EQ(oasis::kVersion, numbers);
    EXPECT_EQ(oasis::linked_version(), oasis::kVersion);
}
