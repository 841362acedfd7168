// SPDX-License-Identifier: Apache-2.0
// heed bench --suite ranks --ranks N: ranks that are processes, started by mpirun.
#pragma once
#include "command.hpp"
#include "console.hpp"

namespace heed::tool {

struct ProcessRanks {
  int ranks = 1, threads = 1;  // of each
  bool oversubscribes = false, is_quick = false;
};

// Prefill and decode as the ranks of bench_ranks(), alternating with one process that has as many threads as
// all of them, which this one is; the round of the median efficiency is reported. Called again in each of the
// processes. Fails where a bit differs.
Status bench_rank_processes(const ProcessRanks&, const Console&);

}  // namespace heed::tool
