// SPDX-License-Identifier: Apache-2.0
// The end of a tile of prefill's rows: sums become outputs and log-sum-exps.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/options.cuh"
#include "cuda/prefill/plan.hpp"
#include "cuda/prefill/producer.cuh"
#include "cuda/prefill/rows.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

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
    if (Shape::cut && rows.tile->unit >= 0) {
      leave(o, softmax);
      if (!Shape::out_has_memory) rows.release(shared.queries_empty(0));
      return;
    }
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
    softmax.add_up(r);
    const int i = rows.row(r);
    const bool is_row = i < rows.tile->first_query + rows.tile->rows;
    // A row whose every score left the range of f32 downwards looks as if it saw no key.
    if (sum[r] == 0 && rows.tile->begin_of(i) < rows.tile->end_of(i))
      if (!Shape::masked || (is_row && may_see_a_key(i))) sum[r] = __builtin_nanf("");
    // Where scores are so large that their last place is too, weights may be beyond f32.
    if (!is_finite(sum[r])) sum[r] = __builtin_nanf("");
    float times = sum[r] == 0 ? 0.0f : 1.0f / sum[r];
    // A softcap's scores are above the true ones by the cap.
    const float above = Shape::capped && !Shape::bounded ? c.softcap_log2e : 0.0f,
                max = Shape::bounded && sum[r] == 0 ? minus_infinity : softmax.max[r] * softmax.scale - above;
    if (is_row && (c.sink.data || c.log_sum_exp.data || Shape::biased)) {
      const ClosedRow row = closed(c, rows.query(i), {max, sum[r] * lowered<type>});
      times = row.out() * lowered<type>;
      if (c.log_sum_exp.data && rows.lane % 4 == 0)
        write(row_of(c.log_sum_exp, rows.query(i)), 0, static_cast<float>(row.log_sum_exp()));
    }
    if constexpr (Shape::dropping) times *= c.keep_scale;
    // Weights that are powers of the scores themselves may all be small, down to 2^-80, and products of
    // theirs with small values then left f32. None did that counts where a sum of products has 2^-80 and
    // more.
    const bool may_have_lost = Shape::bounded && sum[r] > 0 && sum[r] < 0.25f;
    float poison = 0;  // 0 * x is 0 for every finite x
#pragma unroll
    for (int n = 0; n < dim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = o[4 * n + 2 * r + e];
        const bool is_lost =
            may_have_lost && fabsf(x) < 0x1p-80f && 8 * n + rows.lane % 4 * 2 + e < c.value_dim;
        x = is_lost ? __builtin_nanf("") : x * times;
        poison = fmaf(x, 0.0f, poison);
      }
    return is_row && poison != 0;
  }

  // Whether masks leave a key to a row whose weights sum to 0. Beside a bias a score that is seen is finite
  // or NaN, so that the row sees none.
  HEED_DEVICE bool may_see_a_key(int i) const {
    if (Shape::biased) return false;
    if (!plan.mask.words) return true;
    return PackedMask::lets_see(plan.mask.row(rows.tile->b, rows.tile->h, i), rows.tile->begin_of(i),
                                rows.tile->end_of(i));
  }

  // The sums of a unit of keys, for launch_partial_merge().
  template <class Softmax>
  HEED_DEVICE void leave(const float (&o)[dim / 2], Softmax& softmax) const {
    const RowTile& tile = *rows.tile;
    const int group = plan.group, kv_head = plan.kv_head(c, tile.h),
              member = (c.tiled_heads ? tile.h / plan.kv_heads : tile.h - kv_head * group) + rows.member;
    const Partials::OfHead partials = plan.partials.of_head(c, group, c.sequence(tile.b), tile.b, kv_head);
    softmax.add_up(0), softmax.add_up(1);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = rows.row(r);
      if (i >= tile.first_query + tile.rows) continue;
      RowEnd end{softmax.max[r] * softmax.scale, softmax.sum[r]};
      if (end.sum == 0 && tile.begin_of(i) < tile.end_of(i)) end = without_sum(end.max);
      float* const to = partials.at(tile.unit, i * group + member);
      if (rows.lane % 4 == 0) *reinterpret_cast<float2*>(to) = {end.max, end.sum};
#pragma unroll
      for (int n = 0; n < dim / 8; n += 2)
        if (8 * n < c.value_dim)
          *reinterpret_cast<float4*>(to + partial_head + 8 * n + rows.lane % 4 * 4) = {
              o[4 * n + 2 * r], o[4 * n + 2 * r + 1], o[4 * n + 4 + 2 * r], o[4 * n + 5 + 2 * r]};
    }
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
