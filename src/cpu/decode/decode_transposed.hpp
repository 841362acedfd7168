// SPDX-License-Identifier: Apache-2.0
// Scores of few rows over the caller's keys where they lie as whole rows: keys are transposed, sixteen at a
// time or twice as many, so that keys are on the lanes and no lane is idle however few rows there are.
#pragma once
#include <cstdint>

#include "cpu/tile/coming.hpp"
#include "cpu/decode/decode_state.hpp"
#include "cpu/decode/lines.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Whether an instruction set transposes sixteen rows of 32 halves in its registers: to turn them as they are
// takes half the shuffles of transposing them as f32.
template <class S>
inline constexpr bool transposes_halves =
    requires(const void* rows, std::uint16_t* lines) { S::transpose_halves(rows, std::int64_t{}, lines); };

template <Vector S>
class DecodeTransposed {
  // Up to so many rows it pays.
  static constexpr std::int64_t max_transposed_rows = 8;
  static constexpr std::int64_t stripe =
      DecodeRows<S>::copied_values;  // keys: as far ahead are lines touched
  static_assert(line_elements <= DecodeRows<S>::copied_keys);
  using Sums = float[max_transposed_rows][line_elements];

 public:
  explicit DecodeTransposed(const DecodeRows<S>& task_rows) : rows(task_rows), c(rows.c), at(rows.at) {}

  bool takes_keys() const {
    return transposes_sixteen<S> && !c.cached && c.k.stride.dim == 1 && c.dim % line_elements == 0 &&
           rows.count <= max_transposed_rows;
  }

  // Returns how many keys it scored: all but a few at the end.
  std::int64_t score(const Scores& t) const {
    std::int64_t j = 0;
    if constexpr (transposes_halves<S>) {
      constexpr std::int64_t step = 2 * line_elements;
      const std::int64_t end = c.k.type != Type::f32 && c.dim % halves == 0 ? t.keys / step * step : 0;
      for (; j < end; j += step)
        c.k.type == Type::f16 ? score_halves<Type::f16>(t, j) : score_halves<Type::bf16>(t, j);
    }
    for (; j + line_elements <= t.keys; j += line_elements)
      with_type(c.k.type, [&](auto type) { score_transposed<type.value>(t, j); });
    return j;
  }

 private:
  static constexpr std::int64_t halves = 32;  // in a line of memory

  // Twice sixteen keys, side by side: sums of four rows alone would wait for each other. 32768 keys of f16
  // take 7.0 ms instead of 8.5 (Xeon, two cores, November 2026).
  template <Type type>
  void score_halves(const Scores& t, std::int64_t j) const {
    const char* k = rows.place(c.k, t.first_key + j);
    const std::int64_t apart = c.k.stride.length * 2;
    Touch<S> touch{after_keys(t, j)}, then{after_keys(t, j + line_elements)};
    alignas(64) std::uint16_t lines[2][line_elements * halves];
    for (std::int64_t first = 0; first < c.dim; first += chain_terms) {
      Sums sums[2] = {};
      for (std::int64_t d = first; d < min(first + chain_terms, c.dim); d += halves) {
        touch.lines(line_elements);
        for (int n = 0; n < 2; ++n)
          S::transpose_halves(k + n * line_elements * apart + d * 2, apart, lines[n]);
        for (std::int64_t r = 0; r < rows.count; r += 4)
          with_rows(rows.count - r, [&](auto n) { add_halves<type, n.value>(lines, d, r, sums, then); });
      }
      for (int n = 0; n < 2; ++n) add_chains(sums[n], first == 0, t.s + (j + n * line_elements) * t.width);
    }
  }

