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

  // at(row) says where a row of the tile is written; all threads of the block call this together.
  template <class At>
  HEED_DEVICE void write(const typename Layout::Sums& x, const At& at) const {
    for (int n = thread_index() % Layout::threads; n < rows * slabs; n += Layout::threads)
      unfinished[n / slabs][n % slabs] = 0;
    sync();
    each_row([&](int m, int r) {
      if (!is_finite_row(x[m], r)) unfinished[Layout::row(m, r)][slab()] = 1;
    });
    sync();
    each_row([&](int m, int r) {
      const auto [to_row, number, is_real] = at(Layout::row(m, r));
      if (is_real) write_row(x[m], r, unfinished[Layout::row(m, r)][slab()] != 0, to_row, number);
    });
    sync();
  }

 private:
  static_assert(64 % Layout::warp_columns == 0);
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

  HEED_DEVICE void write_row(const RowTiles& x, int r, bool is_unfinished, const Row& into,
                             std::int64_t number) const {
    if (Layout::first_column() >= dim) return;
    if (is_unfinished) return leave_unfinished(g, marks, number * GradientCall::slabs(dim) + slab());
    float of_row[2 * Layout::column_tiles];
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n)
      of_row[2 * n] = gradient(x[n][2 * r]), of_row[2 * n + 1] = gradient(x[n][2 * r + 1]);
    const bool in_pairs = !g.accumulates && into.type == type && into.step == 1 && dim % 2 == 0 &&
                          (reinterpret_cast<std::uintptr_t>(into.data) / 2 + into.first) % 2 == 0;
    if (!in_pairs)
      return write_numbers<Layout::column_tiles>(g, into, Layout::column(0), static_cast<int>(dim), of_row);
    auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(into.data)) + into.first;
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n)
      if (const int d = Layout::column(n); d < dim)
        *reinterpret_cast<std::uint32_t*>(to + d) = pack2<type>(of_row[2 * n], of_row[2 * n + 1]);
  }
};
struct WrittenRow {
  Row row;
  std::int64_t number;
  bool is_real;
};

}  // namespace heed::cuda::general
