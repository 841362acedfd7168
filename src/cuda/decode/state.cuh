// SPDX-License-Identifier: Apache-2.0
// Partial states {max, sum, out} of decode where teams are merged: warp w of 8 has the rows w, w + 8 ...,
// each lane some neighbouring dimensions of each, and all lanes of a warp have max and sum. In memory,
// between blocks, a state is (max of every row, sum of every row, out (rows, dims)).
#pragma once
#include <cstdint>

#include "cuda/decode/plan.hpp"
#include "cuda/tile/exp2.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

// Neighbouring numbers, read and written together.
template <int count>
struct alignas(count < 4 ? 4 * count : 16) Numbers {
  float x[count];
};

// One row of a state, as one thread has it.
template <int dims>
struct DecodeRow {
  float max, sum;
  Numbers<dims> out;

  HEED_DEVICE void clear() {
    max = minus_infinity, sum = 0;
#pragma unroll
    for (int d = 0; d < dims; ++d) out.x[d] = 0;
  }

  // This = this merged with the keys that follow.
  HEED_DEVICE void add(const DecodeRow& next) {
    const float now = fmaxf(max, next.max), subtract = finite_max(now);
    const float a = fast_exp2(max - subtract), z = fast_exp2(next.max - subtract);
    max = now;
    add_scaled(a, next, z);
  }
  // a times this, and z times the next.
  HEED_DEVICE void add_scaled(float a, const DecodeRow& next, float z) {
    sum = fmaf(sum, a, next.sum * z);
#pragma unroll
    for (int d = 0; d < dims; ++d) out.x[d] = fmaf(out.x[d], a, next.out.x[d] * z);
  }
};

template <class Shape>
struct DecodeState {
  static constexpr int rows = Shape::own_rows, dims = Shape::own_dims;
  DecodeRow<dims> row[rows];

  HEED_DEVICE static int number(int n) { return thread_index() / 32 + Shape::warps * n; }  // of the n-th row
  HEED_DEVICE static int first_dim() { return thread_index() % 32 * dims; }

  HEED_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < rows; ++n) row[n].clear();
  }
  HEED_DEVICE void add(const DecodeState& next) {
#pragma unroll
    for (int n = 0; n < rows; ++n) row[n].add(next.row[n]);
  }
  // The n-th row, where n is not known to the compiler.
  HEED_DEVICE DecodeRow<dims> at(int n) const {
    DecodeRow<dims> found = row[0];
#pragma unroll
    for (int i = 1; i < rows; ++i)
      if (i == n) found = row[i];
    return found;
  }
};

// The states of one KV head in memory; rows from `rows` on are not stored.
template <class Shape>
struct StoredStates {
  using State = DecodeState<Shape>;
  float* first;
  int rows;

  HEED_DEVICE float* at(int n) const { return first + n * decode_state_floats(Shape::rows, Shape::dim); }

  HEED_DEVICE void store(int n, const State& state) const {
    float* const to = at(n);
#pragma unroll
    for (int i = 0; i < State::rows; ++i) {
      const int r = State::number(i);
      if (r >= rows) continue;
      if (thread_index() % 32 == 0) to[r] = state.row[i].max, to[Shape::rows + r] = state.row[i].sum;
      *reinterpret_cast<Numbers<State::dims>*>(out_of(to, r)) = state.row[i].out;
    }
  }

  template <class Float>
  HEED_DEVICE static Float* out_of(Float* state, int r) {
    return state + 2 * Shape::rows + r * Shape::dim + State::first_dim();
  }
};

// Merges the states that other blocks stored, those of a chunk first, by the operations of DecodeRow::add().
// Many are loaded at once: out to shared memory, max and sum to the lanes, one state each. Maxima are known
// before anything is multiplied, so the lanes find all factors together, and only multiply-adds follow each
// other.
template <class Shape>
class Fold {
  using State = DecodeState<Shape>;
  static constexpr int together = Shape::many ? 4 : 32 / State::rows;

 public:
  struct Shared {
    Numbers<State::dims> out[together][State::rows][Shape::threads];  // each thread its own
  };

