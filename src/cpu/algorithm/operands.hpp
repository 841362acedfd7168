// SPDX-License-Identifier: Apache-2.0
// Prefill's operands in f32: queries in panels, a block of keys and values in tiles, and the two products
// over them. Any dtype is widened here. A target with matrix instructions brings operands of its own with the
// same members.
#pragma once
#include <cstdint>

#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/product.hpp"
#include "cpu/algorithm/range.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct KeyRange {
  std::int64_t begin, end;
};

// Cuts pieces from one allocation, sizes in floats; with no memory it only adds them up.
struct Cutter {
  float* memory;
  std::int64_t floats = 0;

  float* cut(std::int64_t n) {
    float* p = memory ? memory + floats : nullptr;
    floats += round_up(n, 16);
    return p;
  }
};

// Whether a score of bf16 operands could leave the range of f32, by their largest magnitudes as they lie in
// memory (NaN is larger than infinity): before the scale is applied, or after.
inline bool score_may_overflow(std::uint16_t query, std::uint16_t key, std::int64_t depth, float scale) {
  const double q = static_cast<double>(__builtin_bit_cast(float, std::uint32_t{query} << 16)),
               k = static_cast<double>(__builtin_bit_cast(float, std::uint32_t{key} << 16)),
               factor = scale > 1 || scale < -1 ? __builtin_fabs(static_cast<double>(scale)) : 1.0;
  return !(q * k * factor * static_cast<double>(depth) < 0x1p126);
}

template <Vector V>
struct PackedF32 {
  using S = V;
  static constexpr int rows = Tile<S>::rows;
  static constexpr int key_step = Tile<S>::columns;  // keys are scored in multiples of it
  static constexpr int dim_step = Tile<S>::columns;  // out has value_dim rounded up to it

  const std::int64_t dim, value_dim, depth, dims;
  float *q, *k, *v, *widened;
  std::int64_t padded = 0;  // keys of the present block, in whole tiles
  float query_squares = 0, key_squares = 0;  // of all panels; of the present block

  PackedF32(const Call& c, std::int64_t panels, Cutter& memory)
      : dim(c.dim), value_dim(c.value_dim), depth(round_up(dim, 2)), dims(round_up(value_dim, dim_step)) {
    q = memory.cut(panels * rows * depth);
    k = memory.cut(block_keys * depth);
    v = memory.cut(block_keys * dims);
    widened = memory.cut(4 * most(dim, value_dim));
  }

  // Panel p from `count` rows of queries, times `scale`.
  void pack_queries(std::int64_t p, const RowAt auto& row_at, std::int64_t count, float scale) {
    float* panel = q + p * rows * depth;
    pack_rows<S>(row_at, count, rows, dim, depth, widened, panel);
    query_squares += scale_and_square<S>(panel, rows * depth, scale);
  }

  // Whether a sum of products could leave the range of f32. None can where the squares say so (Cauchy and
  // Schwarz), which costs a multiply-add for every vector packed instead of one for every vector of scores.
  bool may_overflow() const {
    return !(static_cast<double>(query_squares) * static_cast<double>(key_squares) < 0x1p250);
  }

  // A cache's keys lie as vectors want them. Gathered one by one, the keys and values of 8192 tokens of 128
  // dimensions took 5.8 ms to pack instead of 1.0 (Neoverse-N1, one core, November 2026).
  void pack_keys(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t j = 0; j < count; j += columns)
      if (j + columns <= count && lie_side_by_side(row_at(j), row_at(j + columns - 1), columns))
        pack_columns(row_at(j), k + j * depth);
      else
        for (std::int64_t tile = j; tile < least(j + columns, count); tile += key_step)
          pack_rows<S>([&](std::int64_t n) { return row_at(tile + n); }, least(key_step, count - tile),
                       key_step, dim, depth, widened, k + tile * depth);
    key_squares = sum_of_squares<S>(k, round_up(count, key_step) * depth);
  }

  // NaN and infinities become 0, so that an unseen key's 0 * v is 0; returns whether there were any.
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

  // s(keys, rows) of panel p over keys [first, first + keys) of the block.
  void score(std::int64_t p, std::int64_t first, std::int64_t keys, float* s) const {
    for (std::int64_t j = 0; j < keys; j += key_step)
      tile_product<S, Start::zero>(q + p * rows * depth, k + (first + j) * depth, depth, s + j * rows);
  }

  // out(dims, rows) += the values of those keys, weighted by s(keys, rows).
  void add_values(std::int64_t first, std::int64_t keys, const float* s, float* out) const {
    const float* tile = v + first * dim_step;
    for (std::int64_t d = 0; d < dims; d += dim_step, tile += padded * dim_step)
      tile_product<S, Start::sum>(s, tile, keys, out + d * rows);
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
