// SPDX-License-Identifier: Apache-2.0
// Decode over the caller's own keys and values: read in place where they lie as whole rows, else copied a few
// at a time.
#pragma once
#include <cstdint>

#include "cpu/algorithm/decode_state.hpp"
#include "cpu/algorithm/dots.hpp"
#include "cpu/algorithm/lines.hpp"
#include "cpu/algorithm/range.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
class DecodeViews {
  static constexpr int tile = keys_per_dots;
  static constexpr std::int64_t stripe = DecodeRows<S>::copied_values;  // keys whose values pass L1 together
  static_assert(tile <= DecodeRows<S>::copied_keys && line_elements <= DecodeRows<S>::copied_keys);
  // Up to so many rows it pays to turn keys first, so that sixteen of them are on the lanes.
  static constexpr std::int64_t most_turned_rows = 8;
  static constexpr bool can_turn = turns_sixteen<S>;

 public:
  explicit DecodeViews(const DecodeRows<S>& task_rows) : rows(task_rows), c(rows.c), at(rows.at) {}

  // Whether rows that are not real are left alone.
  bool turns_keys() const {
    return can_turn && !c.cached && c.k.stride.dim == 1 && c.dim % line_elements == 0 &&
           rows.count <= most_turned_rows;
  }

  void score(const Scores& t) const {
    std::int64_t j = 0;
    if constexpr (can_turn)
      for (; turns_keys() && j + line_elements <= t.keys; j += line_elements)
        with_type(c.k.type, [&](auto type) { score_turned<type.value>(t, j); });
    for (; j < t.keys; j += tile) score_tile(t, j);
  }

  // Adds the values of the stretch, weighted by t.s; in place where they lie side by side and none is hidden.
  void add_values(const Scores& t, bool partly_hidden, float* out) const {
    for (std::int64_t j = 0; j < t.keys; j += stripe) add_stripe_at(t, j, partly_hidden, out);
  }

 private:
  // Rows that will be wanted a stripe from now, where they lie: `width` bytes each, `apart` bytes from each
  // other.
  struct Coming {
    const char* row = nullptr;
    std::int64_t width = 0, apart = 0;
  };

  // Touches them line by line, row after row.
  struct Touch {
    Coming rows;
    std::int64_t column = 0;

    void line() {
      S::touch(rows.row + column);
      column += 64;
      if (column >= rows.width) column = 0, rows.row += rows.apart;
    }
  };

  struct Stripe {
    const float* p;  // (keys, rows)
    std::int64_t keys;
    float* out;  // (rows, dims)
    const char* values = nullptr;
    std::int64_t value_bytes = 0;  // from one value to the next
    Coming next{};

    const char* value(std::int64_t j) const { return values + j * value_bytes; }
  };

  // Sixteen keys, turned into lines. What is wanted a stripe later is touched meanwhile, evenly: memory would
  // be idle while nothing is asked for. Xeon, two cores, 32768 keys of f32 from DRAM: with touches between
  // the lines that are turned alone, and none from the keys to the values, 13.3 ms; like this 10.9; turning
  // and multiplying sixteen dimensions at a time 11.6 (November 2026).
  template <Type type>
  void score_turned(const Scores& t, std::int64_t j) const {
    constexpr std::int64_t bytes = bytes_of_type<type>;
    const char* k = element(c.k, t.first_key + j);
    const std::int64_t apart = c.k.stride.length * bytes;
    Touch touch{after_keys(t, j)};
    const auto touch_some = [&touch] {  // half of what as many dimensions of sixteen keys have
      for (int n = 0; n < line_elements * bytes / 8; ++n) touch.line();
    };
    for (std::int64_t d = 0; d < c.dim; d += line_elements) {
      touch_some();
      typename S::F key[line_elements];
      for (int n = 0; n < line_elements; ++n) key[n] = load_as<S, type>(k + n * apart, d);
      S::turn_sixteen(key, rows.k_rows + d * line_elements, line_elements);
    }
    for (std::int64_t first = 0; first < c.dim; first += chain_terms) {
      float sums[most_turned_rows][line_elements] = {};
      for (std::int64_t d = first; d < least(first + chain_terms, c.dim); d += line_elements) {
        touch_some();
        add_turned(d, sums);
      }
      add_chains(sums, first == 0, t.s + j * at.rows);
    }
  }

