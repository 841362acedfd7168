// SPDX-License-Identifier: Apache-2.0
// Sums over rows: dV += P^T dO and dK += dS^T Q, for a block of rows and a block of keys. Each is one chain
// over the rows of the block, which is added to the sum so far. P and dS come as ScoreGradients makes them,
// (keys, rows), a panel of rows at a time: both are called pairs here.
#pragma once
#include <cstdint>
#include <type_traits>

#include "cpu/backward/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/finish.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/product.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr std::int64_t common_multiple(std::int64_t a, std::int64_t b) {
  std::int64_t n = a;
  while (n % b != 0) n += a;
  return n;
}

// Rows that a sum over rows takes together: whole panels, and whole steps of the instructions.
template <Operands O>
constexpr std::int64_t summed_rows = common_multiple(O::rows, O::key_step);

// Keys [first, first + keys) of a block; none: the panel sees none of them.
struct Stretch {
  std::int64_t first = 0, keys = 0;
};

// With keys on the lanes, where everything else has rows: pairs are transposed for it, and the sums once more
// at the end.
template <Operands O>
class TransposedSums {
  using S = typename O::S;
  static constexpr int rows = O::rows, step = O::key_step;
  static constexpr std::int64_t key_panels = gradient_keys / rows, panel_block = gradient_rows * rows,
                                panels_together = summed_rows<O> / rows;

 public:
  static constexpr std::int64_t panels_at_once = 1;  // whose pairs must stay until add_to()
  static std::int64_t dims_for(std::int64_t dim) { return round_up(dim, O::dim_step); }
  const std::int64_t dims;  // of a key's sums, and of a packed row

  // `block_rows` is 0 where the sums are not wanted.
  TransposedSums(std::int64_t dim, std::int64_t block_rows, Cutter& memory)
      : TransposedSums(OperandExtents{dim, dim, 0, 0, block_rows}, memory) {
    pairs = memory.cut(block_rows > 0 ? key_panels * panel_block : 0);
    transposed = memory.cut(block_rows > 0 ? rows * dims : 0);
  }

  void use_rows(typename O::Element* packed, std::int64_t count) { products.use_values(packed, count); }
  void pack_rows(const RowAt auto& row_at, std::int64_t count) { products.pack_values(row_at, count); }

  // A block of rows, whose panels see these keys of the block.
  void begin(KeyRange keys) {
    panels = {keys.begin / step * step / rows, (round_up(keys.end, step) + rows - 1) / rows};
    for (auto& range : seeing) range = {gradient_rows, 0};
  }

  // Panel p of the rows.
  void take(const float* from, const Stretch& at, std::int64_t p, const Reach<S>&) {
    for (std::int64_t n = panels.begin; n < panels.end; ++n) {
      transpose(from, at, pairs + n * panel_block + p * rows * rows, n);
      if (at.keys == 0 || n * rows >= at.first + at.keys || (n + 1) * rows <= at.first) continue;
      seeing[n] = {min(seeing[n].begin, p / panels_together * panels_together),
                   round_up(p + 1, panels_together)};
    }
  }

  void add_to(float* sums) const {
    for (std::int64_t n = panels.begin; n < panels.end; ++n)
      if (const auto [begin, end] = seeing[n]; begin < end)
        products.add_values(begin * rows, (end - begin) * rows, pairs + n * panel_block + begin * rows * rows,
                            sums + n * dims * rows);
  }

  // The sums of key j of the block; asked for in order from the first on.
  float* line_of(const float* sums, std::int64_t j) {
    if (j % rows == 0) transpose_sums<S>(sums + j * dims, dims, rows, transposed);
    return transposed + j % rows * dims;
  }

 private:
  TransposedSums(const OperandExtents& e, Cutter& memory)
      : dims(dims_for(e.value_dim)), products(e, memory) {}

  // From (keys, rows) to (rows, keys) for panel n of the keys: zeros where the stretch does not reach.
  static void transpose(const float* from, const Stretch& at, float* to, std::int64_t n) {
    for (int k = 0; k < rows; k += 4) {
      const std::int64_t j = n * rows + k - at.first;
      if (j >= 0 && j < at.keys) {
        transpose_four(from + j * rows, to + k);
        continue;
      }
      for (int r = 0; r < rows; ++r)
        for (int x = k; x < k + 4; ++x) to[r * rows + x] = 0;
    }
  }
  static void transpose_four(const float* from, float* to) {
    for (int r = 0; r < rows; r += 4) {
      // fault: gradient-rows-swapped
      const float* const four[4] = {from + r, from + rows + r, from + 2 * rows + r, from + 3 * rows + r};
      S::transpose(four, to + r * rows, rows);
    }
  }

  O products;
  float *pairs, *transposed;
  KeyRange panels{0, 0};        // of the keys
  KeyRange seeing[key_panels];  // the panels of rows that see each
};

// With dimensions on the lanes and pairs as they are, one of which multiplies a line of a row at a time: for
// instruction sets that broadcast from memory. The rows lie (dims / line, rows, line).
template <Operands O>
class LineSums {
  using S = typename O::S;
  static constexpr int rows = O::rows, step = O::key_step;
  static constexpr int line = S::line_vectors * S::lanes;

