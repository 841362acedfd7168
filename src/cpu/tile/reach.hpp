// SPDX-License-Identifier: Apache-2.0
// How far the vectors of a panel see. Where a panel is wide, rows that are not there and keys on the diagonal
// that no row of a vector sees would cost as much as others: 48 rows of AVX-512 waste 3 % of 1024 rows, and 9
// if they are causal.
#pragma once
#include <cstdint>

#include "cpu/tile/product.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// How many keys of a stretch some row of each vector may see, in whole tiles; those of vectors that are not
// there do not count. Rows see the further the later they come.
template <Vector S>
struct Reach {
  static constexpr int all_vectors = S::panel_vectors;

  int vectors = all_vectors;  // that have rows
  std::int64_t keys[all_vectors];

  // All of them.
  explicit Reach(std::int64_t all) {
    for (auto& of : keys) of = all;
  }

  // As ranges let these queries see.
  Reach(const Call& c, const Queries& queries, const Scores& t) : Reach(t.keys) {
    // fault: reach-without-the-last-vector
    vectors = static_cast<int>((queries.count + S::lanes - 1) / S::lanes);
    for (int v = 0; v < vectors; ++v) {
      // fault: reach-of-the-first-row
      const std::int64_t last = queries(min((v + 1) * S::lanes, queries.count) - 1).i;
      const std::int64_t seen = visible_keys(c, queries.b, last).end - t.first_key;
      keys[v] = min(t.keys, round_up(max(0, seen), Tile<S>::columns));
    }
  }

  // The first vector that sees key j, and those behind it.
  int first_at(std::int64_t j) const {
    int v = 0;
    while (v < vectors && keys[v] <= j) ++v;
    return v;
  }
  bool is_whole() const { return vectors == all_vectors && keys[0] == keys[all_vectors - 1]; }
};

// Calls run<count>(), for 1 to `most`.
template <int most, class Run>
inline void with_vectors(int count, const Run& run) {
  if constexpr (most > 1)
    if (count < most) return with_vectors<most - 1>(count, run);
  run.template operator()<most>();
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

}  // namespace heed::cpu::HEED_THIS_TARGET
