// SPDX-License-Identifier: Apache-2.0
//
// `make_cache` and `footprint`: compiled into the library, inline in header-only use.
#pragma once

#include <oasis/any_cache.hpp>

#ifndef OASIS_COMPILED

#include <oasis/make_cache_impl.hpp>

#endif
