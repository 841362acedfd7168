// SPDX-License-Identifier: Apache-2.0
// How a backward pass is cut into tasks. Every way gives the same bits (O1); they differ in how many products
// they have, and in how many threads they keep busy.
#pragma once
#include <vector>

#include "cpu/gradient_call.hpp"
#include "threads/waves.hpp"

namespace heed::cpu {

struct GradientCut {
  std::vector<GradientPart> parts;
  // Where parts share sums: the grid of each KV head, (rows, keys), whose parts lie one after another, or one
  // that shares none; and how long each part takes, about, in pairs of a row and a key.
  std::vector<threads::Grid> grids;
  std::vector<float> times;
};

GradientCut cut_gradients(const GradientCall&);

}  // namespace heed::cpu