  // sums(rows, keys) += the products of dimensions d ... d + 15.
  void add_turned(std::int64_t d, float (&sums)[most_turned_rows][line_elements]) const {
    const float* const lines = rows.k_rows + d * line_elements;
    for (std::int64_t r = 0; r < rows.count; r += 4)
      with_rows(rows.count - r, [&](auto n) {
        add_lines<S, Type::f32, n.value>(
            {rows.q + d * at.rows + r, at.rows, lines, line_elements, sums[r], line_elements, lines});
      });
  }

  // Scores are (keys, rows). The first chains of a sum take its place.
  void add_chains(const float (&sums)[most_turned_rows][line_elements], bool are_first, float* s) const {
    for (std::int64_t r = 0; r < rows.count; r += 4)
      for (std::int64_t j = 0; j < line_elements; j += 4) {
        const float* const corner[4] = {sums[r] + j, sums[r + 1] + j, sums[r + 2] + j, sums[r + 3] + j};
        float* const to = s + j * at.rows + r;
        if (are_first) {
          S::transpose(corner, to, at.rows);
          continue;
        }
        float turned[4][4];
        S::transpose(corner, turned[0], 4);
        for (int n = 0; n < 4; ++n)
          for (int row = 0; row < 4; ++row) to[n * at.rows + row] += turned[n][row];
      }
  }

  // Sixteen keys that are scored a stripe after key j, or the first values.
  Coming after_keys(const Scores& t, std::int64_t j) const {
    const std::int64_t then = j + stripe, turned = t.keys / line_elements * line_elements;
    if (then < turned) return coming(c.k, t.first_key + then, c.dim);
    if (c.v.stride.dim != 1) return coming(c.k, t.first_key + j, c.dim);
    return coming(c.v, t.first_key + least(then, turned - line_elements + turned) - turned, c.value_dim);
  }

  // Where eight whole rows lie as eight_dots can take them, they are read in place.
  void score_tile(const Scores& t, std::int64_t j) const {
    const bool in_place = !c.cached && c.k.stride.dim == 1 && rows.depth == c.dim && j + tile <= t.keys;
    if (in_place && c.k.type == Type::f32) return score_in_place<Type::f32>(t, j);
    if (in_place && c.k.type == Type::bf16 && dots_take<S, Type::bf16>)
      return score_in_place<Type::bf16>(t, j);
    if (in_place && c.k.type == Type::f16 && dots_take<S, Type::f16>) return score_in_place<Type::f16>(t, j);
    for (std::int64_t n = 0; n < tile; ++n) {  // the last tile repeats its last key, whose extra scores are
                                               // never read
      const Row row = key_row(c, rows.b, rows.kv_head, t.first_key + least(j + n, t.keys - 1));
      float* to = rows.k_rows + n * rows.depth;
      const float* x = widen<S>(row, c.dim, to);
      for (std::int64_t d = 0; x != to && d < c.dim; ++d) to[d] = x[d];
      for (std::int64_t d = c.dim; d < rows.depth; ++d) to[d] = 0;
    }
    score_rows<Type::f32>({rows.q, at.rows, rows.k_rows, rows.depth, rows.depth, t.s + j * at.rows, at.rows});
  }

