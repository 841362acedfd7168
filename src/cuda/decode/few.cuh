// SPDX-License-Identifier: Apache-2.0
// Decode for up to 8 rows of a KV head: a team is one warp with mma. Keys are the first operand of a product
// and rows the second, so no row of a matrix instruction is idle.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/decode/plan.hpp"
#include "cuda/decode/work.cuh"
#include "cuda/tile/block.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Tiles of 16 or 32 keys and their values out of the caller's rows: (keys, dims), sixteenths of a row
// swizzled by the key's number, so that eight rows of a matrix are read without conflicts.
template <class Shape>
class FewRows {
  static constexpr int dim = Shape::dim, pieces = dim / 8;  // 16 bytes each, in a row
  static constexpr int sixteen_bytes = 16 * dim * 2;        // of so many keys
  using Team = DecodeTeam<Shape>;

 public:
  // A tile that has arrived. Operands come in twos, as bytes do.
  struct Tile {
    SharedAddress keys;

    // Sixteen keys, from 16 j on, times dimensions [16 k, 16 k + 16), and the next sixteen.
    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int j, int k, int lane) const {
      const SharedAddress from = keys + j * sixteen_bytes;
#pragma unroll
      for (int n = 0; n < 2; ++n) load_matrices(a[n], from + place(lane % 16, 2 * (k + n) + lane / 16));
    }
    // Dimensions [16 d, 16 d + 16) times sixteen keys, and the next sixteen.
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int j, int d, int lane) const {
      const SharedAddress from = keys + Shape::tile_bytes + j * sixteen_bytes;
#pragma unroll
      for (int n = 0; n < 2; ++n)
        load_matrices_transposed(a[n], from + place(lane % 8 + lane / 16 * 8, 2 * (d + n) + lane / 8 % 2));
    }
  };

  HEED_DEVICE FewRows(const DecodeHead& of, int first_tile)
      : head(of),
        thread(Team::thread()),
        has_k(!Shape::padded || thread % pieces * 8 < head.c->dim),
        has_v(!Shape::padded || thread % pieces * 8 < head.c->value_dim) {
    const std::int64_t first = head.first_key + first_tile + thread / pieces;
    k = first_of(head.c->k, first) + (has_k ? thread % pieces * 8 : 0);
    v = first_of(head.c->v, first) + (has_v ? thread % pieces * 8 : 0);
  }

  // The team's next tile: one after the other.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    constexpr int together = Team::threads / pieces,  // keys that a team copies at once
        rounds = Shape::tile_keys / together;
    const std::int64_t k_step = together * head.c->k.stride.length,
                       v_step = together * head.c->v.stride.length;
    const std::uint16_t *from_k = k, *from_v = v;
    k += tile_step * head.c->k.stride.length, v += tile_step * head.c->v.stride.length;
    if (head.is_wanted(tile) && head.is_wanted(tile + Shape::tile_keys - 1)) {
#pragma unroll
      for (int n = 0; n < rounds; ++n, from_k += k_step, from_v += v_step) {
        const SharedAddress at = to + place(thread / pieces + n * together, thread % pieces);
        stream16(at, from_k, has_k), stream16(at + Shape::tile_bytes, from_v, has_v);
      }
      return;
    }
#pragma unroll 1
    for (int n = 0; n < rounds; ++n, from_k += k_step, from_v += v_step) {
      const int key = thread / pieces + n * together;
      const bool is_valid = head.is_wanted(tile + key);
      const SharedAddress at = to + place(key, thread % pieces);
      stream16(at, is_valid ? from_k : head.c->k.data, is_valid && has_k);
      stream16(at + Shape::tile_bytes, is_valid ? from_v : head.c->v.data, is_valid && has_v);
    }
  }

 private:
  static constexpr int tile_step = Shape::teams * Shape::tile_keys;

  HEED_DEVICE static SharedAddress place(int key, int piece) {
    return static_cast<SharedAddress>(key * dim * 2 + (piece ^ key % 8) * 16);
  }
  HEED_DEVICE const std::uint16_t* first_of(const Tensor& t, std::int64_t first_key) const {
    return static_cast<const std::uint16_t*>(t.data) + head.b * t.stride.batch +
           head.kv_head * t.stride.heads + first_key * t.stride.length;
  }

  const DecodeHead head;
  const int thread;            // of the team
  const bool has_k, has_v;     // whether the caller's rows have this thread's dimensions
  const std::uint16_t *k, *v;  // this thread's of the next tile
};

