// SPDX-License-Identifier: Apache-2.0
// From the caller's strides and dtype to the packed f32 layouts of the micro-kernel, and back. This file is
// the only definition of those layouts:
//   a panel      (depth, rows)          queries, or rows of x; short panels are filled with zeros
//   a key tile   (depth, columns)       `columns` keys side by side, one tile after another
//   a value tile (keys, columns)        `columns` value dimensions side by side, one tile after another
#pragma once
#include <cstdint>

#include "cpu/algorithm/product.hpp"
#include "cpu/call.hpp"

namespace heed::cpu {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }
constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// Where row (b, h, i) of a tensor begins, and how to walk it.
struct Row {
  const void* data;
  std::int64_t first, step;
  Type type;
};

template <class S>
inline Row row_of(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i) {
  return {t.data, b * t.batch + h * t.heads + i * t.length, t.dim, t.type};
}

template <class S>
inline float read(const Row& row, std::int64_t d) {
  const std::int64_t e = row.first + d * row.step;
  if (row.type == Type::f32) return static_cast<const float*>(row.data)[e];
  const auto* p = static_cast<const std::uint16_t*>(row.data) + e;
  if (row.type == Type::bf16) return __builtin_bit_cast(float, std::uint32_t{*p} << 16);
  const std::uint32_t sign = std::uint32_t{*p & 0x8000u} << 16, magnitude = *p & 0x7fffu;
  if (magnitude >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Shifted into place the exponent is 112 too small; a product by 2^112 mends it, and makes subnormals
  // normal.
  const float widened = __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, widened));
}

// Rounds once, to nearest even; NaN stays NaN.
template <class S>
inline void write(const Row& row, std::int64_t d, float x) {
  const std::int64_t e = row.first + d * row.step;
  if (row.type == Type::f32) {
    static_cast<float*>(const_cast<void*>(row.data))[e] = x;
    return;
  }
  auto* p = static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + e;
  const auto u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  if (row.type == Type::bf16)
    *p = static_cast<std::uint16_t>(magnitude > 0x7f800000u ? u >> 16 | 0x40u
                                                            : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  else if (magnitude > 0x7f800000u)
    *p = static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  else if (magnitude >= 0x477ff000u)  // rounds to 65536 or beyond
    *p = static_cast<std::uint16_t>(sign | 0x7c00u);
  else if (magnitude < 0x38800000u)  // below 2^-14: adding 0.5 leaves the subnormal, rounded, in the low bits
    *p = static_cast<std::uint16_t>(
        sign |
        (__builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u));
  else
    *p =
        static_cast<std::uint16_t>(sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13);
}

// The row as contiguous floats: itself where it is that already, else widened into `buffer`.
template <class S>
inline const float* widen(const Row& row, std::int64_t dim, float* buffer) {
  if (row.step == 1 && row.type == Type::f32) return static_cast<const float*>(row.data) + row.first;
  std::int64_t d = 0;
  if (row.step == 1) {
    const auto* p = static_cast<const std::uint16_t*>(row.data) + row.first;
    for (; d + S::lanes <= dim; d += S::lanes)
      S::store(buffer + d, row.type == Type::bf16 ? S::load_bf16(p + d) : S::load_f16(p + d));
  }
  for (; d < dim; ++d) buffer[d] = read<S>(row, d);
  return buffer;
}

// Writes row number n of a (depth, width) tile: element d goes to tile[d * width + n], scaled.
template <class S>
inline void scatter(const float* row, std::int64_t dim, float scale, std::int64_t width, float* tile_column) {
  for (std::int64_t d = 0; d < dim; ++d) tile_column[d * width] = row[d] * scale;
}

template <class S>
inline void fill(float* p, std::int64_t n, float x) {
  for (std::int64_t i = 0; i < n; ++i) p[i] = x;
}

}  // namespace heed::cpu
