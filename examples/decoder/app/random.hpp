// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that are a function of a seed and a counter, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace oasis_decode {

/// A bijective scramble of 64 bits (the finaliser of SplitMix64), keyed by `counter`.
constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t counter) noexcept
{
    std::uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

/// Uniform in [0, 1), a function of its arguments alone: whatever order positions are sampled in, they get the same number.
constexpr double uniform(std::uint64_t seed, std::uint64_t counter) noexcept
{
    return static_cast<double>(mix(mix(seed, 0x6F61736973ULL), counter) >> 11) * 0x1p-53;
}

class Random {
public:
    explicit Random(std::uint64_t seed) noexcept : seed_(seed) {}

    std::uint64_t next() noexcept { return mix(seed_, counter_++); }
    /// Uniform in [0, bound), by multiplication; the bias is under bound / 2^32.
    std::size_t below(std::size_t bound) noexcept
    {
        return static_cast<std::size_t>(((next() >> 32) * static_cast<std::uint64_t>(bound)) >> 32);
    }
    const char* pick(std::span<const char* const> words) noexcept { return words[below(words.size())]; }

    template <class Value> void shuffle(std::vector<Value>& values) noexcept
    {
        for (std::size_t i = values.size(); i > 1; --i) { std::swap(values[i - 1], values[below(i)]); }
    }

private:
    std::uint64_t seed_;
    std::uint64_t counter_ = 0;
};

} // namespace oasis_decode
