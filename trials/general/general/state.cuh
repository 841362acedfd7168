// SPDX-License-Identifier: Apache-2.0
// The partial state {max, sum, out} of a warp's rows: each lane has its columns' share of the sums.
#pragma once
#include <cstdint>

#include "cuda/exact/state.cuh"
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

  // Scores times `scale` are of base 2; they become weights against the row's maximum and are added to the
  // sums. The maximum follows when it is left behind by 2^8, which weights can bear: then alone the sums so
  // far are rescaled. So threads need not tell each other their maxima, as long as none of a warp's rows has
  // moved.
  HEED_DEVICE void weigh(Scores<Shape>& s, float scale, float eight) {
    float top[Shape::row_tiles][2];
    bool moves = false;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[m][r] = fmaxf(s[m][0][2 * r], s[m][0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < Shape::key_tiles; ++n)
          top[m][r] = fmaxf(top[m][r], fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
        moves = moves || top[m][r] > max[m][r] + eight;
      }
    if (any_of_warp(moves)) move_max(top, scale, eight);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float subtract = finite_max(max[m][r]) * scale - lift<type>;
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n) {
          float &a = s[m][n][2 * r], &b = s[m][n][2 * r + 1];
          a = fast_exp2(fmaf(a, scale, -subtract)), b = fast_exp2(fmaf(b, scale, -subtract));
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
        sum[m][r] += shuffle_xor(sum[m][r], 1);
        sum[m][r] += shuffle_xor(sum[m][r], 2);
      }
  }

 private:
  HEED_DEVICE void move_max(const float (&of_thread)[Shape::row_tiles][2], float scale, float eight) {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = fmaxf(of_thread[m][r], shuffle_xor(of_thread[m][r], 1));
        top = fmaxf(top, shuffle_xor(top, 2));
        const bool moves = top > max[m][r] + eight;
        factor[r] = moves ? fast_exp2((max[m][r] - top) * scale) : 1.0f;
        max[m][r] = moves ? top : max[m][r];
        sum[m][r] *= factor[r];
      }
#pragma unroll
      for (int n = 0; n < Shape::value_dim / 8; ++n) {
        o[m][n][0] *= factor[0], o[m][n][1] *= factor[0];
        o[m][n][2] *= factor[1], o[m][n][3] *= factor[1];
      }
    }
  }
};

// What a state is multiplied with to be one against the maximum `now`.
HEED_DEVICE float moved(float max, float now) { return fast_exp2(max - finite_max(now)); }

}  // namespace heed::cuda::general
