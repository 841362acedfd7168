// SPDX-License-Identifier: Apache-2.0
// From the caller's strides and dtype to the packed f32 layouts of the micro-kernel, and back. This file is
// the only definition of those layouts:
//   a panel      (depth, rows)          queries, or rows of x; short panels are filled with zeros
//   a key tile   (depth, columns)       `columns` keys side by side, one tile after another
//   a value tile (keys, columns)        `columns` value dimensions side by side, one tile after another
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/scalar.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "heed/half.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }
constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

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

// Says where row n of some rows lies.
template <class At>
concept RowAt = requires(const At& at, std::int64_t n) {
  { at(n) } -> std::same_as<Row>;
};

inline Row row_of(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i) {
  return {t.data, b * t.stride.batch + h * t.stride.heads + i * t.stride.length, t.stride.dim, t.type};
}

// Key j of a sequence, and its value, wherever they lie.
inline const unsigned char* head_in_page(const Call& c, std::int64_t b, std::int64_t kv_head,
                                         std::int64_t j) {
  // fault: page-of-the-token-before, cached-sequence-of-another
  return c.cached[b].table[j / c.layout.page_size] + kv_head * c.layout.head_bytes();
}

inline Row key_row(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  constexpr std::int64_t tile = PageLayout::tile;
  if (!c.cached) return row_of(c.k, b, kv_head, c.sequences[b].first_key + j);
  return {head_in_page(c, b, kv_head, j), c.layout.key_element(j % c.layout.page_size, 0), tile, c.k.type};
}

inline Row value_row(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  constexpr std::int64_t tile = PageLayout::tile;
  if (!c.cached) return row_of(c.v, b, kv_head, c.sequences[b].first_key + j);
  return {head_in_page(c, b, kv_head, j) + c.layout.values_at(),
          c.layout.value_element(j % c.layout.page_size, 0), 1, c.v.type, tile * tile};
}

// The keys of a head from one of them on, or its values: the caller's lie a stride apart.
template <Row (*row_at)(const Call&, std::int64_t, std::int64_t, std::int64_t)>
struct RowsFrom {
  const Call& c;
  const std::int64_t b, kv_head, begin, stride;
  const bool is_cached = c.cached != nullptr;
  const Row first = row_at(c, b, kv_head, begin);
  const std::int64_t to_chunk_end = min(c.sequences[b].keys, (begin / chunk_keys + 1) * chunk_keys) - begin;

  Row operator()(std::int64_t n) const {
    if (is_cached) return row_at(c, b, kv_head, begin + n);
    return {first.data, first.first + n * stride, first.step, first.type, first.block};
  }
};

// What the integers of a quantised key, or value, are multiplied with. Those of the keys that follow lie
// beside it, as far as its tile of sixteen goes.
inline const float* key_scales(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  const void* scales = head_in_page(c, b, kv_head, j) + c.layout.key_scales_at();
  return static_cast<const float*>(scales) + j % c.layout.page_size;
}

inline const float* value_scales(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  const void* scales = head_in_page(c, b, kv_head, j) + c.layout.value_scales_at();
  return static_cast<const float*>(scales) + j % c.layout.page_size;
}

// The type of elements, as a type: loops that know it need not ask for each element.
template <Type type>
struct Of {
  static constexpr Type value = type;
};

template <class Run>
inline auto with_type(Type type, const Run& run) {
  if (type == Type::f32) return run(Of<Type::f32>());
  if (type == Type::bf16) return run(Of<Type::bf16>());
  if (type == Type::f16) return run(Of<Type::f16>());
  return run(Of<Type::int8>());
}

template <Type type>
inline constexpr std::int64_t bytes_of_type = type == Type::f32    ? 4
                                              : type == Type::int8 ? 1
                                                                   : 2;

// One vector from element `at` on, as f32.
template <Vector S, Type type>
inline typename S::F load_as(const void* row, std::int64_t at) {
  if constexpr (type == Type::f32) return S::load(static_cast<const float*>(row) + at);
  if constexpr (type == Type::bf16) return S::load_bf16(static_cast<const std::uint16_t*>(row) + at);
  if constexpr (type == Type::f16) return S::load_f16(static_cast<const std::uint16_t*>(row) + at);
  if constexpr (type == Type::int8) return S::load_i8(static_cast<const std::int8_t*>(row) + at);
}

