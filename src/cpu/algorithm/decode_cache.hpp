// SPDX-License-Identifier: Apache-2.0
// Decode over a cache's pages (cache/layout.hpp): both halves are single streams. Scores have sixteen keys on
// the lanes, outputs sixteen dimensions, so no lane is idle however few rows there are; each sum is the same
// FMA chain as everywhere.
#pragma once
#include <cstdint>

#include "cpu/algorithm/decode_state.hpp"
#include "cpu/algorithm/lines.hpp"

namespace heed::cpu {

template <class S>
class DecodeCache {
  static constexpr std::int64_t tile = PageLayout::tile;
  static_assert(tile == line_elements);

 public:
  explicit DecodeCache(const DecodeRows<S>& task_rows) : rows(task_rows), c(rows.c), at(rows.at) {}

  // t begins with a whole tile; scores beyond its keys are never read.
  void score(const Scores& t) const {
    with_type(c.k.type, [&](auto type) { score_typed<type.value>(t); });
  }

  // For stretches that hide nothing from any row.
  void add_values(const Scores& t, float* partial) const {
    with_type(c.v.type, [&](auto type) { add_typed<type.value>(t, partial); });
  }

 private:
  template <Type type>
  void score_typed(const Scores& t) const {
    for (std::int64_t j = 0; j < t.keys; j += tile) {
      const std::int64_t key = t.first_key + j;
      const unsigned char* ahead = j + tile < t.keys ? keys_of(key + tile) : values_of(t.first_key);
      const float* scales = c.layout.is_quantized ? scales_of(key) : nullptr;
      for (std::int64_t r = 0; r < rows.count; r += 4)
        with_rows(rows.count - r, [&](auto n) {
          score_tile<type, n.value>({keys_of(key), ahead, scales}, r, t.s + j * at.rows + r);
        });
    }
  }

  template <Type type>
  void add_typed(const Scores& t, float* partial) const {
    for (std::int64_t j = 0; j < t.keys; j += tile) {
      const std::int64_t key = t.first_key + j;
      // Beyond the stretch come the next block's keys, if there are any.
      const std::int64_t next = least(key + tile, c.cached[rows.b].length - 1);
      const unsigned char* ahead = j + tile < t.keys ? values_of(key + tile) : keys_of(next / tile * tile);
      const float* p = t.s + j * at.rows;
      for (std::int64_t r = 0; r < rows.count; r += 4)
        with_rows(rows.count - r, [&](auto n) {
          add_tile<type, n.value>({values_of(key), ahead, p + r, least(tile, t.keys - j)}, r, partial);
        });
    }
  }

  // Where a tile lies, by its first key.
  const unsigned char* keys_of(std::int64_t key) const {
    return head_in_page<S>(c, rows.b, rows.kv_head, key) +
           key % c.layout.page_size * c.dim * c.layout.element_bytes;
  }
  const unsigned char* values_of(std::int64_t key) const {
    return head_in_page<S>(c, rows.b, rows.kv_head, key) + c.layout.values_at() +
           key % c.layout.page_size * c.layout.value_width() * c.layout.element_bytes;
  }
  const float* scales_of(std::int64_t key) const {
    const void* scales = head_in_page<S>(c, rows.b, rows.kv_head, key) + c.layout.key_scales_at();
    return static_cast<const float*>(scales) + key % c.layout.page_size;
  }

  struct KeyTile {
    const unsigned char *keys, *ahead;
    const float* scales;
  };

  // s(16 keys, rows r ... r + 3) of `n` rows; the rows that are missing score 0.
  template <Type type, int n>
  void score_tile(const KeyTile& t, std::int64_t r, float* s) const {
    float sum[4][tile] = {};
    add_lines<S, type, n>({rows.q + r, at.rows, t.keys, c.dim, sum[0], tile, t.ahead});
    for (int row = 0; type == Type::i8 && row < n; ++row)
      for (std::int64_t j = 0; j < tile; j += S::lanes)
        S::store(sum[row] + j, S::mul(S::load(sum[row] + j), S::load(t.scales + j)));
    for (std::int64_t j = 0; j < tile; j += 4) {
      const float* const corner[4] = {sum[0] + j, sum[1] + j, sum[2] + j, sum[3] + j};
      S::transpose(corner, s + j * at.rows, at.rows);
    }
  }

  struct ValueTile {
    const unsigned char *values, *ahead;
    const float* p;  // (keys, rows)
    std::int64_t keys;
  };

  template <Type type, int n>
  void add_tile(const ValueTile& t, std::int64_t r, float* partial) const {
    const std::int64_t width = c.layout.value_width();
    constexpr std::int64_t bytes = tile * bytes_of_type<type>;  // of a line
    for (std::int64_t d = 0; d < width; d += tile)
      add_lines<S, type, n>(
          {t.p, at.rows, t.values + d * bytes, t.keys, at.out(partial, r) + d, at.dims, t.ahead + d * bytes});
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const PartialLayout<S>& at;
};

}  // namespace heed::cpu
