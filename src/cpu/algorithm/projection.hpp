// SPDX-License-Identifier: Apache-2.0
// y = x * W^T + b over weights packed into column tiles: many rows by panels, a few rows at the speed the
// weights arrive.
#pragma once
#include <cstdint>

#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/product.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr std::int64_t panels_per_block = 8;
// A stretch of the summed index short enough that a weight tile stays in the first-level cache while the
// panels pass by. The sums wait in memory between stretches, which changes no bit.
constexpr std::int64_t depth_per_stretch = 512;
constexpr std::int64_t most_single_rows = 4;

template <Vector S>
class Project {
  static constexpr int rows = Tile<S>::rows, columns = Tile<S>::columns;

 public:
  static std::int64_t scratch_floats(const Linear& t) {
    return panels_per_block * rows * (t.depth + columns) + 4 * most(t.x_dim, columns) + rows * columns +
           columns * t.depth;
  }

  Project(const Linear& linear, float* memory) : t(linear), panels(memory) {
    sums = panels + panels_per_block * rows * t.depth;
    widened = sums + panels_per_block * rows * columns;
    buffer = widened + columns * t.depth;
  }

  void run(const LinearPart& part) {
    const std::int64_t first = part.first_row, count = part.rows;
    if constexpr (columns % S::lanes == 0)
      if (count <= most_single_rows) return run_rows(part);
    const std::int64_t used = (count + rows - 1) / rows;
    for (std::int64_t p = 0; p < used; ++p) pack_panel(first + p * rows, least(rows, count - p * rows), p);
    find_rows(part);
    for (std::int64_t tile = part.first_tile; tile < part.end_tile; ++tile) {
      const std::int64_t elements = columns * t.depth;
      multiply(used, widen<S>({t.tiles, tile * elements, 1, t.tile_type}, elements, widened));
      for (std::int64_t p = 0; p < used; ++p) {
        transpose(sums + p * rows * columns);
        write_rows(p * rows, least(rows, count - p * rows), tile, buffer);
      }
    }
  }

 private:
  static Row row_at(const Tensor& x, std::int64_t length, std::int64_t row, std::int64_t head) {
    return row_of(x, row / length, head, row % length);
  }

  // Head by head, so that a concatenation of heads is read where they lie.
  void pack_panel(std::int64_t first, std::int64_t count, std::int64_t p) {
    float* panel = panels + p * rows * t.depth;
    for (std::int64_t h = 0; h < t.x_heads; ++h) {
      const auto row = [&](std::int64_t r) { return row_at(t.x, t.length, first + r, h); };
      const std::int64_t d = h * t.x_dim;
      pack_rows<S>(row, count, rows, t.x_dim, h + 1 == t.x_heads ? t.depth - d : t.x_dim, buffer,
                   panel + d * rows);
    }
  }

  // sums(columns, rows) of every panel, by one column tile of the weights.
  void multiply(std::int64_t used, const float* w) {
    for (std::int64_t k = 0; k < t.depth; k += depth_per_stretch) {
      const std::int64_t depth = least(depth_per_stretch, t.depth - k);
      for (std::int64_t p = 0; p < used; ++p) {
        const float* panel = panels + (p * t.depth + k) * rows;
        float* sum = sums + p * rows * columns;
        if (k == 0)
          tile_product<S, Start::zero>(panel, w, depth, sum);
        else
          tile_product<S, Start::sum>(panel, w + k * columns, depth, sum);
      }
    }
  }

  // (columns, rows) becomes (rows, columns), in the buffer.
  void transpose(const float* from) {
    for (int r = 0; r < rows; r += 4)
      for (int n = 0; n < columns; n += 4) {
        const float* const corner[4] = {from + n * rows + r, from + (n + 1) * rows + r,
                                        from + (n + 2) * rows + r, from + (n + 3) * rows + r};
        S::transpose(corner, buffer + r * columns + n, columns);
      }
  }

  // Where the rows of y begin, found once: with two divisions for every row of every tile 2048x768x768 was
  // 2 % slower.
  void find_rows(const LinearPart& part) {
    for (std::int64_t r = 0; r < part.rows; ++r)
      first_of_row[r] = row_at(t.y, t.length, part.first_row + r, 0).first;
  }

