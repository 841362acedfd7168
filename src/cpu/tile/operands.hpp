// SPDX-License-Identifier: Apache-2.0
// What prefill and the backward pass ask of their operands: queries in panels, a block of keys and values,
// and the two products over them, in whatever form the instructions like.
#pragma once
#include <concepts>
#include <cstdint>

#include "cpu/tile/pack.hpp"
#include "cpu/tile/reach.hpp"
#include "cpu/tile/softmax.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Cuts pieces from one allocation, sizes in floats; with no memory it only adds them up.
struct Cutter {
  float* memory;
  std::int64_t floats = 0;

  float* cut(std::int64_t n) {
    float* p = memory ? memory + floats : nullptr;
    floats += round_up(n, 16);
    return p;
  }
  std::uint16_t* cut_halves(std::int64_t n) { return reinterpret_cast<std::uint16_t*>(cut((n + 1) / 2)); }
};

// The largest magnitudes of bf16 operands as they lie in memory, where NaN is larger than infinity.
struct Largest {
  std::uint16_t query, key;
};

// Whether a score of such operands could be beyond `most`: before the scale is applied, or after.
inline bool score_may_exceed(float most, Largest of, std::int64_t depth, float scale) {
  const double q = static_cast<double>(__builtin_bit_cast(float, std::uint32_t{of.query} << 16)),
               k = static_cast<double>(__builtin_bit_cast(float, std::uint32_t{of.key} << 16)),
               factor = scale > 1 || scale < -1 ? __builtin_fabs(static_cast<double>(scale)) : 1.0;
  return !(q * k * factor * static_cast<double>(depth) < 0.25 * static_cast<double>(most));
}

// What operands have memory for: panels of queries, the keys of a block, and its values.
struct OperandExtents {
  std::int64_t dim, value_dim;
  std::int64_t panels, keys, values;
};

// Parts are their memory, cut for these extents; apart from the operands, so that it can be measured
// before there are any. A Use lives while products are computed: it holds what the instructions need.
template <class O>
concept Operands =
    Vector<typename O::S> && (O::rows == Tile<typename O::S>::rows) && (block_keys % O::key_step == 0) &&
    (O::dim_step % 4 == 0) &&  // what out's dims are rounded up to
    std::constructible_from<typename O::Parts, const OperandExtents&, Cutter&> &&
    std::constructible_from<O, const OperandExtents&, const typename O::Parts&> &&
    std::default_initializable<typename O::Use> &&
    requires(O made, const O packed, Row (*row_at)(std::int64_t), std::int64_t n, float* floats) {
      // Panel n from so many rows of queries, to be multiplied with a scale; the keys of a block; its values,
      // NaN and infinities as 0, so that an unseen key's 0 * v is 0: returns whether there were any.
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

// Some leave it to others to make scores of the products: finish(j, count) does so for keys [j, j + count) of
// those that are scored, an even number.
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

// Both products so, or over all keys where operands do not tell vectors apart.
template <class O>
inline void score_reached(const O& operands, std::int64_t p, std::int64_t first, std::int64_t keys, float* s,
                          const Reach<typename O::S>& reach) {
  if constexpr (GoesByReach<O>)
    operands.score(p, first, keys, s, reach);
  else
    operands.score(p, first, keys, s);
}
template <class O>
inline void add_reached(const O& operands, std::int64_t first, std::int64_t keys, const float* s, float* out,
                        const Reach<typename O::S>& reach) {
  if constexpr (GoesByReach<O>)
    operands.add_values(first, keys, s, out, reach);
  else
    operands.add_values(first, keys, s, out);
}

// Some can do with keys as they lie: returns whether these do.
template <class O>
concept TakesKeys = requires(O made, Row (*row_at)(std::int64_t), std::int64_t n) {
  { made.take_keys(row_at, n) } -> std::same_as<bool>;
};

// And some round weights to bf16 as they make them: scores s(keys, rows), whole chains of them, become
// weights that only the products see. meanwhile() is called for every chain.
template <class O>
concept RoundsWeights = requires(const O packed, std::int64_t n, float* floats,
                                 const Weighing<typename O::S>& by, void (*meanwhile)()) {
  packed.weigh(floats, n, by, meanwhile);
  // out(dims, rows) += the values of keys [first, first + keys), by these weights.
  packed.add_rounded(n, n, floats);
};

}  // namespace heed::cpu::HEED_THIS_TARGET
