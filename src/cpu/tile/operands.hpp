// SPDX-License-Identifier: Apache-2.0
// What prefill and the backward pass ask of their operands: queries in panels, a block of keys and values,
// and the two products over them, in the form that the instructions need. PackedF32 has them in f32, whatever
// the dtype; operands_amx.hpp and operands_bfmmla.hpp in bf16.
#pragma once
#include <concepts>
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"
#include "threads/relax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// The largest magnitudes of bf16 operands as they lie in memory, where NaN is larger than infinity.
struct Magnitudes {
  std::uint16_t query, key;
};

// Whether a score of such operands could be beyond `limit`: before the scale is applied, or after.
inline bool score_may_exceed(float limit, Magnitudes of, std::int64_t depth, float scale) {
  const double q = static_cast<double>(__builtin_bit_cast(float, std::uint32_t{of.query} << 16)),
               k = static_cast<double>(__builtin_bit_cast(float, std::uint32_t{of.key} << 16)),
               factor = scale > 1 || scale < -1 ? __builtin_fabs(static_cast<double>(scale)) : 1.0;
  return !(q * k * factor * static_cast<double>(depth) < 0.25 * static_cast<double>(limit));
}

// What operands have memory for: panels of queries, the keys of a block, and its values.
struct OperandExtents {
  std::int64_t dim, value_dim;
  std::int64_t panels, keys, values;
};

// Operands cut their memory for these extents when they are made; a Cutter without memory measures it. A Use
// lives while products are computed: it holds what the instructions need.
template <class O>
concept Operands =
    Vector<typename O::S> && (O::rows == Tile<typename O::S>::rows) && (block_keys % O::key_step == 0) &&
    (O::dim_step % 4 == 0) &&  // what out's dims are rounded up to
    std::constructible_from<O, const OperandExtents&, Cutter&> &&
    std::default_initializable<typename O::Use> &&
    requires(O made, const O packed, Row (*row_at)(std::int64_t), std::int64_t n, float* floats) {
      // Packs panel n from some rows of queries, with a scale that scores are multiplied with; the keys of a
      // block; its values, NaN and infinities as 0, so that an unseen key's 0 * v is 0. The last returns
      // whether it found any.
      made.pack_queries(n, row_at, n, *floats);
      made.pack_keys(row_at, n);
      { made.pack_values(row_at, n) } -> std::same_as<bool>;
      // Whether the magnitude of a score could be larger than this, or no number.
      { packed.may_exceed(*floats) } -> std::same_as<bool>;
      // s(keys, rows) of panel n over keys [first, first + keys) of the block, both multiples of key_step.
      packed.score(n, n, n, floats);
      // out(dims, rows) += the values of keys [first, first + keys), weighted by s(keys, rows).
      packed.add_values(n, n, floats, floats);
    };

// Some give out products a strip at a time: finish(j, count) makes scores of those of keys [j, j + count), an
// even number.
template <class O>
concept ScoresInStrips =
    requires(const O packed, std::int64_t n, float* floats, void (*finish)(std::int64_t, std::int64_t)) {
      packed.score_in_strips(n, n, n, floats, finish);
    };

// Some multiply a panel's vectors only as far as each reaches.
template <class O>
concept GoesByReach =
    requires(const O packed, std::int64_t n, float* floats, const Reach<typename O::S>& reach) {
      requires O::S::has_wide_panels;
      packed.score(n, n, n, floats, reach);
      packed.add_values(n, n, floats, floats, reach);
    };

// Both products over a stretch whose keys are counted from the beginning of the block, as far as vectors
// reach, or over all keys where operands do not tell vectors apart.
template <class O>
inline void score_reached(const O& operands, std::int64_t p, const Scores& t,
                          const Reach<typename O::S>& reach) {
  if constexpr (GoesByReach<O>)
    operands.score(p, t.first_key, t.keys, t.s, reach);
  else
    operands.score(p, t.first_key, t.keys, t.s);
}
template <class O>
inline void add_reached(const O& operands, const Scores& t, float* out, const Reach<typename O::S>& reach) {
  if constexpr (GoesByReach<O>)
    operands.add_values(t.first_key, t.keys, t.s, out, reach);
  else
    operands.add_values(t.first_key, t.keys, t.s, out);
}

// Some read keys in place: take_keys() returns whether it can.
template <class O>
concept TakesKeys = requires(O made, Row (*row_at)(std::int64_t), std::int64_t n) {
  { made.take_keys(row_at, n) } -> std::same_as<bool>;
};

// Some round weights to bf16 as they make them: weigh() makes weights of scores s(keys, rows), in whole
// chains, and only the products see them. meanwhile() is called for every chain.
template <class O>
concept RoundsWeights = requires(const O packed, std::int64_t n, float* floats,
                                 const Weighing<typename O::S>& by, void (*meanwhile)()) {
  packed.weigh(floats, n, by, meanwhile);
  // out(dims, rows) += the values of keys [first, first + keys), by these weights.
  packed.add_rounded(n, n, floats);
};