// Several vectors side by side. Some instruction sets load two of 16 bits at once.
template <Vector S, Type type, int vectors>
inline void load_all(const void* row, typename S::F (&x)[vectors]) {
  constexpr bool has_two = requires(const std::uint16_t* p, typename S::F* to) { S::load_two_bf16(p, to); };
  if constexpr (has_two && vectors % 2 == 0 && bytes_of_type<type> == 2) {
    const auto* p = static_cast<const std::uint16_t*>(row);
    for (int v = 0; v < vectors; v += 2)
      type == Type::bf16 ? S::load_two_bf16(p + v * S::lanes, x + v)
                         : S::load_two_f16(p + v * S::lanes, x + v);
  } else {
    for (int v = 0; v < vectors; ++v) x[v] = load_as<S, type>(row, v * S::lanes);
  }
}

// Element d, a vector of one lane.
inline float read(const Row& row, std::int64_t d) {
  const std::int64_t e = row.first + d / 16 * row.block + d % 16 * row.step;
  return with_type(row.type, [&](auto type) { return load_as<Scalar, type.value>(row.data, e); });
}

// Rounds once, to nearest even; NaN stays NaN.
inline void write(const Row& row, std::int64_t d, float x) {
  const std::int64_t e = row.first + d * row.step;
  void* const data = const_cast<void*>(row.data);
  if (row.type == Type::f32)
    static_cast<float*>(data)[e] = x;
  else
    static_cast<std::uint16_t*>(data)[e] =
        row.type == Type::bf16 ? from_float<bf16>(x).bits : from_float<f16>(x).bits;
}

// As many whole groups of vectors as fit in dim; returns how many elements that was.
template <Vector S, Type type, int vectors>
inline std::int64_t widen_groups(const void* p, std::int64_t d, std::int64_t dim, float* buffer) {
  for (; d + vectors * S::lanes <= dim; d += vectors * S::lanes)
    for (int v = 0; v < vectors; ++v)
      S::store(buffer + d + v * S::lanes, load_as<S, type>(p, d + v * S::lanes));
  return d;
}

// `count` elements from p on, `step` apart.
template <Vector S, Type type>
inline void widen_stretch(const void* p, std::int64_t step, std::int64_t count, float* buffer) {
  std::int64_t d = 0;
  if (step == 1)
    d = widen_groups<S, type, 1>(p, widen_groups<S, type, 4>(p, 0, count, buffer), count, buffer);
  for (; d < count; ++d) buffer[d] = load_as<Scalar, type>(p, d * step);
}

constexpr bool is_contiguous(const Row& row) { return row.step == 1 && row.block == 16; }

template <Vector S, Type type>
inline void widen_typed(float* buffer, const Row& row, std::int64_t dim) {
  const char* p = static_cast<const char*>(row.data) + row.first * bytes_of_type<type>;
  const std::int64_t together = row.block == 16 * row.step ? dim : 16;
  for (std::int64_t d = 0; d < dim; d += together, p += row.block * bytes_of_type<type>)
    widen_stretch<S, type>(p, row.step, min(together, dim - d), buffer + d);
}

template <Vector S>
inline void widen_into(float* buffer, const Row& row, std::int64_t dim) {
  with_type(row.type, [&](auto type) { widen_typed<S, type.value>(buffer, row, dim); });
}

// The row as contiguous floats: itself where it is that already, else widened into `buffer`.
template <Vector S>
[[gnu::always_inline]] inline const float* widen(const Row& row, std::int64_t dim, float* buffer) {
  if (is_contiguous(row) && row.type == Type::f32) return static_cast<const float*>(row.data) + row.first;
  widen_into<S>(buffer, row, dim);
  return buffer;
}

inline void fill(float* p, std::int64_t n, float x) {
  for (std::int64_t i = 0; i < n; ++i) p[i] = x;
}

// Whether an instruction set transposes sixteen rows in its registers.
template <class S>
inline constexpr bool transposes_sixteen =
    requires(const typename S::F (&rows)[16], float* lines) { S::transpose_sixteen(rows, lines, 16); };

// Whether it transposes eight that fill a tile.
template <class S>
inline constexpr bool transposes_eight =
    S::tile_columns == 8 &&
    requires(const typename S::F (&rows)[8], float* lines) { S::transpose_eight(rows, lines); };