  HEED_DEVICE Fold(const StoredStates<Shape>& states, Shared& memory) : stored(states), shared(memory) {}

  // States [begin, end); a chunk has in_chunk of them, a power of two.
  HEED_DEVICE State operator()(int begin, int end, int in_chunk) {
    State all;
    all.clear();
#pragma unroll 1
    for (int first = begin & ~(in_chunk - 1); first < end; first += together) {
      const int count = end - first < together ? end - first : together;
      load(first, begin, count);
#pragma unroll
      for (int n = 0; n < State::rows; ++n)
        if (State::number(n) < stored.rows) add(all.row[n], n, count, in_chunk);
    }
    return all;
  }

 private:
  // States [first, first + count); those before `begin` are as if they had seen nothing.
  HEED_DEVICE void load(int first, int begin, int count) {
    const int lane = thread_index() % 32;
    const bool has_one = lane < count && first + lane >= begin;
#pragma unroll
    for (int n = 0; n < State::rows; ++n) {
      const int r = State::number(n);
      max[n] = minus_infinity, sum[n] = 0;
      if (r >= stored.rows) continue;
#pragma unroll 4
      for (int i = 0; i < count; ++i)
        stream_own(&shared.out[i][n][thread_index()], stored.out_of(stored.at(first + i), r),
                   first + i >= begin);
      if (!has_one) continue;
      const float* const state = stored.at(first + lane);
      max[n] = load_l2(state + r), sum[n] = load_l2(state + Shape::rows + r);
    }
    commit_copies();
    wait_for_copies<0>();
  }

  HEED_DEVICE void add(DecodeRow<State::dims>& all, int n, int count, int in_chunk) const {
    const int lane = thread_index() % 32, place = lane & (in_chunk - 1);
    // The chunk's maximum with this state, and that of all before the chunk.
    float of_chunk = max[n], of_all = fmaxf(all.max, max[n]);
#pragma unroll
    for (int before = 1; before < together; before *= 2) {
      const float chunk_before = shuffle(of_chunk, lane - before),
                  all_before = shuffle(of_all, lane - before);
      if (before <= place) of_chunk = fmaxf(of_chunk, chunk_before);
      if (before <= lane) of_all = fmaxf(of_all, all_before);
    }
    const float chunk_before = shuffle(of_chunk, lane - 1), all_before = shuffle(of_all, lane - place - 1);
    const float a = fast_exp2((place == 0 ? minus_infinity : chunk_before) - finite_max(of_chunk)),
                z = fast_exp2(max[n] - finite_max(of_chunk));
    const float all_a = fast_exp2((lane == place ? all.max : all_before) - finite_max(of_all)),
                all_z = fast_exp2(of_chunk - finite_max(of_all));
    if (in_chunk == 1) {  // a chunk is the state itself
#pragma unroll 8
      for (int i = 0; i < count; ++i)
        all.add_scaled(shuffle(all_a, i), {0, shuffle(sum[n], i), shared.out[i][n][thread_index()]},
                       shuffle(all_z, i));
    } else {
      add_chunks(all, n, count, in_chunk, {a, z, all_a, all_z});
    }
    all.max = shuffle(of_all, count - 1);
  }

  // What this lane's state and its chunk so far are multiplied with, and the chunk and all before it.
  struct Factors {
    float a, z, all_a, all_z;
  };
  HEED_DEVICE void add_chunks(DecodeRow<State::dims>& all, int n, int count, int in_chunk,
                              const Factors& of) const {
    DecodeRow<State::dims> chunk;
    chunk.clear();
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      chunk.add_scaled(shuffle(of.a, i), {0, shuffle(sum[n], i), shared.out[i][n][thread_index()]},
                       shuffle(of.z, i));
      if (((i + 1) & (in_chunk - 1)) != 0 && i + 1 != count) continue;
      all.add_scaled(shuffle(of.all_a, i), chunk, shuffle(of.all_z, i));
      chunk.clear();
    }
  }

  const StoredStates<Shape> stored;
  Shared& shared;
  float max[State::rows], sum[State::rows];
};

}  // namespace heed::cuda
