// SPDX-License-Identifier: Apache-2.0
// The end of a tile of rows: sums become outputs, which the copy engine takes from shared memory.
#pragma once
#include <cstdint>

#include "cuda/algorithm/finish.cuh"
#include "cuda/algorithm/prefill_weights.cuh"
#include "cuda/algorithm/wide_row.cuh"

namespace heed::cuda {

template <class Shape, bool capped>
class PrefillEnd : public PrefillWeights<Shape, capped> {
  using Thread = PrefillThread<Shape, capped>;
  static constexpr Type type = Shape::type;

 protected:
  using Thread::c, Thread::plan, Thread::shared, Thread::tile, Thread::group, Thread::team, Thread::dim;
  using Thread::lane, Thread::row_in_group, Thread::row, Thread::query, Thread::rows_here, Thread::scale;
  using Thread::max, Thread::sum, Thread::o;
  using PrefillWeights<Shape, capped>::PrefillWeights;

  HEED_DEVICE void finish() {
    bool is_left[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) is_left[r] = close(r);
    if (team.thread() == 0) wait_for_stores_to_read();
    team.sync();
    put_out();
    show_to_engines();
    const bool any_left = team.any(is_left[0] || is_left[1]);
    if (any_left && !tile->again) {
      if (team.thread() == 0) tile->is_left = 1;
    } else {
      store_out();
      if (any_left) complete(is_left);
    }
    if (!Shape::out_has_room) {
      if (team.thread() == 0) wait_for_stores_to_read();
      team.sync();
      Thread::release(shared.queries_used(0));
    }
  }

  // Where the rows of this warpgroup go, 64 dimensions of them.
  HEED_DEVICE SharedAddress out_piece(int piece) const {
    return shared.out() + (piece * Shape::rows + group * 64) * 128;
  }

 private:
  // Turns the sums of row r into outputs; returns whether one of them is no number.
  HEED_DEVICE bool close(int r) {
    sum[r] += from_lane_across(sum[r], 1);
    sum[r] += from_lane_across(sum[r], 2);
    const int i = row(r);
    const bool is_row = i < tile->first_query + tile->rows;
    // A row whose every score left the range of f32 downwards looks as if it saw no key.
    if (sum[r] == 0 && tile->begin_of(i) < tile->end_of(i)) sum[r] = __builtin_nanf("");
    float times = sum[r] == 0 ? 0.0f : 1.0f / sum[r];
    if (is_row && (c.sink.data || c.log_sum_exp.data)) {
      const ClosedRow row = closed(c, query(i), {max[r] * scale, sum[r] * lowered<type>});
      times = row.out() * lowered<type>;
      if (c.log_sum_exp.data && lane % 4 == 0)
        write(row_of(c.log_sum_exp, query(i)), 0, static_cast<float>(row.log_sum_exp()));
    }
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

  // The rows of this warpgroup to shared memory, turned as the copy engine has it.
  HEED_DEVICE void put_out() const {
    const int at = thread_index() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < dim / 16; ++n) {
      const int sixteenth = n % 4 * 2 + lane / 16;
      store_matrices(
          out_piece(n / 4) + at * 128 + (sixteenth ^ at % 8) * 16, side_by_side<type>(o[8 * n], o[8 * n + 1]),
          side_by_side<type>(o[8 * n + 2], o[8 * n + 3]), side_by_side<type>(o[8 * n + 4], o[8 * n + 5]),
          side_by_side<type>(o[8 * n + 6], o[8 * n + 7]));
    }
  }

  // By the copy engine where all 64 rows are the sequence's own.
  HEED_DEVICE void store_out() const {
    const int here = rows_here();
    const Query first = query(tile->first_query + group * 64);
    if (here >= 64) {
      if (team.thread() != 0) return;
#pragma unroll
      for (int piece = 0; piece < Shape::pieces; ++piece)
        store_box(&plan.out,
                  {piece * 64, static_cast<int>(first.row), c.out.heads == 0 ? 0 : tile->h,
                   c.out.batch == 0 ? 0 : tile->b},
                  out_piece(piece));
      close_stores();
      return;
    }
    for (int n = team.thread(); n < here * dim / 8; n += 128) {
      const int r = n / (dim / 8), eight = n % (dim / 8);
      const uint4 x = load_shared16(out_piece(eight / 8) + r * 128 + (eight % 8 ^ r % 8) * 16);
      const Row to = row_of(c.out, {first.b, first.h, first.i + r, first.row + r});
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(const_cast<void*>(to.data)) + to.first +
                                eight * 8) = x;
    }
  }

  // Rows that f32 could not finish, once more in double precision. The outputs' memory is free when they are
  // written.
  HEED_DEVICE void complete(const bool (&is_left)[2]) {
    if (team.thread() == 0) wait_for_stores();
    double* scratch = static_cast<double*>(__cvta_shared_to_generic(out_piece(0)));
    team.sync();
    for (int r = 0; r < 64 && r < rows_here(); ++r) {
      const bool mine = (row_in_group == r && is_left[0]) || (row_in_group + 8 == r && is_left[1]);
      if (!team.any(mine)) continue;
      complete_row(team, c, query(tile->first_query + group * 64 + r), {0, dim}, scratch);
    }
    team.sync();
  }
};

}  // namespace heed::cuda
