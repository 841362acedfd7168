// SPDX-License-Identifier: Apache-2.0
// Decode over a cache's pages (cache/layout.hpp): both halves are single streams. Scores have sixteen keys on
// the lanes, outputs sixteen dimensions, so no lane is idle however few rows there are; each sum is the same
// FMA chain as everywhere.
#pragma once
#include <cstdint>

#include "cpu/algorithm/decode_state.hpp"

namespace heed::cpu {

template <class S>
class DecodeCache {
  static constexpr std::int64_t tile = PageLayout::tile;
  static constexpr int line = static_cast<int>(tile) / S::lanes;  // vectors of one line: sixteen elements
  using F = typename S::F;

 public:
  explicit DecodeCache(const DecodeRows<S>& task_rows) : rows(task_rows), c(rows.c), at(rows.at) {}

  // t begins with a whole tile; scores beyond its keys are never read.
  void score(const Scores& t) const {
    for (std::int64_t j = 0; j < t.keys; j += tile) {
      const std::int64_t token = (t.first_key + j) % c.layout.page_size;
      const unsigned char* head = head_in_page<S>(c, rows.b, rows.kv_head, t.first_key + j);
      const unsigned char* keys = head + token * c.dim * c.layout.element_bytes;
      const float* scales = nullptr;
      if (c.layout.is_quantized)
        scales = reinterpret_cast<const float*>(head + c.layout.key_scales_at()) + token;
      for (std::int64_t r = 0; r < rows.count; r += 4) score_rows(keys, scales, r, t.s + j * at.rows + r);
    }
  }

  // For stretches that hide nothing from any row.
  void add_values(const Scores& t, float* partial) const {
    for (std::int64_t j = 0; j < t.keys; j += tile) {
      const std::int64_t token = (t.first_key + j) % c.layout.page_size;
      const unsigned char* head = head_in_page<S>(c, rows.b, rows.kv_head, t.first_key + j);
      const unsigned char* values =
          head + c.layout.values_at() + token * c.layout.value_width() * c.layout.element_bytes;
      const float* p = t.s + j * at.rows;
      for (std::int64_t r = 0; r < rows.count; r += 4)
        add_rows({values, p + r, least(tile, t.keys - j)}, r, partial);
    }
  }

 private:
  void score_rows(const unsigned char* keys, const float* scales, std::int64_t r, float* s) const {
    const std::int64_t left = rows.count - r;
    if (left >= 4)
      score_typed<4>(keys, scales, r, s);
    else if (left == 3)
      score_typed<3>(keys, scales, r, s);
    else if (left == 2)
      score_typed<2>(keys, scales, r, s);
    else
      score_typed<1>(keys, scales, r, s);
  }

  template <int n>
  void score_typed(const unsigned char* keys, const float* scales, std::int64_t r, float* s) const {
    if (c.k.type == Type::f32) return score_tile<Type::f32, n>(keys, scales, r, s);
    if (c.k.type == Type::bf16) return score_tile<Type::bf16, n>(keys, scales, r, s);
    if (c.k.type == Type::f16) return score_tile<Type::f16, n>(keys, scales, r, s);
    return score_tile<Type::i8, n>(keys, scales, r, s);
  }

  // s(16 keys, rows r ... r + 3) of `n` rows; the rows that are missing score 0.
  template <Type type, int n>
  void score_tile(const unsigned char* keys, const float* scales, std::int64_t r, float* s) const {
    F sum[n][line];
    for (int row = 0; row < n; ++row)
      for (int v = 0; v < line; ++v) sum[row][v] = S::fill(0.0f);
    const float* q = rows.q + r;
    for (std::int64_t d = 0; d < c.dim; ++d, q += at.rows, keys += tile * bytes_of_type<type>) {
      const auto four = S::load_four(q);
      F x[line];
      load_sixteen<S, type>(keys, x);
      fma_rows<n>(x, four, sum);
    }
    float turned[4][tile] = {};
    for (int row = 0; row < n; ++row)
      for (int v = 0; v < line; ++v) {
        if (type == Type::i8) sum[row][v] = S::mul(sum[row][v], S::load(scales + v * S::lanes));
        S::store(turned[row] + v * S::lanes, sum[row][v]);
      }
    for (std::int64_t j = 0; j < tile; j += 4) {
      const float* const corner[4] = {turned[0] + j, turned[1] + j, turned[2] + j, turned[3] + j};
      S::transpose(corner, s + j * at.rows, at.rows);
    }
  }

  template <int n>
  static void fma_rows(const F (&x)[line], const typename S::Four& four, F (&sum)[n][line]) {
    for (int v = 0; v < line; ++v) {
      sum[0][v] = S::template fma_lane<0>(x[v], four, sum[0][v]);
      if constexpr (n > 1) sum[1][v] = S::template fma_lane<1>(x[v], four, sum[1][v]);
      if constexpr (n > 2) sum[2][v] = S::template fma_lane<2>(x[v], four, sum[2][v]);
      if constexpr (n > 3) sum[3][v] = S::template fma_lane<3>(x[v], four, sum[3][v]);
    }
  }

  struct ValueTile {
    const unsigned char* values;
    const float* p;  // (keys, rows)
    std::int64_t keys;
  };

  void add_rows(const ValueTile& t, std::int64_t r, float* partial) const {
    const std::int64_t left = rows.count - r;
    if (left >= 4)
      add_typed<4>(t, r, partial);
    else if (left == 3)
      add_typed<3>(t, r, partial);
    else if (left == 2)
      add_typed<2>(t, r, partial);
    else
      add_typed<1>(t, r, partial);
  }

  template <int n>
  void add_typed(const ValueTile& t, std::int64_t r, float* partial) const {
    if (c.v.type == Type::f32) return add_tile<Type::f32, n>(t, r, partial);
    if (c.v.type == Type::bf16) return add_tile<Type::bf16, n>(t, r, partial);
    if (c.v.type == Type::f16) return add_tile<Type::f16, n>(t, r, partial);
    return add_tile<Type::i8, n>(t, r, partial);
  }

  template <Type type, int n>
  void add_tile(const ValueTile& t, std::int64_t r, float* partial) const {
    for (std::int64_t d = 0; d < c.layout.value_width(); d += tile) {
      const unsigned char* x = t.values + d * tile * bytes_of_type<type>;
      float* out = at.out(partial, r) + d;
      F sum[n][line];
      for (int row = 0; row < n; ++row)
        for (int v = 0; v < line; ++v) sum[row][v] = S::load(out + row * at.dims + v * S::lanes);
      const float* p = t.p;
      for (std::int64_t j = 0; j < t.keys; ++j, p += at.rows, x += tile * bytes_of_type<type>) {
        const auto four = S::load_four(p);
        F value[line];
        load_sixteen<S, type>(x, value);
        fma_rows<n>(value, four, sum);
      }
      for (int row = 0; row < n; ++row)
        for (int v = 0; v < line; ++v) S::store(out + row * at.dims + v * S::lanes, sum[row][v]);
    }
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const PartialLayout<S>& at;
};

}  // namespace heed::cpu
