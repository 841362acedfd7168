// SPDX-License-Identifier: Apache-2.0
// A projection by Hopper's matrix units, where x and w have one type of 16 bits. Every sum is of all inputs
// in order from the first, by the same instruction, so that neither the other rows nor the shape of a tile
// change a bit (O3).
#pragma once
#include <cstdint>

#include "cuda/projection/tiles.cuh"
#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// Tile `number` of a map, by a block; memory is at a multiple of 1024. Two stages are always free: one is
// still multiplied when the other is filled.
template <Type type, class Shape>
HEED_DEVICE void multiply_on_hopper(const LinearMap& m, std::int64_t number, SharedAddress memory) {
  constexpr int ahead = Shape::stages - 2;
  const auto place = MatrixTilePlace<Shape>::of(m, number);
  const MatrixLoader<Shape> loader(m, place);
  const int group = warpgroup_index();
  const Operand outs = operand(memory + group * 64 * Shape::line_bytes),
                rows = operand(memory + Shape::outs * Shape::line_bytes);
  float sums[Shape::rows / 2];
#pragma unroll
  for (int n = 0; n < ahead; ++n) {
    loader.load(n * Shape::inputs, memory + n * Shape::stage_bytes);
    commit_copies();
  }
  int at = 0, next = ahead;
#pragma unroll 1
  for (std::int64_t k = 0; k < m.in; k += Shape::inputs) {
    wait_for_copies<ahead - 1>();
    fence_async_proxy();
    sync();
    pin(sums);
    fence_products();
#pragma unroll
    for (int step = 0; step < Shape::inputs / 16; ++step) {
      const int bytes = at * Shape::stage_bytes + step / 4 * Shape::panel_bytes + step % 4 * 32;
      multiply<type, 0>(sums, advanced(outs, bytes), advanced(rows, bytes), k > 0 || step > 0);
    }
    commit_products();
    loader.load(k + ahead * Shape::inputs, memory + next * Shape::stage_bytes);
    commit_copies();
    wait_for_products<1>();
    pin(sums);
    at = at + 1 == Shape::stages ? 0 : at + 1, next = next + 1 == Shape::stages ? 0 : next + 1;
  }
  wait_for_products<0>();
  pin(sums);
  wait_for_copies<0>();
  const std::int64_t out = place.first_out + group * 64 + thread_index() % 128 / 32 * 16;
  using Results = MatrixResults<type, 1, Shape::rows / 8>;
  Results::write(reinterpret_cast<typename Results::Sums&>(sums), m, out, place.first_row);
}

}  // namespace heed::cuda
