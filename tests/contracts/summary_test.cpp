// SPDX-License-Identifier: Apache-2.0
#include "contracts/summary_contract.hpp"

#include <oasis/score/summaries.hpp>

namespace oasis::contracts {

template <SummaryKind kKind> struct Stock : StockSummary {
    Stock() : StockSummary(kKind) {}
};

using StockSummaries = testing::Types<Stock<SummaryKind::kSpread>, Stock<SummaryKind::kCuboid>,
                                      Stock<SummaryKind::kMinMax>, Stock<SummaryKind::kMean>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Stock, SummaryContract, StockSummaries);

} // namespace oasis::contracts
