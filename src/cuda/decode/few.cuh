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

// Tiles of 16 keys and their values out of the caller's rows: (keys, dims), sixteenths of a row swizzled by
// the key's number, so that eight rows of a matrix are read without conflicts.
template <class Shape>
class FewRows {
  static constexpr int dim = Shape::dim, pieces = dim / 8;  // 16 bytes each, in a row
  using Team = DecodeTeam<Shape>;

 public:
  // A tile that has arrived. Operands come in twos, as bytes do.
  struct Tile {
    SharedAddress keys;

    // Keys times dimensions [16 k, 16 k + 16), and the next sixteen.
    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int k, int lane) const {
#pragma unroll
      for (int n = 0; n < 2; ++n) load_matrices(a[n], keys + place(lane % 16, 2 * (k + n) + lane / 16));
    }
    // Dimensions [16 d, 16 d + 16) times keys, and the next sixteen.
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int d, int lane) const {
#pragma unroll
      for (int n = 0; n < 2; ++n)
        load_matrices_transposed(
            a[n], keys + Shape::tile_bytes + place(lane % 8 + lane / 16 * 8, 2 * (d + n) + lane / 8 % 2));
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

// Where a warp's lanes find the next tile of a cache: keys and values of 16 tokens, in pieces of 16 bytes.
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

// Out of a cache's pages, as they lie in them: keys (dims, 16) and values (dims / 16, 16, 16), halves
// swizzled by the row's fourth.
template <class Shape>
class FewPages {
  static constexpr int dim = Shape::dim;

 public:
  // A tile that has arrived, as that of FewRows.
  struct Tile {
    SharedAddress keys;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int k, int lane) const { load(a, keys, k, lane); }
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int d, int lane) const {
      load(a, keys + Shape::tile_bytes, d, lane);
    }

   private:
    HEED_DEVICE static void load(std::uint32_t (&a)[2][4], SharedAddress from, int n, int lane) {
      const SharedAddress row = from + place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
      load_matrices_transposed(a[0], row + n * 512), load_matrices_transposed(a[1], row + n * 512 + 512);
    }
  };

  HEED_DEVICE FewPages(const DecodeHead& of, int first_tile) : head(of), places(of, first_tile) {}

  // Keys beyond the sequence are masked whatever they are; their values must be 0. A lane has half a row of
  // 32 bytes, and the same of the row sixteen further.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    const auto from = places.next();
    const int lane = lane_index(), row = lane / 2;
    const SharedAddress at = to + place(row, lane % 2);
    const bool is_wanted = head.is_wanted(tile + row);
#pragma unroll
    for (int n = 0; n < dim; n += 16) {
      const bool has_k = !Shape::padded || n + row < places.key_rows,
                 has_v = !Shape::padded || n < places.value_rows;
      prefetch16(at + n * 32, from.keys + lane * 16 + n * 32, has_k);
      prefetch16(at + Shape::tile_bytes + n * 32, from.values + lane * 16 + n * 32, has_v && is_wanted);
    }
  }

 private:
  HEED_DEVICE static SharedAddress place(int row, int half) {
    return static_cast<SharedAddress>(row * 32 + (half ^ row / 4 % 2) * 16);
  }

  const DecodeHead head;
  TilePlaces<Shape> places;
};

// Out of an int8 cache's pages: keys (dims, 16) and values (dims / 16, 16, 16), of which the eight tokens of
// even number come first; then the scales of both. Matrices of 16-bit numbers are loaded whose halves are
// neighbours, of two keys or of two dimensions: one goes to the first eight rows of a product, the other to
// the last (in_sixteen). Bytes are widened exactly; none that nobody sees is infinite, so that 0 times it
// is 0.
template <class Shape>
class FewBytes {
  static constexpr int dim = Shape::dim;

