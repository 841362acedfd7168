// SPDX-License-Identifier: Apache-2.0
// What happens to a score between the product and the softmax. A stage says of a tile of keys whether a
// warp's rows see any of it, before the products, and then makes of products what enters the softmax: -inf
// for a key that is not seen.
#pragma once
#include <cstdint>

#include "cuda/general/rows.cuh"
#include "cuda/general/state.cuh"
#include "cuda/tile/row.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda::general {

// Of two rows of a thread: rows l / 4 and l / 4 + 8 of a row tile.
class Droppers {
 public:
  HEED_DEVICE Droppers(const Call& c, int b, const RowFacts& first, const RowFacts& second)
      : seed(c.seed),
        below(static_cast<std::uint32_t>(c.drop_below)),
        is_odd(lane_index() % 2 != 0),
        query(static_cast<std::uint32_t>(is_odd ? second.i : first.i)),
        head(static_cast<std::uint32_t>(b * static_cast<int>(c.heads) + (is_odd ? second.h : first.h))) {}

  // weights: keys j and j + 1 of the first row, then of the second.
  HEED_DEVICE void apply(float (&weights)[4], int j) const {
    const auto [x] = softmax::dropout_words(seed, head, query, j / 4);
    // An even lane has keys 4 n and 4 n + 1 and computed its first row; the odd one beside it the others, and
    // its second.
    const std::uint32_t sent[2] = {is_odd ? x[0] : x[2], is_odd ? x[1] : x[3]};
    const std::uint32_t got[2] = {shuffle_xor(sent[0], 1), shuffle_xor(sent[1], 1)};
    const std::uint32_t own[2] = {is_odd ? x[2] : x[0], is_odd ? x[3] : x[1]};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if ((is_odd ? got[e] : own[e]) < below) weights[e] = 0;
      if ((is_odd ? own[e] : got[e]) < below) weights[2 + e] = 0;
    }
  }

 private:
  const std::uint64_t seed;
  const std::uint32_t below;  // less than 2^32, as the probability is less than 1
  const bool is_odd;
  const std::uint32_t query, head;
};

HEED_DEVICE float fast_tanh(float x) {
  constexpr float limit = 7.99881172180175781f;  // from here on it is 1
  const float y = fminf(fmaxf(x, -limit), limit), z = y * y;
  float p = fmaf(z, -2.76076847742355e-16f, 2.00018790482477e-13f);
  p = fmaf(p, z, -8.60467152213735e-11f);
  p = fmaf(p, z, 5.12229709037114e-08f);
  p = fmaf(p, z, 1.48572235717979e-05f);
  p = fmaf(p, z, 6.37261928875436e-04f);
  p = fmaf(p, z, 4.89352455891786e-03f);
  float q = fmaf(z, 1.19825839466702e-06f, 1.18534705686654e-04f);
  q = fmaf(q, z, 2.26843463243900e-03f);
  q = fmaf(q, z, 4.89352518554385e-03f);
  return x != x ? x : y * p * fast_reciprocal(q);
}

// Nothing but ranges: products stay products, and the softmax scales them.
template <class Shape>
class RangesOnly {
 public:
  static constexpr bool drops = false;
  using Walk = Consecutive<Shape>;

  HEED_DEVICE RangesOnly(const Call&, const BlockFacts<Shape>& of, Place<Shape> where)
      : rows(of.rows),
        tiles(of.tiles_of_warp[where.key_warp * Shape::row_warps + where.warp_row]),
        place(where) {}

  HEED_DEVICE bool sees(int tile) const { return tile >= tiles.some.begin && tile < tiles.some.end; }
  HEED_DEVICE IntRange seen_tiles() const { return tiles.some; }
  HEED_DEVICE IntRange whole_tiles() const { return tiles.all; }

  HEED_DEVICE void apply(Scores<Shape>& s, int tile) const {
    if (tile >= tiles.all.begin && tile < tiles.all.end) return;
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
  // A row that sees a key and has no sum all the same is one that f32 could not hold.
  template <class State>
  HEED_DEVICE void close(State& state) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowFacts& row = rows[place.row(m, r)];
        if (state.sum[m][r] == 0 && row.begin < row.end) state.end_without_sum(m, r);
      }
  }

 private:
  const RowFacts* const rows;
  const WarpTiles& tiles;
  const Place<Shape> place;
};

