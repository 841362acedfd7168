// SPDX-License-Identifier: Apache-2.0
// The masks that --causal, --window, --tokens and --document ask for, with the memory they view.
#pragma once
#include <optional>
#include <vector>

#include "heed/mask.hpp"
#include "shape_options.hpp"

namespace heed::tool {

struct OwnedMasks {
  std::optional<HideMatrix> padding{};
  std::vector<std::int32_t> documents{};
  Masks masks{};  // may view the others, whose memory stays where it is when this moves
};

OwnedMasks make_masks(const ShapeOptions&, const Extents&);

}  // namespace heed::tool
