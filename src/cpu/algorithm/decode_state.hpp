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

// What a chunk of keys leaves behind.
template <Vector S>
StateLayout decode_layout(const Call& c) {
  return {round_up(c.group() * c.queries, most(S::lanes, 4)), round_up(c.value_dim, most(16, 4 * S::lanes))};
}

// One task: every row of one sequence that reads one KV head, and its scratch.
template <Vector S>
struct DecodeRows {
  const Call& c;
  const std::int64_t b, kv_head;
  const StateLayout at;
  const std::int64_t depth, count;  // of q, a multiple of 4; rows that are real
  float *q, *s;                     // (depth, rows), scaled; (block_keys, rows)
  float* unseen;                    // (block_keys, rows): 1 where a row does not see the key
  float* values;                    // (rows, dims): the weighted values of one block
  float *k_rows, *v_rows;           // keys and values that must be widened or copied
  const Queries query;              // of row r
  const Exponential<S> power;

  static constexpr std::int64_t copied_keys = 16, copied_values = 32;

  static std::int64_t scratch_floats(const Call& c) {
    const StateLayout layout = decode_layout<S>(c);
    const std::int64_t depth = round_up(c.dim, 4);
    return depth * layout.rows + 2 * block_keys * layout.rows + layout.rows * layout.dims +
           copied_keys * depth + copied_values * layout.dims;
  }

  DecodeRows(const Call& call, const Rows& task, float* memory)
      : c(call),
        b(task.batch_entry),
        kv_head(task.kv_head),
        at(decode_layout<S>(call)),
        depth(round_up(call.dim, 4)),
        count(call.group() * call.sequences[task.batch_entry].queries),
        q(memory),
        s(q + depth * at.rows),
        unseen(s + block_keys * at.rows),
        values(unseen + block_keys * at.rows),
        k_rows(values + at.rows * at.dims),
        v_rows(k_rows + copied_keys * depth),
        query(call, task),
        power(call.scaling.exponent) {}
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
inline void advance_rows(const DecodeRows<S>& rows, const Scores& t, const State& state) {
  using F = typename S::F;
  const StateLayout& at = rows.at;
  for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
    const F before = S::load(state.max + r);
    F max = largest<S>(before, t.s + r, at.rows, t.keys);
    S::store(state.max + r, max);
    const F factor = softmax::rescaling<S>(before, max, rows.power);
    max = softmax::finite_max<S>(max);
    F sum = S::mul(S::load(state.sum + r), factor);
    weigh_in_chains<S, 1>(t.s + r, at.rows, t.first_key, t.keys, {&max, &sum, rows.power});
    S::store(state.sum + r, sum);
    float factors[S::lanes];
    S::store(factors, factor);
    for (int lane = 0; lane < S::lanes; ++lane)
      if (factors[lane] != 1.0f)
        for (std::int64_t d = 0; d < at.dims; d += S::lanes) {
          float* out = state.out + (r + lane) * at.dims + d;
          S::store(out, S::mul(S::load(out), S::fill(factors[lane])));
        }
  }
}

// merge() of softmax.hpp, for the rows that are real.
template <Vector S>
inline void merge_rows(const DecodeRows<S>& rows, const State& total, const State& part) {
  const StateLayout& at = rows.at;
  for (std::int64_t r = 0; r < rows.count; r += S::lanes) {
    const auto merged = softmax::merging<S>(S::load(total.max + r), S::load(part.max + r), rows.power);
    S::store(total.max + r, merged.max);
    S::store(total.sum + r, merged(S::load(total.sum + r), S::load(part.sum + r)));
    float ours[S::lanes], theirs[S::lanes];
    S::store(ours, merged.ours), S::store(theirs, merged.theirs);
    for (std::int64_t lane = 0; lane < least(S::lanes, rows.count - r); ++lane) {
      const softmax::Merging<S> row{merged.max, S::fill(ours[lane]), S::fill(theirs[lane])};
      const std::int64_t first = (r + lane) * at.dims;
      for (std::int64_t d = first; d < first + at.dims; d += S::lanes)
        S::store(total.out + d, row(S::load(total.out + d), S::load(part.out + d)));
    }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
