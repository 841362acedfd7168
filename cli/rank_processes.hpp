// SPDX-License-Identifier: Apache-2.0
// The processes of `heed run --ranks N` and of `heed bench --ranks N`: this command again, N times, by
// mpirun.
#pragma once
#include <memory>

#include "command.hpp"
#include "heed/group.hpp"

namespace heed::tool {

// Throws Error where so many processes of this machine, with so many threads each, cannot be: heed was built
// without MPI, there is no mpirun, or there are fewer processors and nobody said `share`.
void check_ranks(int ranks, bool share_processors, int threads = 1);
// Runs this command line as so many processes and waits for them. Throws Error where they cannot be.
Status start_ranks(int ranks, bool share_processors);

// Whether this is one of them.
bool is_rank_process();
// All of them, and the network under them. Throws Error where they are not as many.
Group group_of_processes(int ranks);
std::unique_ptr<Messages> messages_of_processes(int ranks);

}  // namespace heed::tool
