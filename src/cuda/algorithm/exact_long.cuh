// SPDX-License-Identifier: Apache-2.0
// The exact kernel for long plain problems: f32 keys and values as they lie, heads of at most 64, masks that
// are ranges of keys. A block of threads does 128 rows that share a KV head, by the operations of exact.cuh
// in the same order. Rows that f32 cannot finish are left to the general kernel, which follows.
#pragma once
#include "cuda/algorithm/exact_long_scores.cuh"
#include "cuda/algorithm/exact_long_values.cuh"

namespace heed::cuda {

HEED_DEVICE void attend_long(const Call& c, const ExactPlan& plan, ExactLongShared& shared) {
  const int t = thread_index();
  if (t == 0) shared.work.find(c, plan, {long_rows, long_dims});
  sync();
  const ExactWork& work = shared.work;
  if (!work.has_rows()) return;
  if (t < long_rows) {
    shared.begin[t] = shared.end[t] = 0;
    if (work.is_row(t)) {
      const KeyRange seen = visible_keys(c, work.b, work.query(t).i);
      shared.begin[t] = static_cast<int>(seen.begin), shared.end[t] = static_cast<int>(max(0, seen.end));
    }
  }
  for (int n = t; n < c.dim * long_rows; n += long_threads) {
    const int r = n % long_rows, d = n / long_rows;
    shared.q[d][r] = work.is_row(r) ? read(row_of(c.q, work.query(r)), d) * c.scaling.query : 0.0f;
  }
  sync();
  if (t < long_scorers)
    ExactLongScores(c, plan, shared).run();
  else
    ExactLongValues(c, plan, shared).run();
}

}  // namespace heed::cuda
