// SPDX-License-Identifier: Apache-2.0
// The end of the exact kernel's rows: the sink, the outputs, the log-sum-exp, and what f32 could not finish.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_values.cuh"
#include "cuda/algorithm/finish.cuh"
#include "cuda/algorithm/wide_row.cuh"

namespace heed::cuda {

template <int slabs, bool in_place>
class ExactEnd : public ExactValues<slabs, in_place> {
  using Values = ExactValues<slabs, in_place>;
  using Thread = ExactThread<slabs, in_place>;

 protected:
  using Thread::c, Thread::plan, Thread::work, Thread::shared, Thread::threads, Thread::rows, Thread::dims;
  using Thread::own_max, Thread::own_sum, Thread::o;
  using Thread::row, Thread::column, Thread::own_row;
  using Values::Values;

  // Closes the rows and writes them. Found_poison says whether anything written is not a number; with
  // `careful`, shared.left says which rows.
  HEED_DEVICE void finish(bool careful) {
    sync();
    if (own_row >= 0) {
      shared.left[own_row] = 0;
      if (work.is_row(own_row)) close_row();
    }
    sync();
    found_poison = false;
    const bool in_fours = lies_in_fours(c.out);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (!work.is_row(row(n))) continue;
      const float factor = shared.factor[row(n)];
      const Row out = row_of(c.out, work.query(row(n)));
      bool is_number = true;
#pragma unroll
      for (int v = 0; v < slabs; ++v) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[e] = o[v][e][n] * factor + 0.0f;  // every zero has one sign
          is_number = is_number && is_finite(x[e]);
        }
        const std::int64_t d = work.first_dim + 64 * v + column * 4;
        if (in_fours && d + 4 <= c.value_dim)
          store4(static_cast<float*>(const_cast<void*>(out.data)) + out.first + d, x);
        else
          write_four(out, d, c.value_dim, {x[0], x[1], x[2], x[3]});
      }
      if (is_number) continue;
      found_poison = true;
      if (careful) shared.left[row(n)] = 1;
    }
    if (own_row >= 0 && work.is_row(own_row)) {
      const float factor = shared.factor[own_row];
      if (!is_finite(factor)) found_poison = true, shared.left[own_row] = 1;
    }
  }

  // Rows that f32 could not finish, once more in double precision.
  HEED_DEVICE void complete() {
    sync();
    double* scratch = reinterpret_cast<double*>(&shared.p[0][0]);
    const KeyRange dims_here{work.first_dim, min(work.first_dim + dims, c.value_dim)};
    for (int r = 0; r < rows; ++r) {
      if (!shared.left[r]) continue;
      const Query q = work.query(r);
      const WideEnd end = complete_row(WholeBlock<threads>(), c, q, dims_here, scratch);
      if (thread_index() == 0 && plan.ends && work.first_dim == 0) kept_end(q).wide = end;
    }
  }

  HEED_DEVICE void keep_ends() {
    if (!plan.ends || work.first_dim != 0 || own_row < 0 || !work.is_row(own_row)) return;
    kept_end(work.query(own_row)).row = {own_max, own_sum};
  }

  bool found_poison = false;

 private:
  // The factor of the row's output, and its log-sum-exp.
  HEED_DEVICE void close_row() {
    const Query q = work.query(own_row);
    const RowEnd end{own_max, own_sum};
    if (!c.sink.data && !c.bias.data && !c.alibi.of_heads && !c.log_sum_exp.data) {
      shared.factor[own_row] = sees_no_key(end) ? 0.0f : 1.0f / end.sum;
      return;
    }
    const ClosedRow row = closed(c, q, end, c.scaling);
    shared.factor[own_row] = row.out();
    if (c.log_sum_exp.data && work.first_dim == 0)
      write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
  }

  HEED_DEVICE KeptEnd& kept_end(const Query& q) const {
    return plan.ends[(q.b * c.heads + q.h) * c.queries + q.i];
  }
};

}  // namespace heed::cuda
