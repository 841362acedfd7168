// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

namespace heed::threads {

// Asks the system for large pages of its own below these bytes: a processor reads ahead only as far as one of
// the system's pages goes, and forgets where thousands of small ones lie. A system that cannot loses nothing.
void prefer_large_pages(void* memory, std::size_t bytes);

}  // namespace heed::threads