  template <Type type>
  void score_in_place(const Scores& t, std::int64_t j) const {
    if constexpr (dots_take<S, type>) {
      Dots dots{
          rows.q, at.rows, element(c.k, t.first_key + j), c.k.stride.length, rows.depth, t.s + j * at.rows,
          at.rows};
      if (j + 2 * tile <= t.keys) dots.next = {element(c.k, t.first_key + j + tile), c.k.stride.length};
      score_rows<type>(dots);
    }
  }

  template <Type type>
  void score_rows(Dots dots) const {
    std::int64_t left = at.rows / S::lanes;
    for (; left >= 2; left -= 2, dots.q += 2 * S::lanes, dots.s += 2 * S::lanes, dots.next = {})
      eight_dots_twice<S, type>(dots);
    if (left > 0) eight_dots<S, type>(dots);
  }

  // Where row j of this task's keys or values begins.
  const char* element(const Tensor& x, std::int64_t j) const {
    const Row row = row_of(x, rows.b, rows.kv_head, c.sequences[rows.b].first_key + j);
    return static_cast<const char*>(row.data) + row.first * bytes_in(x);
  }
  static std::int64_t bytes_in(const Tensor& x) { return x.type == Type::f32 ? 4 : 2; }
  Coming coming(const Tensor& x, std::int64_t j, std::int64_t dim) const {
    return {element(x, j), dim * bytes_in(x), x.stride.length * bytes_in(x)};
  }

  void add_stripe_at(const Scores& t, std::int64_t j, bool partly_hidden, float* out) const {
    Stripe part{.p = t.s + j * at.rows, .keys = least(stripe, t.keys - j), .out = out};
    if (!c.cached && c.v.stride.dim == 1 && !partly_hidden) {
      part.values = element(c.v, t.first_key + j);
      part.value_bytes = c.v.stride.length * bytes_in(c.v);
      part.next = after_values(t, j);
      if (c.v.type == Type::f32) return add_groups<Type::f32>(part);
      if (c.v.type == Type::bf16) return add_groups<Type::bf16>(part);
      return add_groups<Type::f16>(part);
    }
    bool finite = true;
    for (std::int64_t n = 0; n < part.keys; ++n) {
      const Row row = value_row(c, rows.b, rows.kv_head, t.first_key + j + n);
      const float* x = widen<S>(row, c.value_dim, rows.v_rows + n * at.dims);
      finite &= all_finite<S>(x, c.value_dim);
      // Either every value of a task lies in place or every one is copied.
      if (n == 0) part.values = reinterpret_cast<const char*>(x);
      if (n == 1) part.value_bytes = reinterpret_cast<const char*>(x) - part.values;
    }
    if (finite) return add_groups<Type::f32>(part);
    add_carefully(part, partly_hidden ? rows.unseen + j * at.rows : nullptr);
  }

  // The stripe of values after this one, or the keys of the next block, if this task has them.
  Coming after_values(const Scores& t, std::int64_t j) const {
    const std::int64_t end = t.first_key + t.keys;
    if (j + 2 * stripe <= t.keys) return coming(c.v, t.first_key + j + stripe, c.value_dim);
    if (j + stripe < t.keys || !turns_keys() || end % chunk_keys == 0 ||
        end + stripe > c.sequences[rows.b].keys)
      return {};
    return coming(c.k, end, c.dim);
  }

  template <Type type>
  void add_groups(Stripe& t) const {
    for (std::int64_t r = 0; r < rows.count; r += 4, t.next = {})
      with_rows(rows.count - r, [&](auto n) { add_rows<type, n.value>(t, r); });
  }

