// SPDX-License-Identifier: Apache-2.0
// Products of a block's warps on the matrix units of every GPU since Ampere: how their sums lie in registers,
// and how operands lie in shared memory.
#pragma once
#include <cstdint>

#include "cuda/tile/block.cuh"

namespace heed::cuda::general {

// A row in shared memory has `pitch` bytes, a power of two, and begins at a multiple of it. Its pieces of 16
// bytes stand where piece ^ row % 8 says: those that a load reads of eight rows are in different banks, and
// the piece 2^n further is at an address that differs in one bit.
template <int pitch>
HEED_DEVICE SharedAddress place_of(int row, int piece) {
  static_assert((pitch & (pitch - 1)) == 0 && pitch >= 128);
  return static_cast<SharedAddress>(row * pitch + (piece ^ row % 8) * 16);
}

// Sums of `rows` x `columns` in the registers of row_warps x column_warps warps, which are all of a block or
// each so many of them. A thread has rows row(m, 0) and row(m, 1), columns column(n) and the next, of each of
// its products.
template <int rows, int columns, int row_warps, int column_warps>
struct SumLayout {
  static constexpr int warp_rows = rows / row_warps, warp_columns = columns / column_warps;
  static constexpr int row_tiles = warp_rows / 16, column_tiles = warp_columns / 8;
  static constexpr int threads = 32 * row_warps * column_warps, numbers = row_tiles * column_tiles * 4;
  static_assert(warp_rows % 16 == 0 && warp_columns % 16 == 0);

  using Sums = float[row_tiles][column_tiles][4];

  HEED_DEVICE static int first_row() { return thread_index() % threads / 32 / column_warps * warp_rows; }
  HEED_DEVICE static int first_column() { return thread_index() / 32 % column_warps * warp_columns; }
  HEED_DEVICE static int row(int m, int r) { return first_row() + 16 * m + 8 * r + lane_index() / 4; }
  HEED_DEVICE static int column(int n) { return first_column() + 8 * n + lane_index() % 4 * 2; }

  // Where two neighbouring columns lie in a tile of 16-bit numbers.
  template <int pitch>
  HEED_DEVICE static SharedAddress place_of_pair(int m, int r, int n) {
    return (place_of<pitch>(row(m, r), first_column() / 8) ^ 16 * n) + lane_index() % 4 * 4;
  }

  HEED_DEVICE static void clear(Sums& x) {
#pragma unroll
    for (int m = 0; m < row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < column_tiles; ++n) x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0;
  }
};

// An operand, whose items are what the sums have rows, or columns, of: 16 items and 16 of the dimension that
// is summed are one load. Its items are rows in shared memory, or its items are columns there.
template <int pitch>
struct ItemsAsRows {
  SharedAddress at;

  HEED_DEVICE static ItemsAsRows on_rows(SharedAddress base, int first) {
    return {base + place_of<pitch>(first + lane_index() % 16, lane_index() / 16)};
  }
  HEED_DEVICE static ItemsAsRows on_columns(SharedAddress base, int first) {
    return {base + place_of<pitch>(first + lane_index() / 16 * 8 + lane_index() % 8, lane_index() / 8 % 2)};
  }
  HEED_DEVICE void load(std::uint32_t (&to)[4], int items, int step) const {
    load_matrices(to, (at ^ 32 * step) + 16 * pitch * items);
  }
};
template <int pitch>
struct ItemsAsColumns {
  SharedAddress at;

  HEED_DEVICE static ItemsAsColumns on_rows(SharedAddress base, int first) {
    return {base +
            place_of<pitch>(lane_index() / 16 * 8 + lane_index() % 8, first / 8 + lane_index() / 8 % 2)};
  }
  HEED_DEVICE static ItemsAsColumns on_columns(SharedAddress base, int first) {
    return {base + place_of<pitch>(lane_index() % 16, first / 8 + lane_index() / 16)};
  }
  HEED_DEVICE void load(std::uint32_t (&to)[4], int items, int step) const {
    load_matrices_transposed(to, (at ^ 32 * items) + 16 * pitch * step);
  }
};

// sums += a * b over `steps` times 16; operands are loaded a step before they are used.
template <Type type, int steps, int m_tiles, int n_tiles, class A, class B>
HEED_DEVICE void add_products(float (&sums)[m_tiles][n_tiles][4], const A& a, const B& b) {
  std::uint32_t x[2][m_tiles][4], y[2][n_tiles / 2][4];
  const auto load = [&](int step) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) a.load(x[step % 2][m], m, step);
#pragma unroll
    for (int n = 0; n < n_tiles / 2; ++n) b.load(y[step % 2][n], n, step);
  };
  load(0);
#pragma unroll
  for (int k = 0; k < steps; ++k) {
    if (k + 1 < steps) load(k + 1);
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
        add_product<type>(sums[m][n], x[k % 2][m], y[k % 2][n / 2][n % 2 * 2],
                          y[k % 2][n / 2][n % 2 * 2 + 1]);
  }
}

}  // namespace heed::cuda::general
