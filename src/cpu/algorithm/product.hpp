// SPDX-License-Identifier: Apache-2.0
// The micro-kernel under everything: a panel of rows (queries, or rows of x) times a tile of columns (keys,
// value dimensions, or outputs of a projection). Rows lie on the lanes and the summed index runs one step at
// a time, so each result is a single FMA chain whatever the vector width (O2).
#pragma once
#include <cstdint>

#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
struct Tile {
  static constexpr int rows = S::lanes * S::panel_vectors;
  static constexpr int columns = S::tile_columns;
};

enum class Start : std::uint8_t { zero, sum };

// c(columns, rows) = [c +] sum over k of a(k, rows) * b(k, columns); depth is even. An instruction set whose
// compiler spills these accumulators specialises it.
template <Vector S, Start start>
inline void tile_product(const float* a, const float* b, std::int64_t depth, float* c) {
  constexpr int vectors = S::panel_vectors, columns = S::tile_columns;
  typename S::F sum[columns][vectors];
  for (int n = 0; n < columns; ++n)
    for (int v = 0; v < vectors; ++v)
      sum[n][v] = start == Start::zero ? S::fill(0.0f) : S::load(c + n * Tile<S>::rows + v * S::lanes);
  for (std::int64_t k = 0; k < depth; ++k, a += Tile<S>::rows, b += columns) {
    typename S::F x[vectors];
    for (int v = 0; v < vectors; ++v) x[v] = S::load(a + v * S::lanes);
    for (int n = 0; n < columns; ++n) {
      const auto y = S::fill(b[n]);
      for (int v = 0; v < vectors; ++v) sum[n][v] = S::fma(x[v], y, sum[n][v]);
    }
  }
  for (int n = 0; n < columns; ++n)
    for (int v = 0; v < vectors; ++v) S::store(c + n * Tile<S>::rows + v * S::lanes, sum[n][v]);
}

}  // namespace heed::cpu::HEED_THIS_TARGET
