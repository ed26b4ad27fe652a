// SPDX-License-Identifier: Apache-2.0
#include "app/residency.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace oasis_decode {

ResidencyGrid::ResidencyGrid(const oasis::CacheConfig& config)
    : block_tokens_(config.block_tokens),
      units_(config.shape.layers * (config.scope == oasis::SelectionScope::kLayer ? 1 : config.shape.kv_heads))
{
}

std::int32_t& ResidencyGrid::sealed(oasis::BlockId block)
{
    const auto [found, is_new] = index_.try_emplace(block, resident_.size());
    if (is_new) { resident_.push_back(0); }
    return resident_[found->second];
}

void ResidencyGrid::on_event(const oasis::Event& event)
{
    if (event.kind == oasis::EventKind::kRefused) { return; }
    std::int32_t& resident = sealed(event.block);
    if (event.tier != oasis::Tier::kFast) { return; }
    const std::int32_t units = event.layer >= 0 && event.set >= 0 ? 1 : resident; // -1: all that are there
    resident += event.kind == oasis::EventKind::kPromoted ? 1 : -units;
    if (event.kind != oasis::EventKind::kPromoted) { return; }
    open_.demand += event.reason == oasis::EventReason::kDemand ? 1 : 0;
    open_.ahead += event.reason == oasis::EventReason::kPrefetch ? 1 : 0;
}

void ResidencyGrid::end_step(oasis::TokenIndex tokens)
{
    open_.tokens = tokens;
    open_.resident = resident_;
    // What is not sealed yet is the recent window, in native form: always in fast memory.
    open_.resident.resize(static_cast<std::size_t>((tokens + block_tokens_ - 1) / block_tokens_), units_);
    rows_.push_back(std::exchange(open_, {}));
}

nlohmann::ordered_json ResidencyGrid::to_json() const
{
    nlohmann::ordered_json out = {{"block_tokens", block_tokens_}, {"units", units_}, {"steps", nlohmann::ordered_json::array()}};
    for (const Row& row : rows_) {
        out["steps"].push_back(
            {{"tokens", row.tokens}, {"demand", row.demand}, {"ahead", row.ahead}, {"resident", row.resident}});
    }
    return out;
}

} // namespace oasis_decode
