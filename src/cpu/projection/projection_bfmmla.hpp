// SPDX-License-Identifier: Apache-2.0
// Projections by BFMMLA: weights are its rows and rows of x its columns, both in fours of inputs, so that
// outputs lie side by side.
#pragma once
#include <cstdint>

#include "cpu/isa/neon_bf16.hpp"
#include "cpu/projection/projection_bf16.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct BfmmlaProjection {
  using S = NeonBf16<3>;
  static constexpr int outputs = Tile<S>::rows, tile_rows = Tile<S>::columns, depth_step = 8, together = 4,
                       input_step = tile_rows;

  explicit BfmmlaProjection(std::int64_t) {}

  static void pack(const std::uint16_t* rows, std::int64_t depth, std::uint16_t* tile) {
    for (int r = 0; r < tile_rows; r += 2) {
      const std::uint16_t *even = rows + r * depth, *odd = even + depth;
      std::uint16_t* to = tile + r * together;
      for (std::int64_t d = 0; d < depth; d += 8, to += 8 * tile_rows)
        S::store_pair(S::load_halves(even + d), S::load_halves(odd + d), to, to + together * tile_rows);
    }
  }

  template <Start start>
  static void multiply(const Bf16Panel& t, float* sums) {
    bf16_product<S, start>({t.w, t.x, tile_rows * t.row_step, (t.rows + tile_rows - 1) / tile_rows, t.depth},
                           sums);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
