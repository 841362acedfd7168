// SPDX-License-Identifier: Apache-2.0
// A warp's two products: scores of its rows and a tile's keys, and values under their weights.
#pragma once
#include <cstdint>

#include "general/shape.hpp"
#include "general/tile.cuh"

namespace heed::cuda::general {

// The queries of a warp's rows: the first steps of 16 dimensions in registers, as far as there is room, the others in shared
// memory.
template <class Shape>
class Queries {
 public:
  using Step = std::uint32_t[Shape::row_tiles][4];

  HEED_DEVICE Queries(SharedAddress queries, int warp_row)
      : at(queries + (warp_row * Shape::warp_rows + lane_index() % 16) * Shape::query_pitch + lane_index() / 16 * 16) {}

  HEED_DEVICE void hold() {
#pragma unroll
    for (int k = 0; k < Shape::held_steps; ++k) load(held[k], k);
  }

  HEED_DEVICE void load(Step& to, int k) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) load_matrices(to[m], at + m * 16 * Shape::query_pitch + k * 32);
  }

  Step held[Shape::held_steps > 0 ? Shape::held_steps : 1];

 private:
  const SharedAddress at;
};

// Of a warp: sums of row tile m and key tile n; lane l has rows l / 4 and l / 4 + 8 and keys 2 (l % 4) and the next.
template <class Shape>
using Scores = float[Shape::row_tiles][Shape::key_tiles][4];

// s = queries * keys^T for the keys of key warp `key_warp`. Between the steps, meanwhile(k) is done: products leave room.
template <class Shape, class Source, class Meanwhile>
HEED_DEVICE void multiply_keys(Scores<Shape>& s, const Queries<Shape>& q, SharedAddress keys, int key_warp, const Meanwhile& meanwhile) {
  const int lane = lane_index();
  constexpr int pitch = Source::keys_are_transposed ? Shape::pitch(Shape::tile_keys) : Shape::query_pitch;
  // Of four matrices, two are a key tile's 16 dimensions.
  const SharedAddress at =
      keys + (Source::keys_are_transposed
                  ? lane % 16 * pitch + lane / 16 * 16 + key_warp * Shape::warp_keys * 2
                  : (key_warp * Shape::warp_keys + lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16);
#pragma unroll
  for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
  for (int k = 0; k < Shape::dim_steps; ++k) {
    typename Queries<Shape>::Step loaded;
    if (k >= Shape::held_steps) q.load(loaded, k);
    const auto& a = k < Shape::held_steps ? q.held[k < Shape::held_steps ? k : 0] : loaded;
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; n += 2) {
      std::uint32_t b[4];
      if constexpr (Source::keys_are_transposed)
        load_transposed(b, at + k * 16 * pitch + n * 16);
      else
        load_matrices(b, at + n * 8 * pitch + k * 32);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m) {
        add_product<Shape::type>(s[m][n], a[m], b[0], b[1]);
        add_product<Shape::type>(s[m][n + 1], a[m], b[2], b[3]);
      }
    }
    meanwhile(k);
  }
}

// o += weights * values; weights lie as an operand wants them, in pairs.
template <class Shape>
HEED_DEVICE void multiply_values(float (&o)[Shape::row_tiles][Shape::value_dim / 8][4],
                                 const std::uint32_t (&p)[Shape::row_tiles][Shape::key_steps][4], SharedAddress values,
                                 int key_warp) {
  const int lane = lane_index();
  const SharedAddress at = values + (key_warp * Shape::warp_keys + lane % 16) * Shape::value_pitch + lane / 16 * 16;
#pragma unroll
  for (int k = 0; k < Shape::key_steps; ++k)
#pragma unroll
    for (int n = 0; n < Shape::value_dim / 8; n += 2) {
      std::uint32_t b[4];
      load_transposed(b, at + k * 16 * Shape::value_pitch + n * 16);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m) {
        add_product<Shape::type>(o[m][n], p[m][k], b[0], b[1]);
        add_product<Shape::type>(o[m][n + 1], p[m][k], b[2], b[3]);
      }
    }
}

}  // namespace heed::cuda::general
