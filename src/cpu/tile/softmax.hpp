// SPDX-License-Identifier: Apache-2.0
// The running softmax of a panel of rows: state {max, sum, out}, one lane per row, moved forward by a stretch
// of scores, and merged with another; and dropout. All arithmetic is vertical and every decision is per row,
// or invisible: multiplying by a factor of exactly 1 may be skipped for a whole panel.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "softmax/philox.hpp"
#include "softmax/state.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Where the states of some rows lie (softmax/state.hpp): max and sum have an entry for each, out is (dims,
// rows) in a panel of prefill and (rows, dims) in decode.
struct SoftmaxState {
  float *max, *sum, *out;
};

// States in one piece of memory, sizes in floats.
struct StateLayout {
  std::int64_t rows, dims;

  std::int64_t floats() const { return rows * (2 + dims); }
  SoftmaxState in(float* memory) const { return {memory, memory + rows, memory + 2 * rows}; }
};

template <Vector S>
inline void clear(const SoftmaxState& state, std::int64_t dims) {
  for (int r = 0; r < Tile<S>::rows; ++r) state.max[r] = minus_infinity, state.sum[r] = 0;
  for (std::int64_t n = 0; n < dims * Tile<S>::rows; ++n) state.out[n] = 0;
}

template <Vector S>
inline void scale_rows(float* x, std::int64_t dims, const typename S::F factor[]) {
  for (std::int64_t d = 0; d < dims; ++d)
    for (int v = 0; v < S::panel_vectors; ++v, x += S::lanes) S::store(x, S::mul(S::load(x), factor[v]));
}

// What scores become weights by: 2 to the power of their difference from max, added to sum; max and sum are
// as many vectors as a key has.
template <Vector S>
struct Weighing {
  const typename S::F* max;
  typename S::F* sum;
  const Exponential<S>& power;
};

// As many keys as advance in lock-step: scores s(keys, vectors), `width` floats a key, become weights and are
// added to the sums in order.
template <Vector S, int vectors, int keys>
inline void weigh_together(float* s, std::int64_t width, const Weighing<S>& by) {
  typename S::F p[keys * vectors];
  for (int n = 0; n < keys * vectors; ++n)
    p[n] = S::sub(S::load(s + n / vectors * width + n % vectors * S::lanes), by.max[n % vectors]);
  exp2<S>(p, by.power);
  for (int n = 0; n < keys * vectors; ++n) {
    S::store(s + n / vectors * width + n % vectors * S::lanes, p[n]);
    by.sum[n % vectors] = S::add(by.sum[n % vectors], p[n]);
  }
}

// Any number of keys. An instruction set may specialise it.
template <Vector S, int vectors>
inline void weigh(float* s, std::int64_t width, std::int64_t keys, const Weighing<S>& by) {
  constexpr int together = vectors == 1 ? 4 : 2;
  for (; keys >= together; keys -= together, s += together * width)
    weigh_together<S, vectors, together>(s, width, by);
  for (; keys > 0; --keys, s += width) weigh_together<S, vectors, 1>(s, width, by);
}

// The same, but what these keys come to is added to the sums.
template <Vector S, int vectors>
inline void weigh_apart(float* s, std::int64_t width, std::int64_t keys, const Weighing<S>& by) {
  typename S::F chain[vectors];
  for (auto& of : chain) of = S::fill(0.0f);
  weigh<S, vectors>(s, width, keys, {by.max, chain, by.power});
  for (int v = 0; v < vectors; ++v) by.sum[v] = S::add(by.sum[v], chain[v]);
}

// Whole chains, `chains` of them. An instruction set may specialise it.
template <Vector S, int vectors>
inline void weigh_chains(float* s, std::int64_t width, std::int64_t chains, const Weighing<S>& by) {
  for (; chains > 0; --chains, s += chain_keys * width) weigh_apart<S, vectors>(s, width, chain_keys, by);
}

// Keys from `first_key` on, in chains counted from key 0.
template <Vector S, int vectors>
inline void weigh_in_chains(float* s, std::int64_t width, std::int64_t first_key, std::int64_t keys,
                            const Weighing<S>& by) {
  // fault: chains-from-the-first-key
  if (const std::int64_t within = first_key % chain_keys; within > 0 && keys > 0) {
    const std::int64_t count = keys < chain_keys - within ? keys : chain_keys - within;
    weigh_apart<S, vectors>(s, width, count, by);
    s += count * width, keys -= count;
  }
  weigh_chains<S, vectors>(s, width, keys / chain_keys, by);
  if (keys % chain_keys > 0)
    weigh_apart<S, vectors>(s + keys / chain_keys * chain_keys * width, width, keys % chain_keys, by);
}

// The largest of `so_far` and of four more: one after the other, each maximum would wait for the last.
template <Vector S>
inline typename S::F larger_of_four(typename S::F so_far, const typename S::F (&x)[4]) {
  return S::max(so_far, S::max(S::max(x[0], x[1]), S::max(x[2], x[3])));
}