// Any options, as far as the features go: masks of booleans, documents, the front of a window and gaps;
// softcap and ALiBi; a bias; dropout. Fewer features leave registers for longer tiles, and exponentials among
// the products.
template <class Shape, unsigned features>
class Options {
  static constexpr bool masks = features & masking, changes_scores = features & (changing | biasing),
                        biases = features & biasing;
  static constexpr int keys = 2 * Shape::key_tiles;  // of a thread
  static_assert(keys <= 32);
  using Bits = std::uint32_t;  // bit 2 n + e: key first + 8 n + e
  static constexpr Bits all_bits = keys == 32 ? ~0u : (1u << keys) - 1;

 public:
  static constexpr bool drops = features & dropping;
  using Walk = Visits<Shape>;

  HEED_DEVICE Options(const Call& call, const BlockFacts<Shape>& of, Place<Shape> where)
      : c(call),
        tile_rows(of.tile),
        rows(of.rows),
        ranges(of.of_warp[where.warp_row]),
        tiles(of.tiles_of_warp[where.key_warp * Shape::row_warps + where.warp_row]),
        place(where) {}

  // Which of this thread's pairs are seen. What the bias adds to them is on its way afterwards.
  HEED_DEVICE bool sees(int tile) {
    bool all_in_range;
    if (!masks || (c.front == 0 && c.gap_count == 0)) {
      if (tile < tiles.some.begin || tile >= tiles.some.end) return false;
      all_in_range = tile >= tiles.all.begin && tile < tiles.all.end;
    } else {
      const int first = place.warp_first_key(tile);
      if (!ranges.some_see(first, Shape::warp_keys)) return false;
      all_in_range = ranges.all_see(first, Shape::warp_keys) && c.gap_count == 0;
    }
    look(tile, all_in_range);
    Bits some = 0;
    each_row([&](int m, int r) { some |= visible[m][r]; });
    if (!warp_any(some != 0)) return false;
    if (biases && c.bias.data) fetch_bias(tile);
    return true;
  }
  // The same where scores of keys that nobody sees are of interest, too.
  HEED_DEVICE void inspect(int tile) {
    look(tile, false);
    if (biases && c.bias.data) fetch_bias(tile);
  }

