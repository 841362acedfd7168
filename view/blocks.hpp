// SPDX-License-Identifier: Apache-2.0
// A level as lines of a terminal: two characters to a cell.
#pragma once
#include <string>
#include <vector>

#include "view/pyramid.hpp"

namespace HEED_NAMESPACE::view {

struct Blocks {
  const Level& level;
  double end_of_scale = 1;
  const std::vector<std::string>& tokens;  // of the rows; shown where a row is one query
  bool has_colours = false;
};

std::string blocks(const Blocks&);

}  // namespace HEED_NAMESPACE::view