 public:
  struct Tile {
    SharedAddress keys;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int k, int lane) const { load(a, keys, k, lane); }
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int d, int lane) const {
      load(a, keys + Shape::tile_bytes, d, lane);
    }
    // Of this lane's two keys.
    HEED_DEVICE float2 key_scales(int lane) const {
      return load_shared_floats(keys + 2 * Shape::tile_bytes + lane / 4 * 8);
    }
    HEED_DEVICE float2 value_scales(int lane) const {
      return load_shared_floats(keys + 2 * Shape::tile_bytes + 64 + lane / 4 * 8);
    }

   private:
    HEED_DEVICE static void load(std::uint32_t (&a)[2][4], SharedAddress from, int n, int lane) {
      std::uint32_t bytes[4];
      load_matrices_transposed(bytes, from + n * 256 + lane * 16);
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
    const auto from = places.next();
    const int lane = lane_index(), token = lane % 8 * 2 + lane / 8 % 2;
    const SharedAddress at = to + lane * 16;
#pragma unroll
    for (int n = 0; n < dim; n += 32) {
      const bool has_k = !Shape::padded || n + lane < places.key_rows,
                 has_v = !Shape::padded || n + lane / 16 * 16 < places.value_rows;
      prefetch16(at + n * 16, from.keys + lane * 16 + n * 16, has_k);
      prefetch16(at + Shape::tile_bytes + n * 16, from.values + lane / 16 * 256 + token * 16 + n * 16, has_v);
    }
    prefetch16_if(lane < 8, at + 2 * Shape::tile_bytes, from.key_scales + lane / 4 * apart + lane % 4 * 16);
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
  static constexpr int dim = Shape::dim;

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

  // 16 keys for all rows.
  template <class Tile>
  HEED_DEVICE void attend_tile(const DecodeWork& work, Tile tile, int first_key) {
    if (is_masked && !take_masks(first_key)) return;
    // [eight of the keys][row]. In one array of four the compiler leaves them in memory, and 64
    // sequences of 4096 keys took 276 us instead of 247 (H200, November 2026).
    float s[2][2];
    find_scores(s, work, tile, first_key);
    if (is_masked) hide_masked(s, work.lane);
    const float first = weigh(0, s[0][0], s[1][0]), second = weigh(1, s[0][1], s[1][1]);
    if constexpr (Shape::quantized) scale_weights(s, tile.value_scales(work.lane));
    const std::uint32_t p[2] = {transposed(pack2<type>(s[0][0], s[0][1])),
                                transposed(pack2<type>(s[1][0], s[1][1]))};
    rescale(first, second);
#pragma unroll
    for (int d = 0; d < dim / 16; d += 2) {
      if (Shape::padded && d % 4 == 0 && 16 * d >= work.c.value_dim) break;
      std::uint32_t a[2][4];
      tile.load_values(a, d, work.lane);
      add_product<type>(o[d], a[0], p[0], p[1]), add_product<type>(o[d + 1], a[1], p[0], p[1]);
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
  HEED_DEVICE void find_scores(float (&s)[2][2], const DecodeWork& work, Tile tile, int first_key) const {
    // Even and odd steps are summed apart: each product would wait for the last.
    float product[2][4] = {};
#pragma unroll
    for (int k = 0; k < dim / 16; k += 2) {
      if (Shape::padded && k % 4 == 0 && 16 * k >= work.c.dim) break;
      std::uint32_t a[2][4];
      tile.load_keys(a, k, work.lane);
      add_product<type>(product[0], a[0], q[k][0], q[k][1]);
      add_product<type>(product[1], a[1], q[k + 1][0], q[k + 1][1]);
    }
    float scales[2] = {1, 1};
    if constexpr (Shape::quantized) {
      const float2 of_keys = tile.key_scales(work.lane);
      scales[0] = of_keys.x, scales[1] = of_keys.y;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
      s[n / 2][n % 2] = infinity_to_nan((product[0][n] + product[1][n]) * scales[n / 2] * work.c.scale_log2e);
    if (work.c.softcap_log2e != 0) {
#pragma unroll
      for (int n = 0; n < 4; ++n) s[n / 2][n % 2] = softcapped_score(work.c.softcap_log2e, s[n / 2][n % 2]);
    }
    if (!work.all_see(first_key, first_key + Shape::tile_keys)) hide_unseen(s, work.lane, first_key);
  }
  HEED_DEVICE void hide_unseen(float (&s)[2][2], int lane, int first_key) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int j = first_key + in_sixteen<Shape>(lane, n / 2);
      if (j < begin[n % 2] || j >= end[n % 2]) s[n / 2][n % 2] = minus_infinity;
    }
  }

  // Whether some row sees a key of the tile.
  HEED_DEVICE bool take_masks(int first_key) {
    const bool first = masks[0].take(first_key), second = masks[1].take(first_key);
    return warp_any(first || second);
  }
  HEED_DEVICE void hide_masked(float (&s)[2][2], int lane) const {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (!masks[n % 2].sees(0, in_sixteen<Shape>(lane, n / 2))) s[n / 2][n % 2] = minus_infinity;
  }

  // Scores of row n, one of each eight keys, become weights. Returns the factor of what was summed against
  // the old maximum.
  HEED_DEVICE float weigh(int n, float& a, float& b) {
    float top = fmaxf(a, b);
#pragma unroll
    for (int across = 4; across < 32; across *= 2) top = fmaxf(top, shuffle_xor(top, across));
    const float now = fmaxf(max[n], top);
    const float factor = fast_exp2(max[n] - finite_max(now));
    max[n] = now;
    const float subtract = finite_max(now) - lift<type>;
    a = fast_exp2(a - subtract), b = fast_exp2(b - subtract);
    sum[n] = fmaf(sum[n], factor, a + b);
    return factor;
  }

  // A weight of 0 stays 0, whatever the scale of a value that nobody sees is.
  HEED_DEVICE static void scale_weights(float (&s)[2][2], const float2& scales) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      s[n / 2][n % 2] = s[n / 2][n % 2] == 0 ? 0.0f : s[n / 2][n % 2] * (n < 2 ? scales.x : scales.y);
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
