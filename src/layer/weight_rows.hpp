// SPDX-License-Identifier: Apache-2.0
// Some rows of each of a layer's matrices and biases, from memory or from a file of which no more is read.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "heed/layer.hpp"

namespace heed::layer {

struct Rows {
  std::int64_t first = 0, count = 0;
};
using WeightRows = std::array<Rows, 4>;  // of q, k, v and the output

// Of weights that fit the completed configuration, or throws Error.
LayerWeights take_rows(const LayerWeights&, const LayerConfig&, const WeightRows&);
LayerWeights read_rows(const std::filesystem::path&, const std::string& prefix, const LayerConfig&,
                       const WeightRows&);

// That rows taken so have the shapes that the configuration gives them.
void check_rows(const LayerWeights&, const LayerConfig&, const WeightRows&);

}  // namespace heed::layer
