// SPDX-License-Identifier: Apache-2.0
// How large the caches are, as the system says.
#pragma once
#include <cstddef>

namespace heed::tool {

// In bytes; 0 where the system does not say or the machine has none.
struct Caches {
  std::size_t l2 = 0, l3 = 0;
};
Caches find_caches();

std::size_t physical_memory_bytes();

}  // namespace heed::tool
