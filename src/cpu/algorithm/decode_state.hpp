// SPDX-License-Identifier: Apache-2.0
// Decode's running softmax: the same steps as softmax.hpp in the same order, but rows are few, so their sums
// lie (rows, dims) with dimensions on the lanes.
#pragma once
#include <cstdint>

#include "cpu/algorithm/exp2.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/algorithm/softmax.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// What a chunk of keys leaves behind: max and sum per row, then out (rows, dims). Sizes in floats.
template <Vector S>
struct PartialLayout {
  std::int64_t rows, dims;

  explicit PartialLayout(const Call& c)
      : rows(round_up(c.group() * c.queries, most(S::lanes, 4))),
        dims(round_up(c.value_dim, most(16, 4 * S::lanes))) {}
  std::int64_t floats() const { return rows * (2 + dims); }
  float* max(float* partial) const { return partial; }
  float* sum(float* partial) const { return partial + rows; }
  float* out(float* partial, std::int64_t row) const { return partial + 2 * rows + row * dims; }
};

// One task: every row of one sequence that reads one KV head, and its scratch.
template <Vector S>
struct DecodeRows {
  const Call& c;
  const std::int64_t b, kv_head;
  const PartialLayout<S> at;
  const std::int64_t depth, count;  // of q, a multiple of 4; rows that are real
  float *q, *s;                     // (depth, rows), scaled; (block_keys, rows)
  float* unseen;                    // (block_keys, rows): 1 where a row does not see the key
  float *k_rows, *v_rows;           // keys and values that must be widened or copied
  const TaskQueries query;          // of row r

  static constexpr std::int64_t copied_keys = 8, copied_values = 32;

  static std::int64_t scratch_floats(const Call& c) {
    const PartialLayout<S> layout(c);
    const std::int64_t depth = round_up(c.dim, 4);
    return depth * layout.rows + 2 * block_keys * layout.rows + copied_keys * depth +
           copied_values * layout.dims;
  }

  DecodeRows(const Call& call, const Rows& task, float* memory)
      : c(call),
        b(task.batch_entry),
        kv_head(task.kv_head),
        at(call),
        depth(round_up(call.dim, 4)),
        count(call.group() * call.sequences[task.batch_entry].queries),
        q(memory),
        s(q + depth * at.rows),
        unseen(s + block_keys * at.rows),
        k_rows(unseen + block_keys * at.rows),
        v_rows(k_rows + copied_keys * depth),
        query(call, task) {}
};

// How many rows go together, as a type: the sums of a few rows stay in registers only if the compiler knows
// how few.
template <int n>
struct Count {
  static constexpr int value = n;
};

// Calls run(Count<n>) with as many of the rows that are left as go together: four at the most.
template <class Run>
inline void with_rows(std::int64_t left, const Run& run) {
  if (left >= 4) return run(Count<4>());
  if (left == 3) return run(Count<3>());
  if (left == 2) return run(Count<2>());
  run(Count<1>());
}

// The largest of `so_far` and of `keys` vectors `width` floats apart.
template <Vector S>
inline typename S::F largest(typename S::F so_far, const float* s, std::int64_t width, std::int64_t keys) {
  std::int64_t j = 0;
  for (; j + 4 <= keys; j += 4) so_far = larger_of_four<S>(so_far, s + j * width, width);
  for (; j < keys; ++j) so_far = S::max(so_far, S::load(s + j * width));
  return so_far;
}

// advance() of softmax.hpp for any number of row vectors.
template <Vector S>
inline void advance_rows(const DecodeRows<S>& rows, const Scores& t, float* partial) {
  using F = typename S::F;
  const PartialLayout<S>& at = rows.at;
  for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
    const F before = S::load(at.max(partial) + r);
    F max = largest<S>(before, t.s + r, at.rows, t.keys);
    S::store(at.max(partial) + r, max);
    const F factor = rescaling<S>(before, max);
    max = finite_max<S>(max);
    F sum = S::mul(S::load(at.sum(partial) + r), factor);
    weigh<S, 1>(t.s + r, at.rows, t.keys, &max, &sum);
    S::store(at.sum(partial) + r, sum);
    float factors[S::lanes];
    S::store(factors, factor);
    for (int lane = 0; lane < S::lanes; ++lane)
      if (factors[lane] != 1.0f)
        for (std::int64_t d = 0; d < at.dims; d += S::lanes) {
          float* out = at.out(partial, r + lane) + d;
          S::store(out, S::mul(S::load(out), S::fill(factors[lane])));
        }
  }
}

// merge() of softmax.hpp.
template <Vector S>
inline void merge_rows(const PartialLayout<S>& at, float* total, float* part) {
  using F = typename S::F;
  for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
    const F before = S::load(at.max(total) + r), other = S::load(at.max(part) + r),
            max = S::max(before, other);
    const F subtract = finite_max<S>(max);
    float a[S::lanes], z[S::lanes];
    S::store(a, exp2<S>(S::sub(before, subtract)));
    S::store(z, exp2<S>(S::sub(other, subtract)));
    S::store(at.max(total) + r, max);
    S::store(at.sum(total) + r,
             S::fma(S::load(at.sum(part) + r), S::load(z), S::mul(S::load(at.sum(total) + r), S::load(a))));
    for (int lane = 0; lane < S::lanes; ++lane)
      for (std::int64_t d = 0; d < at.dims; d += S::lanes) {
        float* out = at.out(total, r + lane) + d;
        const F scaled = S::mul(S::load(out), S::fill(a[lane]));
        S::store(out, S::fma(S::load(at.out(part, r + lane) + d), S::fill(z[lane]), scaled));
      }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
