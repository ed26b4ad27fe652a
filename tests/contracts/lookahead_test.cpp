// SPDX-License-Identifier: Apache-2.0
#include "contracts/lookahead_contract.hpp"
#include "fault/wrong_predictor.hpp"

namespace oasis::contracts {

using fault::Wrong;
template <Wrong kind> struct Always : fault::WrongPredictor {
    explicit Always(const LookaheadOptions& = {}) : WrongPredictor(kind) {}
};
using StockLookahead = testing::Types<LookaheadPredictor, NoLookahead, Always<Wrong::kRandom>, Always<Wrong::kNothing>, Always<Wrong::kStale>,
                                      Always<Wrong::kForeign>, Always<Wrong::kDuplicates>, Always<Wrong::kNeighbour>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Stock, LookaheadContract, StockLookahead);

} // namespace oasis::contracts
