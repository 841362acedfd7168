// SPDX-License-Identifier: Apache-2.0
// How a backward pass is cut into tasks. Every way gives the same bits (O1). The ways differ in how many
// products they have, and in how many threads they keep busy.
#pragma once
#include <vector>

#include "cpu/backward/call.hpp"
#include "threads/waves.hpp"

namespace heed::cpu {

struct GradientCut {
  std::vector<GradientPart> parts;
  // Where parts share sums, a KV head is a grid (rows, keys) of parts, which lie one after another; a head
  // that shares none is a grid of one. Times of the parts are in pairs of a row and a key, about.
  std::vector<threads::Grid> grids;
  std::vector<float> times;
};

GradientCut cut_gradients(const GradientCall&);

}  // namespace heed::cpu
