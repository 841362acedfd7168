// SPDX-License-Identifier: Apache-2.0
// The exact kernel for few rows, as decoding has them: f32 keys and values as they lie, at most 8 rows that
// share a KV head, heads of at most 128, masks that are ranges of keys. A block of threads does a chunk of
// keys, each of its warps a block of keys, by the operations of exact.cuh in the same order; who ends last
// merges the chunks. Rows that f32 cannot finish are left to the general kernel, which follows.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_few_warp.cuh"
#include "cuda/algorithm/finish.cuh"

namespace heed::cuda {

template <int rows>
class ExactFew {
 public:
  using Shared = ExactFewShared<rows>;
  static constexpr std::int64_t state_floats = rows * (2 + few_dims);

  HEED_DEVICE ExactFew(const Call& call, const ExactPlan& launch, Shared& memory)
      : c(call), plan(launch), work(memory.work), shared(memory), thread(thread_index()) {}

  HEED_DEVICE void run() {
    if (thread == 0) shared.work.find(c, plan, {rows, few_dims});
    sync();
    if (!work.has_rows() || !work.has_chunk()) return;
    load_queries();
    sync();
    ExactFewWarp<rows> warp(c, shared, work.chunks(plan));
    warp.score();
    sync();
    warp.add();
    sync();
    end_chunk();
    if (plan.splits > 1 && !take_all_chunks()) return;
    finish();
  }

 private:
  HEED_DEVICE void load_queries() {
    for (int n = thread; n < few_dims * rows; n += few_threads) {
      const int r = n % rows, d = n / rows;
      shared.q[d][r] =
          work.is_row(r) && d < c.dim ? read(row_of(c.q, work.query(r)), d) * c.scaling.query : 0.0f;
    }
    if (thread >= rows) return;
    shared.begin[thread] = shared.end[thread] = 0;
    if (!work.is_row(thread)) return;
    const KeyRange seen = visible_keys(c, work.b, work.query(thread).i);
    shared.begin[thread] = static_cast<int>(seen.begin);
    shared.end[thread] = static_cast<int>(max(0, seen.end));
  }

  // The state {max, sum, out} after the blocks of the chunk, one after the other.
  HEED_DEVICE void end_chunk() {
    if (thread < rows) {
      RowEnd own{minus_infinity, 0};
      for (int b = 0; b < few_warps; ++b) {
        if (!shared.is_seen[b]) continue;
        const float before = own.max;
        own.max = fmaxf(own.max, shared.max[b][thread]);
        shared.factor[b][thread] = rescaling(before, own.max, power_of(c));
        own.sum = own.sum * shared.factor[b][thread];
        for (int n = 0; n < block_keys / chain_keys; ++n) own.sum = own.sum + shared.chains[b][n][thread];
      }
      shared.row[thread] = own;
    }
    sync();
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      end[r] = shared.row[r], o[r] = 0;
      for (int b = 0; b < few_warps; ++b)
        if (shared.is_seen[b]) o[r] = o[r] * shared.factor[b][r] + shared.sums(b, r)[thread];
    }
  }

  // Leaves this chunk's state and, in the block that arrives last, merges them all in order.
  HEED_DEVICE bool take_all_chunks() {
    float* const state = work.partial(plan, state_floats, work.split);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (thread == 0) state[2 * r] = end[r].max, state[2 * r + 1] = end[r].sum;
      state[2 * rows + r * few_dims + thread] = o[r];
    }
    sync();
    unsigned* const arrivals = plan.arrivals + few_tiles + work.number;
    if (thread == 0) shared.arrived = arrive(arrivals);
    sync();
    const std::int64_t chunks = work.chunk_count();
    if (shared.arrived + 1 != static_cast<unsigned>(chunks)) return false;
    for (std::int64_t n = 0; n < chunks; ++n) merge(work.partial(plan, state_floats, n), n == 0);
    return true;
  }
  HEED_DEVICE void merge(const float* state, bool is_first) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const RowEnd part{written_elsewhere(state + 2 * r), written_elsewhere(state + 2 * r + 1)};
      const float out = written_elsewhere(state + 2 * rows + r * few_dims + thread);
      if (is_first) {
        end[r] = part, o[r] = out;
        continue;
      }
      const float now = fmaxf(end[r].max, part.max), subtract = finite_max(now);
      const float a = power_of(c)(end[r].max - subtract), b = power_of(c)(part.max - subtract);
      end[r] = {now, fmaf(part.sum, b, end[r].sum * a)};
      o[r] = fmaf(out, b, o[r] * a);
    }
  }

  HEED_DEVICE void finish() {
    bool is_number = true;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (!work.is_row(r)) continue;
      const Query q = work.query(r);
      float factor = sees_no_key(end[r]) ? 0.0f : 1.0f / end[r].sum;
      if (c.sink.data || c.log_sum_exp.data) {
        const ClosedRow row = closed(c, q, end[r], c.scaling);
        factor = row.out();
        if (c.log_sum_exp.data && thread == 0)
          write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
      }
      const float x = o[r] * factor + 0.0f;  // every zero has one sign
      if (thread < c.value_dim) write(row_of(c.out, q), thread, x);
      is_number = is_number && is_finite(factor) && (thread >= c.value_dim || is_finite(x));
    }
    if (!is_number) *work.left(c, plan) = 1;
  }

  const Call& c;
  const ExactPlan& plan;
  const ExactWork& work;
  Shared& shared;
  const int thread;
  RowEnd end[rows];  // of every row
  float o[rows];     // of the dimension that is this thread's
};

}  // namespace heed::cuda
