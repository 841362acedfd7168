// SPDX-License-Identifier: Apache-2.0
// The end of a tile of prefill's rows: sums become outputs and log-sum-exps.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/options.cuh"
#include "cuda/prefill/plan.hpp"
#include "cuda/prefill/producer.cuh"
#include "cuda/prefill/rows.cuh"
#include "cuda/tile/finish.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/visible.cuh"
#include "cuda/tile/wgmma.cuh"

namespace heed::cuda {

// The end of a tile of rows: sums become outputs, which the copy engine takes from shared memory.
template <class Shape>
struct PrefillOutput {
  static constexpr int dim = Shape::value_dim;
  static constexpr Type type = Shape::type;

  const Call& c;
  const PrefillPlan& plan;
  const PrefillShared<Shape>& shared;
  const PrefillRows& rows;

  template <class Softmax>
  HEED_DEVICE void finish(float (&o)[dim / 2], Softmax& softmax) const {
    bool is_unfinished[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) is_unfinished[r] = close(o, softmax, r);
    if (rows.team.thread() == 0) wait_for_stores_to_read();
    rows.team.sync();
    put(o);
    fence_async_proxy();
    const bool any_unfinished = rows.team.any(is_unfinished[0] || is_unfinished[1]);
    if (any_unfinished && !rows.tile->again) {
      if (rows.team.thread() == 0) rows.tile->is_unfinished = 1;
    } else {
      store();
      if (any_unfinished) complete(is_unfinished);
    }
    if (!Shape::out_has_memory) {
      if (rows.team.thread() == 0) wait_for_stores_to_read();
      rows.team.sync();
      rows.release(shared.queries_empty(0));
    }
  }

  // Where 64 dimensions of this warpgroup's rows go.
  HEED_DEVICE SharedAddress piece_at(int piece) const {
    return shared.out() + (piece * Shape::rows + rows.group * 64) * 128;
  }

 private:
  // Multiplies the sums of row r into outputs; returns whether one of them is not finite.
  template <class Softmax>
  HEED_DEVICE bool close(float (&o)[dim / 2], Softmax& softmax, int r) const {
    float(&sum)[2] = softmax.sum;
    sum[r] += shuffle_xor(sum[r], 1);
    sum[r] += shuffle_xor(sum[r], 2);
    const int i = rows.row(r);
    const bool is_row = i < rows.tile->first_query + rows.tile->rows;
    // A row whose every score left the range of f32 downwards looks as if it saw no key.
    if (sum[r] == 0 && rows.tile->begin_of(i) < rows.tile->end_of(i))
      if (!Shape::optional || (is_row && may_see_a_key(i))) sum[r] = __builtin_nanf("");
    float times = sum[r] == 0 ? 0.0f : 1.0f / sum[r];
    const bool may_be_lowest = Shape::optional && (c.bias.data || c.alibi.of_heads);
    if (is_row && (c.sink.data || c.log_sum_exp.data || may_be_lowest)) {
      const ClosedRow row =
          closed(c, rows.query(i), {softmax.max[r] * softmax.scale, sum[r] * lowered<type>});
      times = row.out() * lowered<type>;
      if (c.log_sum_exp.data && rows.lane % 4 == 0)
        write(row_of(c.log_sum_exp, rows.query(i)), 0, static_cast<float>(row.log_sum_exp()));
    }
    if constexpr (Shape::optional) times *= c.keep_scale;
    float poison = 0;  // 0 * x is 0 for every finite x
#pragma unroll
    for (int n = 0; n < dim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = o[4 * n + 2 * r + e];
        x *= times;
        poison = fmaf(x, 0.0f, poison);
      }
    return is_row && poison != 0;
  }

  // Whether masks leave a key to a row whose weights sum to 0. Where options have made its scores, one that
  // is seen is finite or NaN, so that the row sees none.
  HEED_DEVICE bool may_see_a_key(int i) const {
    if (scales_scores(c)) return false;
    if (!plan.mask.words) return true;
    const std::uint32_t* const words = plan.mask.row(rows.tile->b, rows.tile->h, i);
    for (int j = rows.tile->begin_of(i); j < rows.tile->end_of(i); ++j)
      if (words[j / 32] >> j % 32 & 1) return true;
    return false;
  }

  // To shared memory, in the copy engine's swizzle.
  HEED_DEVICE void put(const float (&o)[dim / 2]) const {
    const int at = thread_index() % 128 / 32 * 16 + rows.lane % 16;
#pragma unroll
    for (int n = 0; n < dim / 16; ++n) {
      const int sixteenth = n % 4 * 2 + rows.lane / 16;
      store_matrices(piece_at(n / 4) + at * 128 + (sixteenth ^ at % 8) * 16,
                     pack2<type>(o[8 * n], o[8 * n + 1]), pack2<type>(o[8 * n + 2], o[8 * n + 3]),
                     pack2<type>(o[8 * n + 4], o[8 * n + 5]), pack2<type>(o[8 * n + 6], o[8 * n + 7]));
    }
  }

  // By the copy engine where all 64 rows are the sequence's own.
  HEED_DEVICE void store() const {
    const int here = rows.rows_here();
    const Query first = rows.query(rows.tile->first_query + rows.group * 64);
    if (here >= 64) {
      if (rows.team.thread() != 0) return;
#pragma unroll
      for (int piece = 0; piece < Shape::value_pieces; ++piece)
        store_box(&plan.out,
                  {piece * 64, static_cast<int>(first.row), c.out.stride.heads == 0 ? 0 : rows.tile->h,
                   c.out.stride.batch == 0 ? 0 : rows.tile->b},
                  piece_at(piece));
      commit_stores();
      return;
    }
    for (int n = rows.team.thread(); n < here * dim / 8; n += 128) {
      const int r = n / (dim / 8), eight = n % (dim / 8);
      if (eight * 8 >= c.value_dim) continue;
      const uint4 x = load_shared16(piece_at(eight / 8) + r * 128 + (eight % 8 ^ r % 8) * 16);
      const Row to = row_of(c.out, {first.b, first.h, first.i + r, first.row + r});
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(const_cast<void*>(to.data)) + to.first +
                                eight * 8) = x;
    }
  }

  // Rows that f32 could not finish, once more in double precision. The outputs' memory is free when they are
  // written.
  HEED_DEVICE void complete(const bool (&is_unfinished)[2]) const {
    if (rows.team.thread() == 0) wait_for_stores();
    double* scratch = static_cast<double*>(__cvta_shared_to_generic(piece_at(0)));
    rows.team.sync();
    for (int r = 0; r < 64 && r < rows.rows_here(); ++r) {
      const bool mine =
          (rows.row_in_group == r && is_unfinished[0]) || (rows.row_in_group + 8 == r && is_unfinished[1]);
      if (!rows.team.any(mine)) continue;
      complete_row(rows.team, c, rows.query(rows.tile->first_query + rows.group * 64 + r), {0, c.value_dim},
                   scratch);
    }
    rows.team.sync();
  }
};

}  // namespace heed::cuda
