// SPDX-License-Identifier: Apache-2.0
// On which processors threads run. Those of a virtual machine have neighbours that its system does not see:
// of 24 processes with two threads on a Xeon, six did 17 to 28 % more or less arithmetic on the processors of
// fresh threads than on those that a case had run on (November 2026).
#pragma once
#include <vector>

namespace heed::tool {

// The processors that this process's threads ran on last, each once, without the calling thread's; empty
// where the system does not say.
std::vector<int> processors_of_others();

// Moves the calling thread to a processor, which it may leave again as any thread may. Nothing happens where
// it must not be there.
void begin_on(int processor);

}  // namespace heed::tool
