// SPDX-License-Identifier: Apache-2.0
//
// What both translation units of the consumer use of the library.
#pragma once

#if __has_include(<oasis/oasis.hpp>)
#include <oasis/oasis.hpp>
#endif
#include <oasis/core/half.hpp>
#include <oasis/cpu/executor.hpp>
#include <oasis/version.hpp>

#include <atomic>

inline long sum(int n)
{
    oasis::ThreadPool pool(2);
    std::atomic<long> total{0};
    pool.parallel_for(static_cast<std::size_t>(n), [&](std::size_t i) {
        total += static_cast<long>(oasis::to_float(oasis::to_f16(static_cast<float>(i))));
    });
    return total.load();
}

long sum_in_first(int n);
long sum_in_second(int n);
const void* address_in_first();
const void* address_in_second();
