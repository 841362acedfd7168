// SPDX-License-Identifier: Apache-2.0
// Sums in the registers of a block's warps on their way to a gradient.
#pragma once
#include <cstdint>

#include "cuda/backward/rows.cuh"
#include "cuda/general/products.cuh"

namespace heed::cuda::general {

// Columns d, d + 1, d + 8, d + 9, ... of a row, wherever they lie. A function of its own: unrolled over a
// thread's rows it was 13,000 instructions, whose fetching took a block 30 us (H200, November 2026).
template <int pairs>
inline __device__ __noinline__ void write_numbers(const GradientCall& g, const Row& into, int d, int dim,
                                                  const float (&numbers)[2 * pairs]) {
#pragma unroll 1
  for (int n = 0; n < 2 * pairs; ++n)
    if (const int at = d + n / 2 * 8 + n % 2; at < dim) write_gradient(g, into, at, numbers[n]);
}

// Rows of a tile of a gradient one after the other, of which `count` are written.
struct WrittenRows {
  Row first;
  std::int64_t number, length;  // of the first; elements between rows
  int count;

  HEED_DEVICE Row row(int n) const {
    Row at = first;
    at.first += n * length;
    return at;
  }
  // Whether each of its pieces of eight numbers lies on 16 bytes.
  HEED_DEVICE bool lies_in_16(Type type, std::int64_t dim) const {
    return first.type == type && first.step == 1 && dim % 8 == 0 && first.first % 8 == 0 && length % 8 == 0 &&
           reinterpret_cast<std::uintptr_t>(first.data) % 16 == 0;
  }
};

// Four lanes have two numbers each of four tiles of eight columns: lane n gets all of tile n, whose 16 bytes
// it writes at once.
HEED_DEVICE uint4 tile_of_lane(const std::uint32_t (&of_tiles)[4]) {
  const bool is_odd = lane_index() % 2 != 0, is_high = lane_index() % 4 >= 2;
  std::uint32_t x[4];
#pragma unroll
  for (int n = 0; n < 4; n += 2) {
    const std::uint32_t other = shuffle_xor(is_odd ? of_tiles[n] : of_tiles[n + 1], 1);
    x[n] = is_odd ? other : of_tiles[n], x[n + 1] = is_odd ? of_tiles[n + 1] : other;
  }
  const std::uint32_t a = shuffle_xor(is_high ? x[0] : x[2], 2), b = shuffle_xor(is_high ? x[1] : x[3], 2);
  return is_high ? uint4{a, b, x[2], x[3]} : uint4{x[0], x[1], a, b};
}

// Sums of threads on their way to a gradient. Rows have marks of 64 dimensions, whose parts several warps
// have: one that is not finite keeps all of them from being written (S13).
template <Type type, class Layout, int rows, int slabs>
struct GradientWriter {
  using Unfinished = unsigned char[rows][slabs];

  const GradientCall& g;
  std::uint32_t* marks;
  std::int64_t dim;
  float factor;
  Unfinished& unfinished;

  // By all threads of the block together.
  HEED_DEVICE void write(const typename Layout::Sums& x, const WrittenRows& to) const {
    for (int n = thread_index() % Layout::threads; n < rows * slabs; n += Layout::threads)
      unfinished[n / slabs][n % slabs] = 0;
    sync();
    each_row([&](int m, int r) {
      if (!is_finite_row(x[m], r)) unfinished[Layout::row(m, r)][slab()] = 1;
    });
    sync();
    const bool in_16 = !g.accumulates && to.lies_in_16(type, dim);
    each_row([&](int m, int r) {
      const int row = Layout::row(m, r);
      const bool is_unfinished = unfinished[row][slab()] != 0, is_real = row < to.count;
      if (in_16)
        write_in_16(x[m], r, to.row(row), is_real);
      else if (is_real && (!is_unfinished || !g.accumulates))
        write_row(x[m], r, to.row(row));
      if (is_real && is_unfinished && Layout::first_column() < dim)
        leave_unfinished(g, marks, (to.number + row) * GradientCall::slabs(dim) + slab());
    });
    sync();
  }

 private:
  static_assert(64 % Layout::warp_columns == 0 && Layout::column_tiles % 4 == 0);
  using RowTiles = float[Layout::column_tiles][4];

  // What all columns of a warp are of.
  HEED_DEVICE static int slab() { return Layout::first_column() / 64; }

  // Adding +0 gives every zero one sign.
  HEED_DEVICE float gradient(float x) const { return x * lowered<type> * factor + 0.0f; }

  template <class Visit>
  HEED_DEVICE static void each_row(const Visit& visit) {
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m) visit(m, 0), visit(m, 1);
  }
  HEED_DEVICE bool is_finite_row(const RowTiles& x, int r) const {
    float zero = 0;
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n)
      zero = fmaf(gradient(x[n][2 * r]), 0.0f, fmaf(gradient(x[n][2 * r + 1]), 0.0f, zero));
    return zero == 0;
  }

  HEED_DEVICE void write_in_16(const RowTiles& x, int r, const Row& into, bool is_written) const {
    auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(into.data)) + into.first;
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; n += 4) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        pairs[k] = pack2<type>(gradient(x[n + k][2 * r]), gradient(x[n + k][2 * r + 1]));
      const uint4 tile = tile_of_lane(pairs);
      const int d = Layout::first_column() + 8 * (n + lane_index() % 4);
      if (is_written && d < dim) *reinterpret_cast<uint4*>(to + d) = tile;
    }
  }
  HEED_DEVICE void write_row(const RowTiles& x, int r, const Row& into) const {
    if (Layout::first_column() >= dim) return;
    float of_row[2 * Layout::column_tiles];
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n)
      of_row[2 * n] = gradient(x[n][2 * r]), of_row[2 * n + 1] = gradient(x[n][2 * r + 1]);
    write_numbers<Layout::column_tiles>(g, into, Layout::column(0), static_cast<int>(dim), of_row);
  }
};
}  // namespace heed::cuda::general