// Where a warp finds the next 16 tokens of its tiles in a cache.
template <class Shape>
class TilePlaces {
 public:
  struct Place {
    const unsigned char *keys, *values, *key_scales;
  };

  HEED_DEVICE TilePlaces(const DecodeHead& head, int first_tile)
      : key_rows(Shape::padded ? static_cast<int>(head.c->dim) : Shape::dim),
        value_rows(Shape::padded ? static_cast<int>(head.c->layout.value_width()) : Shape::dim),
        keys_at(head.kv_head * head.c->layout.head_bytes()),
        values_at(keys_at + head.c->layout.values_at()),
        scales_at(keys_at + head.c->layout.key_scales_at()),
        lookups(head, first_tile) {}

  HEED_DEVICE Place next() {
    constexpr int element = Shape::quantized ? 1 : 2;
    const auto [page, token] = lookups.next();
    return {page + keys_at + token * key_rows * element, page + values_at + token * value_rows * element,
            page + scales_at + token * 4};
  }

  // Of 16 tokens: a dimension's numbers, or as many of a token's.
  const int key_rows, value_rows;

 private:
  const std::int64_t keys_at, values_at, scales_at;  // of the head, in a page
  PageLookups<Shape> lookups;
};

// Out of a cache's pages, as they lie in them, sixteen tokens after sixteen: keys (dims, 16) and values
// (dims / 16, 16, 16), halves swizzled by the row's fourth.
template <class Shape>
class FewPages {
  static constexpr int dim = Shape::dim, sixteen_bytes = 16 * dim * 2;

 public:
  // A tile that has arrived, as that of FewRows.
  struct Tile {
    SharedAddress keys;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int j, int k, int lane) const {
      load(a, keys + j * sixteen_bytes + k * 512, lane);
    }
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int j, int d, int lane) const {
      load(a, keys + Shape::tile_bytes + j * sixteen_bytes + d * 512, lane);
    }

   private:
    HEED_DEVICE static void load(std::uint32_t (&a)[2][4], SharedAddress from, int lane) {
      const SharedAddress row = from + place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
      load_matrices_transposed(a[0], row), load_matrices_transposed(a[1], row + 512);
    }
  };

  HEED_DEVICE FewPages(const DecodeHead& of, int first_tile) : head(of), places(of, first_tile) {}

  // Keys beyond the sequence are masked whatever they are; their values must be 0. A lane has half a row of
  // 32 bytes, and the same of every sixteenth row further.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    const int lane = lane_index(), row = lane / 2;
#pragma unroll
    for (int j = 0; j < Shape::tile_keys; j += 16) {
      const auto from = places.next();
      const SharedAddress at = to + j / 16 * sixteen_bytes + place(row, lane % 2);
      const bool is_wanted = head.is_wanted(tile + j + row);
#pragma unroll
      for (int n = 0; n < dim; n += 16) {
        const bool has_k = !Shape::padded || n + row < places.key_rows,
                   has_v = !Shape::padded || n < places.value_rows;
        prefetch16(at + n * 32, from.keys + lane * 16 + n * 32, has_k);
        prefetch16(at + Shape::tile_bytes + n * 32, from.values + lane * 16 + n * 32, has_v && is_wanted);
      }
    }
  }

 private:
  HEED_DEVICE static SharedAddress place(int row, int half) {
    return static_cast<SharedAddress>(row * 32 + (half ^ row / 4 % 2) * 16);
  }

  const DecodeHead head;
  TilePlaces<Shape> places;
};

