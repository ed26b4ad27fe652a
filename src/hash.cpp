// SPDX-License-Identifier: Apache-2.0
#include <oasis/pool/prefix_index.hpp>

#include <xxhash.h>

namespace oasis {

Hash128 chain_hash(Hash128 parent, std::span<const TokenId> tokens, std::uint64_t salt) noexcept
{
    const std::uint64_t head[] = {parent.low, parent.high, tokens.size()};
    XXH3_state_t state{};
    XXH3_128bits_reset_withSeed(&state, salt);
    XXH3_128bits_update(&state, head, sizeof head);
    XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
    const XXH128_hash_t hash = XXH3_128bits_digest(&state);
    return {hash.low64, hash.high64};
}

} // namespace oasis
