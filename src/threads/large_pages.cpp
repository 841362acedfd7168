// SPDX-License-Identifier: Apache-2.0
#include "threads/large_pages.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace heed::threads {

void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t large = std::size_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(memory),
             first = (address + large - 1) / large * large;
  const std::uintptr_t end = (address + bytes) / large * large;
  if (first < end)
    madvise(static_cast<unsigned char*>(memory) + (first - address), end - first, MADV_HUGEPAGE);
#endif
}

}  // namespace heed::threads
