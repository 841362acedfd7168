// SPDX-License-Identifier: Apache-2.0
// Groups whose messages go through shared memory: each rank maps it for itself, as processes do.
#pragma once
#include <vector>

#include "heed/shared_memory.hpp"

namespace heed::cases {

// `also_mapped`, where given, is one more mapping: a process that may write anything.
inline std::vector<Group> group_of_shared_memory(int ranks, const GroupOptions& options = {},
                                                 std::unique_ptr<SharedMemory>* also_mapped = nullptr) {
  const std::size_t bytes = bytes_of_shared_messages(ranks);
  SharedMemory first(bytes);
  std::vector<Group> ends;
  for (int rank = 0; rank < ranks; ++rank)
    ends.emplace_back(messages_in(SharedMemory(first.name(), bytes), rank, ranks), options);
  if (also_mapped) *also_mapped = std::make_unique<SharedMemory>(first.name(), bytes);
  return ends;
}

}  // namespace heed::cases
