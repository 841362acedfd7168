// SPDX-License-Identifier: Apache-2.0
// A warp's two products: scores of its rows and a tile's keys, and values under their weights.
#pragma once
#include <cstdint>

#include "general/shape.hpp"
#include "general/tile.cuh"

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
      load_transposed(b, at + k * 16 * pitch + n * 16);
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

// o += weights * values; weights lie as an operand wants them, in pairs.
template <class Shape>
HEED_DEVICE void multiply_values(float (&o)[Shape::row_tiles][Shape::value_dim / 8][4],
                                 const std::uint32_t (&p)[Shape::row_tiles][Shape::key_steps][4],
                                 SharedAddress values, int key_warp) {
  const int lane = lane_index();
  const SharedAddress at =
      values + (key_warp * Shape::warp_keys + lane % 16) * Shape::value_pitch + lane / 16 * 16;
  constexpr int pairs = Shape::value_dim / 16, all = Shape::key_steps * pairs;
  const auto load_values = [&](std::uint32_t(&b)[4], int x) {
    load_transposed(b, at + x / pairs * 16 * Shape::value_pitch + x % pairs * 32);
  };
  std::uint32_t b[2][4];
  load_values(b[0], 0);
#pragma unroll
  for (int x = 0; x < all; ++x) {
    const int k = x / pairs, n = x % pairs * 2;
    if (x + 1 < all) load_values(b[(x + 1) % 2], x + 1);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      add_product<Shape::type>(o[m][n], p[m][k], b[x % 2][0], b[x % 2][1]);
      add_product<Shape::type>(o[m][n + 1], p[m][k], b[x % 2][2], b[x % 2][3]);
    }
  }
}

}  // namespace heed::cuda::general