  // sums(2, rows r ..., keys) += the products of dimensions d ... d + 31.
  template <Type type, int n>
  void add_halves(const std::uint16_t (&lines)[2][line_elements * halves], std::int64_t d, std::int64_t r,
                  Sums (&sums)[2], Touch<S>& touch) const {
    typename S::F total[2][n];
    for (int of = 0; of < 2; ++of)
      for (int row = 0; row < n; ++row) total[of][row] = S::load(sums[of][r + row]);
    const float* q = rows.q + d * at.rows + r;
    for (int eight = 0; eight < halves; eight += 8)
      for (int i = eight; i < eight + 8;
           ++i, q += at.rows) {  // eight are few enough for compilers to write out
        if (r == 0 && i % 2 == 0) touch.line();
        const int place = S::place_of_half(i);
        const auto x = load_as<S, type>(lines[0], place), y = load_as<S, type>(lines[1], place);
        for (int row = 0; row < n; ++row) {
          const auto factor = S::fill(q[row]);
          total[0][row] = S::fma(x, factor, total[0][row]);
          total[1][row] = S::fma(y, factor, total[1][row]);
        }
      }
    for (int of = 0; of < 2; ++of)
      for (int row = 0; row < n; ++row) S::store(sums[of][r + row], total[of][row]);
  }

  // Sixteen keys, transposed into lines. What is wanted a stripe later is touched meanwhile, evenly: memory
  // would be idle while nothing is asked for. Xeon, two cores, 32768 keys of f32 from DRAM: with touches
  // between the lines that are transposed alone, and none from the keys to the values, 13.3 ms; like
  // this 10.9; transposing and multiplying sixteen dimensions at a time 11.6 (November 2026).
  template <Type type>
  void score_transposed(const Scores& t, std::int64_t j) const {
    constexpr std::int64_t bytes = bytes_of_type<type>;
    const char* k = rows.place(c.k, t.first_key + j);
    const std::int64_t apart = c.k.stride.length * bytes;
    Touch<S> touch{after_keys(t, j)};
    constexpr std::int64_t half =
        line_elements * bytes / 8;  // of what as many dimensions of sixteen keys have
    for (std::int64_t d = 0; d < c.dim; d += line_elements) {
      touch.lines(half);
      typename S::F key[line_elements];
      for (int n = 0; n < line_elements; ++n) key[n] = load_as<S, type>(k + n * apart, d);
      S::transpose_sixteen(key, rows.k_rows + d * line_elements, line_elements);
    }
    for (std::int64_t first = 0; first < c.dim; first += chain_terms) {
      Sums sums = {};
      for (std::int64_t d = first; d < min(first + chain_terms, c.dim); d += line_elements) {
        touch.lines(half);
        add_transposed(d, sums);
      }
      add_chains(sums, first == 0, t.s + j * t.width);
    }
  }

  // sums(rows, keys) += the products of dimensions d ... d + 15.
  void add_transposed(std::int64_t d, Sums& sums) const {
    const float* const lines = rows.k_rows + d * line_elements;
    for (std::int64_t r = 0; r < rows.count; r += 4)
      with_rows(rows.count - r, [&](auto n) {
        add_lines<S, Type::f32, n.value>(
            {rows.q + d * at.rows + r, at.rows, lines, line_elements, sums[r], line_elements, lines});
      });
  }

  // Scores are (keys, rows). The first chains of a sum take its place.
  void add_chains(const Sums& sums, bool are_first, float* s) const {
    for (std::int64_t r = 0; r < rows.count; r += 4) {
      const auto four = [&](float* to, std::int64_t width) {
        typename S::F sum[4];
        for (int n = 0; n < 4; ++n) sum[n] = S::load(sums[r + n]);
        store_transposed<S>(sum, to, width);
      };
      if (are_first) {
        four(s + r, rows.width);
        continue;
      }
      float transposed[line_elements][4];
      four(transposed[0], 4);
      for (std::int64_t j = 0; j < line_elements; ++j)
        for (int row = 0; row < 4; ++row) s[j * rows.width + r + row] += transposed[j][row];
    }
  }

  // Sixteen keys that are scored a stripe after key j, or the first values.
  Coming after_keys(const Scores& t, std::int64_t j) const {
    const std::int64_t then = j + stripe, transposed = t.keys / line_elements * line_elements;
    if (then < transposed) return rows.coming(c.k, t.first_key + then, c.dim);
    if (c.v.stride.dim != 1) return rows.coming(c.k, t.first_key + j, c.dim);
    return rows.coming(c.v, t.first_key + min(then, transposed - line_elements + transposed) - transposed,
                       c.value_dim);
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
