// SPDX-License-Identifier: Apache-2.0
// What happens to a score between the product and the softmax. A stage says of a tile of keys whether a warp's rows see any of
// it, before the products, and then turns products into what enters the softmax: -inf for a key that is not seen.
#pragma once
#include <cstdint>

#include "cuda/algorithm/visible.cuh"
#include "general/dropout.cuh"
#include "general/products.cuh"
#include "general/rows.cuh"
#include "general/tanh.cuh"
#include "general/visits.cuh"

namespace heed::cuda::general {

// This thread's keys of a tile and this thread's rows of a warp.
template <class Shape>
struct Place {
  int warp_row, key_warp;

  // The first of keys first + 8 n + {0, 1}.
  HEED_DEVICE int first_key(int tile) const {
    return tile * Shape::tile_keys + key_warp * Shape::warp_keys + lane_index() % 4 * 2;
  }
  HEED_DEVICE int warp_first_key(int tile) const { return tile * Shape::tile_keys + key_warp * Shape::warp_keys; }
  HEED_DEVICE int row(int m, int r) const { return warp_row * Shape::warp_rows + m * 16 + r * 8 + lane_index() / 4; }
};

// Nothing but ranges: products stay products, and the softmax scales them.
template <class Shape>
class RangesOnly {
 public:
  static constexpr bool is_scaled = false, drops = false;

  HEED_DEVICE RangesOnly(const Call&, const BlockFacts<Shape>& of, Place<Shape> where)
      : rows(of.rows), ranges(of.of_warp[where.warp_row]), place(where) {}

  HEED_DEVICE bool sees(int tile) { return ranges.some_see(place.warp_first_key(tile), Shape::warp_keys); }

  HEED_DEVICE void apply(Scores<Shape>& s, int tile) const {
    if (ranges.all_see(place.warp_first_key(tile), Shape::warp_keys)) return;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowFacts& row = rows[place.row(m, r)];
        const int first = place.first_key(tile), begin = row.begin - first, end = row.end - first;
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * n + e < begin || 8 * n + e >= end) s[m][n][2 * r + e] = minus_infinity;
      }
  }

  HEED_DEVICE void drop(Scores<Shape>&, int) const {}
  HEED_DEVICE static float scale(const Call& c) { return c.scale_log2e; }
  // Whether the row may have seen a key: where its sum is 0 all the same, f32 could not hold its scores.
  HEED_DEVICE static bool may_see(const RowFacts& row) { return row.begin < row.end; }

 private:
  const RowFacts* const rows;
  const TileRanges& ranges;
  const Place<Shape> place;
};

// Every option there is.
template <class Shape>
class EveryOption {
  static constexpr int keys = 2 * Shape::key_tiles;  // of a thread
  static_assert(keys <= 32);
  using Bits = std::uint32_t;  // bit 2 n + e: key first + 8 n + e
  static constexpr Bits all_bits = keys == 32 ? ~0u : (1u << keys) - 1;

 public:
  static constexpr bool is_scaled = true, drops = true;

  HEED_DEVICE EveryOption(const Call& call, const BlockFacts<Shape>& of, Place<Shape> where)
      : c(call), tile_rows(of.tile), rows(of.rows), ranges(of.of_warp[where.warp_row]), place(where) {}

