// SPDX-License-Identifier: Apache-2.0
#include "app/command.hpp"
#include "app/terminal.hpp"

#include <oasis/any_cache.hpp>

#include <algorithm>
#include <string>
#include <vector>

int main(int argc, char** argv)
{
    oasis_decode::hold_standard_streams();
    oasis_decode::install_signal_handlers();
    const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    return oasis_decode::run_program(
        arguments, {.make = [](const oasis::CacheConfig& config) { return oasis::make_cache(config); },
                    .footprint = oasis::footprint,
                    .make_on = [](const oasis::CacheConfig& config,
                                  const oasis::StoreFactory& store) { return oasis::make_cache(config, {}, store); }});
}
