// SPDX-License-Identifier: Apache-2.0
// The partial state {max, sum, out} of a warp's rows: each lane has its columns' share of the sums.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_state.cuh"
#include "general/products.cuh"
#include "general/shape.hpp"
#include "general/tile.cuh"

namespace heed::cuda::general {

template <class Shape>
struct State {
  static constexpr Type type = Shape::type;
  using Out = float[Shape::row_tiles][Shape::value_dim / 8][4];

  float max[Shape::row_tiles][2], sum[Shape::row_tiles][2];  // of rows l / 4 and l / 4 + 8 of each row tile
  Out o;

  HEED_DEVICE void clear() {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      max[m][0] = max[m][1] = minus_infinity, sum[m][0] = sum[m][1] = 0;
#pragma unroll
      for (int n = 0; n < Shape::value_dim / 8; ++n) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0;
    }
  }

  // Scores times `scale` are of base 2; they become weights against the row's maximum and are added to the sums. The maximum
  // follows when it is left behind by 2^8, which weights can bear: then alone the sums so far are rescaled.
  template <bool is_scaled>
  HEED_DEVICE void weigh(Scores<Shape>& s, float scale) {
    float factor[Shape::row_tiles][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = fmaxf(s[m][0][2 * r], s[m][0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < Shape::key_tiles; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
        top = fmaxf(top, from_lane_across(top, 1));
        top = fmaxf(top, from_lane_across(top, 2));
        const float ahead = is_scaled ? top - max[m][r] : (top - max[m][r]) * scale;
        const bool moves = ahead > 8.0f;
        factor[m][r] = moves ? fast_exp2(-ahead) : 1.0f;
        max[m][r] = moves ? top : max[m][r];
        moved = moved || moves;
      }
    if (any_of_warp(moved)) rescale(factor);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float from = finite_max(max[m][r]), subtract = is_scaled ? from : from * scale - lift<type>;
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n) {
          float &a = s[m][n][2 * r], &b = s[m][n][2 * r + 1];
          if constexpr (is_scaled) {  // one after the other: the maximum may be the lowest number there is
            a = fast_exp2(lift<type> == 0 ? a - subtract : a - subtract + lift<type>);
            b = fast_exp2(lift<type> == 0 ? b - subtract : b - subtract + lift<type>);
          } else {
            a = fast_exp2(fmaf(a, scale, -subtract)), b = fast_exp2(fmaf(b, scale, -subtract));
          }
          sum[m][r] += a + b;
        }
      }
  }

  // Weights of the tile as operands; the values under them are added.
  HEED_DEVICE void add_values(const Scores<Shape>& weights, SharedAddress values, int key_warp) {
    std::uint32_t p[Shape::row_tiles][Shape::key_steps][4];
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int k = 0; k < Shape::key_steps; ++k)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float(&w)[4] = weights[m][2 * k + n / 2];
          p[m][k][n] = pack<type>(w[n % 2 * 2], w[n % 2 * 2 + 1]);
        }
    multiply_values<Shape>(o, p, values, key_warp);
  }

  // Every lane's share of the sums becomes the row's.
  HEED_DEVICE void add_up() {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[m][r] += from_lane_across(sum[m][r], 1);
        sum[m][r] += from_lane_across(sum[m][r], 2);
      }
  }

 private:
  HEED_DEVICE void rescale(const float (&factor)[Shape::row_tiles][2]) {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      sum[m][0] *= factor[m][0], sum[m][1] *= factor[m][1];
#pragma unroll
      for (int n = 0; n < Shape::value_dim / 8; ++n) {
        o[m][n][0] *= factor[m][0], o[m][n][1] *= factor[m][0];
        o[m][n][2] *= factor[m][1], o[m][n][3] *= factor[m][1];
      }
    }
  }
};

// What a state is multiplied with to be one against the maximum `now`.
HEED_DEVICE float moved(float max, float now) { return fast_exp2(max - finite_max(now)); }

}  // namespace heed::cuda::general
