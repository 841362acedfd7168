// SPDX-License-Identifier: Apache-2.0
// The running softmax of a panel of rows: state {max, sum, out}, one lane per row, moved forward by a stretch
// of scores, merged with another, and closed. All arithmetic is vertical and every decision is per row, or
// invisible: multiplying by a factor of exactly 1 may be skipped for a whole panel.
#pragma once
#include <cstdint>

#include "cpu/algorithm/exp2.hpp"
#include "cpu/algorithm/product.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Views of one panel's state: max and sum have `rows` entries, out is (dims, rows). An empty state is {-inf,
// 0, 0}.
struct State {
  float *max, *sum, *out;
};

template <Vector S>
inline void clear(const State& state, std::int64_t dims) {
  for (int r = 0; r < Tile<S>::rows; ++r) state.max[r] = minus_infinity, state.sum[r] = 0;
  for (std::int64_t n = 0; n < dims * Tile<S>::rows; ++n) state.out[n] = 0;
}

// The maximum to subtract: 0 where nothing was seen yet, so that -inf - max stays -inf.
template <Vector S>
inline typename S::F finite_max(typename S::F max) {
  return S::less(S::fill(minus_infinity), max, max, S::less(max, S::fill(0.0f), S::fill(0.0f), max));
}

template <Vector S>
inline void scale_rows(float* x, std::int64_t dims, const typename S::F factor[]) {
  for (std::int64_t d = 0; d < dims; ++d)
    for (int v = 0; v < S::panel_vectors; ++v, x += S::lanes) S::store(x, S::mul(S::load(x), factor[v]));
}

// As many keys as advance in lock-step: scores s(keys, vectors), `width` floats a key, become 2^(s - max) and
// are added to the sums in order.
template <Vector S, int vectors, int keys>
inline void weigh_together(float* s, std::int64_t width, const typename S::F* max, typename S::F* sum) {
  typename S::F p[keys * vectors];
  for (int n = 0; n < keys * vectors; ++n)
    p[n] = S::sub(S::load(s + n / vectors * width + n % vectors * S::lanes), max[n % vectors]);
  exp2<S>(p);
  for (int n = 0; n < keys * vectors; ++n) {
    S::store(s + n / vectors * width + n % vectors * S::lanes, p[n]);
    sum[n % vectors] = S::add(sum[n % vectors], p[n]);
  }
}

// Any number of keys. An instruction set may specialise it.
template <Vector S, int vectors>
inline void weigh(float* s, std::int64_t width, std::int64_t keys, const typename S::F* max,
                  typename S::F* sum) {
  constexpr int together = vectors == 1 ? 4 : 2;
  for (; keys >= together; keys -= together, s += together * width)
    weigh_together<S, vectors, together>(s, width, max, sum);
  for (; keys > 0; --keys, s += width) weigh_together<S, vectors, 1>(s, width, max, sum);
}

// The largest of `so_far` and of four vectors `width` floats apart: one after the other, each maximum would
// wait for the last.
template <Vector S>
inline typename S::F larger_of_four(typename S::F so_far, const float* s, std::int64_t width) {
  const auto a = S::max(S::load(s), S::load(s + width));
  return S::max(so_far, S::max(a, S::max(S::load(s + 2 * width), S::load(s + 3 * width))));
}

template <Vector S>
inline bool any_lane_differs(typename S::F x, float from) {
  float lanes[S::lanes];
  S::store(lanes, x);
  bool any = false;
  for (int lane = 0; lane < S::lanes; ++lane) any |= lanes[lane] != from;
  return any;
}

// What sums so far must be multiplied with when the maximum moves; 1 where it stays, whatever 2^0 is to a
// caller who rounds down, and where nothing was summed.
template <Vector S>
inline typename S::F rescaling(typename S::F before, typename S::F max) {
  const auto one = S::fill(1.0f), factor = exp2<S>(S::sub(before, finite_max<S>(max)));
  return S::less(S::fill(minus_infinity), before, S::less(before, max, factor, one), one);
}

// Moves the panel's maxima, and rescales what was measured against the old ones.
template <Vector S>
inline void move_max(const State& state, const typename S::F (&max)[S::panel_vectors], std::int64_t dims) {
  typename S::F factor[S::panel_vectors];
  bool rescale = false;
  for (int v = 0; v < S::panel_vectors; ++v) {
    float *before = state.max + v * S::lanes, *sum = state.sum + v * S::lanes;
    factor[v] = rescaling<S>(S::load(before), max[v]);
    S::store(before, max[v]);
    S::store(sum, S::mul(S::load(sum), factor[v]));
    rescale |= any_lane_differs<S>(factor[v], 1.0f);
  }
  if (rescale) scale_rows<S>(state.out, dims, factor);
}

// Replaces scores s(keys, rows) by weights against the row's running maximum and adds them to the sum.
template <Vector S>
inline void advance(const State& state, float* s, std::int64_t keys, std::int64_t dims) {
  constexpr int vectors = S::panel_vectors, rows = Tile<S>::rows;
  using F = typename S::F;
  F max[vectors], sum[vectors];
  for (int v = 0; v < vectors; ++v) max[v] = S::load(state.max + v * S::lanes);
  for (std::int64_t j = 0; j < keys; j += 4)  // keys come in tiles, so in fours
    for (int v = 0; v < vectors; ++v) max[v] = larger_of_four<S>(max[v], s + j * rows + v * S::lanes, rows);

  bool moved = false;
  for (int v = 0; v < vectors; ++v) {
    const F before = S::load(state.max + v * S::lanes);
    moved |= any_lane_differs<S>(S::less(before, max[v], S::fill(1.0f), S::fill(0.0f)), 0.0f);
  }
  if (moved) move_max<S>(state, max, dims);

  for (int v = 0; v < vectors; ++v) {
    max[v] = finite_max<S>(max[v]);
    sum[v] = S::load(state.sum + v * S::lanes);
  }
  weigh<S, vectors>(s, rows, keys, max, sum);
  for (int v = 0; v < vectors; ++v) S::store(state.sum + v * S::lanes, sum[v]);
}

// total = total merged with part; an empty part or an empty total changes nothing.
template <Vector S>
inline void merge(const State& total, const State& part, std::int64_t dims) {
  using F = typename S::F;
  for (int v = 0; v < S::panel_vectors; ++v) {
    const int at = v * S::lanes;
    const F before = S::load(total.max + at), other = S::load(part.max + at);
    const F max = S::max(before, other), subtract = finite_max<S>(max);
    const F a = exp2<S>(S::sub(before, subtract)), b = exp2<S>(S::sub(other, subtract));
    S::store(total.max + at, max);
    S::store(total.sum + at, S::fma(S::load(part.sum + at), b, S::mul(S::load(total.sum + at), a)));
    for (std::int64_t d = 0; d < dims; ++d) {
      float* out = total.out + d * Tile<S>::rows + at;
      S::store(out, S::fma(S::load(part.out + d * Tile<S>::rows + at), b, S::mul(S::load(out), a)));
    }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
