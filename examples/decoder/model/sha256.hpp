// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 (FIPS 180-4): identifies models, prompts and texts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace oasis_decode {

class Sha256 {
public:
    void update(std::span<const std::byte> bytes) noexcept;
    /// The digest in lower-case hex; the object is used up.
    std::string hex() noexcept;

private:
    void compress(const std::byte* block) noexcept;

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> pending_{};
    std::size_t filled_ = 0;
    std::uint64_t total_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);

} // namespace oasis_decode
