// SPDX-License-Identifier: Apache-2.0
// heed bench --suite ranks: attention over ranks against one process, and what docs/scale.md predicts of it.
#pragma once
#include "bench/case.hpp"
#include "command.hpp"
#include "console.hpp"

namespace heed::tool {

// 1, 2, 4 and 8 ranks as threads with one thread each. 16384 tokens, or `quick` 2048. Fails where a bit
// differs.
Status bench_ranks(Size, const Console&);

struct ProcessRanks {
  int ranks = 1, threads = 1;  // of each
  Size size = Size::full;
  bool oversubscribes = false;
};

// Prefill and decode as the ranks of bench_ranks(), alternating with one process that has as many threads as
// all of them, which this one is; the round of the median efficiency is reported. Called again in each of the
// processes. Fails where a bit differs.
Status bench_rank_processes(const ProcessRanks&, const Console&);

}  // namespace heed::tool
