// SPDX-License-Identifier: Apache-2.0

#include <oasis/make_cache_impl.hpp>