// Of four vectors `width` floats apart.
template <Vector S>
inline typename S::F larger_of_four(typename S::F so_far, const float* s, std::int64_t width) {
  return larger_of_four<S>(so_far,
                           {S::load(s), S::load(s + width), S::load(s + 2 * width), S::load(s + 3 * width)});
}

// Moves the panel's maxima, and rescales what was measured against the old ones.
template <Vector S>
inline void move_max(const SoftmaxState& state, const typename S::F (&max)[S::panel_vectors],
                     std::int64_t dims, const Exponential<S>& power) {
  typename S::F factor[S::panel_vectors];
  bool rescale = false;
  for (int v = 0; v < S::panel_vectors; ++v) {
    float *before = state.max + v * S::lanes, *sum = state.sum + v * S::lanes;
    factor[v] = softmax::rescaling<S>(S::load(before), max[v], power);
    S::store(before, max[v]);
    S::store(sum, S::mul(S::load(sum), factor[v]));  // fault: sum-not-rescaled
    rescale |= any_lane_differs<S>(factor[v], 1.0f);
  }
  if (rescale) scale_rows<S>(state.out, dims, factor);  // fault: rescale-skipped
}

// The running maxima of a panel's rows, with the scores that were taken so far.
template <Vector S>
struct Maxima {
  typename S::F of[S::panel_vectors];

  Maxima() {
    for (auto& max : of) max = S::fill(minus_infinity);
  }
  explicit Maxima(const SoftmaxState& state) {
    for (int v = 0; v < S::panel_vectors; ++v) of[v] = S::load(state.max + v * S::lanes);
  }
  void take(const Scores& t) {
    constexpr int rows = Tile<S>::rows;
    for (std::int64_t j = 0; j < t.keys; j += 4)  // keys come in tiles, so in fours
      for (int v = 0; v < S::panel_vectors; ++v)
        of[v] = larger_of_four<S>(of[v], t.s + j * rows + v * S::lanes, rows);
  }
};

// Moves a panel's maxima to `highest`, those of its next scores, of which weigh() makes weights against them.
template <Vector S, class Weigh>
inline void advance(const SoftmaxState& state, const Maxima<S>& highest, std::int64_t dims,
                    const Exponential<S>& power, const Weigh& weigh) {
  using F = typename S::F;
  bool moved = false;
  for (int v = 0; v < S::panel_vectors; ++v) {
    const F before = S::load(state.max + v * S::lanes);
    moved |= any_lane_differs<S>(S::less(before, highest.of[v], S::fill(1.0f), S::fill(0.0f)), 0.0f);
  }
  if (moved) move_max<S>(state, highest.of, dims, power);

  F max[S::panel_vectors], sum[S::panel_vectors];
  for (int v = 0; v < S::panel_vectors; ++v) {
    max[v] = softmax::finite_max<S>(highest.of[v]);
    sum[v] = S::load(state.sum + v * S::lanes);
  }
  weigh(Weighing<S>{max, sum, power});
  for (int v = 0; v < S::panel_vectors; ++v) S::store(state.sum + v * S::lanes, sum[v]);
}

// total = total merged with part.
template <Vector S>
inline void merge(const SoftmaxState& total, const SoftmaxState& part, std::int64_t dims,
                  const Exponential<S>& power) {
  for (int v = 0; v < S::panel_vectors; ++v) {
    const int at = v * S::lanes;
    const auto merged = softmax::merging<S>(S::load(total.max + at), S::load(part.max + at), power);
    S::store(total.max + at, merged.max);
    S::store(total.sum + at, merged(S::load(total.sum + at), S::load(part.sum + at)));
    for (std::int64_t d = 0; d < dims; ++d) {
      float* out = total.out + d * Tile<S>::rows + at;
      S::store(out, merged(S::load(out), S::load(part.out + d * Tile<S>::rows + at)));
    }
  }
}

// Drops weights of row r of a stretch, and scales the others (S7). What the loops read is copied: after every
// store the compiler would read again what it only has a reference to.
inline void apply_dropout(const Call& c, const Query& q, int r, const Scores t) {
  const std::uint64_t seed = c.seed, below = c.drop_below;
  const std::int64_t head = q.b * c.all_heads + c.first_head + q.h, i = q.i;
  const float scale = c.keep_scale;
  for (std::int64_t j = -(t.first_key % 4); j < t.keys; j += 4) {
    const softmax::Words words = softmax::dropout_words(seed, head, i, (t.first_key + j) / 4);
    for (std::int64_t n = max(0, -j); n < min(4, t.keys - j); ++n) {
      float& weight = t.s[(j + n) * t.width + r];
      weight = words.word[n] < below ? 0.0f : weight * scale;  // fault: dropout-word
    }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
