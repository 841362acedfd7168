// SPDX-License-Identifier: Apache-2.0
// Projections by AMX: rows of x are the first operand as they lie, weights the second, in pairs of inputs.
#pragma once
#include <cstdint>

#include "cpu/isa/amx.hpp"
#include "cpu/projection/projection_bf16.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct AmxProjection {
  static constexpr int outputs = 32, tile_rows = 32, depth_step = 32, together = 2, input_step = 1;

  explicit AmxProjection(std::int64_t rows) : tiles(rows < 16 ? static_cast<int>(rows) : 16) {}

  static void pack(const std::uint16_t*, std::int64_t, std::uint16_t*) {}

  template <Start start>
  static void multiply(const Bf16Panel& t, float* sums) {
    for (std::int64_t r = 0; r < t.rows; r += tile_rows, sums += tile_rows * outputs) {
      const AmxBlock block{t.x + r * t.row_step, t.row_step * 2, t.w, t.depth};
      if (t.rows - r <= tile_rows / 2)
        half_block_product<start>(block, sums);
      else
        block_product<start>(block, sums);
    }
  }

  AmxTiles tiles;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
