// SPDX-License-Identifier: Apache-2.0
// A bias or boolean mask that heads share (call.hpp): how its panels are turned, and what their words make of
// products, a strip at a time, while these are in the first-level cache and beside the scale. Bf16 on AMX
// with 16 threads took 1.17 to 1.25 times as long with a mask as without, and to go through a block's scores
// once more was half of that (12 heads, 1024 x 64, November 2026).
#pragma once
#include <cstdint>

#include "cpu/algorithm/exp2.hpp"
#include "cpu/algorithm/mask.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
class TurnMask {
  static constexpr std::int64_t line_bytes = 64;
  static constexpr std::int64_t most_key_step = 32;  // products come in no larger tiles
  using Lines = typename S::Dwords[16];

 public:
  // The panel of a batch entry.
  TurnMask(const Call& call, std::int64_t batch_entry, std::int64_t panel_number)
      : c(call), b(batch_entry), panel(panel_number) {}

  void run() const {
    const Sequence& s = c.sequences[b];
    const std::int64_t in_panel = Tile<S>::rows / c.group(), first = c.first_query + panel * in_panel;
    const std::int64_t count = least(in_panel, c.end_query(s) - first);
    if (count <= 0) return;
    const Tensor& mask = c.bias.data ? c.bias : c.masks[0].where;
    const MaskRows<S> rows(mask, {0, s.keys}, Tile<S>::rows, Queries(c, Rows{b, 0, first, count}));
    const std::int64_t place = c.shared.place(b, panel);
    std::uint32_t* to = c.shared.words + place * c.shared.keys * c.shared.key_words;
    c.shared.is_turned[place] = with_type(mask.type, [&](auto type) { return turn<type.value>(rows, to); });
  }

 private:
  // Returns whether the words say all there is to say.
  template <Type type>
  bool turn(const MaskRows<S>& rows, std::uint32_t* to) const {
    constexpr std::int64_t keys = line_bytes / bytes_of_type<type>;
    const std::int64_t end = round_up(rows.keys.end, most_key_step);
    for (std::int64_t key = 0; key < end; key += keys, to += keys * c.shared.key_words)
      for (std::int64_t r = 0; r < Tile<S>::rows; r += 16) {
        Lines x;
        load_lines<type>(rows, r, key, x);
        if (!store_lines<type>(x, to, r)) return false;
      }
    return true;
  }

  // Sixteen rows from row r on, zeros beyond their last key.
  template <Type type>
  static void load_lines(const MaskRows<S>& rows, std::int64_t r, std::int64_t key, Lines& x) {
    constexpr std::int64_t bytes = bytes_of_type<type>;
    const auto* from = static_cast<const char*>(rows.tensor.data) + key * bytes;
    const std::int64_t left = most(0, rows.keys.end - key) * bytes;
    for (int n = 0; n < 16; ++n) {
      const char* line = from + rows.first[r + n] * bytes;
      char copy[line_bytes] = {};
      if (left < line_bytes) __builtin_memcpy(copy, line, static_cast<std::size_t>(left));
      x[n] = S::load_dwords(left < line_bytes ? copy : line);
    }
  }

  template <Type type>
  bool store_lines(Lines& x, std::uint32_t* to, std::int64_t r) const {
    if constexpr (type == Type::f32)
      if (S::any_f32_far_below(x)) return false;
    if constexpr (type == Type::bf16)
      if (S::any_bf16_far_below(x)) return false;
    S::turn(x);
    if constexpr (type == Type::int8) {
      auto* bits = reinterpret_cast<char*>(to) + r / 8;
      for (int n = 0; n < line_bytes; ++n, bits += sizeof(std::uint32_t)) {
        const std::uint16_t hidden = c.masks[0].visible_when ? S::template where_byte<true>(x[n / 4], n % 4)
                                                             : S::template where_byte<false>(x[n / 4], n % 4);
        __builtin_memcpy(bits, &hidden, sizeof hidden);
      }
    } else {
      for (int n = 0; n < 16; ++n) S::store_dwords(to + n * Tile<S>::rows + r, x[n]);
    }
    return true;
  }

  const Call& c;
  const std::int64_t b, panel;
};

// The mask of a panel, if it is turned.
template <Vector S>
class SharedPanel {
  using F = typename S::F;
  static constexpr std::int64_t rows = Tile<S>::rows;

 public:
  SharedPanel(const Call& call, std::int64_t batch_entry, std::int64_t panel)
      : c(call), scale(S::fill(call.scaling.query)), to_units(S::fill(call.scaling.unit)) {
    if (!c.shared.words) return;
    const std::int64_t place = c.shared.place(batch_entry, panel);
    if (c.shared.is_turned[place]) words = c.shared.words + place * c.shared.keys * c.shared.key_words;
  }
  explicit operator bool() const { return words != nullptr; }

  // Makes scores of products.
  void finish(const Scores& t) const {
    const std::uint32_t* from = words + t.first_key * c.shared.key_words;
    if (!c.bias.data) return hide(t, from);
    c.bias.type == Type::f32 ? add_f32(t, from) : add_bf16(t, from);
  }

  // What is left of the keys without those at either end that are hidden from all rows.
  KeyRange trimmed(KeyRange keys) const {
    if (c.bias.data) return keys;
    constexpr std::uint32_t all = ~std::uint32_t{0};
    while (keys.begin < keys.end && words[keys.end - 1] == all) --keys.end;
    while (keys.begin < keys.end && words[keys.begin] == all) ++keys.begin;
    return keys;
  }

 private:
  void hide(const Scores& t, const std::uint32_t* from) const {
    float* s = t.s;
    for (std::int64_t j = 0; j < t.keys; ++j, s += rows)
      for (int r = 0; r < rows; r += 16)
        S::store(s + r, S::hidden(S::mul(S::load(s + r), scale), static_cast<std::uint16_t>(from[j] >> r)));
  }

  void add_f32(const Scores& t, const std::uint32_t* from) const {
    for (std::int64_t n = 0; n < t.keys * rows; n += 16) {
      const F bias = S::f32_of(S::load_dwords(from + n));
      S::store(t.s + n, S::fma(bias, to_units, S::mul(S::load(t.s + n), scale)));
    }
  }

  // Keys come in pairs.
  void add_bf16(const Scores& t, const std::uint32_t* from) const {
    float* s = t.s;
    for (std::int64_t j = 0; j < t.keys; j += 2, s += 2 * rows, from += rows)
      for (int r = 0; r < rows; r += 16) {
        const auto pairs = S::load_dwords(from + r);
        float *even = s + r, *odd = even + rows;
        S::store(even, S::fma(S::bf16_of(pairs, 0), to_units, S::mul(S::load(even), scale)));
        S::store(odd, S::fma(S::bf16_of(pairs, 1), to_units, S::mul(S::load(odd), scale)));
      }
  }

  const Call& c;
  const F scale, to_units;
  const std::uint32_t* words = nullptr;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
