// SPDX-License-Identifier: Apache-2.0
// The machine under the tool: its processors, its caches and its memory, as the system describes them.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace heed::tool {

std::string cpu_model();  // "unknown" where the system does not say

// In bytes; 0 where the system does not say or the machine has none.
struct Caches {
  std::size_t l2 = 0, l3 = 0;
};
Caches find_caches();

// The processors that this process's threads ran on last, each once, without the calling thread's; empty
// where the system does not say. Those of a virtual machine have neighbours that its system does not see: of
// 24 processes with two threads on a Xeon, six did 17 to 28 % more or less arithmetic on the processors of
// fresh threads than on those that a case had run on (November 2026).
std::vector<int> processors_of_others();

// Moves the calling thread to a processor, which it may leave again as any thread may. Nothing happens where
// it must not be there.
void begin_on(int processor);

}  // namespace heed::tool
