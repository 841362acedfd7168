// SPDX-License-Identifier: Apache-2.0
// A bias or boolean mask that heads share (call.hpp): how its panels are transposed, and what their words
// make of products, a strip at a time, while these are in the first-level cache, beside the scale and the
// maxima. Bf16 on AMX with 16 threads took 1.17 to 1.25 times as long with a mask as without, and to go
// through a block's scores once more was half of that; through a strip's, for the maxima alone, 4 % (12
// heads, 1024 x 64, November 2026).
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
class TransposeMask {
  static constexpr std::int64_t line_bytes = 64;
  static constexpr std::int64_t max_key_step = 32;  // products come in no larger tiles
  using Lines = typename S::Dwords[16];

 public:
  // The panel of a batch entry.
  TransposeMask(const Call& call, std::int64_t batch_entry, std::int64_t panel_number)
      : c(call), b(batch_entry), panel(panel_number) {}

  void run() const {
    const Sequence& s = c.sequences[b];
    const std::int64_t in_panel = Tile<S>::rows / c.group(), first = c.first_query + panel * in_panel;
    const std::int64_t count = min(in_panel, c.end_query(s) - first);
    if (count <= 0) return;
    const Tensor& mask = c.bias.data ? c.bias : c.masks[0].where;
    const MaskRows<S> rows(mask, {0, s.keys}, Tile<S>::rows, Queries(c, Rows{b, 0, first, count}));
    c.shared.is_panel_transposed(panel) = transpose(rows, c.shared.panel(panel));
  }

 private:
  // Returns whether the words hold all of the mask.
  bool transpose(const MaskRows<S>& rows, std::uint32_t* to) const {
    if (rows.tensor.type == Type::int8) {
      c.masks[0].visible_when ? transpose_bits<true>(rows, to) : transpose_bits<false>(rows, to);
      return true;
    }
    return rows.tensor.type == Type::f32 ? transpose_bias<Type::f32>(rows, to)
                                         : transpose_bias<Type::bf16>(rows, to);
  }

  template <bool visible_when>
  static void transpose_bits(const MaskRows<S>& rows, std::uint32_t* to) {
    static_assert(Tile<S>::rows == 32);
    const std::int64_t end = round_up(rows.keys.end, max_key_step);
    for (std::int64_t key = 0; key < end; key += line_bytes, to += line_bytes) {
      unsigned char bits[4][line_bytes];  // of eight rows each
      for (int r = 0; r < Tile<S>::rows; r += 16) {
        Lines x;
        load_lines<Type::int8>(rows, r, key, x);
        S::template store_where_bytes<visible_when>(x, bits[r / 8]);
        S::template store_where_bytes<visible_when>(x + 8, bits[r / 8 + 1]);
      }
      for (int n = 0; n < line_bytes; ++n)
        to[n] = std::uint32_t{bits[0][n]} | std::uint32_t{bits[1][n]} << 8 | std::uint32_t{bits[2][n]} << 16 |
                std::uint32_t{bits[3][n]} << 24;
    }
  }

  // Biases far below 0 need more than words hold.
  template <Type type>
  bool transpose_bias(const MaskRows<S>& rows, std::uint32_t* to) const {
    constexpr std::int64_t keys = line_bytes / bytes_of_type<type>;
    const std::int64_t end = round_up(rows.keys.end, max_key_step);
    for (std::int64_t key = 0; key < end; key += keys, to += keys * c.shared.key_words)
      for (std::int64_t r = 0; r < Tile<S>::rows; r += 16) {
        Lines x;
        load_lines<type>(rows, r, key, x);
        if (type == Type::f32 ? S::any_f32_far_below(x) : S::any_bf16_far_below(x)) return false;
        S::transpose(x);
        std::uint32_t* const lines = to + r;
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) S::store_dwords(lines + n * Tile<S>::rows, x[n]);
      }
    return true;
  }

  // Sixteen rows from row r on, zeros beyond their last key. In registers: through memory a bias cost 12
  // heads of 1024 x 64 3 points more (AMX, two threads of a Xeon, November 2026).
  template <Type type>
  [[gnu::always_inline]] static void load_lines(const MaskRows<S>& rows, std::int64_t r, std::int64_t key,
                                                Lines& x) {
    constexpr std::int64_t bytes = bytes_of_type<type>;
    const auto* from = static_cast<const char*>(rows.tensor.data) + key * bytes;
    const std::int64_t remaining = max(0, rows.keys.end - key) * bytes;
    if (remaining < line_bytes) {
      char copies[16][line_bytes] = {};
      for (int n = 0; n < 16; ++n)
        __builtin_memcpy(copies[n], from + rows.first[r + n] * bytes, static_cast<std::size_t>(remaining));
#pragma GCC unroll 16
      for (int n = 0; n < 16; ++n) x[n] = S::load_dwords(copies[n]);
      return;
    }
    constexpr std::int64_t distance = 2 * line_bytes;  // more rows than the hardware prefetches
    for (int n = 0; n < 16 && remaining > distance; ++n)
      S::prefetch(from + rows.first[r + n] * bytes + distance);
#pragma GCC unroll 16
    for (int n = 0; n < 16; ++n) x[n] = S::load_dwords(from + rows.first[r + n] * bytes);
  }

  const Call& c;
  const std::int64_t b, panel;
};