  // Which of this thread's pairs are seen.
  HEED_DEVICE bool sees(int tile) {
    const int first = place.warp_first_key(tile);
    if (!ranges.some_see(first, Shape::warp_keys)) return false;
    const bool all_in_range = ranges.all_see(first, Shape::warp_keys) && c.gap_count == 0;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) visible[m][r] = all_in_range ? all_bits : in_range(rows[place.row(m, r)], place.first_key(tile));
    if (c.mask_count > 0) apply_masks(tile);
    if (c.document_count > 0) apply_documents(tile);
    bool some = false;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) some = some || visible[m][0] != 0 || visible[m][1] != 0;
    return any_of_warp(some);
  }

  HEED_DEVICE void apply(Scores<Shape>& s, int tile) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = spoil_infinity(s[m][n][e] * c.scale_log2e);
    if (c.softcap_log2e != 0) cap(s);
    if (c.alibi.of_heads) add_alibi(s, tile);
    if (c.bias.data) add_bias(s, tile);
    hide(s);
  }

  // Weights that drop become 0; what the others are multiplied with waits for the row's end.
  HEED_DEVICE void drop(Scores<Shape>& s, int tile) const {
    if (c.drop_below == 0) return;
    const int first = place.first_key(tile);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      const RowFacts &a = rows[place.row(m, 0)], &b = rows[place.row(m, 1)];
      const Droppers droppers(c, tile_rows.b, a.i, a.h, b.i, b.h);
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; ++n) droppers.apply(s[m][n], first + 8 * n);
    }
  }

  HEED_DEVICE static float scale(const Call&) { return 1.0f; }
  // A visible score that f32 cannot hold is NaN, so that a sum of 0 is a row that saw no key.
  HEED_DEVICE static bool may_see(const RowFacts&) { return false; }

 private:
  HEED_DEVICE Query query(const RowFacts& row) const { return {tile_rows.b, row.h, row.i, tile_rows.first_query + row.i}; }

  HEED_DEVICE Bits in_range(const RowFacts& row, int first) const {
    Bits bits = 0;
    const int front = min(static_cast<int>(c.front), row.end);
#pragma unroll
    for (int n = 0; n < keys; ++n) {
      const int j = first + n / 2 * 8 + n % 2;
      const bool is_seen = j < row.end && (j >= row.begin || j < front);
      bits |= Bits{is_seen} << n;
    }
    for (std::int64_t g = 0; g < c.gap_count; ++g) {
      const Gap gap = c.gaps[g * c.batch + tile_rows.b];
#pragma unroll
      for (int n = 0; n < keys; ++n) {
        const std::int64_t j = first + n / 2 * 8 + n % 2;
        if (j >= gap.front && j < row.i + gap.first_offset) bits &= ~(Bits{1} << n);
      }
    }
    return bits;
  }

  HEED_DEVICE void apply_masks(int tile) {
    const int first = place.first_key(tile);
    for (std::int64_t number = 0; number < c.mask_count; ++number) {
      const BoolTensor mask = c.masks[number];
      const int before = mask.is_tree ? tile_rows.keys - tile_rows.queries : 0;  // S18: keys that have no column
      const bool is_one_row = mask.where.length == 0 && mask.where.heads == 0;
      Bits bits = 0;
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (!is_one_row || (m == 0 && r == 0)) bits = mask_bits(mask, rows[place.row(m, r)], first - before);
          visible[m][r] &= bits;
        }
    }
  }

  // Of columns [first, ...) of a row; what is no column hides nothing.
  HEED_DEVICE Bits mask_bits(const BoolTensor& mask, const RowFacts& row, int first) const {
    const Row of = row_of(mask.where, query(row));
    const auto* at = static_cast<const std::uint8_t*>(of.data) + of.first + first * of.step;
    const int columns = mask.is_tree ? tile_rows.queries : tile_rows.keys, left = columns - first;
    const bool in_pairs = of.step == 1 && reinterpret_cast<std::uintptr_t>(at) % 2 == 0 && first >= 0;
    Bits bits = 0;
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; ++n) {
      std::uint32_t pair = mask.visible_when ? 0xffffu : 0;
      if (in_pairs && 8 * n + 1 < left)
        pair = *reinterpret_cast<const std::uint16_t*>(at + 8 * n);
      else
        pair = pair_at(at, of.step, 8 * n, -first, left, pair);
      const bool low = (pair & 0xff) != 0, high = (pair >> 8) != 0;
      bits |= Bits{low == mask.visible_when} << (2 * n) | Bits{high == mask.visible_when} << (2 * n + 1);
    }
    return bits;
  }
  HEED_DEVICE static std::uint32_t pair_at(const std::uint8_t* at, std::int64_t step, int n, int begin, int end, std::uint32_t none) {
    const std::uint32_t low = n >= begin && n < end ? at[n * step] : none & 0xff;
    const std::uint32_t high = n + 1 >= begin && n + 1 < end ? at[(n + 1) * step] : none & 0xff;
    return low | high << 8;
  }

  HEED_DEVICE void apply_documents(int tile) {
    const int first = place.first_key(tile);
    for (std::int64_t number = 0; number < c.document_count; ++number) {
      const DocumentIds d = c.documents[number];
      const std::int32_t* of_keys = d.keys + tile_rows.b * d.keys_step;
      std::int32_t ids[keys];
#pragma unroll
      for (int n = 0; n < keys; ++n) {
        const int j = first + n / 2 * 8 + n % 2;
        ids[n] = of_keys[min(j, tile_rows.keys - 1)];
      }
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Document own = document_of(c, d, tile_rows, rows[place.row(m, r)].i);
          Bits bits = 0;
#pragma unroll
          for (int n = 0; n < keys; ++n) bits |= Bits{ids[n] == own.id} << n;
          visible[m][r] &= own.is_any ? bits : 0;
        }
    }
  }

  HEED_DEVICE void cap(Scores<Shape>& s) const {
    const float reciprocal = 1.0f / c.softcap_log2e, inverse = reciprocal > most_finite ? most_finite : reciprocal;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = c.softcap_log2e * fast_tanh(s[m][n][e] * inverse);
  }

  // As a bias would that holds the products of slope and distance (S21).
  HEED_DEVICE void add_alibi(Scores<Shape>& s, int tile) const {
    const int first = place.first_key(tile);
    const float below = c.bias.data ? __builtin_nanf("") : -most_finite;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowFacts& row = rows[place.row(m, r)];
        const int own = row.i + (c.alibi.queries_are_last ? tile_rows.keys - tile_rows.queries : 0);
        const float slope = -c.alibi.of_heads[row.h], distance = static_cast<float>(own - first);
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * r + e];
            x = fmaf(slope * fabsf(distance - static_cast<float>(8 * n + e)), log2_e, wide_apart(x));
            x = x < -most_finite ? below : x;
          }
      }
  }

  HEED_DEVICE void add_bias(Scores<Shape>& s, int tile) const {
    const int first = place.first_key(tile);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Row bias = row_of(c.bias, query(rows[place.row(m, r)]));
        const bool in_pairs = bias.step == 1 && bias.type != Type::f32 && bias.first % 2 == 0 && reinterpret_cast<std::uintptr_t>(bias.data) % 4 == 0;
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n) {
          const int j = first + 8 * n;
          const bool low = visible[m][r] >> (2 * n) & 1, high = visible[m][r] >> (2 * n + 1) & 1;
          float b[2] = {0, 0};
          if (in_pairs && high) {  // then the pair lies within the row
            const std::uint32_t both = *reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint16_t*>(bias.data) + bias.first + j);
            b[0] = bias.type == Type::bf16 ? __uint_as_float(both << 16) : from_f16(static_cast<std::uint16_t>(both));
            b[1] = bias.type == Type::bf16 ? __uint_as_float(both & 0xffff0000u) : from_f16(static_cast<std::uint16_t>(both >> 16));
          } else {
            if (low) b[0] = bias_at(bias, j);
            if (high) b[1] = bias_at(bias, j + 1);
          }
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * r + e];
            x = b[e] < -most_finite ? minus_infinity : max_or_nan(-most_finite, fmaf(b[e], log2_e, wide_apart(x)));
          }
        }
      }
  }
  HEED_DEVICE static float bias_at(const Row& bias, int j) {
    const std::int64_t at = bias.first + j * bias.step;
    if (bias.type == Type::f32) return static_cast<const float*>(bias.data)[at];
    const std::uint16_t x = static_cast<const std::uint16_t*>(bias.data)[at];
    return bias.type == Type::bf16 ? from_bf16(x) : from_f16(x);
  }
  // Beside a bias as low as the lowest number products beyond 2^73 would still count (visible.cuh): they become NaN.
  HEED_DEVICE static float wide_apart(float x) { return fabsf(x) > 0x1p73f ? __builtin_nanf("") : x; }

  HEED_DEVICE void hide(Scores<Shape>& s) const {
    bool all = true;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) all = all && visible[m][0] == all_bits && visible[m][1] == all_bits;
    if (all_of_warp(all)) return;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < keys; ++n)
          if (!(visible[m][r] >> n & 1)) s[m][n / 2][2 * r + n % 2] = minus_infinity;
  }

  const Call& c;
  const RowTile& tile_rows;
  const RowFacts* const rows;
  const TileRanges& ranges;
  const Place<Shape> place;
  Bits visible[Shape::row_tiles][2];
};

}  // namespace heed::cuda::general
