// SPDX-License-Identifier: Apache-2.0
// Where all ranks map the same memory the whole call lies there: each puts its rows into it, all take tasks
// from one counter, whosever rows they are, and each takes its results. Who has a slower processor then has
// less to do, and nobody waits for longer than one task.
#pragma once
#include <string>

#include "heed/distributed.hpp"
#include "ranks/group_call.hpp"

namespace heed::ranks {

// What one rank was called with.
struct RankArguments {
  const Split& split;
  const Inputs& in;
  const Outputs& out;
  const Options& options;
  std::string stream_kernel{};  // that takes its rows; empty: this rank has none
};

// By all ranks, once they have agreed on the call. Whether it is done; if not, then on no rank, and nothing
// is written: also where numbers of a row do not fit f32 (S13), for whoever took it does not say whose it is.
bool attend_together(Group&, const GroupCall&, const RankArguments&);

}  // namespace heed::ranks
