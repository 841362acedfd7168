// SPDX-License-Identifier: Apache-2.0
// The end of rows in a block: states of warps that shared the keys become one, a state becomes an output, or
// a partial state that waits for the others of its row.
#pragma once
#include <cstdint>

#include "cuda/exact/state.cuh"
#include "cuda/general/rows.cuh"
#include "cuda/general/state.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda::general {

// Rare, and so not where the rest of the code is.
inline __device__ __noinline__ float close_with_sink(const Call& c, const Query& q, const RowEnd& end,
                                                     bool writes) {
  const ClosedRow row = closed(c, q, end);
  if (c.log_sum_exp.data && writes) write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
  return row.out();
}

// The factor that makes an output of a row's sums; writes the log-sum-exp and what weights are measured
// against.
template <Type type>
HEED_DEVICE float close_row(const Call& c, SavedEnd* ends, const Query& q, RowEnd end, bool writes) {
  // It saw a key; or scores are so large that their last place is too, and weights with it.
  if ((end.sum == 0 && end.max > minus_infinity) || !is_finite(end.sum)) end.sum = __builtin_nanf("");
  // Beside the lowest finite number, which somebody masks with, nothing was lifted.
  const float lower = end.max < -0x1p100f ? 1.0f : lowered<type>;
  const RowEnd saved{end.max, end.sum * lower};
  if (ends && writes) ends[(q.b * c.heads + q.h) * c.queries + q.i].row = saved;
  const float factor = !c.sink.data && !c.bias.data && !c.alibi.of_heads && !c.log_sum_exp.data
                           ? (end.sum == 0 ? 0.0f : 1.0f / end.sum)
                           : close_with_sink(c, q, saved, writes) * lower;
  return factor * c.keep_scale;
}

// States of key warps meet in shared memory; the first of a row's warps has the whole afterwards. Maxima must
// be of base 2.
template <class Shape>
HEED_DEVICE void merge_key_warps(State<Shape>& state, float* scratch, const Place<Shape>& place) {
  if constexpr (Shape::key_warps > 1) {
    constexpr int numbers = Shape::row_tiles * (4 + Shape::value_dim / 2);
    const int lane = lane_index();
    const auto at = [&](int key_warp) {
      return scratch + ((key_warp - 1) * Shape::row_warps + place.warp_row) * numbers * 32 + lane;
    };
    sync();
    if (place.key_warp > 0) {
      float* const to = at(place.key_warp);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m) {
        float* const of = to + m * (numbers / Shape::row_tiles) * 32;
        of[0] = state.max[m][0], of[32] = state.max[m][1], of[64] = state.sum[m][0], of[96] = state.sum[m][1];
#pragma unroll
        for (int n = 0; n < Shape::value_dim / 2; ++n) of[(4 + n) * 32] = state.o[m][n / 4][n % 4];
      }
    }
    sync();
    if (place.key_warp > 0) return;
#pragma unroll 1
    for (int w = 1; w < Shape::key_warps; ++w) {
      const float* const from = at(w);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m) {
        const float* const of = from + m * (numbers / Shape::row_tiles) * 32;
        float a[2], b[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float now = fmaxf(state.max[m][r], of[r * 32]);
          a[r] = moved(state.max[m][r], now), b[r] = moved(of[r * 32], now);
          state.max[m][r] = now;
          state.sum[m][r] = fmaf(of[(2 + r) * 32], b[r], state.sum[m][r] * a[r]);
        }
#pragma unroll
        for (int n = 0; n < Shape::value_dim / 2; ++n) {
          float& x = state.o[m][n / 4][n % 4];
          x = fmaf(of[(4 + n) * 32], b[n % 4 / 2], x * a[n % 4 / 2]);
        }
      }
    }
  }
}

// As many of two neighbouring elements as the row has, of any type and stride.
inline __device__ __noinline__ void write_two(const Row& row, int d, int end, float x, float y) {
  if (d < end) write(row, d, x);
  if (d + 1 < end) write(row, d + 1, y);
}

// What becomes of a warp's rows.
template <class Shape>
struct RowsEnd {
  const Call& c;
  const Plan& plan;
  BlockFacts<Shape>& block;
  const Place<Shape> place;