 public:
  static constexpr std::int64_t panels_at_once = gradient_rows / rows;
  static std::int64_t dims_for(std::int64_t dim) { return round_up(dim, S::lanes); }
  const std::int64_t dims;

  LineSums(std::int64_t dim, std::int64_t block_rows, Cutter& memory)
      : dims(dims_for(dim)), dim_(dim), widened(memory.cut(block_rows > 0 ? dims : 0)) {}

  void use_rows(float* packed, std::int64_t) { lines = packed; }

  // NaN and infinities as 0.
  void pack_rows(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) {
      const float* x = widen<S>(row_at(n), dim_, widened);
      for (std::int64_t first = 0; first < dims; first += line) {
        const std::int64_t width = min(line, dims - first), real = min(width, dim_ - first);
        float* to = lines + first * gradient_rows + n * width;
        __builtin_memcpy(to, x + first, static_cast<std::size_t>(real) * sizeof(float));
        fill(to + real, width - real, 0.0f);
        if (all_finite<S>(to, width)) continue;
        for (std::int64_t d = 0; d < real; ++d)
          if (!is_finite(to[d])) to[d] = 0;
      }
    }
  }

  void begin(KeyRange) { taken_count = 0; }
  void take(const float* from, const Stretch& at, std::int64_t p, const Reach<S>& reach) {
    if (at.keys > 0) taken[taken_count++] = {from, at, p, reach};
  }

  void add_to(float* sums) const {
    std::int64_t begin = gradient_keys, end = 0;
    for (int n = 0; n < taken_count; ++n)
      begin = min(begin, taken[n].at.first), end = max(end, taken[n].at.first + taken[n].at.keys);
    for (std::int64_t first = 0; first < dims; first += line) {
      const std::int64_t vectors = min(line, dims - first) / S::lanes;
      const float* const from = lines + first * gradient_rows;
      for (std::int64_t j = begin; j < end;) j += add_some(vectors, from, j, sums + first);
    }
  }

  float* line_of(float* sums, std::int64_t j) const { return sums + j * dims; }

 private:
  static_assert(S::line_vectors == 4 && step == 8);
  static constexpr std::int64_t sixes = 3 * step;  // keys in whole steps, and in sixes
  struct Panel {
    const float* pairs;
    Stretch at;
    std::int64_t p;
    Reach<S> reach{0};
  };

  // The first keys from j on; returns how many. Six at a time load less for a product than four: 16 threads
  // of a Xeon take 4 % less for the sums (November 2026).
  std::int64_t add_some(std::int64_t vectors, const float* from, std::int64_t j, float* sums) const {
    if (vectors == 4 && is_seen_alike(j, j + sixes)) {
      for (std::int64_t k = 0; k < sixes; k += 6) add<4, 6>(from, j + k, sums);
      return sixes;
    }
    if (vectors == 4) add<4, 4>(from, j, sums), add<4, 4>(from, j + 4, sums);
    if (vectors == 3) add<3, 8>(from, j, sums);
    if (vectors == 2) add<2, 8>(from, j, sums);
    if (vectors == 1) add<1, 8>(from, j, sums);
    return step;
  }

  // Whether every panel sees all of these keys or none.
  bool is_seen_alike(std::int64_t begin, std::int64_t end) const {
    for (int n = 0; n < taken_count; ++n) {
      const std::int64_t first = taken[n].at.first, last = first + taken[n].at.keys;
      if ((first > begin || last < end) && first < end && last > begin) return false;
    }
    return true;
  }

  // `columns` keys from j on, which a panel sees all of or none; and of a panel the rows that may see one.
  template <int vectors, int columns>
  void add(const float* from, std::int64_t j, float* sums) const {
    LinePanel seeing[panels_at_once];
    std::int64_t count = 0;
    for (int n = 0; n < taken_count; ++n) {
      const Panel& panel = taken[n];
      if (j < panel.at.first || j >= panel.at.first + panel.at.keys) continue;
      const std::int64_t first = panel.reach.first_at(j - panel.at.first) * S::lanes,
                         end = panel.reach.vectors * S::lanes;
      if (first == end) continue;
      seeing[count++] = {from + (panel.p * rows + first) * vectors * S::lanes,
                         panel.pairs + (j - panel.at.first) * rows + first, end - first};
    }
    if (count > 0) line_product<S, vectors, columns>(seeing, count, sums + j * dims, dims);
  }

  const std::int64_t dim_;
  float *widened, *lines = nullptr;
  Panel taken[panels_at_once];
  int taken_count = 0;
};

template <Operands O>
constexpr bool sums_by_lines = requires { O::S::line_vectors; } && std::is_same_v<typename O::Element, float>;

template <Operands O>
using RowSums = std::conditional_t<sums_by_lines<O>, LineSums<O>, TransposedSums<O>>;

}  // namespace heed::cpu::HEED_THIS_TARGET
