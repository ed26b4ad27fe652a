// SPDX-License-Identifier: Apache-2.0
#include "contracts/eviction_contract.hpp"

#include <oasis/pool/eviction.hpp>

namespace oasis::contracts {

using StockEviction = testing::Types<LruEviction, ClockEviction>;
INSTANTIATE_TYPED_TEST_SUITE_P(Stock, EvictionContract, StockEviction);

} // namespace oasis::contracts
