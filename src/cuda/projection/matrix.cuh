// SPDX-License-Identifier: Apache-2.0
// A projection by the matrix units of every GPU since Ampere, where x and w have one type of 16 bits: sums
// are f32, of all inputs in order from the first, so that neither the other rows nor the shape of a tile
// change a bit (O3).
//
// Operands lie in shared memory in panels of 32 inputs: a line of 64 bytes for each output, then one for each
// row. A thread reads sixteen bytes of a line, eight inputs, which are its part of two products: of which
// inputs does not matter, as long as it is the same for both operands.
#pragma once
#include <cstdint>

#include "cuda/projection/tiles.cuh"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

// The sums of a warp's threads.
template <Type type, class Shape>
class MatrixSums {
  static constexpr int out_tiles = Shape::out_tiles, row_tiles = Shape::row_tiles;

 public:
  HEED_DEVICE MatrixSums() {
#pragma unroll
    for (int m = 0; m < out_tiles; ++m)
#pragma unroll
      for (int n = 0; n < row_tiles; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
  }

  HEED_DEVICE void add(SharedAddress stage) {
    const SharedAddress outs = stage + (first_out() + lane_index() / 4) * Shape::line_bytes +
                               lane_index() % 4 * 16,
                        rows = stage + (Shape::outs + first_row() + lane_index() / 4) * Shape::line_bytes +
                               lane_index() % 4 * 16;
#pragma unroll
    for (int panel = 0; panel < Shape::panels; ++panel) {
      uint4 a[out_tiles][2], b[row_tiles];
#pragma unroll
      for (int m = 0; m < out_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          a[m][half] =
              load_shared16(outs + panel * Shape::panel_bytes + (16 * m + 8 * half) * Shape::line_bytes);
#pragma unroll
      for (int n = 0; n < row_tiles; ++n)
        b[n] = load_shared16(rows + panel * Shape::panel_bytes + 8 * n * Shape::line_bytes);
#pragma unroll
      for (int m = 0; m < out_tiles; ++m)
#pragma unroll
        for (int n = 0; n < row_tiles; ++n)
          add_product<type>(sums[m][n], {a[m][0].x, a[m][1].x, a[m][0].y, a[m][1].y}, b[n].x, b[n].y);
#pragma unroll
      for (int m = 0; m < out_tiles; ++m)
#pragma unroll
        for (int n = 0; n < row_tiles; ++n)
          add_product<type>(sums[m][n], {a[m][0].z, a[m][1].z, a[m][0].w, a[m][1].w}, b[n].z, b[n].w);
    }
  }

  HEED_DEVICE void write_to(const LinearMap& m, const MatrixTilePlace<Shape>& place) {
    MatrixResults<type, out_tiles, row_tiles>::write(sums, m, place.first_out + first_out(),
                                                     place.first_row + first_row());
  }

 private:
  // In the block's tile, of this warp's.
  HEED_DEVICE static int first_out() {
    return thread_index() / 32 % Shape::warps_along_outs * 16 * out_tiles;
  }
  HEED_DEVICE static int first_row() { return thread_index() / 32 / Shape::warps_along_outs * 8 * row_tiles; }

  float sums[out_tiles][row_tiles][4];
};

// Tile `number` of a map, by a block. The next stages are on their way while one is multiplied.
template <Type type, class Shape>
HEED_DEVICE void multiply_by_matrix_units(const LinearMap& m, std::int64_t number, SharedAddress memory) {
  const auto place = MatrixTilePlace<Shape>::of(m, number);
  const MatrixLoader<Shape> loader(m, place);
  MatrixSums<type, Shape> sums;
#pragma unroll
  for (int n = 0; n < Shape::stages - 1; ++n) {
    loader.load(n * Shape::inputs, memory + n * Shape::stage_bytes);
    commit_copies();
  }
  int at = 0, next = Shape::stages - 1;
#pragma unroll 1
  for (std::int64_t k = 0; k < m.in; k += Shape::inputs) {
    wait_for_copies<Shape::stages - 2>();
    sync();
    loader.load(k + (Shape::stages - 1) * Shape::inputs, memory + next * Shape::stage_bytes);
    commit_copies();
    sums.add(memory + at * Shape::stage_bytes);
    at = at + 1 == Shape::stages ? 0 : at + 1, next = next + 1 == Shape::stages ? 0 : next + 1;
  }
  wait_for_copies<0>();
  sums.write_to(m, place);
}

}  // namespace heed::cuda
