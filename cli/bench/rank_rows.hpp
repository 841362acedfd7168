// SPDX-License-Identifier: Apache-2.0
// What `heed bench --suite ranks` reports: a row for each number of ranks. What a row predicts is the cost
// model of docs/scale.md with this machine's numbers: the time of one process, and what the processors spend
// on messages.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/rank_work.hpp"
#include "console.hpp"

namespace heed::tool {

struct RankRow {
  int ranks;
  RankTime most{.has_the_bits = true};  // of each number, that any rank had
  double waiting = 0;                   // likewise
  double alone = 0, predicted = 0;

  RankRow(int count, const std::vector<RankTime>&);
  double efficiency() const { return alone / most.seconds; }
  // Decode: what telling the others adds to the rank that its own tokens take longest.
  double added() const { return most.seconds - most.alone; }
};

nlohmann::ordered_json json_of(const RankRow&);
std::string text_of(const std::vector<RankRow>&, const Console&);

// What this machine does with messages.
struct Network {
  double bytes_per_second = 0;  // of a copy
  double latency = 0;
  int processors = 1;

  Network();  // measures the first; nobody has said how long a message takes
  int used_by(std::int64_t threads) const;
  // Each byte is copied twice, when it is packed and when it is received, by a processor that several ranks
  // may share.
  double seconds_of(const Traffic&, int ranks) const;
};

}  // namespace heed::tool
