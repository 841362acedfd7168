// SPDX-License-Identifier: Apache-2.0
// Is what was computed over a cache right? Against double precision over what the cache holds.
#pragma once
#include "bench/verify.hpp"
#include "heed/cache.hpp"

namespace heed::tool {

// One query per sequence, (sequences, heads, 1, dim): heads spread over sequences spread over the cache.
Findings verify_cached(const KvCache&, const View& q, const View& computed);

struct StepRun {
  const LayerConfig& config;  // no rotary, no dropout
  const LayerWeights& weights;
  const KvCache& cache;  // of one sequence, in f32
  const Buffer &x, &y;   // the last token of the sequence, which is in the cache by now
};

// The token's own key and value in the cache, and its row of the layer's output.
Findings verify_step(const StepRun&);

}  // namespace heed::tool
