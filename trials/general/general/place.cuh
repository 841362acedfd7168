// SPDX-License-Identifier: Apache-2.0
// Which rows and keys a thread has of a tile.
#pragma once
#include <cstdint>

#include "general/shape.hpp"
#include "general/tile.cuh"

namespace heed::cuda::general {

// This thread's keys of a tile and this thread's rows of a warp.
template <class Shape>
struct Place {
  int warp_row, key_warp;

  // The first of keys first + 8 n + {0, 1}.
  HEED_DEVICE int first_key(int tile) const {
    return tile * Shape::tile_keys + key_warp * Shape::warp_keys + lane_index() % 4 * 2;
  }
  HEED_DEVICE int warp_first_key(int tile) const {
    return tile * Shape::tile_keys + key_warp * Shape::warp_keys;
  }
  HEED_DEVICE int row(int m, int r) const {
    return warp_row * Shape::warp_rows + m * 16 + r * 8 + lane_index() / 4;
  }
};

}  // namespace heed::cuda::general
