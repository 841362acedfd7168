// SPDX-License-Identifier: Apache-2.0
// A warp's two products, scores of its rows and a tile's keys and values under their weights, and the partial
// state {max, sum, out} that they add up to.
#pragma once
#include <cstdint>

#include "cuda/general/plan.hpp"
#include "cuda/tile/block.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda::general {

// The queries of a warp's rows: the first steps of 16 dimensions in registers, as far as there is room, the
// others in shared memory.
template <class Shape>
class Queries {
 public:
  using Step = std::uint32_t[Shape::row_tiles][4];

  HEED_DEVICE Queries(SharedAddress queries, int warp_row)
      : at(queries + (warp_row * Shape::warp_rows + lane_index() % 16) * Shape::query_pitch +
           lane_index() / 16 * 16) {}

  HEED_DEVICE void hold() {
#pragma unroll
    for (int k = 0; k < Shape::held_steps; ++k) load(held[k], k);
  }

  HEED_DEVICE void load(Step& to, int k) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
      load_matrices(to[m], at + m * 16 * Shape::query_pitch + k * 32);
  }

  Step held[Shape::held_steps > 0 ? Shape::held_steps : 1];

 private:
  const SharedAddress at;
};

// Of a warp: sums of row tile m and key tile n; lane l has rows l / 4 and l / 4 + 8 and keys 2 (l % 4) and
// the next.
template <class Shape>
using Scores = float[Shape::row_tiles][Shape::key_tiles][4];

template <class Shape>
HEED_DEVICE void clear(Scores<Shape>& s) {
#pragma unroll
  for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
}

// s += queries * keys^T for the keys of key warp `key_warp`. Between the steps, meanwhile(k) is done:
// products leave room.
template <class Shape, class Source, class Meanwhile>
HEED_DEVICE void add_keys(Scores<Shape>& s, const Queries<Shape>& q, SharedAddress keys, int key_warp,
                          const Meanwhile& meanwhile) {
  const int lane = lane_index();
  constexpr int pitch = Source::keys_are_transposed ? Shape::pitch(Shape::tile_keys) : Shape::query_pitch;
  // Of four matrices, two are a key tile's 16 dimensions.
  const SharedAddress at =
      keys + (Source::keys_are_transposed
                  ? lane % 16 * pitch + lane / 16 * 16 + key_warp * Shape::warp_keys * 2
                  : (key_warp * Shape::warp_keys + lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16);
  const auto load_keys = [&](std::uint32_t(&b)[4], int k, int n) {
    if constexpr (Source::keys_are_transposed)
      load_matrices_transposed(b, at + k * 16 * pitch + n * 16);
    else
      load_matrices(b, at + n * 8 * pitch + k * 32);
  };
  const auto add = [&](const std::uint32_t(*a)[4], const std::uint32_t(&b)[4], int n) {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      add_product<Shape::type>(s[m][n], a[m], b[0], b[1]);
      add_product<Shape::type>(s[m][n + 1], a[m], b[2], b[3]);
    }
  };
  if constexpr (!Shape::is_crowded) {
#pragma unroll
    for (int k = 0; k < Shape::dim_steps; ++k) {
      typename Queries<Shape>::Step loaded;
      if (k >= Shape::held_steps) q.load(loaded, k);
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; n += 2) {
        std::uint32_t b[4];
        load_keys(b, k, n);
        add(k < Shape::held_steps ? q.held[k < Shape::held_steps ? k : 0] : loaded, b, n);
      }
      meanwhile(k);
    }
  } else if constexpr (Shape::loads_steps) {
    typename Queries<Shape>::Step a[2];
    std::uint32_t b[2][Shape::key_tiles / 2][4];
    const auto load = [&](int k) {
      q.load(a[k % 2], k);
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; n += 2) load_keys(b[k % 2][n / 2], k, n);
    };
    load(0);
