// SPDX-License-Identifier: Apache-2.0
// Where everything of a picture is: panels in a grid, words or numbers at its edges, titles, and a legend
// below.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "view/drawing.hpp"

namespace HEED_NAMESPACE::view {

// What the plan is made for.
struct PlanOf {
  const Run& run;
  std::int64_t panels = 1, columns = 1;
  const Level& level;  // of every panel
  bool has_title = false;
};

struct Plan {
  std::int64_t columns = 1, rows = 1, panel_width = 0, panel_height = 0;
  std::int64_t left = 0, top = 0, above = 0;  // of the first panel; above: the room of the words of its keys
  bool has_words = false, lacks_words = false;  // lacks: there are words, and they would not be read
  std::vector<std::string> query_words{}, key_words{};

  std::int64_t width() const;
  std::int64_t height() const;
  Box panel(std::int64_t n) const;  // row by row
  Box legend() const;               // below all panels
};

Plan plan_of(const PlanOf&);

// As many panels beside each other as look well.
std::int64_t columns_for(std::int64_t panels);

}  // namespace HEED_NAMESPACE::view