  HEED_DEVICE void apply(Scores<Shape>& s, int tile) {
    if (changes_scores && changes(c)) scale_scores(s), cap_scores(s), bias_scores(s, tile);
    bool all = true;
    each_row([&](int m, int r) {
      saw |= Bits{visible[m][r] != 0} << (2 * m + r);
      all = all && visible[m][r] == all_bits;
    });
    if (!all_of_warp(all)) hide(s);
  }
  // Products become scores of base 2, stage by stage.
  HEED_DEVICE void scale_scores(Scores<Shape>& s) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] *= c.scale_log2e;
  }
  HEED_DEVICE void cap_scores(Scores<Shape>& s) const {
    if (c.softcap_log2e != 0) cap(s);
  }
  HEED_DEVICE void bias_scores(Scores<Shape>& s, int tile) {
    if (c.alibi.of_heads) add_alibi(s, tile);
    if (biases && c.bias.data) add_bias(s);
  }
  HEED_DEVICE void hide(Scores<Shape>& s) const {
    each_row([&](int m, int r) {
#pragma unroll
      for (int n = 0; n < keys; ++n)
        if (!(visible[m][r] >> n & 1)) s[m][n / 2][2 * r + n % 2] = minus_infinity;
    });
  }

  // Which keys of this thread's are seen: bit 2 n + e is key first_key + 8 n + e.
  HEED_DEVICE Bits seen_keys(int m, int r) const { return visible[m][r]; }

  // Weights that drop become 0; what the others are multiplied with waits for the row's end.
  HEED_DEVICE void drop(Scores<Shape>& s, int tile) const {
    if (!drops || c.drop_below == 0) return;
    const int first = place.first_key(tile);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) {
      const RowFacts &a = rows[place.row(m, 0)], &b = rows[place.row(m, 1)];
      const Droppers droppers(c, tile_rows.b, a, b);
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; ++n) droppers.apply(s[m][n], first + 8 * n);
    }
  }

  // Where something changes scores they are of base 2 afterwards; else the softmax scales them.
  HEED_DEVICE static bool changes(const Call& c) {
    return c.softcap_log2e != 0 || c.alibi.of_heads || c.bias.data || !softmax_scales(c);
  }
  HEED_DEVICE static float scale(const Call& c) {
    return changes_scores && changes(c) ? 1.0f : c.scale_log2e;
  }

  // A row that saw a key and has no sum all the same is one that f32 could not hold.
  template <class State>
  HEED_DEVICE void close(State& state) {
    Bits of_row = saw | shuffle_xor(saw, 1);
    of_row |= shuffle_xor(of_row, 2);
    each_row([&](int m, int r) {
      if (state.sum[m][r] == 0 && (of_row >> (2 * m + r) & 1)) state.end_without_sum(m, r);
    });
    saw = 0;
  }

 private:
  template <class Each>
  HEED_DEVICE static void each_row(const Each& each) {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) each(m, 0), each(m, 1);
  }
  HEED_DEVICE void look(int tile, bool all_in_range) {
    each_row([&](int m, int r) {
      visible[m][r] = all_in_range ? all_bits : in_range(rows[place.row(m, r)], place.first_key(tile));
    });
    if (masks && c.mask_count > 0) apply_masks(tile);
    if (masks && scans_documents(c)) apply_documents(tile);
  }
  HEED_DEVICE Query query(const RowFacts& row) const {
    return {tile_rows.b, row.h, row.i, tile_rows.first_query + row.i};
  }

  HEED_DEVICE Bits in_range(const RowFacts& row, int first) const {
    Bits bits = 0;
    const int front = masks ? static_cast<int>(min(c.front, std::int64_t{row.end})) : 0;
#pragma unroll
    for (int n = 0; n < keys; ++n) {
      const int j = first + n / 2 * 8 + n % 2;
      const bool is_seen = j < row.end && (j >= row.begin || j < front);
      bits |= Bits{is_seen} << n;
    }
    for (std::int64_t g = 0; masks && g < c.gap_count; ++g) {
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
    for (int number = 0; number < static_cast<int>(c.mask_count); ++number) {
      const BoolTensor& mask = c.masks[number];
      const Tensor where = mask.where;
      const int before =
          mask.is_tree ? tile_rows.keys - tile_rows.queries : 0;  // S18: keys that have no column
      const int columns = (mask.is_tree ? tile_rows.queries : tile_rows.keys) - (first - before);
      const bool is_one_row = where.stride.length == 0 && where.stride.heads == 0, when = mask.visible_when;
      const bool in_pairs = where.stride.dim == 1 && before == 0 &&
                            (where.stride.batch | where.stride.heads | where.stride.length |
                             reinterpret_cast<std::int64_t>(where.data)) %
                                    2 ==
                                0;
      Bits bits = 0;
      each_row([&](int m, int r) {
        if (!is_one_row || (m == 0 && r == 0)) {
          const RowFacts& row = rows[place.row(m, r)];
          const std::int64_t at = number == 0 ? row.mask : row_of(where, query(row)).first;
          const auto* from =
              static_cast<const std::uint8_t*>(where.data) + at + (first - before) * where.stride.dim;
          bits = in_pairs && columns >= 8 * Shape::key_tiles
                     ? pairs_of_mask(from, when)
                     : elements_of_mask(from, where.stride.dim, before - first, columns, when);
        }
        visible[m][r] &= bits;
      });
    }
  }
  HEED_DEVICE static Bits pairs_of_mask(const std::uint8_t* from, bool when) {
    Bits bits = 0;
    std::uint16_t pair[Shape::key_tiles];
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; ++n)
      pair[n] = *reinterpret_cast<const std::uint16_t*>(from + 8 * n);
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; n += 2) {
      const std::uint32_t four = pair[n] | std::uint32_t{pair[n + 1]} << 16;
      const std::uint32_t high =
          (((four & 0x7f7f7f7fu) + 0x7f7f7f7fu) | four) & 0x80808080u;  // of every byte but 0
      bits |= ((high >> 7) * 0x204081u >> 21 & 15) << (2 * n);          // side by side
    }
    return when ? bits : ~bits & all_bits;
  }
  // Columns [begin, end) of the thread's first key's; what is no column hides nothing.
  static __device__ __noinline__ Bits elements_of_mask(const std::uint8_t* from, std::int64_t step, int begin,
                                                       int end, bool when) {
    Bits bits = 0;
    for (int n = 0; n < keys; ++n) {
      const int column = n / 2 * 8 + n % 2;
      const bool is_seen = column < begin || column >= end || (from[column * step] != 0) == when;
      bits |= Bits{is_seen} << n;
    }
    return bits;
  }

  HEED_DEVICE void apply_documents(int tile) {
    const int first = place.first_key(tile);
    for (int number = 0; number < static_cast<int>(c.document_count); ++number) {
      const DocumentIds d = c.documents[number];
      const std::int32_t* of_keys = d.keys + tile_rows.b * d.keys_step;
      std::int32_t ids[keys];
#pragma unroll
      for (int n = 0; n < keys; ++n) ids[n] = of_keys[min_of(first + n / 2 * 8 + n % 2, tile_rows.keys - 1)];
      each_row([&](int m, int r) {
        const Document own = document_of(d, tile_rows, rows[place.row(m, r)].i);
        Bits bits = 0;
#pragma unroll
        for (int n = 0; n < keys; ++n) bits |= Bits{ids[n] == own.id} << n;
        visible[m][r] &= own.is_any ? bits : 0;
      });
    }
  }

  HEED_DEVICE void cap(Scores<Shape>& s) const {
    const float reciprocal = 1.0f / c.softcap_log2e,
                inverse = reciprocal > max_finite ? max_finite : reciprocal;
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
    const float below = biases && c.bias.data ? __builtin_nanf("") : -max_finite;
    each_row([&](int m, int r) {
      const RowFacts& row = rows[place.row(m, r)];
      const int own = row.i + (c.alibi.queries_are_last ? tile_rows.keys - tile_rows.queries : 0);
      const float slope = -c.alibi.of_heads[tile_rows.b * c.alibi.step + row.h],
                  distance = static_cast<float>(own - first);
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[m][n][2 * r + e];
          x = fmaf(slope * fabsf(distance - static_cast<float>(8 * n + e)), log2_e, wide_apart(x));
          x = x < -max_finite ? below : x;
        }
    });
  }

  // The bias of this thread's keys: 16-bit pairs as they lie, while products are computed. Others are read
  // when they are needed.
  HEED_DEVICE bool bias_in_pairs() const {
    return c.bias.stride.dim == 1 && c.bias.type != Type::f32 &&
           (c.bias.stride.batch | c.bias.stride.heads | c.bias.stride.length |
            (reinterpret_cast<std::int64_t>(c.bias.data) >> 1)) %
                   2 ==
               0;
  }
  HEED_DEVICE void fetch_bias(int tile) {
    const std::int64_t first = place.first_key(tile);
    if (!bias_in_pairs()) {
      each_row(
          [&](int m, int r) { first_bias[m][r] = rows[place.row(m, r)].bias + first * c.bias.stride.dim; });
      return;
    }
    bool all = true;
    each_row([&](int m, int r) { all = all && visible[m][r] == all_bits; });
    const auto from = [&](int m, int r) {
      return static_cast<const std::uint16_t*>(c.bias.data) + rows[place.row(m, r)].bias + first;
    };
    if (all_of_warp(all)) {
      each_row([&](int m, int r) {
        const std::uint16_t* at = from(m, r);
#pragma unroll
        for (int n = 0; n < Shape::key_tiles; ++n)
          bias[m][r][n] = *reinterpret_cast<const std::uint32_t*>(at + 8 * n);
      });
      return;
    }
    each_row([&](int m, int r) {
      const std::uint16_t* at = from(m, r);
#pragma unroll
      for (int n = 0; n < Shape::key_tiles; ++n) {
        const Bits pair = visible[m][r] >> (2 * n) & 3;  // a key that is seen has a bias
        bias[m][r][n] = pair == 0   ? 0u
                        : pair == 1 ? at[8 * n]
                                    : *reinterpret_cast<const std::uint32_t*>(at + 8 * n);
      }
    });
  }

  HEED_DEVICE void add_bias(Scores<Shape>& s) {
    if (bias_in_pairs()) {
      c.bias.type == Type::bf16 ? add_pairs<Type::bf16>(s) : add_pairs<Type::f16>(s);
      return;
    }
    each_row([&](int m, int r) {
#pragma unroll
      for (int n = 0; n < keys; ++n)
        if (visible[m][r] >> n & 1)
          add_bias(s[m][n / 2][2 * r + n % 2], visible[m][r], n,
                   bias_at(c.bias, first_bias[m][r] + (n / 2 * 8 + n % 2) * c.bias.stride.dim));
    });
  }
  template <Type type>
  HEED_DEVICE void add_pairs(Scores<Shape>& s) {
    const auto value = [&](int m, int r, int n) {
      const std::uint32_t both = bias[m][r][n / 2];
      if (type == Type::bf16) return __uint_as_float(n % 2 == 0 ? both << 16 : both & 0xffff0000u);
      return from_f16(static_cast<std::uint16_t>(n % 2 == 0 ? both : both >> 16));
    };
    float lowest = 0;
    each_row([&](int m, int r) {
#pragma unroll
      for (int n = 0; n < keys; ++n) lowest = fminf(lowest, value(m, r, n));
    });
    if (warp_any(lowest < -0x1p126f)) {
      each_row([&](int m, int r) {
#pragma unroll
        for (int n = 0; n < keys; ++n) add_bias(s[m][n / 2][2 * r + n % 2], visible[m][r], n, value(m, r, n));
      });
      return;
    }
    each_row([&](int m, int r) {
#pragma unroll
      for (int n = 0; n < keys; ++n) {
        float& x = s[m][n / 2][2 * r + n % 2];
        x = fmaf(value(m, r, n), log2_e, x);
      }
    });
  }
  // One that f32 in base 2 may not hold. Beside it products beyond 2^73 would still count (tile/row.cuh):
  // they become NaN.
  HEED_DEVICE static void add_bias(float& x, Bits& seen, int n, float b) {
    if (b < -max_finite) seen &= ~(Bits{1} << n);
    x = b < -0x1p126f ? max_or_nan(-max_finite, fmaf(b, log2_e, wide_apart(x))) : fmaf(b, log2_e, x);
  }
  static __device__ __noinline__ float bias_at(const Tensor& bias, std::int64_t at) {
    if (bias.type == Type::f32) return static_cast<const float*>(bias.data)[at];
    const std::uint16_t x = static_cast<const std::uint16_t*>(bias.data)[at];
    return bias.type == Type::bf16 ? from_bf16(x) : from_f16(x);
  }
  HEED_DEVICE static float wide_apart(float x) { return fabsf(x) > 0x1p73f ? __builtin_nanf("") : x; }

  const Call& c;
  const RowTile& tile_rows;
  const RowFacts* const rows;
  const TileRanges& ranges;
  const WarpTiles& tiles;
  const Place<Shape> place;
  Bits visible[Shape::row_tiles][2];
  Bits saw = 0;  // bit 2 m + r: whether this thread saw a key of the row's
  std::uint32_t bias[Shape::row_tiles][2][Shape::key_tiles];
  std::int64_t first_bias[Shape::row_tiles][2];
};

template <class Shape>
using Masked = Options<Shape, masking>;
template <class Shape>
using Changed = Options<Shape, masking | changing>;
template <class Shape>
using Biased = Options<Shape, masking | changing | biasing>;
template <class Shape>
using EveryOption = Options<Shape, masking | changing | biasing | dropping>;

}  // namespace heed::cuda::general