  // values(count, columns) are rows [r, r + count) of this part, by one tile of columns.
  void write_rows(std::int64_t r, std::int64_t count, std::int64_t tile, float* values) const {
    const std::int64_t column = tile * columns, real = least(columns, t.out - column);
    if (t.bias)
      for (std::int64_t n = 0; n < count * columns; ++n)
        if (n % columns < real) values[n] += t.bias[column + n % columns];
    const std::int64_t head = column / t.y_dim, d = column % t.y_dim;
    const bool in_one_place =
        real == columns && d + columns <= t.y_dim && t.y.type == Type::f32 && t.y.stride.dim == 1;
    auto* y =
        static_cast<float*>(const_cast<void*>(t.y.data)) + (in_one_place ? head * t.y.stride.heads + d : 0);
    for (std::int64_t n = 0; n < count; ++n, values += columns) {
      const std::int64_t first = first_of_row[r + n];
      if (in_one_place)
        __builtin_memcpy(y + first, values, columns * sizeof(float));
      else
        write_columns(first, column, real, values);
    }
  }

  void write_columns(std::int64_t first, std::int64_t column, std::int64_t real, const float* values) const {
    for (std::int64_t n = 0; n < real; ++n) {
      const std::int64_t head = (column + n) / t.y_dim;
      write({t.y.data, first + head * t.y.stride.heads, t.y.stride.dim, t.y.type}, (column + n) % t.y_dim,
            values[n]);
    }
  }

  // A few rows: outputs on the lanes, two tiles of weights at a time, so that two streams arrive side by
  // side.
  void run_rows(const LinearPart& part) {
    const std::int64_t first = part.first_row, count = part.rows;
    for (std::int64_t r = 0; r < count; ++r) {
      float* x = panels + r * t.depth;
      for (std::int64_t h = 0; h < t.x_heads; ++h) {
        const float* from = widen<S>(row_at(t.x, t.length, first + r, h), t.x_dim, buffer);
        for (std::int64_t d = 0; d < t.x_dim; ++d) x[h * t.x_dim + d] = from[d];
      }
      if (t.x_heads * t.x_dim < t.depth) x[t.depth - 1] = 0;
    }
    find_rows(part);
    if (t.tile_type == Type::f32) run_tiles<Type::f32>(part);
    if (t.tile_type == Type::bf16) run_tiles<Type::bf16>(part);
    if (t.tile_type == Type::f16) run_tiles<Type::f16>(part);
  }

  template <Type type>
  void run_tiles(const LinearPart& part) {
    std::int64_t tile = part.first_tile;
    for (; tile + 2 <= part.end_tile; tile += 2) single_rows<type, 2>(part.rows, tile);
    for (; tile < part.end_tile; ++tile) single_rows<type, 1>(part.rows, tile);
  }

  template <Type type, int tiles>
  void single_rows(std::int64_t count, std::int64_t tile) {
    constexpr int vectors = columns / S::lanes;
    const void* const all = t.tiles;
    const std::int64_t depth = t.depth;
    for (std::int64_t r = 0; r < count; ++r) {
      typename S::F sum[tiles][vectors];
      for (auto& of_tile : sum)
        for (auto& s : of_tile) s = S::fill(0.0f);
      const float* x = panels + r * depth;
      std::int64_t w = tile * columns * depth;
      for (std::int64_t k = 0; k < depth; k += 2, w += 2 * columns) {  // depth is even
        const auto x0 = S::fill(x[k]), x1 = S::fill(x[k + 1]);
        for (int n = 0; n < tiles; ++n)
          for (int v = 0; v < vectors; ++v) {
            const std::int64_t at = w + n * columns * depth + v * S::lanes;
            sum[n][v] = S::fma(load_as<S, type>(all, at), x0, sum[n][v]);
            sum[n][v] = S::fma(load_as<S, type>(all, at + columns), x1, sum[n][v]);
          }
      }
      for (int n = 0; n < tiles; ++n) {
        for (int v = 0; v < vectors; ++v) S::store(sums + v * S::lanes, sum[n][v]);
        write_rows(r, 1, tile + n, sums);
      }
    }
  }

  const Linear& t;
  float *panels, *sums, *widened, *buffer;
  std::int64_t first_of_row[panels_per_block * rows];
};

}  // namespace heed::cpu::HEED_THIS_TARGET
