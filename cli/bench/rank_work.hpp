// SPDX-License-Identifier: Apache-2.0
// What one rank of `heed bench --suite ranks` does, and how long it took all of them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "buffer.hpp"
#include "heed/group.hpp"

namespace heed::tool {

// What has been received, and the processor's time that went by in looking for more.
struct Traffic {
  std::uint64_t bytes = 0, messages = 0;
  double polling = 0;
};

// Counts what is received through the messages under it.
std::unique_ptr<Messages> counted(std::unique_ptr<Messages>, Traffic&);

struct RankTime {
  double seconds = 0;    // of the call
  double computing = 0;  // of them, this thread on a processor with something to do
  double alone = 0;      // decode: of the slowest rank's attention over its own tokens, with nobody to tell
  Traffic received{};
  bool has_the_bits = false;  // of one process
};

constexpr std::int64_t bench_heads = 8, bench_dim = 64;

// Causal self-attention of 8 heads of 64 dimensions, f32.
struct Prefill {
  Buffer q, k, v, out;  // out: by one process
  explicit Prefill(std::int64_t tokens);
  double of_one_process(int threads);  // seconds; fills `out`
};
// Every rank with so many threads, and stretches of the sequence. Returns the times of all ranks, on each of
// them.
std::vector<RankTime> prefill_over(Group&, const Traffic&, const Prefill&, int threads);

// A step over so many kept tokens: one query of 8 heads of 64 dimensions, f32.
struct Decode {
  Buffer q, k, v, out;
  explicit Decode(std::int64_t tokens);  // computes `out`
};
// The median of many steps, with the tokens spread over the ranks; and of as many over each rank's own
// tokens, all ranks at once, since they share memory in both, of which the slowest rank of each counts.
std::vector<RankTime> decode_over(Group&, const Traffic&, const Decode&, int threads);

// Seconds that a message of one byte takes between these ranks, one after another.
double latency_of(Group&);

}  // namespace heed::tool
