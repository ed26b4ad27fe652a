// SPDX-License-Identifier: Apache-2.0
//
// Everything that compiles without a GPU toolchain.
#pragma once

#include <oasis/any_cache.hpp>
#include <oasis/cache.hpp>
#include <oasis/concepts.hpp>
#include <oasis/make_cache.hpp>
#include <oasis/version.hpp>
