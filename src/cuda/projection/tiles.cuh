// SPDX-License-Identifier: Apache-2.0
// What projections by matrix units have in common: which sums a block makes, how operands come into shared
// memory, and how sums become results. w is the left operand and x the right one, so that the sums of a row
// of x lie down a column.
#pragma once
#include <cstdint>

#include "cuda/projection/plan.hpp"
#include "cuda/projection/rows.cuh"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

// Which of a launch's maps a block is for, and which tile of it.
template <class Shape>
struct MapTile {
  int n = 0;
  std::int64_t number;
  const LinearMap& map;

  HEED_DEVICE MapTile(const LinearMaps& maps, std::int64_t block) : number(block), map(find(maps)) {}

 private:
  HEED_DEVICE const LinearMap& find(const LinearMaps& maps) {
    for (; number >= tiles_of<Shape>(maps.map[n]); ++n) number -= tiles_of<Shape>(maps.map[n]);
    return maps.map[n];
  }
};

// A block's sums: outputs of w times rows of x.
template <class Shape>
struct MatrixTilePlace {
  std::int64_t first_out, first_row;

  // Tiles that share outputs or rows are neighbours, so that the second-level cache has what they read.
  HEED_DEVICE static MatrixTilePlace of(const LinearMap& m, std::int64_t number) {
    constexpr std::int64_t rows_together = 8;
    const std::int64_t outs = tiles_of(m.out, Shape::outs), rows = tiles_of(m.rows, Shape::rows),
                       group = number / (rows_together * outs), first = group * rows_together,
                       here = rows - first < rows_together ? rows - first : rows_together,
                       within = number - first * outs;
    return {within / here * Shape::outs, (first + within % here) * Shape::rows};
  }
};

// Copies stages of both operands into shared memory, zeros where they end. A thread copies the same piece of
// every `lines`-th output and row.
template <class Shape>
class MatrixLoader {
  static constexpr int piece_inputs = 8, pieces = Shape::inputs / piece_inputs,
                       lines = Shape::threads / pieces, out_passes = Shape::outs / lines,
                       row_passes = Shape::rows / lines;
  static_assert(Shape::threads % pieces == 0 && Shape::outs % lines == 0 && Shape::rows % lines == 0);

 public:
  HEED_DEVICE MatrixLoader(const LinearMap& map, const MatrixTilePlace<Shape>& place)
      : m(map), first_out(place.first_out + line()), first_row(place.first_row + line()) {
#pragma unroll
    for (int n = 0; n < row_passes; ++n) row_at[n] = row_offset(m.x, first_row + n * lines);
  }

  // Inputs k and those after it.
  HEED_DEVICE void load(std::int64_t k, SharedAddress stage) const {
    const std::int64_t input = k + piece() * piece_inputs;
    const bool is_input = input < m.in;
    const std::uint16_t *w = static_cast<const std::uint16_t*>(m.w) + first_out * m.w_row + input,
                        *const x = static_cast<const std::uint16_t*>(m.x.tensor.data) + input;
#pragma unroll
    for (int n = 0; n < out_passes; ++n, w += lines * m.w_row)
      prefetch16(stage + Shape::place_of(line() + n * lines, piece()), w,
                 is_input && first_out + n * lines < m.out);
#pragma unroll
    for (int n = 0; n < row_passes; ++n)
      prefetch16(stage + Shape::place_of(Shape::outs + line() + n * lines, piece()), x + row_at[n],
                 is_input && first_row + n * lines < m.rows);
  }

 private:
  HEED_DEVICE static int piece() { return thread_index() % pieces; }
  HEED_DEVICE static int line() { return thread_index() / pieces; }

  const LinearMap& m;
  const std::int64_t first_out, first_row;  // of this thread's
  std::int64_t row_at[row_passes];
};

// Sums as matrix instructions leave them, of tiles of 16 outputs and of 8 rows: a thread has outputs l / 4
// and eight further on of rows 2 (l % 4) and the next, where l is its lane.
template <Type type, int out_tiles, int row_tiles>
class MatrixResults {
 public:
  using Sums = float[out_tiles][row_tiles][4];

  // From output `out` and row `row` on.
  HEED_DEVICE static void write(Sums& sums, const LinearMap& m, std::int64_t out, std::int64_t row) {
    add_bias(sums, m, out);
    if (m.y.tensor.type == type && m.y_has_pairs)
      write_pairs(sums, m, out, row);
    else
      write_one_by_one(sums, m, out, row);
  }

 private:
  HEED_DEVICE static void add_bias(Sums& sums, const LinearMap& map, std::int64_t first) {
    if (!map.bias) return;
#pragma unroll
    for (int m = 0; m < out_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t out = first + 16 * m + 8 * half + lane_index() / 4;
        const float bias = out < map.out ? map.bias[out] : 0.0f;
#pragma unroll
        for (int n = 0; n < row_tiles; ++n)
          sums[m][n][2 * half] = sums[m][n][2 * half] + bias,
                         sums[m][n][2 * half + 1] = sums[m][n][2 * half + 1] + bias;
      }
  }

  // Of two neighbouring outputs at once: matrices are turned, so that a thread has them.
  HEED_DEVICE static void write_pairs(const Sums& sums, const LinearMap& map, std::int64_t first_out,
                                      std::int64_t first_row) {
    auto* const y = static_cast<std::uint16_t*>(const_cast<void*>(map.y.tensor.data));
#pragma unroll
    for (int n = 0; n < row_tiles; ++n) {
      const std::int64_t row = first_row + 8 * n + lane_index() / 4, at = row_offset(map.y, row);
#pragma unroll
      for (int m = 0; m < out_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t both = transposed(pack2<type>(sums[m][n][2 * half], sums[m][n][2 * half + 1]));
          const std::int64_t out = first_out + 16 * m + 8 * half + lane_index() % 4 * 2;
          if (row < map.rows && out < map.out)
            *reinterpret_cast<std::uint32_t*>(y + at + column_offset(map.y, out)) = both;
        }
    }
  }
  HEED_DEVICE static void write_one_by_one(const Sums& sums, const LinearMap& map, std::int64_t first_out,
                                           std::int64_t first_row) {
#pragma unroll
    for (int n = 0; n < row_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::int64_t row = first_row + 8 * n + lane_index() % 4 * 2 + e, at = row_offset(map.y, row);
#pragma unroll
        for (int m = 0; m < out_tiles; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const std::int64_t out = first_out + 16 * m + 8 * half + lane_index() / 4;
            if (row < map.rows && out < map.out)
              cuda::write({map.y.tensor.data, at + column_offset(map.y, out), 1, map.y.tensor.type, 16}, 0,
                          sums[m][n][2 * half + e]);
          }
      }
  }
};

}  // namespace heed::cuda
