// SPDX-License-Identifier: Apache-2.0
// Decode's running softmax: the same steps as softmax.hpp in the same order, but rows are few, so their sums
// lie (rows, dims) with dimensions on the lanes.
#pragma once
#include <cstdint>

#include "cpu/tile/coming.hpp"
#include "cpu/tile/exp2.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// What a chunk of keys leaves behind.
template <Vector S>
StateLayout decode_layout(const Call& c) {
  return {round_up(c.group() * c.queries, max(S::lanes, 4)), round_up(c.value_dim, max(16, 4 * S::lanes))};
}

// Of the caller's tensors.
constexpr std::int64_t element_bytes(const Tensor& x) { return x.type == Type::f32 ? 4 : 2; }

// One task: every row of one sequence that reads one KV head, and its scratch.
template <Vector S>
struct DecodeRows {
  const Call& c;
  const std::int64_t b, kv_head;
  const StateLayout at;
  const std::int64_t depth, count;  // of q, a multiple of 4; rows that are real
  const std::int64_t width;         // of scores: rows, or the four or the one that are real
  float *q, *s;                     // (depth, rows), scaled; (block_keys, width)
  float* unseen;                    // (block_keys, width): 1 where a row does not see the key
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

  // No key has fewer scores than `min_width`.
  DecodeRows(const Call& call, const Rows& task, int min_width, float* memory)
      : c(call),
        b(task.batch_entry),
        kv_head(task.kv_head),
        at(decode_layout<S>(call)),
        depth(round_up(call.dim, 4)),
        count(call.group() * call.sequences[task.batch_entry].queries),
        width(packs_scores(call) && at.rows == S::lanes && count <= 4 ? max(count == 1 ? 1 : 4, min_width)
                                                                      : at.rows),
        q(memory),
        s(q + depth * at.rows),
        unseen(s + block_keys * at.rows),
        values(unseen + block_keys * at.rows),
        k_rows(values + at.rows * at.dims),
        v_rows(k_rows + copied_keys * depth),
        query(call, task),
        power(call.scaling.exponent) {}

  // Where row j of the task's keys or values begins, and it with those that follow, as rows to come.
  const char* place(const Tensor& x, std::int64_t j) const {
    // fault: keys-of-another-batch-entry
    const Row row = row_of(x, b, kv_head, c.sequences[b].first_key + j);
    return static_cast<const char*>(row.data) + row.first * element_bytes(x);
  }
  Coming coming(const Tensor& x, std::int64_t j, std::int64_t dim) const {
    return {place(x, j), dim * element_bytes(x), x.stride.length * element_bytes(x)};
  }

  // How many keys there are from the first of a stretch on, to the end of the chunk.
  std::int64_t there(const Scores& t) const {
    return min(c.sequences[b].keys, (t.first_key / chunk_keys + 1) * chunk_keys) - t.first_key;
  }

