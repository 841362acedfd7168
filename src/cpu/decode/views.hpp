// SPDX-License-Identifier: Apache-2.0
// Decode over the caller's own keys and values: read in place where they lie as whole rows, else copied a few
// at a time. For few rows keys are transposed in registers first, so that keys are on the lanes and none is
// idle.
#pragma once
#include <cstdint>

#include "cpu/decode/decode.hpp"
#include "cpu/decode/product.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/pack.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Whether an instruction set transposes sixteen rows of 32 halves in its registers: to transpose them as they
// are takes half the shuffles of transposing them as f32.
template <class S>
inline constexpr bool transposes_halves =
    requires(const void* rows, std::uint16_t* lines) { S::transpose_halves(rows, std::int64_t{}, lines); };

template <Vector S>
class DecodeTransposed {
  static constexpr std::int64_t max_transposed_rows = 8;
  static constexpr std::int64_t stripe = DecodeRows<S>::copied_values;  // keys: the distance of prefetches
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
    RowPrefetch<S> prefetch{after_keys(t, j)}, then{after_keys(t, j + line_elements)};
    alignas(64) std::uint16_t lines[2][line_elements * halves];
    for (std::int64_t first = 0; first < c.dim; first += chain_terms) {
      Sums sums[2] = {};
      for (std::int64_t d = first; d < min(first + chain_terms, c.dim); d += halves) {
        prefetch.lines(line_elements);
        for (int n = 0; n < 2; ++n)
          S::transpose_halves(k + n * line_elements * apart + d * 2, apart, lines[n]);
        for (std::int64_t r = 0; r < rows.count; r += 4)
          with_rows(rows.count - r, [&](auto n) { add_halves<type, n.value>(lines, d, r, sums, then); });
      }
      for (int n = 0; n < 2; ++n)
        add_chains(sums[n], start_of(first), t.s + (j + n * line_elements) * t.width);
    }
  }

  // sums(2, rows r ..., keys) += the products of dimensions d ... d + 31.
  template <Type type, int n>
  void add_halves(const std::uint16_t (&lines)[2][line_elements * halves], std::int64_t d, std::int64_t r,
                  Sums (&sums)[2], RowPrefetch<S>& prefetch) const {
    typename S::F total[2][n];
    for (int of = 0; of < 2; ++of)
      for (int row = 0; row < n; ++row) total[of][row] = S::load(sums[of][r + row]);
    const float* q = rows.buffers.q + d * at.rows + r;
    for (int eight = 0; eight < halves; eight += 8)
      for (int i = eight; i < eight + 8;
           ++i, q += at.rows) {  // eight are few enough for compilers to write out
        if (r == 0 && i % 2 == 0) prefetch.line();
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
    RowPrefetch<S> prefetch{after_keys(t, j)};
    constexpr std::int64_t half =
        line_elements * bytes / 8;  // of what as many dimensions of sixteen keys have
    for (std::int64_t d = 0; d < c.dim; d += line_elements) {
      prefetch.lines(half);
      typename S::F key[line_elements];
      for (int n = 0; n < line_elements; ++n) key[n] = load_as<S, type>(k + n * apart, d);
      S::transpose_sixteen(key, rows.buffers.k_rows + d * line_elements, line_elements);
    }
    for (std::int64_t first = 0; first < c.dim; first += chain_terms) {
      Sums sums = {};
      for (std::int64_t d = first; d < min(first + chain_terms, c.dim); d += line_elements) {
        prefetch.lines(half);
        add_transposed(d, sums);
      }
      add_chains(sums, start_of(first), t.s + j * t.width);
    }
  }

  // sums(rows, keys) += the products of dimensions d ... d + 15.
  void add_transposed(std::int64_t d, Sums& sums) const {
    const float* const lines = rows.buffers.k_rows + d * line_elements;
    for (std::int64_t r = 0; r < rows.count; r += 4)
      with_rows(rows.count - r, [&](auto n) {
        add_lines<S, Type::f32, n.value>(
            {rows.buffers.q + d * at.rows + r, at.rows, lines, line_elements, sums[r], line_elements, lines});
      });
  }

  // The first chain takes the place of a score, the others are added to it.
  static constexpr Start start_of(std::int64_t dim) { return dim == 0 ? Start::zero : Start::sum; }

  // Scores are (keys, rows).
  void add_chains(const Sums& sums, Start start, float* s) const {
    for (std::int64_t r = 0; r < rows.count; r += 4) {
      const auto four = [&](float* to, std::int64_t width) {
        typename S::F sum[4];
        for (int n = 0; n < 4; ++n) sum[n] = S::load(sums[r + n]);
        store_transposed<S>(sum, to, width);
      };
      if (start == Start::zero) {
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
  RowSpan after_keys(const Scores& t, std::int64_t j) const {
    const std::int64_t then = j + stripe, transposed = t.keys / line_elements * line_elements;
    if (then < transposed) return rows.span(c.k, t.first_key + then, c.dim);
    if (c.v.stride.dim != 1) return rows.span(c.k, t.first_key + j, c.dim);
    return rows.span(c.v, t.first_key + min(then, transposed - line_elements + transposed) - transposed,
                     c.value_dim);
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
};

template <Vector S>
class DecodeViews {
  static constexpr int tile = keys_per_dots;
  static constexpr std::int64_t stripe = DecodeRows<S>::copied_values;  // keys whose values pass L1 together
  static_assert(tile <= DecodeRows<S>::copied_keys);

 public:
  explicit DecodeViews(const DecodeRows<S>& task_rows)
      : rows(task_rows), c(rows.c), at(rows.at), transposed(task_rows) {}

  // Whether keys are transposed: then rows that are not real have no scores.
  bool transposes_keys() const { return transposed.takes_keys(); }

  void score(const Scores& t) const {
    std::int64_t j = 0;
    if constexpr (transposes_sixteen<S>)
      if (transposes_keys()) j = transposed.score(t);
    for (; j < t.keys; j += tile) score_tile(t, j);
  }

  // Adds the values of the stretch, weighted by t.s; in place where they lie side by side and none is hidden.
  void add_values(const Scores& t, Coverage coverage, float* out) const {
    for (std::int64_t j = 0; j < t.keys; j += stripe) add_stripe_at(t, j, coverage, out);
  }

 private:
  struct Stripe {
    const float* p;  // (keys, rows)
    std::int64_t keys;
    float* out;  // (rows, dims)
    const char* values = nullptr;
    std::int64_t value_bytes = 0;  // from one value to the next
    RowSpan next{};

    const char* value(std::int64_t j) const { return values + j * value_bytes; }
  };

  // Where eight whole rows lie as eight_dots can take them, they are read in place.
  void score_tile(const Scores& t, std::int64_t j) const {
    const bool in_place = !c.cached && c.k.stride.dim == 1 && rows.depth == c.dim && j + tile <= t.keys;
    if (in_place && c.k.type == Type::f32) return score_in_place<Type::f32>(t, j);
    if (in_place && c.k.type == Type::bf16 && dots_take<S, Type::bf16>)
      return score_in_place<Type::bf16>(t, j);
    if (in_place && c.k.type == Type::f16 && dots_take<S, Type::f16>) return score_in_place<Type::f16>(t, j);
    // The last tile repeats its last key, whose extra scores are never read.
    for (std::int64_t n = 0; n < tile; ++n) {
      // fault: last-tile-of-decode
      const Row row = key_row(c, rows.b, rows.kv_head, t.first_key + min(j + n, t.keys - 1));
      float* to = rows.buffers.k_rows + n * rows.depth;
      const float* x = widen<S>(row, c.dim, to);
      for (std::int64_t d = 0; x != to && d < c.dim; ++d) to[d] = x[d];
      for (std::int64_t d = c.dim; d < rows.depth; ++d) to[d] = 0;
    }
    score_rows<Type::f32>(
        {rows.buffers.q, at.rows, rows.buffers.k_rows, rows.depth, rows.depth, t.s + j * t.width, t.width});
  }

  template <Type type>
  void score_in_place(const Scores& t, std::int64_t j) const {
    if constexpr (dots_take<S, type>) {
      Dots dots{rows.buffers.q,    at.rows, rows.place(c.k, t.first_key + j), c.k.stride.length, rows.depth,
                t.s + j * t.width, t.width};
      if (j + 2 * tile <= t.keys) dots.next = {rows.place(c.k, t.first_key + j + tile), c.k.stride.length};
      score_rows<type>(dots);
    }
  }

  template <Type type>
  void score_rows(Dots dots) const {
    if constexpr (DecodeRows<S>::can_pack)
      if (rows.width < S::lanes) return score_packed<type>(dots);
    std::int64_t remaining = at.rows / S::lanes;
    for (; remaining >= 2; remaining -= 2, dots.q += 2 * S::lanes, dots.s += 2 * S::lanes, dots.next = {})
      eight_dots_twice<S, type>(dots);
    if (remaining > 0) eight_dots<S, type>(dots);
  }

  // Four rows of a vector.
  template <Type type>
  void score_packed(Dots dots) const {
    float sums[tile][S::lanes];
    float* s = dots.s;
    dots.s = sums[0], dots.s_stride = S::lanes;
    eight_dots<S, type>(dots);
    for (int n = 0; n < tile; ++n, s += 4)
      for (int r = 0; r < 4; ++r) s[r] = sums[n][r];
  }

  void add_stripe_at(const Scores& t, std::int64_t j, Coverage coverage, float* out) const {
    Stripe part{.p = t.s + j * t.width, .keys = min(stripe, t.keys - j), .out = out};
    if (!c.cached && c.v.stride.dim == 1 && coverage == Coverage::full) {
      part.values = rows.place(c.v, t.first_key + j);
      part.value_bytes = c.v.stride.length * element_bytes(c.v);
      part.next = after_values(t, j);
      if (c.v.type == Type::f32) return add_groups<Type::f32>(part);
      if (c.v.type == Type::bf16) return add_groups<Type::bf16>(part);
      return add_groups<Type::f16>(part);
    }
    bool finite = true;
    for (std::int64_t n = 0; n < part.keys; ++n) {
      const Row row = value_row(c, rows.b, rows.kv_head, t.first_key + j + n);
      const float* x = widen<S>(row, c.value_dim, rows.buffers.v_rows + n * at.dims);
      finite &= all_finite<S>(x, c.value_dim);
      // Either every value of a task lies in place or every one is copied.
      if (n == 0) part.values = reinterpret_cast<const char*>(x);
      if (n == 1) part.value_bytes = reinterpret_cast<const char*>(x) - part.values;
    }
    if (finite) return add_groups<Type::f32>(part);  // fault: careful-path-skipped-in-decode
    // fault: scratch-nobody-wrote
    add_carefully(part, coverage == Coverage::partial ? rows.buffers.unseen + j * t.width : nullptr);
  }

  // The stripe of values after this one, or the keys of the next block, if this task has them.
  RowSpan after_values(const Scores& t, std::int64_t j) const {
    const std::int64_t end = t.first_key + t.keys;
    if (j + 2 * stripe <= t.keys) return rows.span(c.v, t.first_key + j + stripe, c.value_dim);
    if (j + stripe < t.keys || !transposes_keys() || end % chunk_keys == 0 ||
        end + stripe > c.sequences[rows.b].keys)
      return {};
    return rows.span(c.k, end, c.dim);
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
        add_stripe<type, n, 4>(t, r, d, prefetch_for<type>(t, d));
      else
        add_stripe<type, n, 4>(t, r, d, NoPrefetch());
    for (; d + S::lanes <= c.value_dim; d += S::lanes) add_stripe<type, n, 1>(t, r, d, NoPrefetch());
    for (; d < c.value_dim; ++d)
      for (int row = 0; row < n; ++row)
        for (std::int64_t j = 0; j < t.keys; ++j) {
          float& sum = t.out[(r + row) * at.dims + d];
          sum = __builtin_fmaf(t.p[j * rows.width + r + row], read(Row{t.value(j), 0, 1, type}, d), sum);
        }
  }

  template <Type type, int n, int vectors, class Prefetching>
  void add_stripe(const Stripe& t, std::int64_t first_row, std::int64_t d, Prefetching prefetch) const {
    typename S::F sum[n][vectors];
    float* out = t.out + first_row * at.dims + d;
    const std::int64_t dims = at.dims;
    for (int r = 0; r < n; ++r)
      for (int v = 0; v < vectors; ++v) sum[r][v] = S::load(out + r * dims + v * S::lanes);
    const float* p = t.p + first_row;
    const char* value = t.values + d * bytes_of_type<type>;
    const std::int64_t width = rows.width, value_bytes = t.value_bytes;
    const auto add = [&] {
      const auto four = S::load_four(p);
      typename S::F x[vectors];
      load_all<S, type>(value, x);
      for (int v = 0; v < vectors; ++v) {
        sum[0][v] = S::template fma_lane<0>(x[v], four, sum[0][v]);
        if constexpr (n > 1) sum[1][v] = S::template fma_lane<1>(x[v], four, sum[1][v]);
        if constexpr (n > 2) sum[2][v] = S::template fma_lane<2>(x[v], four, sum[2][v]);
        if constexpr (n > 3) sum[3][v] = S::template fma_lane<3>(x[v], four, sum[3][v]);
      }
      p += width, value += value_bytes;
    };
    std::int64_t remaining = t.keys;
    for (; remaining >= Prefetching::keys; remaining -= Prefetching::keys) {
      prefetch.next();
      for (int key = 0; key < Prefetching::keys; ++key) add();
    }
    for (; remaining > 0; --remaining) add();
    for (int r = 0; r < n; ++r)
      for (int v = 0; v < vectors; ++v) S::store(out + r * dims + v * S::lanes, sum[r][v]);
  }

  struct NoPrefetch {
    static constexpr int keys = 1;
    void next() {}
  };

  // Prefetches the next stripe evenly while the slices of this one are added. A slice of dimensions
  // prefetches as many lines as it has in a key, or one line for as many keys as share it.
  template <Type type>
  struct SlicePrefetch {
    static constexpr std::int64_t slice = 4 * S::lanes * bytes_of_type<type>,
                                  lines = slice < 64 ? 1 : slice / 64;
    static constexpr int keys = slice < 64 ? 64 / slice : 1;
    static_assert(stripe % keys == 0);
    RowPrefetch<S> prefetch;

    void next() {
      for (int n = 0; n < lines; ++n) prefetch.line();
    }
  };

  template <Type type>
  SlicePrefetch<type> prefetch_for(const Stripe& t, std::int64_t d) const {
    const std::int64_t lines = t.next.width / 64;
    if (lines * 64 != t.next.width) return {{{reinterpret_cast<const char*>(t.p), 64, 0}}};
    const std::int64_t of_slice = stripe / SlicePrefetch<type>::keys * SlicePrefetch<type>::lines,
                       line = d / (4 * S::lanes) * of_slice % (lines * stripe);
    RowSpan from = t.next;
    from.row += line / lines * from.apart;
    return {{from, line % lines * 64}};
  }

  // For values that are not all finite: a key that a row does not see must not change it, not even by 0 * v
  // (S4). `hidden` is null where no row has such a key: nobody wrote down which they are.
  void add_carefully(const Stripe& t, const float* hidden) const {
    for (std::int64_t n = 0; n < t.keys; ++n)
      for (std::int64_t r = 0; r < rows.count; ++r)
        for (std::int64_t d = 0; (!hidden || hidden[n * rows.width + r] == 0) && d < c.value_dim; ++d) {
          float& sum = t.out[r * at.dims + d];
          sum = __builtin_fmaf(t.p[n * rows.width + r], reinterpret_cast<const float*>(t.value(n))[d], sum);
        }
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
  const DecodeTransposed<S> transposed;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