// pack_rows() for eight or sixteen rows, given by where they begin; null: a row of zeros.
template <Vector S, Type type, int count>
inline void transpose_rows(const char* const (&rows)[count], std::int64_t width, std::int64_t dim,
                           float* tile) {
  std::int64_t d = 0;
  for (; d + 16 <= dim; d += 16) {
    typename S::F x[count];
    for (int n = 0; n < count; ++n) x[n] = rows[n] ? load_as<S, type>(rows[n], d) : S::fill(0.0f);
    if constexpr (count == 16)
      S::transpose_sixteen(x, tile + d * width, width);
    else
      S::transpose_eight(x, tile + d * width);
  }
  for (; d < dim; ++d)
    for (int n = 0; n < count; ++n) tile[d * width + n] = rows[n] ? load_as<Scalar, type>(rows[n], d) : 0.0f;
}

// What is packed: rows beyond `count` and dimensions from dim to depth become zero.
struct PackedShape {
  std::int64_t count, width;  // rows, and how many lie side by side
  std::int64_t dim, depth;
};

// pack_rows() for `count` rows from row r on, if their elements lie side by side; returns whether they do.
template <Vector S, int count>
inline bool pack_transposed(const RowAt auto& row_at, std::int64_t r, const PackedShape& shape, float* tile) {
  const std::int64_t width = shape.width, dim = shape.dim;
  return with_type(row_at(r).type, [&](auto type) {
    const char* rows[count] = {};
    for (int n = 0; n < min(count, shape.count - r); ++n) {
      const Row row = row_at(r + n);
      if (!is_contiguous(row)) return false;  // fault: sixteen-rows-by-the-first
      rows[n] = static_cast<const char*>(row.data) + row.first * bytes_of_type<type.value>;
    }
    transpose_rows<S, type.value>(rows, width, dim, tile + r);
    for (std::int64_t d = dim; d < shape.depth; ++d) fill(tile + d * width + r, count, 0.0f);
    return true;
  });
}

// Packs up to `width` rows, given by row_at(r), side by side: element d of row r goes to tile[d * width + r].
// `buffer` holds four widened rows.
template <Vector S>
inline void pack_rows(const RowAt auto& row_at, const PackedShape shape, float* buffer, float* tile) {
  const auto [count, width, dim, depth] = shape;
  std::int64_t r = 0;
  if constexpr (transposes_sixteen<S>)
    while (r < count && r + 16 <= width && pack_transposed<S, 16>(row_at, r, shape, tile)) r += 16;
  if constexpr (transposes_eight<S>)
    if (width == 8 && count > 0 && pack_transposed<S, 8>(row_at, 0, shape, tile)) r = 8;
  for (; r < count; r += 4) {
    const float* rows[4];
    for (std::int64_t n = 0; n < 4; ++n) {
      rows[n] = buffer + n * dim;
      if (r + n < count)
        rows[n] = widen<S>(row_at(r + n), dim, buffer + n * dim);
      else
        for (std::int64_t d = 0; d < dim; ++d) buffer[n * dim + d] = 0;
    }
    std::int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      const float* const corner[4] = {rows[0] + d, rows[1] + d, rows[2] + d, rows[3] + d};
      S::transpose(corner, tile + d * width + r, width);
    }
    for (; d < depth; ++d)
      for (std::int64_t n = 0; n < 4; ++n) tile[d * width + r + n] = d < dim ? rows[n][d] : 0.0f;
  }
  for (; r + S::lanes <= width; r += S::lanes)
    for (std::int64_t d = 0; d < depth; ++d) S::store(tile + d * width + r, S::fill(0.0f));
  for (; r < width; r += 4)
    for (std::int64_t d = 0; d < depth; ++d) fill(tile + d * width + r, 4, 0.0f);
}

// Whether `count` rows, of which these are the first and the last, lie as columns side by side: keys as in a
// cache, or in the transpose of a matrix.
constexpr bool lie_side_by_side(const Row& first, const Row& last, std::int64_t count) {
  return first.data == last.data && first.first + count - 1 == last.first;
}

// x *= factor, four vectors at a time.
template <Vector S>
inline void scale_all(float* x, std::int64_t n, float factor) {
  const auto times = S::fill(factor);
  float* const end = x + n;
  for (; end - x >= 4 * S::lanes; x += 4 * S::lanes) {
    typename S::F four[4];
    for (int v = 0; v < 4; ++v) four[v] = S::mul(S::load(x + v * S::lanes), times);
    for (int v = 0; v < 4; ++v) S::store(x + v * S::lanes, four[v]);
  }
  for (; x < end; x += S::lanes) S::store(x, S::mul(S::load(x), times));
}

