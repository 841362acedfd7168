// SPDX-License-Identifier: Apache-2.0
// Is what was timed right? Rows spread over the result, from its first to its last, against double precision.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "buffer.hpp"
#include "heed/attention.hpp"
#include "heed/layer.hpp"

namespace heed::tool {

struct Findings {
  std::int64_t compared = 0, misses = 0;
  double worst_in_bounds = 0;  // largest error as a share of its bound
  std::string first_miss{};

  void add(const Findings&);
  bool all_right() const { return compared > 0 && misses == 0; }
};

// Up to eight numbers, evenly spread over [0, count), the first and the last included.
std::set<std::int64_t> spread_over(std::int64_t count);

// heed::check() on single queries of `computed`, the result of attention() over these inputs. Of the options
// it knows a bias and, as masks, Causal among as many queries as keys and Keep.
Findings verify_attention(const Inputs&, const View& computed, const Options&);

struct LayerRun {
  const LayerConfig& config;  // no rotary, no dropout
  const LayerWeights& weights;
  const Buffer &x, &y;  // self-attention without a mask
};

// The layer's definition (S16) over single rows.
Findings verify_layer(const LayerRun&);

// One double against its bound, a share of the row's largest element.
struct Compared {
  double found, expected, bound;
  Shape at;
};
Findings verify_element(const Compared&);

// Elements that are not finite: what was never written is still the NaN it was filled with.
Findings verify_written(const Buffer& computed);

}  // namespace heed::tool
