// SPDX-License-Identifier: Apache-2.0
// Prefill's operands in f32, whatever the dtype: queries in panels, keys and values in tiles (pack.hpp).
#pragma once
#include <cstdint>

#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/product.hpp"
#include "cpu/tile/range.hpp"
#include "cpu/tile/reach.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector V>
struct F32Parts {
  static constexpr int rows = Tile<V>::rows;
  static constexpr int key_step = Tile<V>::columns;
  static constexpr int dim_step = Tile<V>::columns;

  std::int64_t depth, dims;
  float *q, *k, *v, *widened;

  F32Parts(const OperandExtents& e, Cutter& memory)
      : depth(round_up(e.dim, 2)),
        dims(round_up(e.value_dim, dim_step)),
        q(memory.cut(e.panels * rows * depth)),
        k(memory.cut(e.keys * depth)),
        v(memory.cut(e.values * dims)),
        widened(memory.cut(4 * round_up(max(e.dim, e.value_dim), 2))) {}
};

template <Vector V>
struct PackedF32 : F32Parts<V> {
  using S = V;
  using Element = float;
  using Parts = F32Parts<V>;
  struct Use {};
  using Parts::depth, Parts::dims, Parts::q, Parts::k, Parts::v, Parts::widened;
  using Parts::rows, Parts::key_step, Parts::dim_step;
  static constexpr bool shares_blocks = true;

  const std::int64_t dim, value_dim;
  // What the products ask of queries, or keys, that were packed: the sum of their squares.
  struct Known {
    float squares = 0;
  } known;
  Known key_known;          // of the present block
  std::int64_t padded = 0;  // keys of it, in whole tiles

  PackedF32(const OperandExtents& e, const Parts& parts) : Parts(parts), dim(e.dim), value_dim(e.value_dim) {}

  void use_queries(float* panels, Known of) { q = panels, known = of; }
  void use_keys(float* tiles, Known of) { k = tiles, key_known = of; }
  void use_values(float* tiles, std::int64_t count) { v = tiles, padded = round_up(count, key_step); }

  void pack_queries(std::int64_t p, const RowAt auto& row_at, std::int64_t count, float scale) {
    float* panel = q + p * rows * depth;
    pack_rows<S>(row_at, count, rows, dim, depth, widened, panel);
    known.squares += scale_and_square<S>(panel, rows * depth, scale);
  }

  // Whether a sum of products could be larger, or no number. None can where the squares say so (Cauchy and
  // Schwarz), which costs a multiply-add for every vector packed instead of one for every vector of scores.
  bool may_exceed(float most) const {
    const double limit = 0.125 * static_cast<double>(most);
    return !(static_cast<double>(known.squares) * static_cast<double>(key_known.squares) < limit * limit);
  }