// Out of an int8 cache's pages, sixteen tokens after sixteen: keys (dims, 16) and values (dims / 16, 16, 16),
// of which the eight tokens of even number come first; then the scales of both. Matrices of 16-bit numbers
// are loaded whose halves are neighbours, of two keys or of two dimensions: one goes to the first eight rows
// of a product, the other to the last (in_sixteen). Bytes are widened exactly; none that nobody sees is
// infinite, so that 0 times it is 0.
template <class Shape>
class FewBytes {
  static constexpr int dim = Shape::dim, sixteen_bytes = 16 * dim;

 public:
  struct Tile {
    SharedAddress keys;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int j, int k, int lane) const {
      load(a, keys + j * sixteen_bytes + k * 256 + lane * 16);
    }
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int j, int d, int lane) const {
      load(a, keys + Shape::tile_bytes + j * sixteen_bytes + d * 256 + lane * 16);
    }
    // Of this lane's two of sixteen keys.
    HEED_DEVICE float2 key_scales(int j, int lane) const {
      return load_shared_floats(keys + 2 * Shape::tile_bytes + j * 128 + lane / 4 * 8);
    }
    HEED_DEVICE float2 value_scales(int j, int lane) const {
      return load_shared_floats(keys + 2 * Shape::tile_bytes + j * 128 + 64 + lane / 4 * 8);
    }

   private:
    HEED_DEVICE static void load(std::uint32_t (&a)[2][4], SharedAddress from) {
      std::uint32_t bytes[4];
      load_matrices_transposed(bytes, from);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        a[m / 2][m % 2 * 2] = widen_halves<Shape::type>(bytes[m]);
        a[m / 2][m % 2 * 2 + 1] = widen_halves<Shape::type>(bytes[m] >> 8);
      }
    }
  };

  HEED_DEVICE FewBytes(const DecodeHead& of, int first_tile)
      : apart(static_cast<int>(of.c->layout.value_scales_at() - of.c->layout.key_scales_at())),
        places(of, first_tile) {}

  HEED_DEVICE void start(int /*tile*/, SharedAddress to) {
    const int lane = lane_index(), token = lane % 8 * 2 + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < Shape::tile_keys / 16; ++j) {
      const auto from = places.next();
      const SharedAddress at = to + j * sixteen_bytes + lane * 16;
#pragma unroll
      for (int n = 0; n < dim; n += 32) {
        const bool has_k = !Shape::padded || n + lane < places.key_rows,
                   has_v = !Shape::padded || n + lane / 16 * 16 < places.value_rows;
        prefetch16(at + n * 16, from.keys + lane * 16 + n * 16, has_k);
        prefetch16(at + Shape::tile_bytes + n * 16, from.values + lane / 16 * 256 + token * 16 + n * 16,
                   has_v);
      }
      prefetch16_if(lane < 8, to + 2 * Shape::tile_bytes + j * 128 + lane * 16,
                    from.key_scales + lane / 4 * apart + lane % 4 * 16);
    }
  }

 private:
  const int apart;  // bytes from a key's scale to its value's
  TilePlaces<Shape> places;
};

// Of sixteen keys, or dimensions, that which a lane has in the first or the second eight rows of a product.
template <class Shape>
HEED_DEVICE int in_sixteen(int lane, int half) {
  return Shape::quantized ? lane / 4 * 2 + half : lane / 4 + half * 8;
}

// A warp's partial state {max, sum, out} of its rows over its tiles of a unit of keys. In products a lane has
// row lane / 4, where scores are the two rows from 2 (lane % 4) on.
template <class Shape>
class WarpProducts {
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, eights = Shape::tile_keys / 8;  // of keys, in a tile
  using Scores = float[eights][2];                                       // one key of each eight, of two rows

