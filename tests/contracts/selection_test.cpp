// SPDX-License-Identifier: Apache-2.0
#include "contracts/selection_contract.hpp"

#include <oasis/score/selection.hpp>

namespace oasis::contracts {

INSTANTIATE_TYPED_TEST_SUITE_P(Stock, SelectionContract, TopKSelection);

} // namespace oasis::contracts