#pragma unroll
    for (int k = 0; k < Shape::dim_steps; ++k) {
      if (k + 1 < Shape::dim_steps) load(k + 1);
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; n += 2) add(a[k % 2], b[k % 2][n / 2], n);
      meanwhile(k);
    }
  } else {
    typename Queries<Shape>::Step a[2];
    std::uint32_t b[2][4];
    if (Shape::held_steps == 0) q.load(a[0], 0);
    load_keys(b[0], 0, 0);
#pragma unroll
    for (int k = 0; k < Shape::dim_steps; ++k) {
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; n += 2) {
        const bool is_last = n + 2 >= Shape::key_tiles;
        const int now = (k * Shape::key_tiles + n) / 2 % 2;
        if (!is_last || k + 1 < Shape::dim_steps)
          load_keys(b[1 - now], is_last ? k + 1 : k, is_last ? 0 : n + 2);
        if (n == Shape::key_tiles / 4 * 2 && k + 1 < Shape::dim_steps && k + 1 >= Shape::held_steps)
          q.load(a[(k + 1) % 2], k + 1);
        add(k < Shape::held_steps ? q.held[k < Shape::held_steps ? k : 0] : a[k % 2], b[now], n);
      }
      meanwhile(k);
    }
  }
}

template <class Shape, class Source, class Meanwhile>
HEED_DEVICE void multiply_keys(Scores<Shape>& s, const Queries<Shape>& q, SharedAddress keys, int key_warp,
                               const Meanwhile& meanwhile) {
  clear<Shape>(s);
  add_keys<Shape, Source>(s, q, keys, key_warp, meanwhile);
}

// Weights as an operand wants them, in pairs.
template <class Shape>
using Weights = std::uint32_t[Shape::row_tiles][Shape::key_steps][4];

template <class Shape>
HEED_DEVICE void pack(Weights<Shape>& p, const Scores<Shape>& weights) {
#pragma unroll
  for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
    for (int k = 0; k < Shape::key_steps; ++k)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float(&w)[4] = weights[m][2 * k + n / 2];
        p[m][k][n] = pack2<Shape::type>(w[n % 2 * 2], w[n % 2 * 2 + 1]);
      }
}

// A warp that has its rows to itself.
struct OneWarp {
  HEED_DEVICE bool any(bool one) const { return warp_any(one); }
  template <class OfRows>
  HEED_DEVICE void join_max(OfRows&) const {}
  template <class OfRows>
  HEED_DEVICE void join_sums(OfRows&) const {}
};

// o += weights * values. After each pair of matrices
// meanwhile(x) is done.
template <class Shape, class Meanwhile>
HEED_DEVICE void multiply_values(float (&o)[Shape::row_tiles][Shape::out_dim / 8][4], const Weights<Shape>& p,
                                 SharedAddress values, int key_warp, const Meanwhile& meanwhile) {
  const int lane = lane_index();
  const SharedAddress at =
      values + (key_warp * Shape::warp_keys + lane % 16) * Shape::value_pitch + lane / 16 * 16;
  constexpr int pairs = Shape::out_dim / 16, all = Shape::key_steps * pairs;
  // Of two warps that share rows, the one with the second half of the dimensions has that of the keys.
  const auto step_of = [](int x) {
    const int turned = Shape::sums_halves && x % pairs >= pairs / 2 ? Shape::key_steps / 2 : 0;
    return (x / pairs + turned) % Shape::key_steps;
  };
  const auto load_values = [&](std::uint32_t(&b)[4], int x) {
    load_matrices_transposed(b, at + step_of(x) * 16 * Shape::value_pitch + x % pairs * 32);
  };
  constexpr int ahead = Shape::loads_steps ? 2 : 1;
  std::uint32_t b[ahead + 1][4];
#pragma unroll
  for (int x = 0; x < ahead; ++x) load_values(b[x], x);
#pragma unroll
  for (int x = 0; x < all; ++x) {
    const int k = step_of(x), n = x % pairs * 2;
    if (x + ahead < all) load_values(b[(x + ahead) % (ahead + 1)], x + ahead);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      add_product<Shape::type>(o[m][n], p[m][k], b[x % (ahead + 1)][0], b[x % (ahead + 1)][1]);
      add_product<Shape::type>(o[m][n + 1], p[m][k], b[x % (ahead + 1)][2], b[x % (ahead + 1)][3]);
    }
    meanwhile(x);
  }
}

template <class Shape>
struct State {
  static constexpr Type type = Shape::type;
  using Out = float[Shape::row_tiles][Shape::out_dim / 8][4];