  // Whether scores of four rows, or of one, lie side by side, those of several keys in a vector: a vector for
  // each key would have most of its lanes empty, and its exponentials took 13 % of 32768 keys in f16 (Xeon,
  // two cores, November 2026). What is added or hidden row by row wants a vector of rows, and states of
  // several vectors are taken one by one.
  static constexpr bool can_pack = S::lanes > 4;
  static bool packs_scores(const Call& c) {
    return can_pack && !c.bias.data && c.mask_count == 0 && !c.alibi.of_heads;
  }
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

// The same for scores of `width` rows side by side.
template <Vector S, int width>
inline typename S::F largest_packed(typename S::F so_far, const float* s, std::int64_t keys) {
  float rows[S::lanes], found[S::lanes];
  S::store(rows, so_far);
  const std::int64_t whole = keys * width / S::lanes;
  S::store(found, largest<S>(S::fill(minus_infinity), s, S::lanes, whole));
  const auto take = [&rows](const float* key) {
    for (int r = 0; r < width; ++r) rows[r] = key[r] > rows[r] ? key[r] : rows[r];
  };
  for (int n = 0; n < S::lanes; n += width) take(found + n);
  for (std::int64_t n = whole * S::lanes; n < keys * width; n += width) take(s + n);
  return S::load(rows);
}

// The weights of a key, one or four, as one value: of loops over four floats g++ makes vectors of several
// keys, with twenty shuffles for an addition.
template <int width>
struct OfKey {
  typedef float Type __attribute__((vector_size(width * sizeof(float))));
};
template <>
struct OfKey<1> {
  using Type = float;
};

// What `count` chains of so many weights p(keys, width) come to is added to `sum` in order. All at a time:
// one alone would wait for each of its sums.
template <int width, int count>
inline void add_chains(const float* p, std::int64_t keys, typename OfKey<width>::Type& sum) {
  typename OfKey<width>::Type chain[count] = {}, x;
  for (std::int64_t j = 0; j < keys; ++j)
    for (int n = 0; n < count; ++n) {
      __builtin_memcpy(&x, p + (n * keys + j) * width, sizeof x);
      chain[n] += x;
    }
  for (const auto& one : chain) sum += one;
}

// sums(width) += chains of weights p(keys, width), counted from key 0.
template <int width>
inline void add_packed_chains(const float* p, std::int64_t first_key, std::int64_t keys, float* sums) {
  constexpr int together = width == 1 ? 8 : 4;
  typename OfKey<width>::Type sum;
  __builtin_memcpy(&sum, sums, sizeof sum);
  const auto take = [&](auto count, std::int64_t of_each) {
    add_chains<width, count.value>(p, of_each, sum);
    p += count.value * of_each * width, keys -= count.value * of_each;
  };
  if (const std::int64_t within = first_key % chain_keys; within > 0)
    take(Count<1>(), min(chain_keys - within, keys));
  while (keys >= together * chain_keys) take(Count<together>(), chain_keys);
  while (keys > 0) take(Count<1>(), min(chain_keys, keys));
  __builtin_memcpy(sums, &sum, sizeof sum);
}

// weigh_in_chains() of softmax.hpp for scores of `width` rows side by side. There is room for a whole number
// of vectors.
template <Vector S, int width>
inline void weigh_packed(const Scores& t, const Weighing<S>& by) {
  float max[S::lanes], sums[S::lanes];
  S::store(max, *by.max), S::store(sums, *by.sum);
  for (int lane = width; lane < S::lanes; ++lane) max[lane] = max[lane % width];
  const auto subtrahend = S::load(max);
  const std::int64_t all = t.keys * width;
  constexpr int together = 4;
  for (std::int64_t n = 0; n < all; n += together * S::lanes) {
    typename S::F x[together];
    for (int v = 0; v < together; ++v) x[v] = S::sub(S::load(t.s + n + v * S::lanes), subtrahend);
    exp2<S>(x, by.power);
    for (int v = 0; v < together; ++v) S::store(t.s + n + v * S::lanes, x[v]);
  }
  add_packed_chains<width>(t.s, t.first_key, t.keys, sums);
  *by.sum = S::load(sums);
}

// Either, for rows r ...: those that lie side by side are all there are.
template <Vector S>
inline typename S::F largest_of_rows(typename S::F so_far, const Scores& t, std::int64_t r) {
  if constexpr (DecodeRows<S>::can_pack)
    if (t.width < S::lanes)
      return t.width == 1 ? largest_packed<S, 1>(so_far, t.s, t.keys)
                          : largest_packed<S, 4>(so_far, t.s, t.keys);
  return largest<S>(so_far, t.s + r, t.width, t.keys);
}
template <Vector S>
inline void weigh_rows(const Scores& t, std::int64_t r, const Weighing<S>& by) {
  if constexpr (DecodeRows<S>::can_pack)
    if (t.width < S::lanes) return t.width == 1 ? weigh_packed<S, 1>(t, by) : weigh_packed<S, 4>(t, by);
  weigh_in_chains<S, 1>(t.s + r, t.width, t.first_key, t.keys, by);
}

// advance() of softmax.hpp for any number of row vectors.
template <Vector S>
inline void advance_rows(const DecodeRows<S>& rows, const Scores& t, const State& state) {
  using F = typename S::F;
  const StateLayout& at = rows.at;
  for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
    const F before = S::load(state.max + r);
    F max = largest_of_rows<S>(before, t, r);
    S::store(state.max + r, max);
    const F factor = softmax::rescaling<S>(before, max, rows.power);
    max = softmax::finite_max<S>(max);
    F sum = S::mul(S::load(state.sum + r), factor);
    weigh_rows<S>(t, r, {&max, &sum, rows.power});
    S::store(state.sum + r, sum);
    float factors[S::lanes];
    S::store(factors, factor);
    for (int lane = 0; lane < S::lanes; ++lane)
      if (factors[lane] != 1.0f)  // fault: rescale-skipped-in-decode
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
    for (std::int64_t lane = 0; lane < min(S::lanes, rows.count - r); ++lane) {
      const softmax::Merging<S> row{merged.max, S::fill(ours[lane]), S::fill(theirs[lane])};
      const std::int64_t first = (r + lane) * at.dims;
      for (std::int64_t d = first; d < first + at.dims; d += S::lanes)
        S::store(total.out + d, row(S::load(total.out + d), S::load(part.out + d)));
    }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