 public:
  HEED_DEVICE void load_queries(const DecodeWork& work) {
    const int r = work.lane / 4;
    const bool is_valid = r < work.count;
    const Row row = row_of(work.c.q, work.query(is_valid ? r : 0));
    const auto* from = static_cast<const std::uint16_t*>(row.data) + row.first + work.lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < dim / 8; ++k) {
      const bool has = is_valid && (!Shape::padded || 8 * k < work.c.dim);
      q[k / 2][k % 2] = has ? *reinterpret_cast<const std::uint32_t*>(from + 8 * k) : 0u;
    }
  }

  // The keys that this thread's rows see; `first_tile`: the warp's.
  HEED_DEVICE void find_seen(const DecodeWork& work, const PackedMask& mask, int first_tile) {
    is_masked = mask.words != nullptr;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int r = work.lane % 4 * 2 + n;
      masks[n].begin(work, mask, r, first_tile);
      const KeyRange range = r < work.count ? visible_keys(work.sequence, work.query_of(r)) : KeyRange{0, 0};
      begin[n] = static_cast<int>(range.begin), end[n] = static_cast<int>(range.end);
    }
  }

  HEED_DEVICE void clear() {
    max[0] = max[1] = minus_infinity, sum[0] = sum[1] = 0;
#pragma unroll
    for (int d = 0; d < dim / 16; ++d)
#pragma unroll
      for (int n = 0; n < 4; ++n) o[d][n] = 0;
  }

  // A tile of keys for all rows.
  template <class Tile>
  HEED_DEVICE void attend_tile(const DecodeWork& work, Tile tile, int first_key) {
    if (is_masked && !take_masks(first_key)) return;
    Scores s;
    find_scores(s, work, tile, first_key);
    if (is_masked) hide_masked(s, work.lane);
    const float first = weigh(0, s), second = weigh(1, s);
    std::uint32_t p[eights];
#pragma unroll
    for (int n = 0; n < eights; ++n) {
      if constexpr (Shape::quantized) scale_weights(s, n, tile.value_scales(n / 2, work.lane));
      p[n] = transposed(pack2<type>(s[n][0], s[n][1]));
    }
    rescale(first, second);
#pragma unroll
    for (int d = 0; d < dim / 16; d += 2) {
      if (Shape::padded && d % Shape::skipped == 0 && 16 * d >= work.c.value_dim) break;
#pragma unroll
      for (int j = 0; j < eights / 2; ++j) {
        std::uint32_t a[2][4];
        tile.load_values(a, j, d, work.lane);
        add_product<type>(o[d], a[0], p[2 * j], p[2 * j + 1]);
        add_product<type>(o[d + 1], a[1], p[2 * j], p[2 * j + 1]);
      }
    }
  }

  // The warp's state, for all teams to read.
  HEED_DEVICE void put_state(const DecodeWork& work, TeamStates<Shape>& to) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int across = 4; across < 32; across *= 2) sum[n] += shuffle_xor(sum[n], across);
      const int r = work.lane % 4 * 2 + n;
      if (work.lane / 4 == 0) to.ends[work.warp][r] = {max[n], sum[n]};
      float* const out = to.out[work.warp][r];
