// SPDX-License-Identifier: Apache-2.0
// From the scores of a tile to its weights: softcap, masks, the running maximum.
#pragma once
#include "cuda/algorithm/prefill_thread.cuh"

namespace heed::cuda {

template <class Shape, bool capped>
class PrefillWeights : public PrefillThread<Shape, capped> {
  using Thread = PrefillThread<Shape, capped>;
  static constexpr Type type = Shape::type;

 protected:
  using Thread::c, Thread::tile, Thread::row, Thread::lane, Thread::scale, Thread::dim, Thread::keys;
  using Thread::max, Thread::sum, Thread::factor, Thread::o, Thread::s, Thread::p;
  using Thread::Thread;

  // Scores become weights against the row's maximum and are added to the sums, each thread those of its
  // columns. The maximum follows when it is left behind by 2^8, which weights can bear: then alone the sums
  // so far are rescaled. Of tile j's columns the first `columns`: no row sees another.
  template <int columns = keys>
  HEED_DEVICE void weigh(int j, bool hides_before, bool hides_after) {
    if constexpr (capped) cap_scores<columns>();
    if (hides_before) hide_before<columns>(j);
    if (hides_after) hide_after<columns>(j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = max[r];
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) now = fmaxf(now, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
      now = fmaxf(now, from_lane_across(now, 1));
      now = fmaxf(now, from_lane_across(now, 2));
      const bool moves = (now - max[r]) * scale > 8.0f;
      factor[r] = moves ? fast_exp2((max[r] - now) * scale) : 1.0f;
      max[r] = moves ? now : max[r];
      const float subtract = (max[r] == minus_infinity ? 0.0f : max[r] * scale) - lift<type>;
      float total = sum[r] * factor[r];
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
        float &a = s[4 * n + 2 * r], &b = s[4 * n + 2 * r + 1];
        a = fast_exp2(fmaf(a, scale, -subtract)), b = fast_exp2(fmaf(b, scale, -subtract));
        total += a + b;
      }
      sum[r] = total;
    }
  }

  // A thread's sums lie as an operand wants them.
  template <int columns = keys>
  HEED_DEVICE void narrow() {
#pragma unroll
    for (int n = 0; n < keys / 4; ++n)
      p[n] = n < columns / 4 ? side_by_side<type>(s[2 * n], s[2 * n + 1]) : 0;
  }

  HEED_DEVICE void rescale() {
    if (!any_of_warp(factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) {
      o[4 * n] *= factor[0], o[4 * n + 1] *= factor[0];
      o[4 * n + 2] *= factor[1], o[4 * n + 3] *= factor[1];
    }
  }

 private:
  template <int columns>
  HEED_DEVICE void cap_scores() {
    const float reciprocal = 1.0f / c.softcap_log2e,
                inverse = reciprocal > max_finite ? max_finite : reciprocal;
#pragma unroll
    for (int i = 0; i < columns / 2; ++i)
      s[i] = c.softcap_log2e * tanh_of_few_registers(s[i] * c.scale_log2e * inverse);
  }

  // Columns before the n-th of a tile, or from the n-th on.
  template <int columns>
  HEED_DEVICE void hide_before(int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int from = tile->begin_of(row(r)) - j * keys - 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
        if (8 * n < from) s[4 * n + 2 * r] = minus_infinity;
        if (8 * n + 1 < from) s[4 * n + 2 * r + 1] = minus_infinity;
      }
    }
  }
  template <int columns>
  HEED_DEVICE void hide_after(int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int to = tile->end_of(row(r)) - j * keys - 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
        if (8 * n >= to) s[4 * n + 2 * r] = minus_infinity;
        if (8 * n + 1 >= to) s[4 * n + 2 * r + 1] = minus_infinity;
      }
    }
  }
};

}  // namespace heed::cuda