// Whether numbers stay within the range of f32: NaN and infinities found a vector at a time, and sums of
// squares that rule them out for products.

// Where one is NaN, too. In integers, which compilers compare all at once.
template <Vector S>
inline bool any_lane_differs(typename S::F x, float from) {
  float lanes[S::lanes];
  S::store(lanes, x);
  int any = 0;
  for (int lane = 0; lane < S::lanes; ++lane) any |= lanes[lane] != from ? 1 : 0;
  return any != 0;
}

template <Vector S>
inline float sum_of_lanes(typename S::F x) {
  float lanes[S::lanes], sum = 0;
  S::store(lanes, x);
  for (int lane = 0; lane < S::lanes; ++lane) sum += lanes[lane];
  return sum;
}
template <Vector S>
inline float sum_of_eight(const typename S::F (&x)[8]) {
  const auto low = S::add(S::add(x[0], x[1]), S::add(x[2], x[3])),
             high = S::add(S::add(x[4], x[5]), S::add(x[6], x[7]));
  return sum_of_lanes<S>(S::add(low, high));
}

constexpr bool is_finite(float x) { return x * 0.0f == 0.0f; }

template <Vector S>
inline bool all_finite(const float* x, std::int64_t n) {
  const auto zero = S::fill(0.0f);  // 0 * x is 0 for every finite x, and NaN for the others
  typename S::F poison[4] = {zero, zero, zero, zero};
  std::int64_t d = 0;
  for (; d + 4 * S::lanes <= n; d += 4 * S::lanes)
    for (int v = 0; v < 4; ++v) poison[v] = S::fma(S::load(x + d + v * S::lanes), zero, poison[v]);
  for (; d + S::lanes <= n; d += S::lanes) poison[0] = S::fma(S::load(x + d), zero, poison[0]);
  float rest = 0;
  for (; d < n; ++d) rest += x[d] * 0.0f;
  return rest == 0 &&
         !any_lane_differs<S>(S::add(S::add(poison[0], poison[1]), S::add(poison[2], poison[3])), 0.0f);
}

// x *= factor; returns x * x summed over the n floats, a multiple of S::lanes: NaN or infinity where one of
// them is. Eight sums, because each waits four cycles for the last.
template <Vector S>
inline float scale_and_square(float* x, std::int64_t n, float factor) {
  const auto times = S::fill(factor);
  typename S::F sums[8];
  for (auto& sum : sums) sum = S::fill(0.0f);
  const auto step = [&](float* at, typename S::F& sum) {
    const auto scaled = S::mul(S::load(at), times);
    S::store(at, scaled);
    sum = S::fma(scaled, scaled, sum);
  };
  std::int64_t i = 0;
  for (; i + 8 * S::lanes <= n; i += 8 * S::lanes)
    for (int v = 0; v < 8; ++v) step(x + i + v * S::lanes, sums[v]);
  for (; i < n; i += S::lanes) step(x + i, sums[0]);
  return sum_of_eight<S>(sums);
}

template <Vector S>
inline float sum_of_squares(const float* x, std::int64_t n) {
  typename S::F sums[8];
  for (auto& sum : sums) sum = S::fill(0.0f);
  const auto step = [](typename S::F one, typename S::F& sum) { sum = S::fma(one, one, sum); };
  std::int64_t i = 0;
  for (; i + 8 * S::lanes <= n; i += 8 * S::lanes)
    for (int v = 0; v < 8; ++v) step(S::load(x + i + v * S::lanes), sums[v]);
  for (; i < n; i += S::lanes) step(S::load(x + i), sums[0]);
  return sum_of_eight<S>(sums);
}

// Rows of `width` bytes each, `apart` bytes from each other.
struct RowSpan {
  const char* row = nullptr;
  std::int64_t width = 0, apart = 0;
};

// Prefetches them a cache line at a time, row after row.
template <Vector S>
struct RowPrefetch {
  RowSpan rows;
  std::int64_t column = 0;

  void line() {
    S::prefetch(rows.row + column);
    column += 64;
    if (column >= rows.width) column = 0, rows.row += rows.apart;
  }
  void lines(std::int64_t count) {
    for (; count > 0; --count) line();
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