  // Every dimension of `n` rows: four vectors at a time (a cache line of f32 values on NEON), then one, then
  // single dimensions, since nothing may be read beyond the end of a value.
  template <Type type, int n>
  void add_rows(const Stripe& t, std::int64_t r) const {
    std::int64_t d = 0;
    for (; d + 4 * S::lanes <= c.value_dim; d += 4 * S::lanes)
      if (t.next.row)
        add_stripe<type, n, 4>(t, r, d, touch_for<type>(t, d));
      else
        add_stripe<type, n, 4>(t, r, d, NoTouch());
    for (; d + S::lanes <= c.value_dim; d += S::lanes) add_stripe<type, n, 1>(t, r, d, NoTouch());
    for (; d < c.value_dim; ++d)
      for (int row = 0; row < n; ++row)
        for (std::int64_t j = 0; j < t.keys; ++j) {
          float& sum = t.out[(r + row) * at.dims + d];
          sum = __builtin_fmaf(t.p[j * at.rows + r + row], read(Row{t.value(j), 0, 1, type}, d), sum);
        }
  }

  template <Type type, int n, int vectors, class Touching>
  void add_stripe(const Stripe& t, std::int64_t first_row, std::int64_t d, Touching touch) const {
    typename S::F sum[n][vectors];
    float* out = t.out + first_row * at.dims + d;
    const std::int64_t dims = at.dims;
    for (int r = 0; r < n; ++r)
      for (int v = 0; v < vectors; ++v) sum[r][v] = S::load(out + r * dims + v * S::lanes);
    const float* p = t.p + first_row;
    const char* value = t.values + d * bytes_of_type<type>;
    const std::int64_t width = at.rows, value_bytes = t.value_bytes;
    for (std::int64_t left = t.keys; left > 0; --left, p += width, value += value_bytes) {
      touch.next();
      const auto four = S::load_four(p);
      for (int v = 0; v < vectors; ++v) {
        const auto x = load_as<S, type>(value, v * S::lanes);
        sum[0][v] = S::template fma_lane<0>(x, four, sum[0][v]);
        if constexpr (n > 1) sum[1][v] = S::template fma_lane<1>(x, four, sum[1][v]);
        if constexpr (n > 2) sum[2][v] = S::template fma_lane<2>(x, four, sum[2][v]);
        if constexpr (n > 3) sum[3][v] = S::template fma_lane<3>(x, four, sum[3][v]);
      }
    }
    for (int r = 0; r < n; ++r)
      for (int v = 0; v < vectors; ++v) S::store(out + r * dims + v * S::lanes, sum[r][v]);
  }

  struct NoTouch {
    void next() {}
  };

  // A slice of dimensions takes one step for each key of a stripe, and a step touches as many lines as the
  // slice has in a key, or one: the next stripe's lines are touched once while all slices of this one pass
  // by, or twice where a slice has but half a line.
  template <Type type>
  struct TouchSlice {
    static constexpr std::int64_t slice = 4 * S::lanes * bytes_of_type<type>,
                                  lines = slice < 64 ? 1 : slice / 64;
    Touch touch;

    void next() {
      for (int n = 0; n < lines; ++n) touch.line();
    }
  };

  template <Type type>
  TouchSlice<type> touch_for(const Stripe& t, std::int64_t d) const {
    const std::int64_t lines = t.next.width / 64;
    if (lines * 64 != t.next.width) return {{{reinterpret_cast<const char*>(t.p), 64, 0}}};
    const std::int64_t line = d / (4 * S::lanes) * stripe * TouchSlice<type>::lines % (lines * stripe);
    Coming from = t.next;
    from.row += line / lines * from.apart;
    return {{from, line % lines * 64}};
  }

  // For values that are not all finite: a key a row does not see must not touch it, not even by 0 * v (S4).
  // `hidden` is null where no row has such a key: nobody wrote down which they are.
  void add_carefully(const Stripe& t, const float* hidden) const {
    for (std::int64_t n = 0; n < t.keys; ++n)
      for (std::int64_t r = 0; r < rows.count; ++r)
        for (std::int64_t d = 0; (!hidden || hidden[n * at.rows + r] == 0) && d < c.value_dim; ++d) {
          float& sum = t.out[r * at.dims + d];
          sum = __builtin_fmaf(t.p[n * at.rows + r], reinterpret_cast<const float*>(t.value(n))[d], sum);
        }
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
