// SPDX-License-Identifier: Apache-2.0
// A vector type as a table of functions over arrays.
#pragma once
#include <cstdint>

namespace heed::simd {

// out[i] from a[i], b[i] and c[i], for i in [0, n); n is a multiple of every vector's lanes times six.
using Apply = void (*)(const float* a, const float* b, const float* c, float* out, std::int64_t n);
constexpr std::int64_t granule = 96;

struct Operation {
  const char* name;
  Apply apply;
};

// Rows times eight keys, as decode's micro-kernel takes them (cpu/decode/product.hpp); `next` is null, or
// eight keys to prefetch.
struct EightDots {
  const float* q;
  std::int64_t q_stride;
  const float* k;
  std::int64_t k_stride, depth;
  float* s;
  std::int64_t s_stride;
  const float* next = nullptr;
};

// Rows to be packed side by side (cpu/tile/pack.hpp): where each begins and how far apart its elements
// lie.
struct RowsToPack {
  const float* const* begin;
  const std::int64_t* step;
  std::int64_t count, width, dim, depth;
  float *buffer, *tile;
};

// sums(6, 4 vectors), `stride` apart, += over the rows of two panels, or of the first: lines(rows, 4 vectors)
// times pairs(6, rows).
struct LinesToAdd {
  const float *lines[2], *pairs[2];
  std::int64_t panels, rows;
  float* sums;
  std::int64_t stride;
};

struct Operations {
  const char* target;
  int lanes, rows, columns;
  Operation exact[21];  // the same bits on every instruction set, NaN for NaN
  Apply max, exp2, exp2_in_step, tanh;
  void (*load_bf16)(const std::uint16_t* from, float* out, std::int64_t n);
  void (*load_f16)(const std::uint16_t* from, float* out, std::int64_t n);
  void (*load_i8)(const std::int8_t* from, float* out, std::int64_t n);
  void (*transpose)(const float* const from[4], float* to, std::int64_t width);
  void (*prefetch)(const void* p);
  void (*product)(const float* a, const float* b, std::int64_t depth, float* c);       // c = a * b
  void (*more_product)(const float* a, const float* b, std::int64_t depth, float* c);  // c += a * b
  // c += a * b for so many vectors of a panel, and for all, each as deep as said.
  void (*narrow_product)(int vectors, const float* a, const float* b, std::int64_t depth, float* c);
  void (*stepped_product)(const float* a, const float* b, const std::int64_t* depths, float* c);
  void (*line_product)(const LinesToAdd&);
  void (*pack_rows)(const RowsToPack&);
  void (*eight_dots)(const EightDots&);
  void (*eight_dots_twice)(const EightDots&);
  // s(keys, rows) becomes weights 2^(scale * (s - max(rows))), which are added to sum(rows): a panel's rows,
  // or one vector's.
  void (*weigh_panel)(float* s, std::int64_t keys, const float* max, float* sum, float scale);
  void (*weigh_vector)(float* s, std::int64_t keys, const float* max, float* sum, float scale);
};

}  // namespace heed::simd
