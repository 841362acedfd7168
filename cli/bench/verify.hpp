// SPDX-License-Identifier: Apache-2.0
// Is what was timed right? Rows spread over the result, from its first to its last, against double precision.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>

#include "buffer.hpp"
#include "heed/attention.hpp"
#include "heed/cache.hpp"
#include "heed/layer.hpp"

namespace heed::tool {

inline std::int64_t offset_of(const Shape& at, const Strides& stride) {
  return at.batch * stride.batch + at.heads * stride.heads + at.length * stride.length + at.dim * stride.dim;
}

// A view onto the part of `view` that starts at these coordinates.
template <class AnyView>
AnyView part_of(AnyView view, const Shape& from, const Shape& extents) {
  using Byte = std::conditional_t<std::is_same_v<AnyView, View>, const std::byte, std::byte>;
  view.data = static_cast<Byte*>(view.data) +
              offset_of(from, view.stride) * static_cast<std::int64_t>(bytes_of(view.dtype));
  view.shape = extents;
  return view;
}

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

// One double against its bound, a share of the row's largest element.
struct Compared {
  double found, expected, bound;
  Shape at;
};
Findings verify_element(const Compared&);

// Elements that are not finite: what was never written is still the NaN it was filled with.
Findings verify_written(const Buffer& computed);

}  // namespace heed::tool