// Operands in f32: queries in panels, keys and values in tiles (pack.hpp).
template <Vector V>
struct PackedF32 {
  using S = V;
  using Element = float;
  struct Use {};
  static constexpr int rows = Tile<V>::rows;
  static constexpr int key_step = Tile<V>::columns;
  static constexpr int dim_step = Tile<V>::columns;
  static constexpr bool shares_blocks = true;

  std::int64_t depth, dims;
  float *q, *k, *v, *widened;
  const std::int64_t dim, value_dim;
  // What bounds the products of packed queries, or keys: the sum of their squares.
  struct Known {
    float squares = 0;
  } known;
  Known key_known;          // of the present block
  std::int64_t padded = 0;  // keys of it, in whole tiles

  PackedF32(const OperandExtents& e, Cutter& memory)
      : depth(round_up(e.dim, 2)),
        dims(round_up(e.value_dim, dim_step)),
        q(memory.cut(e.panels * rows * depth)),
        k(memory.cut(e.keys * depth)),
        v(memory.cut(e.values * dims)),
        widened(memory.cut(4 * round_up(max(e.dim, e.value_dim), 2))),
        dim(e.dim),
        value_dim(e.value_dim) {}

  void use_queries(float* panels, Known of) { q = panels, known = of; }
  void use_keys(float* tiles, Known of) { k = tiles, key_known = of; }
  void use_values(float* tiles, std::int64_t count) { v = tiles, padded = round_up(count, key_step); }

  void pack_queries(std::int64_t p, const RowAt auto& row_at, std::int64_t count, float scale) {
    float* panel = q + p * rows * depth;
    pack_rows<S>(row_at, {count, rows, dim, depth}, widened, panel);
    known.squares += scale_and_square<S>(panel, rows * depth, scale);
  }

  // Whether a sum of products could be larger, or no number. None can where the squares say so (Cauchy and
  // Schwarz), which costs a multiply-add for every vector packed instead of one for every vector of scores.
  bool may_exceed(float score) const {
    const double limit = 0.125 * static_cast<double>(score);
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
          pack_rows<S>([&](std::int64_t n) { return row_at(tile + n); },
                       {min(key_step, count - tile), key_step, dim, depth}, widened, k + tile * depth);
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

  // The same as far as each vector reaches. Where a vector does not reach a tile, its scores are 0.
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

// Blocks of keys and values that are packed once for all tasks of prefill that read them: the task that comes
// to a block first packs it, the others take it. Its contents depend on the call alone, so it does not matter
// which task packs.

// Operands that are better taken from another task than packed again. They pack into memory they are given,
// and go on with what others have packed.
template <class O>
concept SharesBlocks = Operands<O> && requires(O made, typename O::Element* packed, std::int64_t n) {
  requires O::shares_blocks;
  made.use_keys(packed, made.key_known);
  made.use_values(packed, n);
};

// The header of a block in memory, which is cleared before tasks run.
template <class O>
class SharedBlock {
  using Element = typename O::Element;
  static constexpr std::uint32_t empty = 0, begun = 1, done = 2;

  std::uint32_t state;  // through atomic operations alone
  bool has_poison;
  typename O::Known known;

  static std::int64_t floats_for(std::int64_t width) {
    return block_keys * width * static_cast<std::int64_t>(sizeof(Element)) /
           static_cast<std::int64_t>(sizeof(float));
  }
  float* memory() { return reinterpret_cast<float*>(this) + shared_header_floats; }
  bool is_done() const { return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == done; }

 public:
  static std::int64_t floats(const O& of) {
    static_assert(sizeof(SharedBlock) <= shared_header_floats * sizeof(float));
    return shared_header_floats + floats_for(of.depth) + floats_for(of.dims);
  }

  // Whether it is the caller's to pack.
  bool begin() {
    std::uint32_t expected = empty;
    return __atomic_load_n(&state, __ATOMIC_RELAXED) == empty &&  // fault: block-packed-by-two
           __atomic_compare_exchange_n(&state, &expected, begun, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }

  // For the task that began: pack() fills the block and returns whether a value is NaN or infinite.
  template <class Pack>
  void pack_with(O& operands, std::int64_t count, const Pack& pack) {
    use(operands, count, {});
    has_poison = pack();  // fault: block-shown-early
    known = operands.key_known;
    __atomic_store_n(&state, done, __ATOMIC_RELEASE);
  }

  // Whether the task that packs it finishes soon. If the system has put another thread in its place, waiting
  // does not pay.
  bool is_done_soon() const {
    constexpr int max_looks = 2000;
    for (int n = 0; n < max_looks; ++n) {
      if (is_done()) return true;
      threads::relax();
    }
    return is_done();
  }

  // Once it is done; returns what pack() returned.
  bool use_in(O& operands, std::int64_t count) {
    use(operands, count, known);
    return has_poison;
  }

 private:
  void use(O& operands, std::int64_t count, typename O::Known of) {
    operands.use_keys(reinterpret_cast<Element*>(memory()), of);
    operands.use_values(reinterpret_cast<Element*>(memory() + floats_for(operands.depth)), count);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
