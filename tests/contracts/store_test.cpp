// SPDX-License-Identifier: Apache-2.0
#include "contracts/store_contract.hpp"
#include "fault/failing_store.hpp"

namespace oasis::contracts {

using StockStores = testing::Types<RamStore, fault::FailingStore<RamStore>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Stock, StoreContract, StockStores);

} // namespace oasis::contracts
