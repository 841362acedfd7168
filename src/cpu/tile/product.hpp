// SPDX-License-Identifier: Apache-2.0
// The micro-kernel under everything: a panel of rows (queries, or rows of x) times a tile of columns (keys,
// value dimensions, or outputs of a projection). Rows lie on the lanes and the summed index runs one step at
// a time, so each result is one FMA chain whatever the vector width (O2).
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
struct Tile {
  static constexpr int rows = S::lanes * S::panel_vectors;
  static constexpr int columns = S::tile_columns;
};

// What a product does with c: takes its place, goes on from it, or starts from 0 and is added to it.
enum class Start : std::uint8_t { zero, sum, apart };

// c(columns, rows) = [c +] sum over k of a(k, rows) * b(k, columns), one chain from 0; depth is even.
// `vectors` may be fewer than a panel has, from a and c on. An instruction set whose compiler spills these
// accumulators specialises it. The last loop is to be unrolled before g++ looks for arrays that registers can
// hold, or it writes all sums to the stack in front of the products and behind them: AVX-512, before it had
// assembly, then had 95 % of the peak over 64 terms instead of 99 (Xeon, November 2026).
template <Vector S, Start start, int vectors = S::panel_vectors>
  requires(start != Start::sum)
inline void tile_product(const float* a, const float* b, std::int64_t depth, float* c) {
  constexpr int columns = S::tile_columns;
  typename S::F sum[columns][vectors];
  for (auto& column : sum)
    for (auto& s : column) s = S::fill(0.0f);
  for (std::int64_t k = 0; k < depth; ++k, a += Tile<S>::rows, b += columns) {  // fault: tail-of-the-tile
    typename S::F x[vectors];
    for (int v = 0; v < vectors; ++v) x[v] = S::load(a + v * S::lanes);
    for (int n = 0; n < columns; ++n) {
      const auto y = S::fill(b[n]);
      for (int v = 0; v < vectors; ++v) sum[n][v] = S::fma(x[v], y, sum[n][v]);
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < columns; ++n)
    for (int v = 0; v < vectors; ++v) {
      float* const to = c + n * Tile<S>::rows + v * S::lanes;
      S::store(to, start == Start::apart ? S::add(S::load(to), sum[n][v]) : sum[n][v]);
    }
}

// The same in chains of `chain_terms`.
template <Vector S, Start start = Start::zero, int vectors = S::panel_vectors>
inline void chained_product(const float* a, const float* b, std::int64_t depth, float* c) {
  if (depth <= chain_terms) return tile_product<S, start, vectors>(a, b, depth, c);
  tile_product<S, start, vectors>(a, b, chain_terms, c);
  while (depth -= chain_terms, depth > 0) {
    a += chain_terms * Tile<S>::rows, b += chain_terms * Tile<S>::columns;
    tile_product<S, Start::apart, vectors>(a, b, depth < chain_terms ? depth : chain_terms, c);
  }
}

// Calls run<count>(), for counts from 1 to `limit`.
template <int limit, class Run>
inline void with_vectors(int count, const Run& run) {
  if constexpr (limit > 1)
    if (count < limit) return with_vectors<limit - 1>(count, run);
  run.template operator()<limit>();
}

// c(columns, rows) += sum over k of a(k, rows) * b(k, columns), one chain from 0 that is as long as each
// vector's reach. An instruction set may specialise it.
template <Vector S>
inline void stepped_product(const float* a, const float* b, const std::int64_t (&depth)[S::panel_vectors],
                            float* c) {
  constexpr int vectors = S::panel_vectors, columns = S::tile_columns;
  typename S::F sum[columns][vectors];
  for (auto& column : sum)
    for (auto& s : column) s = S::fill(0.0f);
  for (std::int64_t k = 0; k < depth[vectors - 1]; ++k, a += Tile<S>::rows, b += columns)
    for (int n = 0; n < columns; ++n)
      for (int v = 0; v < vectors; ++v)
        if (k < depth[v]) sum[n][v] = S::fma(S::load(a + v * S::lanes), S::fill(b[n]), sum[n][v]);
  for (int n = 0; n < columns; ++n)
    for (int v = 0; v < vectors; ++v) {
      float* const to = c + n * Tile<S>::rows + v * S::lanes;
      S::store(to, S::add(S::load(to), sum[n][v]));
    }
}

// Some rows of a panel, an even number, with a line of dimensions on the lanes, (rows, line), and what
// multiplies them: (columns, rows of a panel).
struct LinePanel {
  const float *lines, *pairs;
  std::int64_t rows;
};

// sums(columns, line) += sum over these rows of all panels, one chain from 0; lines of sums lie `stride`
// apart.
template <Vector S, int vectors, int columns>
inline void line_product(const LinePanel* panel, std::int64_t panels, float* sums, std::int64_t stride) {
  typename S::F sum[columns][vectors];
  for (auto& column : sum)
    for (auto& s : column) s = S::fill(0.0f);
  for (const LinePanel* const end = panel + panels; panel < end; ++panel) {
    const float *a = panel->lines, *b = panel->pairs;
    for (std::int64_t r = 0; r < panel->rows; ++r, a += vectors * S::lanes, ++b) {
      typename S::F x[vectors];
      for (int v = 0; v < vectors; ++v) x[v] = S::load(a + v * S::lanes);
      for (int k = 0; k < columns; ++k) {
        const auto y = S::fill(b[k * Tile<S>::rows]);
        for (int v = 0; v < vectors; ++v) sum[k][v] = S::fma(x[v], y, sum[k][v]);
      }
    }
  }
#pragma GCC unroll 16  // as above
  for (int k = 0; k < columns; ++k)
    for (int v = 0; v < vectors; ++v) {
      float* const to = sums + k * stride + v * S::lanes;
      S::store(to, S::add(S::load(to), sum[k][v]));
    }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
