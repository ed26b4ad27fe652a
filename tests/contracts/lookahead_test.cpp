// SPDX-License-Identifier: Apache-2.0
#include "contracts/lookahead_contract.hpp"
#include "fault/wrong_predictor.hpp"

namespace oasis::contracts {

using fault::Wrong;
using fault::WrongPredictor;
using StockLookahead =
    testing::Types<LookaheadPredictor, NoLookahead, WrongPredictor<Wrong::kRandom>, WrongPredictor<Wrong::kNothing>,
                   WrongPredictor<Wrong::kStale>, WrongPredictor<Wrong::kForeign>, WrongPredictor<Wrong::kDuplicates>,
                   WrongPredictor<Wrong::kNeighbour>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Stock, LookaheadContract, StockLookahead);

} // namespace oasis::contracts
