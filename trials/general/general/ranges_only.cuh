// SPDX-License-Identifier: Apache-2.0
// What happens to a score between the product and the softmax. A stage says of a tile of keys whether a
// warp's rows see any of it, before the products, and then turns products into what enters the softmax: -inf
// for a key that is not seen.
// This one knows nothing but ranges.
#pragma once
#include <cstdint>

#include "cuda/tile/visible.cuh"
#include "general/place.cuh"
#include "general/products.cuh"
#include "general/rows.cuh"
#include "general/visits.cuh"

namespace heed::cuda::general {

// Nothing but ranges: products stay products, and the softmax scales them.
template <class Shape>
class RangesOnly {
 public:
  static constexpr bool drops = false;
  using Walk = Consecutive<Shape>;

  HEED_DEVICE RangesOnly(const Call&, const BlockFacts<Shape>& of, Place<Shape> where)
      : rows(of.rows),
        tiles(of.tiles_of_warp[where.key_warp * Shape::row_warps + where.warp_row]),
        place(where) {}

  HEED_DEVICE bool sees(int tile) const { return tile >= tiles.some.begin && tile < tiles.some.end; }

  HEED_DEVICE void apply(Scores<Shape>& s, int tile) const {
    if (tile >= tiles.all.begin && tile < tiles.all.end) return;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowFacts& row = rows[place.row(m, r)];
        const int first = place.first_key(tile), begin = row.begin - first, end = row.end - first;
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * n + e < begin || 8 * n + e >= end) s[m][n][2 * r + e] = minus_infinity;
      }
  }

  HEED_DEVICE void drop(Scores<Shape>&, int) const {}
  HEED_DEVICE static float scale(const Call& c) { return c.scale_log2e; }
  // A row that sees a key and has no sum all the same is one that f32 could not hold: its maximum says so.
  template <class State>
  HEED_DEVICE void close(State& state) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowFacts& row = rows[place.row(m, r)];
        if (state.sum[m][r] == 0 && row.begin < row.end) state.max[m][r] = -max_finite;
      }
  }

 private:
  const RowFacts* const rows;
  const WarpTiles& tiles;
  const Place<Shape> place;
};

}  // namespace heed::cuda::general