  // Of rows l / 4 and l / 4 + 8 of each row tile.
  float max[Shape::row_tiles][2], sum[Shape::row_tiles][2];
  float later_sum[Shape::sums_halves ? Shape::row_tiles : 1][2];  // of the second half of a tile's keys
  Out o;

  HEED_DEVICE void clear() {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      max[m][0] = max[m][1] = minus_infinity, sum[m][0] = sum[m][1] = 0;
      if constexpr (Shape::sums_halves) later_sum[m][0] = later_sum[m][1] = 0;
#pragma unroll
      for (int n = 0; n < Shape::out_dim / 8; ++n) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0;
    }
  }

  // Scores times `scale` are of base 2; they become weights against the row's maximum and are added to the
  // sums. The maximum moves when scores exceed it by 2^8, which weights can bear: then alone the sums so
  // far are rescaled. So threads need not tell each other their maxima, as long as none of a warp's rows has
  // moved.
  HEED_DEVICE void weigh(Scores<Shape>& s, float scale, float eight) { weigh(s, scale, eight, OneWarp()); }
  template <class Team>
  HEED_DEVICE void weigh(Scores<Shape>& s, float scale, float eight, const Team& team) {
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
    if (team.any(moves)) move_max(top, scale, eight, team);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float subtract = finite_max(max[m][r]) * scale - lift<type>;
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n) {
          float &a = s[m][n][2 * r], &b = s[m][n][2 * r + 1];
          a = fast_exp2(fmaf(a, scale, -subtract)), b = fast_exp2(fmaf(b, scale, -subtract));
          if (Shape::sums_halves && n >= Shape::key_tiles / 2)
            later_sum[m][r] += a + b;
          else
            sum[m][r] += a + b;
        }
      }
  }

  // Weights of the tile as operands; the values under them are added.
  HEED_DEVICE void add_values(const Scores<Shape>& weights, SharedAddress values, int key_warp) {
    add_values(weights, values, key_warp, [](int) {});
  }
  template <class Meanwhile>
  HEED_DEVICE void add_values(const Scores<Shape>& weights, SharedAddress values, int key_warp,
                              const Meanwhile& meanwhile) {
    Weights<Shape> p;
    pack<Shape>(p, weights);
    multiply_values<Shape>(o, p, values, key_warp, meanwhile);
  }

  // Every lane's share of the sums becomes the row's.
  HEED_DEVICE void add_up() {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[m][r] += shuffle_xor(sum[m][r], 1);
        sum[m][r] += shuffle_xor(sum[m][r], 2);
        if constexpr (Shape::sums_halves) {
          later_sum[m][r] += shuffle_xor(later_sum[m][r], 1);
          later_sum[m][r] += shuffle_xor(later_sum[m][r], 2);
          sum[m][r] += later_sum[m][r];
        }
      }
  }

  HEED_DEVICE void end_without_sum(int m, int r) {
    const RowEnd end = without_sum(max[m][r]);
    max[m][r] = end.max, sum[m][r] = end.sum;
  }

 private:
  template <class Team>
  HEED_DEVICE void move_max(float (&tops)[Shape::row_tiles][2], float scale, float eight, const Team& team) {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        tops[m][r] = fmaxf(tops[m][r], shuffle_xor(tops[m][r], 1));
        tops[m][r] = fmaxf(tops[m][r], shuffle_xor(tops[m][r], 2));
      }
    team.join_max(tops);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float top = tops[m][r];
        const bool moves = top > max[m][r] + eight;
        factor[r] = moves ? fast_exp2((max[m][r] - top) * scale) : 1.0f;
        max[m][r] = moves ? top : max[m][r];
        sum[m][r] *= factor[r];
        if constexpr (Shape::sums_halves) later_sum[m][r] *= factor[r];
      }
#pragma unroll
      for (int n = 0; n < Shape::out_dim / 8; ++n) {
        o[m][n][0] *= factor[0], o[m][n][1] *= factor[0];
        o[m][n][2] *= factor[1], o[m][n][3] *= factor[1];
      }
    }
  }
};

// What a state is multiplied with to be one against the maximum `now`.
HEED_DEVICE float moved(float max, float now) { return fast_exp2(max - finite_max(now)); }

}  // namespace heed::cuda::general