#pragma unroll
      for (int d = 0; d < dim / 16; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          out[16 * d + in_sixteen<Shape>(work.lane, half)] = o[d][n + 2 * half];
    }
  }

 private:
  template <class Tile>
  HEED_DEVICE void find_scores(Scores& s, const DecodeWork& work, Tile tile, int first_key) const {
    // Even and odd steps are summed apart: each product would wait for the last.
    float product[eights / 2][2][4] = {};
#pragma unroll
    for (int k = 0; k < dim / 16; k += 2) {
      if (Shape::padded && k % Shape::skipped == 0 && 16 * k >= work.c.dim) break;
#pragma unroll
      for (int j = 0; j < eights / 2; ++j) {
        std::uint32_t a[2][4];
        tile.load_keys(a, j, k, work.lane);
        add_product<type>(product[j][0], a[0], q[k][0], q[k][1]);
        add_product<type>(product[j][1], a[1], q[k + 1][0], q[k + 1][1]);
      }
    }
#pragma unroll
    for (int j = 0; j < eights / 2; ++j) {
      float2 scales{1, 1};
      if constexpr (Shape::quantized) scales = tile.key_scales(j, work.lane);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        s[2 * j + n / 2][n % 2] = infinity_to_nan((product[j][0][n] + product[j][1][n]) *
                                                  (n < 2 ? scales.x : scales.y) * work.c.scale_log2e);
    }
    if (work.c.softcap_log2e != 0) {
#pragma unroll
      for (int n = 0; n < eights; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) s[n][r] = softcapped_score(work.c.softcap_log2e, s[n][r]);
    }
    if (!work.all_see(first_key, first_key + Shape::tile_keys)) hide_unseen(s, work.lane, first_key);
  }

  // Of a tile, the key of the n-th eight that a lane has.
  HEED_DEVICE static int key_of(int lane, int n) { return n / 2 * 16 + in_sixteen<Shape>(lane, n % 2); }

  HEED_DEVICE void hide_unseen(Scores& s, int lane, int first_key) const {
#pragma unroll
    for (int n = 0; n < eights; ++n) {
      const int j = first_key + key_of(lane, n);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (j < begin[r] || j >= end[r]) s[n][r] = minus_infinity;
    }
  }

  // Whether some row sees a key of the tile.
  HEED_DEVICE bool take_masks(int first_key) {
    const bool first = masks[0].take(first_key), second = masks[1].take(first_key);
    return warp_any(first || second);
  }
  HEED_DEVICE void hide_masked(Scores& s, int lane) const {
#pragma unroll
    for (int n = 0; n < eights; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (!masks[r].sees(0, key_of(lane, n))) s[n][r] = minus_infinity;
  }

  // Scores of row r become weights. Returns the factor of what was summed against the old maximum.
  HEED_DEVICE float weigh(int r, Scores& s) {
    float top = s[0][r];
#pragma unroll
    for (int n = 1; n < eights; ++n) top = fmaxf(top, s[n][r]);
#pragma unroll
    for (int across = 4; across < 32; across *= 2) top = fmaxf(top, shuffle_xor(top, across));
    const float now = fmaxf(max[r], top);
    const float factor = fast_exp2(max[r] - finite_max(now));
    max[r] = now;
    const float subtract = finite_max(now) - lift<type>;
    float total = 0;
#pragma unroll
    for (int n = 0; n < eights; n += 2) {
      s[n][r] = fast_exp2(s[n][r] - subtract), s[n + 1][r] = fast_exp2(s[n + 1][r] - subtract);
      total = n == 0 ? s[n][r] + s[n + 1][r] : total + (s[n][r] + s[n + 1][r]);
    }
    sum[r] = fmaf(sum[r], factor, total);
    return factor;
  }

  // Those of the n-th eight keys. A weight of 0 stays 0, whatever the scale of a value that nobody sees is.
  HEED_DEVICE static void scale_weights(Scores& s, int n, const float2& scales) {
#pragma unroll
    for (int r = 0; r < 2; ++r) s[n][r] = s[n][r] == 0 ? 0.0f : s[n][r] * (n % 2 == 0 ? scales.x : scales.y);
  }

  // Where no maximum of a warp has moved, there is nothing to do.
  HEED_DEVICE void rescale(float first, float second) {
    if (!warp_any(first != 1.0f || second != 1.0f)) return;
#pragma unroll
    for (int d = 0; d < dim / 16; ++d)
#pragma unroll
      for (int n = 0; n < 4; ++n) o[d][n] *= n % 2 == 0 ? first : second;
  }

  std::uint32_t q[dim / 16][2];
  int begin[2], end[2];
  bool is_masked;
  RowMask<Shape> masks[2];
  float max[2], sum[2], o[dim / 16][4];
};

}  // namespace heed::cuda
