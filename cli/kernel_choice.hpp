// SPDX-License-Identifier: Apache-2.0
// What explain() says, taken apart: one verdict per kernel.
#pragma once
#include <string>
#include <vector>

#include "heed/attention.hpp"
#include "masks.hpp"
#include "shape_options.hpp"

namespace heed::tool {

struct Verdict {
  std::string kernel, words;  // "taken", or "refused: " and why
  bool taken = false;
};
std::vector<Verdict> verdicts_of(const std::string& explanation);
std::string taken_kernel(const std::string& explanation);  // empty if none

// explain() of the attention inside a layer with these extents: queries as a projection lays them out.
std::string explain_extents(const ShapeOptions&, const Extents&, const OwnedMasks&);

// The kernel that attention over these extents runs on.
std::string chosen_kernel(const ShapeOptions&, const Extents&, const OwnedMasks&);

}  // namespace heed::tool