  HEED_DEVICE void write_partial(const State<Shape>& state, int unit) const {
    const RowTile& tile = block.tile;
    const int first_dim = plan.first_dim + place.first_dim(),
              dims = static_cast<int>(c.value_dim) - first_dim, column = lane_index() % 4 * 2;
    const Partials::OfHead partials = plan.partials.of_head(c, tile.b, tile.kv_head);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = place.row(m, r);
        if (row >= tile.count) continue;
        float* const to = partials.at(unit * Shape::key_warps + place.key_warp, tile.first + row);
        if (column == 0 && place.share == 0)
          *reinterpret_cast<float2*>(to) = {state.max[m][r], state.sum[m][r]};
#pragma unroll
        for (int n = 0; n < Shape::out_dim / 8; ++n) {
          const int d = 8 * n + column;
          if (d < dims)
            *reinterpret_cast<float2*>(to + partial_head + first_dim + d) = {state.o[m][n][2 * r],
                                                                             state.o[m][n][2 * r + 1]};
        }
      }
  }

  // Outputs of a warp's rows to the caller's, by way of shared memory where they leave in pieces of 16 bytes.
  // block.is_poisoned then says which rows hold a number that is not finite; returns whether a row of this
  // thread's does.
  template <class IsWritten>
  HEED_DEVICE bool write_out(State<Shape>& state, SharedAddress staging, const IsWritten& is_written) const {
    bool any_poisoned = false;
    constexpr Type type = Shape::type;
    const int lane = lane_index(), first_dim = plan.first_dim + place.first_dim(),
              dims = static_cast<int>(c.value_dim) - first_dim;
    staging += place.first_dim() * 2;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = place.row(m, r);
        const bool is_row = is_written(row);
        const Query q = block.query(row);
        const float factor = close_row<type>(c, plan.ends, q, {state.max[m][r], state.sum[m][r]},
                                             is_row && lane % 4 == 0 && place.share == 0);
        // 0 * x is 0 for every finite x. Dimensions beyond the call's are 0, or as the others.
        float poison = 0;
#pragma unroll
        for (int n = 0; n < Shape::out_dim / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = state.o[m][n][2 * r + e];
            x = fmaf(x, factor, 0.0f);  // every zero has one sign
            poison = fmaf(x, 0.0f, poison);
          }
        if (is_row && poison != 0) block.is_poisoned[row] = any_poisoned = true;
        if (plan.out_in_16) {
#pragma unroll
          for (int n = 0; n < Shape::out_dim / 8; ++n)
            store_shared4(staging + row * Shape::value_pitch + n * 16 + lane % 4 * 4,
                          pack2<type>(state.o[m][n][2 * r], state.o[m][n][2 * r + 1]));
        } else if (is_row) {
          const Row out = row_of(c.out, q);
#pragma unroll
          for (int n = 0; n < Shape::out_dim / 8; ++n)
            write_two(out, first_dim + 8 * n + lane % 4 * 2, static_cast<int>(c.value_dim),
                      state.o[m][n][2 * r], state.o[m][n][2 * r + 1]);
        }
      }
    if (!plan.out_in_16) return any_poisoned;
    __syncwarp();
    auto* const out = static_cast<std::uint16_t*>(const_cast<void*>(c.out.data)) + first_dim;
    constexpr int pieces = Shape::out_dim / 8;
#pragma unroll 4
    for (int n = lane; n < Shape::warp_rows * pieces; n += 32) {
      const int row = place.warp_row * Shape::warp_rows + n / pieces, piece = n % pieces;
      if (!is_written(row) || piece * 8 >= dims) continue;
      *reinterpret_cast<uint4*>(out + block.rows[row].out + piece * 8) =
          load_shared16(staging + row * Shape::value_pitch + piece * 16);
    }
    return any_poisoned;
  }
};

// Tiles with a row that f32 cannot finish, or that holds a number that is not finite because of a value that
// it does not see, go to a list (finish() in slabs.cuh).
template <class Shape>
HEED_DEVICE void list_unfinished(const Plan& plan, const BlockFacts<Shape>& block) {
  const int first = thread_index() * unfinished_rows;
  if (first >= block.tile.count) return;
  std::uint64_t rows = 0;
  for (int r = 0; r < min_of(unfinished_rows, block.tile.count - first); ++r)
    rows |= std::uint64_t{block.is_poisoned[first + r]} << r;
  if (rows == 0) return;
  plan.unfinished[atomicAdd(plan.unfinished_count, 1u)] = {block.tile.head, block.tile.first + first, rows};
}

}  // namespace heed::cuda::general