// The mask of a panel, if it is transposed.
template <Vector S>
class SharedPanel {
  using F = typename S::F;
  static constexpr std::int64_t rows = Tile<S>::rows;

 public:
  SharedPanel(const Call& call, std::int64_t panel)
      : c(call), scale(S::fill(call.scaling.query)), to_units(S::fill(call.scaling.unit)) {
    if (c.shared.words && c.shared.is_panel_transposed(panel)) words = c.shared.panel(panel);
  }
  explicit operator bool() const { return words != nullptr; }

  // Makes scores of products, and takes their maxima, unless other keys are to be hidden first.
  void finish(const Scores& t, Maxima<S>* highest) const {
    c.scaling.query == 1 ? finish_scaled<false>(t, highest) : finish_scaled<true>(t, highest);
  }

  // The keys without those at either end that are hidden from all rows.
  KeyRange trimmed(KeyRange keys) const {
    if (c.bias.data) return keys;
    constexpr std::uint32_t all = ~std::uint32_t{0};
    while (keys.begin < keys.end && words[keys.end - 1] == all) --keys.end;
    while (keys.begin < keys.end && words[keys.begin] == all) ++keys.begin;
    return keys;
  }

 private:
  template <bool scales>
  void finish_scaled(const Scores& t, Maxima<S>* highest) const {
    const std::uint32_t* from = words + t.first_key * c.shared.key_words;
    if (!c.bias.data)
      change_all<scales>(t, highest, [from](std::int64_t j, int v, F(&s)[4]) {
        for (int n = 0; n < 4; ++n) s[n] = S::hidden(s[n], static_cast<std::uint16_t>(from[j + n] >> 16 * v));
      });
    else if (c.bias.type == Type::f32)
      change_all<scales>(t, highest, [from, e = to_units](std::int64_t j, int v, F(&s)[4]) {
        for (int n = 0; n < 4; ++n)
          s[n] = S::fma(S::f32_of(S::load_dwords(from + (j + n) * rows + 16 * v)), e, s[n]);
      });
    else
      change_all<scales>(t, highest, [from, e = to_units](std::int64_t j, int v, F(&s)[4]) {
        for (int n = 0; n < 4; n += 2) {
          const auto pairs = S::load_dwords(from + (j + n) / 2 * rows + 16 * v);
          s[n] = S::fma(S::bf16_of(pairs, 0), e, s[n]);
          s[n + 1] = S::fma(S::bf16_of(pairs, 1), e, s[n + 1]);
        }
      });
  }

  // change(j, v, s) for vector v of four keys from the j-th on.
  template <bool scales, class Change>
  void change_all(const Scores& t, Maxima<S>* highest, const Change change) const {
    Maxima<S> of_these = highest ? *highest : Maxima<S>();
    float* at = t.s;
    for (std::int64_t j = 0; j < t.keys; j += 4, at += 4 * rows)
      for (int v = 0; v < S::panel_vectors; ++v) {
        F s[4];
        for (int n = 0; n < 4; ++n) {
          s[n] = S::load(at + n * rows + 16 * v);
          if (scales) s[n] = S::mul(s[n], scale);
        }
        change(j, v, s);
        for (int n = 0; n < 4; ++n) S::store(at + n * rows + 16 * v, s[n]);
        of_these.of[v] = larger_of_four<S>(of_these.of[v], s);
      }
    if (highest) *highest = of_these;
  }

  const Call& c;
  const F scale, to_units;
  const std::uint32_t* words = nullptr;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
