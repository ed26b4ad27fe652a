// SPDX-License-Identifier: Apache-2.0

#include <oasis/make_cache_impl.hpp>

namespace oasis {

template class cpu::Pipeline<DefaultPolicies<cpu::Backend, float>>;
template class cpu::Pipeline<DefaultPolicies<cpu::Backend, f16>>;
template class cpu::Pipeline<DefaultPolicies<cpu::Backend, bf16>>;
template class KVCache<cpu::Backend, float>;
template class KVCache<cpu::Backend, f16>;
template class KVCache<cpu::Backend, bf16>;

} // namespace oasis