  // A cache's keys lie as vectors want them. Gathered one by one, the keys and values of 8192 tokens of 128
  // dimensions took 5.8 ms to pack instead of 1.0 (Neoverse-N1, one core, November 2026).
  void pack_keys(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t j = 0; j < count; j += columns)
      if (j + columns <= count && lie_side_by_side(row_at(j), row_at(j + columns - 1), columns))
        pack_columns(row_at(j), k + j * depth);
      else
        for (std::int64_t tile = j; tile < min(j + columns, count); tile += key_step)
          pack_rows<S>([&](std::int64_t n) { return row_at(tile + n); }, min(key_step, count - tile),
                       key_step, dim, depth, widened, k + tile * depth);
    // fault: squares-of-the-keys-forgotten
    key_known.squares = sum_of_squares<S>(k, round_up(count, key_step) * depth);
  }

  bool pack_values(const RowAt auto& row_at, std::int64_t count) {
    const std::int64_t whole = value_dim / dim_step * dim_step;
    padded = round_up(count, key_step);
    const std::int64_t tile = padded * dim_step;  // a variable that no store may change
    for (std::int64_t n = 0; n < count; ++n) {
      const float* x = widen<S>(row_at(n), value_dim, widened);
      float* to = v + n * dim_step;
      for (std::int64_t d = 0; d < whole; d += dim_step, to += tile)
        __builtin_memcpy(to, x + d, dim_step * sizeof(float));
      for (std::int64_t d = whole; d < dims; ++d) to[d - whole] = d < value_dim ? x[d] : 0.0f;
    }
    for (std::int64_t d = 0; d < dims; d += dim_step)
      fill(v + d * padded + count * dim_step, (padded - count) * dim_step, 0.0f);
    if (all_finite<S>(v, padded * dims)) return false;
    for (std::int64_t n = 0; n < padded * dims; ++n)
      if (!is_finite(v[n])) v[n] = 0;
    return true;
  }

  void score(std::int64_t p, std::int64_t first, std::int64_t keys, float* s) const {
    for (std::int64_t j = 0; j < keys; j += key_step)
      chained_product<S>(q + p * rows * depth, k + (first + j) * depth, depth, s + j * rows);
  }

  void add_values(std::int64_t first, std::int64_t keys, const float* s, float* out) const {
    const float* tile = v + first * dim_step;
    for (std::int64_t d = 0; d < dims; d += dim_step, tile += padded * dim_step)
      tile_product<S, Start::apart>(s, tile, keys, out + d * rows);
  }

  // The same as far as each vector reaches. A tile that one of them does not reach has zeros there.
  void score(std::int64_t p, std::int64_t first, std::int64_t keys, float* s, const Reach<S>& reach) const {
    if (reach.is_whole()) return score(p, first, keys, s);
    for (std::int64_t j = 0; j < keys; j += key_step) {
      const int begin = reach.first_at(j);
      if (begin > 0 || reach.vectors < Reach<S>::all_vectors) fill(s + j * rows, key_step * rows, 0.0f);
      if (begin == reach.vectors) continue;
      const float *panel = q + p * rows * depth + begin * S::lanes, *tile = k + (first + j) * depth;
      float* const to = s + j * rows + begin * S::lanes;
      with_vectors<Reach<S>::all_vectors>(reach.vectors - begin, [&]<int vectors> {
        chained_product<S, Start::zero, vectors>(panel, tile, depth, to);
      });
    }
  }

  void add_values(std::int64_t first, std::int64_t keys, const float* s, float* out,
                  const Reach<S>& reach) const {
    if (reach.is_whole()) return add_values(first, keys, s, out);
    const float* tile = v + first * dim_step;
    for (std::int64_t d = 0; d < dims; d += dim_step, tile += padded * dim_step)
      if (reach.vectors == Reach<S>::all_vectors)
        stepped_product<S>(s, tile, reach.keys, out + d * rows);
      else
        with_vectors<Reach<S>::all_vectors>(reach.vectors, [&]<int vectors> {
          tile_product<S, Start::apart, vectors>(s, tile, reach.keys[vectors - 1], out + d * rows);
        });
  }

 private:
  static constexpr int columns = key_step > S::lanes ? key_step : S::lanes;  // whole tiles, and whole vectors

  void pack_columns(const Row& first, float* to) const {
    with_type(first.type, [&](auto type) {
      const char* line = static_cast<const char*>(first.data) + first.first * bytes_of_type<type.value>;
      for (std::int64_t d = 0; d < dim; ++d, line += first.step * bytes_of_type<type.value>) {
        float x[columns];
        for (int n = 0; n < columns; n += S::lanes) S::store(x + n, load_as<S, type.value>(line, n));
        for (std::int64_t n = 0; n < columns; n += key_step)
          __builtin_memcpy(to + n * depth + d * key_step, x + n, key_step * sizeof(float));
      }
    });
    for (std::int64_t n = 0; n < columns && dim < depth; n += key_step)
      fill(to + n * depth + dim * key_step, key_step, 0.0f);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
