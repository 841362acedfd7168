// SPDX-License-Identifier: Apache-2.0
// Loss curves as an SVG picture.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace train {

struct Curve {
  std::string name, colour;
  std::vector<double> losses;
  std::int64_t first_step = 0;
};

struct Plot {
  std::string title;
  double highest;  // where the vertical axis ends; it begins at 0
  std::vector<Curve> curves;
};

void draw(const std::filesystem::path&, const Plot&);

}  // namespace train
